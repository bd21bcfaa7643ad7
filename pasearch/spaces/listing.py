"""List of the built-in search spaces: data, networks, ranges and number of architectures."""

from __future__ import annotations

import json
import math
from typing import Any

from pasearch.errors import UsageError, suggest_name
from pasearch.spaces.candidate import SETTINGS
from pasearch.spaces.portfolio import load_studies
from pasearch.spaces.space import BUILT_IN_SPACES, DEPTH_GENES, GENE_DEFAULTS, SearchSpace

# Description of each family, and of the data that it suits.
FAMILY_NAMES = {
    "fcn": "fully connected networks",
    "cnn": "convolutional networks",
    "rnn": "embeddings and recurrent networks (GRU, LSTM)",
}
FAMILY_DATA = {
    "fcn": "tables, arrays and images",
    "cnn": "images from 16 x 16 pixels",
    "rnn": "one text column of a table",
}

SPACE_DESCRIPTIONS = {
    "images": ("images", "linear models and one hidden layer, with or without scattering"),
    "tables": ("tables", "linear models, and one or two small hidden layers"),
}
"""Data and networks of the spaces that differ from the description of their family."""

SPACE_SOURCES = {
    "fcn-paper": "Bao et al., Table XI",
    "cnn-paper": "Bao et al., Table XII",
    "fcn-deep": "Bao et al., section VIII-A, one width for all layers",
    "fcn-rwt": "Bao et al., Table XI, layers trainable or frozen at random weights (IX-A)",
    "cnn-rwt": "Bao et al., Table XII, layers trainable or frozen at random weights (IX-A)",
}


def list_spaces(name: str | None = None) -> dict[str, dict[str, Any]]:
    """Return a description of each built-in search space, JSON-compatible values, by name.

    Args:
        name: Name of one space; None lists all of them, and the portfolio of `auto`.

    Raises:
        UsageError: There is no space of this name that can be written as a file.

    >>> list_spaces("cnn-paper")["cnn-paper"]["architectures"]
    24
    """
    if name == "auto" or ":" in (name or ""):
        what = "a list of networks" if name == "auto" else "a class"
        raise UsageError(f"Space {name!r} has no file: it is {what}. Name it by `space={name}`.")
    if name is not None and name not in BUILT_IN_SPACES:
        known = ", ".join(BUILT_IN_SPACES)
        raise UsageError(
            f"Space {name!r} is unknown or has no file form: expected one of {known}."
            f"{suggest_name(name, BUILT_IN_SPACES)}"
        )
    table: dict[str, dict[str, Any]] = {}
    if name is None:
        sizes = {study.kind: len(study.entries) for study in load_studies()}
        table["auto"] = {
            "about": "portfolio of near-best networks from public data of the same kind",
            "data": "all data",
            "ranges": f"networks by kind of data: {_join(sizes)}; {sum(sizes.values())} "
            "architectures",
            "architectures": sum(sizes.values()),
            "source": "public data sets",
        }
    for each in BUILT_IN_SPACES if name is None else (name,):
        space = SearchSpace.from_dict(BUILT_IN_SPACES[each], name=each)
        data, about = SPACE_DESCRIPTIONS.get(
            each, (FAMILY_DATA[space.family], FAMILY_NAMES[space.family])
        )
        number = count_architectures(space)
        values = {gene: list(choices) for gene, choices in space.choices}
        ranges = "; ".join(f"{gene} {_join(choices)}" for gene, choices in values.items())
        table[each] = {
            "about": f"{about}, for {data}",
            "data": data,
            "ranges": f"{ranges}; {number:,} architectures, {space.count():,} candidates",
            "architectures": number,
            "source": SPACE_SOURCES.get(each, "pasearch"),
            "family": space.family,
            "choices": values,
            "default": dict(space.default),
        }
    return table


def _join(values: Any) -> str:
    """Return values, or pairs of a name and a number, separated by commas."""
    if isinstance(values, dict):
        return ", ".join(f"{name} {number}" for name, number in values.items())
    return ", ".join(map(str, values)).replace("True, False", "true, false")


def count_architectures(space: SearchSpace) -> int:
    """Return the number of different networks of a space, whatever their hyperparameters are.

    A gene whose name ends in the number of a layer has no effect in a network with fewer layers.
    """
    genes = {gene: choices for gene, choices in space.choices if gene not in SETTINGS}
    depth_gene = next(gene for gene in DEPTH_GENES if gene in GENE_DEFAULTS[space.family])
    depths = genes.pop(depth_gene, (GENE_DEFAULTS[space.family][depth_gene],))
    sizes = [
        (len(choices), int(gene.rpartition("_")[2]) if gene[-1].isdigit() else 0)
        for gene, choices in genes.items()
    ]
    return sum(math.prod(size for size, layer in sizes if layer <= depth) for depth in depths)


def format_space_toml(values: dict[str, Any]) -> str:
    """Return the text of a TOML file for `space=` from a description of `list_spaces`."""
    lines = [f"# {values['about']} [{values['source']}]", f'family = "{values["family"]}"']
    for part in ("choices", "default"):
        lines += [f"[{part}]", *(f"{gene} = {json.dumps(v)}" for gene, v in values[part].items())]
    return "\n".join(lines)
