"""Search spaces: distributions over candidates, given by genes (choices) and their possible values.

    genotype = one index per gene  ->  Candidate = Architecture + hyperparameters

Each gene of a candidate is drawn uniformly and independently. Repeat-and-select requires such a
distribution, which is fixed before data is read. Two genotypes can give the same candidate: for
example, the units of an absent layer have no effect. Therefore results are stored per candidate,
never per genotype.

Source: Bao et al., section VIII-A (a dictionary of choices), Table XI (FCN), Table XII (CNN);
the trainable flags are those of section IX-A (random weights training).
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar

from pasearch.accounting.checks import check_positive_integer
from pasearch.data.front_ends import FrontEnd
from pasearch.data.front_ends.parsing import parse_front_end
from pasearch.errors import UsageError, suggest_name
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.candidate import PRIVACY_SETTINGS, SETTINGS, Candidate
from pasearch.spaces.layers import (
    LAYERS,
    MAX_LAYER_SIZE,
    Conv,
    Dense,
    Embedding,
    Layer,
    Pool,
    Shape,
    check_activation,
)

if TYPE_CHECKING:
    import numpy as np

# --- families of networks, and built-in spaces ---


DEFAULT_WIDTHS = (128, 64, 32)
"""Units of the first, second and later hidden layers of family `fcn` without genes for them."""


def _make_fcn_layers(genes: Mapping[str, Any]) -> tuple[Layer, ...]:
    """Make the hidden layers of Table XI: gene `layers` is their number, 0 for a linear model.

    `units` and `activation` are those of each layer without its own.
    """
    return tuple(
        Dense(
            units=genes[f"units_{i}"] or genes["units"] or DEFAULT_WIDTHS[min(i, 3) - 1],
            activation=genes[f"activation_{i}"] or genes["activation"],
            trainable=genes[f"trainable_{i}"],
            dropout=genes["dropout"],
        )
        for i in range(1, genes["layers"] + 1)
    )


def _make_cnn_layers(genes: Mapping[str, Any]) -> tuple[Layer, ...]:
    """Make the layers of Table XII: 2x2 pooling, convolutional blocks, and one dense layer.

    Block i has i times `filters` filters: 5x5 without padding in the first block, 3x3 with padding
    "same" in later ones. A pooling layer is between two blocks, but not after the last.
    """
    layers: list[Layer] = [Pool(size=2)]
    for i in range(1, genes["blocks"] + 1):
        layers.append(
            Conv(
                filters=i * genes["filters"],
                kernel=5 if i == 1 else 3,
                padding="valid" if i == 1 else "same",
                activation=genes["conv_activation"],
                trainable=genes[f"trainable_{i}"],
            )
        )
        if i < genes["blocks"]:
            layers.append(Pool(size=2))
    head = Dense(
        units=genes["units"],
        activation=genes["activation"],
        trainable=genes["trainable_dense"],
        dropout=genes["dropout"],
    )
    return (*layers, head)


def _make_rnn_layers(genes: Mapping[str, Any]) -> tuple[Layer, ...]:
    """Make the layers of Tables XXVII and XXVIII: an embedding, recurrent layers, one dense layer.

    Gene `layers` is the number of recurrent layers; `head` the units of the dense layer, 0 for
    none. All recurrent layers but the last return all their states.
    """
    many, cell = genes["layers"], LAYERS[genes["cell"]]
    recurrent = [
        cell(units=genes["units"], sequence=place < many)  # pyright: ignore[reportCallIssue]
        for place in range(1, many + 1)
    ]
    embedding = Embedding(tokens=genes["tokens"], units=genes["embedding"])
    head = [Dense(units=genes["head"], activation="relu")] if genes["head"] else []
    return (embedding, *recurrent, *head)


LAYER_BUILDERS = {"fcn": _make_fcn_layers, "cnn": _make_cnn_layers, "rnn": _make_rnn_layers}

MAX_HIDDEN_LAYERS = 16
"""Maximum number of hidden layers of family `fcn`, as in section VIII-A of Bao et al."""

# Genes of each family, with their values in a space that does not list them. None: see the builder.
GENE_DEFAULTS: dict[str, dict[str, Any]] = {
    "fcn": {
        "layers": 1,
        "units": None,
        "activation": "tanh",
        **{f"units_{i}": None for i in range(1, MAX_HIDDEN_LAYERS + 1)},
        **{f"activation_{i}": None for i in range(1, MAX_HIDDEN_LAYERS + 1)},
        **{f"trainable_{i}": True for i in range(1, MAX_HIDDEN_LAYERS + 1)},
        "dropout": 0.0,
    },
    "cnn": {
        "blocks": 2,
        "filters": 16,
        "units": 64,
        "conv_activation": "relu",
        "activation": "relu",
        **{f"trainable_{i}": True for i in (1, 2, 3)},
        "trainable_dense": True,
        "dropout": 0.0,
    },
    "rnn": {
        "tokens": 1000,
        "embedding": 50,
        "cell": "gru",
        "layers": 1,
        "units": 16,
        "head": 0,
    },
}

# Choices of the paper's search spaces.
TABLE_XI: dict[str, tuple[Any, ...]] = {
    "layers": (1, 2, 3),
    "units_1": (64, 128, 512, 1024, 2048),
    "units_2": (64, 128, 256),
    "units_3": (10, 16, 32, 64),
    **{f"activation_{i}": ("relu", "sigmoid", "tanh") for i in (1, 2, 3)},
}

TABLE_XII: dict[str, tuple[Any, ...]] = {
    "blocks": (2, 3),
    "filters": (16, 32, 48),
    "units": (32, 64, 128, 512),
}

# Choices that make random weights training (frozen random layers) possible.
_RWT_FCN = {f"trainable_{i}": (True, False) for i in (1, 2, 3)}
_RWT_CNN = {**_RWT_FCN, "trainable_dense": (True, False)}

# Factors of the recommended learning rate and number of steps: the defaults, and the choices.
DEFAULT_SCALES = {"learning_rate_scale": 1.0, "steps_scale": 1.0}
SCALE_CHOICES = {"learning_rate_scale": (0.5, 1.0, 2.0), "steps_scale": (0.5, 1.0)}

BUILT_IN_SPACES: dict[str, dict[str, Any]] = {
    "fcn": {
        "family": "fcn",
        "choices": {
            "layers": (1, 2),
            "units_1": (128, 256, 512),
            "units_2": (64, 128),
            **{f"activation_{i}": ("tanh", "relu", "tempered_sigmoid") for i in (1, 2)},
            "learning_rate_scale": (0.8, 1.0, 1.25),
            "steps_scale": (0.5, 1.0),
        },
        "default": {"units_1": 128, "activation_1": "tanh", **DEFAULT_SCALES},
    },
    "images": {
        "family": "fcn",
        "choices": {
            "front_end": ("scattering", "raw"),
            "layers": (0, 1),
            "units_1": (32, 64, 128),
            "activation_1": ("tanh", "relu"),
            **SCALE_CHOICES,
        },
        "default": DEFAULT_SCALES,
    },
    "tables": {
        "family": "fcn",
        "choices": {
            "layers": (0, 1, 2),
            "units_1": (16, 32, 64, 128),
            "units_2": (16, 32),
            **{f"activation_{i}": ("tanh", "relu") for i in (1, 2)},
            **SCALE_CHOICES,
        },
        "default": DEFAULT_SCALES,
    },
    "fcn-paper": {"family": "fcn", "choices": {**TABLE_XI, "dropout": (0.2,)}},
    "fcn-deep": {
        "family": "fcn",
        "choices": {
            "layers": (1, 2, 4, 8, 16),
            "units": (64, 128, 256),
            "activation": ("tanh", "sigmoid", "relu"),
        },
    },
    "fcn-rwt": {"family": "fcn", "choices": {**TABLE_XI, **_RWT_FCN, "dropout": (0.2,)}},
    "cnn": {
        "family": "cnn",
        "choices": {
            "blocks": (2, 3),
            "filters": (16, 32),
            "units": (32, 64, 128),
            "conv_activation": ("tanh", "relu"),
            "activation": ("tanh", "relu"),
            "trainable_1": (True, False),
            "learning_rate_scale": (0.7, 1.0, 1.4),
        },
        "default": {"units": 64, "learning_rate_scale": 1.0},
    },
    "rnn": {
        "family": "rnn",
        "choices": {
            "embedding": (16, 50),
            "cell": ("gru", "lstm"),
            "layers": (1, 2),
            "units": (8, 16, 32),
            "learning_rate_scale": (0.5, 1.0, 2.0),
        },
        "default": {"embedding": 50, "units": 16, "learning_rate_scale": 1.0},
    },
    "cnn-paper": {"family": "cnn", "choices": {**TABLE_XII, "dropout": (0.3,)}},
    "cnn-rwt": {"family": "cnn", "choices": {**TABLE_XII, **_RWT_CNN, "dropout": (0.3,)}},
}


# --- search spaces ---

Genotype = tuple[int, ...]

MAX_STEP_COUNTS = 16
"""Maximum number of different step counts of a space: each has a separate privacy cost."""

MAX_SCALE = 1e6
"""Maximum of learning rates, clip norms and scale factors, so that their products are finite."""

SHAPE_GENES = (
    "front_end", "layers", "blocks", "filters", "units", "tokens", "embedding", "cell", "head"
)  # fmt: skip
"""Prefixes of the genes that change a network's shape."""

MAX_COMBINATIONS = 20_000
"""Maximum number of network shapes of a space, and of combinations of hyperparameters: a plan
enumerates both.
"""

MAX_ENTRIES = 1000
"""Maximum number of candidates of a portfolio."""

RANGE_POINTS = 1025
"""Number of values by which a continuous range is replaced; also the maximum per gene."""


DEPTH_GENES = ("layers", "blocks")
"""Genes that set the number of layers of a network."""


class Space(ABC):
    """Search space: a uniform distribution over candidates, fixed before data is read."""

    __slots__ = ()
    name: str

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, ...]:
        """Number of values of each gene."""

    @abstractmethod
    def candidate(self, genotype: Sequence[int]) -> Candidate:
        """Return the candidate of a genotype."""

    @abstractmethod
    def default_genotype(self) -> Genotype:
        """Return the genotype of the default candidate."""

    @abstractmethod
    def iterate_shapes(self) -> Iterator[Candidate]:
        """Iterate over candidates of all network shapes, or of extreme ones if there are many."""

    @abstractmethod
    def settings(self) -> list[tuple[tuple[str, float], ...]]:
        """List every combination of hyperparameters, each a tuple of pairs (name, value)."""

    @abstractmethod
    def front_ends(self) -> tuple[FrontEnd, ...]:
        """List every front end in the space."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return JSON-compatible values."""

    def contains(self, candidate: Candidate) -> bool:
        """Whether a candidate, with its settings and front end, is in the space.

        The most similar genotype is found gene by gene. Genes that set the number of layers come
        first.
        """
        names, wanted = getattr(self, "genes", ()), candidate.to_json()
        genotype = [0] * len(names)
        for place in sorted(range(len(names)), key=lambda each: names[each] not in DEPTH_GENES):
            likeness = []
            for value in range(self.sizes[place]):
                genotype[place] = value
                likeness.append(_compare_candidates(self.candidate(genotype).to_json(), wanted))
            genotype[place] = likeness.index(max(likeness))
        return self.candidate(genotype).to_json() == wanted

    def draw(self, generator: np.random.Generator) -> Genotype:
        """Draw a genotype uniformly, gene by gene."""
        return tuple(int(generator.integers(size)) for size in self.sizes)

    def count(self) -> int:
        """Return the number of genotypes."""
        return math.prod(self.sizes)

    def parameter_range(self, shape: Shape, outputs: int) -> tuple[int, int]:
        """Return the number of parameters of the default and of the largest network."""
        default = self.candidate(self.default_genotype()).parameters(shape, outputs)[0]
        return default, max(each.parameters(shape, outputs)[0] for each in self.iterate_shapes())

    @property
    def reads_tokens(self) -> bool:
        """Whether its networks begin with an embedding, so that records must be token numbers.

        Raises:
            UsageError: Only some of them do, or a front end changes the token numbers.
        """
        kinds = {
            (each.architecture.layers[:1] != () and each.architecture.layers[0].kind == "embedding",
             each.front_end.text)
            for each in self.iterate_shapes()
        }  # fmt: skip
        reads = {embeds for embeds, _ in kinds}
        if reads == {True, False} or any(embeds and front != "raw" for embeds, front in kinds):
            raise UsageError(
                f"Space {self.name!r}: expected an embedding as the first layer of all networks or "
                "of none, and front end raw before it."
            )
        return reads == {True}

    def check_fits(self, shape: Shape, outputs: int) -> None:
        """Raise UsageError if a network of the space cannot be built for records of this shape.

        Raises:
            UsageError: The message names the layer that does not fit.
        """
        for candidate in self.iterate_shapes():
            try:
                candidate.parameters(shape, outputs)
            except UsageError as error:
                what = "The architecture" if self.count() == 1 else f"Space {self.name!r}"
                raise UsageError(
                    f"{what} does not fit records of shape {tuple(shape)}: {error}"
                ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSpace(Space):
    """Search space of a family of networks: possible values of its genes.

    Args:
        name: Name in the plan and the privacy card.
        family: "fcn" (fully connected), "cnn" (convolutional) or "rnn" (recurrent, for texts).
        choices: Pairs (gene, values); other genes of the family have their `GENE_DEFAULTS`.
        default: Pairs (gene, value) of the default candidate (strategy `fixed`); other genes have
            their first value.

    Raises:
        UsageError: An unknown family or gene, an empty choice, or an invalid value.
    """

    name: str
    family: str
    choices: tuple[tuple[str, tuple[Any, ...]], ...]
    default: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        known = self.list_known_genes()
        for gene, values in self.choices:
            where = f"Space {self.name!r}, choice {gene!r}"
            if gene not in known:
                listed = [each for each in known if not re.search(r"_([2-9]|1\d)$", each)]
                raise UsageError(
                    f"{where}: no such gene: expected one of {', '.join(listed)}; genes ending in "
                    "1 also with the number of a later layer."
                    + suggest_name(gene.removesuffix("_size"), known)
                )
            if not values:
                raise UsageError(f"{where}: is empty: add at least one value.")
            if len(values) > RANGE_POINTS:
                raise UsageError(
                    f"{where}: has {len(values):,} values: expected at most {RANGE_POINTS:,}."
                )
            for value in values:
                self.check_value(where, gene, value)
            if (
                gene in ("steps", "steps_scale", "batch", "batch_share")
                and len(values) > MAX_STEP_COUNTS
            ):
                raise UsageError(
                    f"{where}: has {len(values)} values: expected {MAX_STEP_COUNTS} or fewer, "
                    "because each has a separate privacy cost. Use fewer values."
                )
        genes = self.genes
        if len(set(genes)) != len(genes):
            raise UsageError(f"Space {self.name!r}: a gene is listed twice: remove one.")
        for gene, value in self.default:
            if gene not in genes or value not in dict(self.choices)[gene]:
                raise UsageError(
                    f"Space {self.name!r}: default {gene} = {value!r} is not one of its choices."
                )
        _check_alternatives(f"Space {self.name!r}", genes)
        for what, named in (
            ("shapes of a network", [g for g in genes if self.is_shape_gene(g)]),
            ("settings of the recipe", [g for g in genes if g in SETTINGS]),
        ):
            counted = [g for g in named if g not in self._list_free_widths()]
            many = math.prod(len(dict(self.choices)[g]) for g in counted)
            if many > MAX_COMBINATIONS:
                raise UsageError(
                    f"Space {self.name!r} has {many:,} {what}, by {', '.join(named)}: expected at "
                    f"most {MAX_COMBINATIONS:,}, because a plan evaluates each. Use fewer values."
                )

    def list_known_genes(self) -> dict[str, Any]:
        """Return the genes that the space may have, with their defaults.

        Raises:
            UsageError: The family is unknown.
        """
        if self.family not in GENE_DEFAULTS:
            raise UsageError(
                f"Space {self.name!r}: family is {self.family!r}: "
                f"expected one of {', '.join(GENE_DEFAULTS)}."
            )
        return {"front_end": None, **GENE_DEFAULTS[self.family], **dict.fromkeys(SETTINGS)}

    def check_value(self, where: str, gene: str, value: object) -> None:
        """Raise UsageError for an invalid value of a gene; `where` begins the message."""
        _check_gene(where, gene, value)

    def is_shape_gene(self, gene: str) -> bool:
        """Whether a gene changes the shape of a network."""
        return gene.startswith(SHAPE_GENES)

    def _list_free_widths(self) -> list[str]:
        """List the genes of widths of which a plan evaluates only the extremes, if there are many.

        A dense layer of any width fits, and a wider one has more parameters.
        """
        return [g for g in self.genes if self.family == "fcn" and g.startswith("units_")]

    def make_layers(self, genes: Mapping[str, Any]) -> tuple[Layer, ...]:
        """Make the layers of a candidate from the values of its genes."""
        return LAYER_BUILDERS[self.family]({**GENE_DEFAULTS[self.family], **genes})

    @property
    def genes(self) -> tuple[str, ...]:
        """Names of the genes, in order."""
        return tuple(gene for gene, _ in self.choices)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(len(values) for _, values in self.choices)

    def default_genotype(self) -> Genotype:
        default = dict(self.default)
        return tuple(
            values.index(default[gene]) if gene in default else 0 for gene, values in self.choices
        )

    def candidate(self, genotype: Sequence[int]) -> Candidate:
        genes = {
            gene: values[index]
            for (gene, values), index in zip(self.choices, genotype, strict=True)
        }
        settings = tuple((name, genes[name]) for name in SETTINGS if name in genes)
        return Candidate(
            architecture=Architecture(layers=self.make_layers(genes)),
            settings=settings,
            front_end=parse_front_end(genes.get("front_end", "raw")),
        )

    def front_ends(self) -> tuple[FrontEnd, ...]:
        return tuple(
            parse_front_end(each) for each in dict(self.choices).get("front_end", ("raw",))
        )

    def settings(self) -> list[tuple[tuple[str, float], ...]]:
        named = [(name, dict(self.choices)[name]) for name in SETTINGS if name in self.genes]
        names = [name for name, _ in named]
        combinations = product(*(values for _, values in named))
        return [tuple(zip(names, combination, strict=True)) for combination in combinations]

    def iterate_shapes(self) -> Iterator[Candidate]:
        varied = {gene: values for gene, values in self.choices if self.is_shape_gene(gene)}
        is_small = math.prod(map(len, varied.values())) <= MAX_COMBINATIONS
        free = [] if is_small else self._list_free_widths()
        extremes = [
            {gene: varied[gene].index(choose(varied[gene])) for gene in free}
            for choose in ((min, max) if free else (min,))
        ]
        rest = {gene: range(len(values)) for gene, values in varied.items() if gene not in free}
        for indices, widths in product(product(*rest.values()), extremes):
            genes = {**dict(zip(rest, indices, strict=True)), **widths}
            yield self.candidate([genes.get(gene, 0) for gene in self.genes])

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "family": self.family,
            "choices": {gene: list(values) for gene, values in self.choices},
            "default": dict(self.default),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], name: str = "user") -> SearchSpace:
        """Parse a space from a dictionary with the keys of a TOML file.

        Args:
            values: Dictionary with `family`, `choices` (gene to a list of values, or to
                `{low, high, log}` for a continuous range) and optionally `name`, `default`.
            name: Name of the space if the dictionary has none.

        Raises:
            UsageError: Unknown keys, or an invalid space.
        """
        if unknown := set(values) - {"name", "family", "choices", "default"}:
            raise UsageError(
                f"Space {name!r}: unknown key {', '.join(sorted(map(str, unknown)))}: "
                "expected name, family, choices, default."
            )
        choices = values.get("choices", {})
        default = values.get("default", {})
        if not isinstance(choices, Mapping) or not isinstance(default, Mapping):
            raise UsageError(f"Space {name!r}: choices and default are tables of gene = values.")
        return cls(
            name=str(values.get("name", name)),
            family=str(values.get("family", "fcn")),
            choices=tuple((str(g), _parse_values(name, str(g), v)) for g, v in choices.items()),
            default=tuple((str(g), v) for g, v in default.items()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Portfolio(Space):
    """Search space given by a list of candidates, each drawn with the same probability.

    Args:
        name: Name in the plan and the privacy card.
        entries: Candidates, one or more; the first is the default.

    Raises:
        UsageError: No entry, or too many step counts.
    """

    family: ClassVar[str] = "portfolio"
    name: str
    entries: tuple[Candidate, ...]

    def __post_init__(self) -> None:
        if not self.entries:
            raise UsageError(f"Portfolio {self.name!r} is empty: add at least one candidate.")
        settings = (
            {n: v for n, v in entry.settings if n in PRIVACY_SETTINGS} for entry in self.entries
        )
        if len({tuple(each.items()) for each in settings}) > MAX_STEP_COUNTS:
            raise UsageError(
                f"Portfolio {self.name!r}: expected at most {MAX_STEP_COUNTS} combinations of "
                f"{', '.join(PRIVACY_SETTINGS)}, because each has a separate privacy cost."
            )

    @property
    def sizes(self) -> tuple[int, ...]:
        return (len(self.entries),)

    def candidate(self, genotype: Sequence[int]) -> Candidate:
        (index,) = genotype
        return self.entries[index]

    def contains(self, candidate: Candidate) -> bool:
        return any(each.to_json() == candidate.to_json() for each in self.entries)

    def default_genotype(self) -> Genotype:
        return (0,)

    def iterate_shapes(self) -> Iterator[Candidate]:
        return iter(self.entries)

    def settings(self) -> list[tuple[tuple[str, float], ...]]:
        return list(dict.fromkeys(entry.settings for entry in self.entries))

    def front_ends(self) -> tuple[FrontEnd, ...]:
        return tuple(dict.fromkeys(entry.front_end for entry in self.entries))

    def to_json(self) -> dict[str, Any]:
        entries = [entry.to_json() for entry in self.entries]
        return {"name": self.name, "family": self.family, "entries": entries}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Portfolio:
        """Parse the result of `to_json`."""
        entries = values.get("entries")
        if not isinstance(entries, list) or not all(isinstance(e, Mapping) for e in entries):
            raise UsageError("A portfolio has `entries`: a list of tables with layers.")
        if len(entries) > MAX_ENTRIES:
            raise UsageError(
                f"A portfolio has {len(entries):,} entries: expected at most {MAX_ENTRIES:,}."
            )
        for entry in entries:
            check_settings(entry.get("settings", {}))
        made = tuple(Candidate.from_json(each) for each in entries)
        return cls(name=str(values.get("name", "portfolio")), entries=made)


def _compare_candidates(one: dict[str, Any], other: dict[str, Any]) -> tuple[bool, int]:
    """Compare two candidates: whether they have equally many layers, and number of equal fields."""
    pairs = [*zip(one["layers"], other["layers"], strict=False)]
    pairs.append((one["settings"], other["settings"]))
    same = sum(a.get(name) == value for a, b in pairs for name, value in b.items())
    return len(one["layers"]) == len(other["layers"]), same + (
        one["front_end"] == other["front_end"]
    )


def check_settings(settings: object) -> None:
    """Raise UsageError for invalid hyperparameters in a description of a network.

    Args:
        settings: Value of key `settings` in a user's file: expected a dictionary.
    """
    if not isinstance(settings, Mapping):
        raise UsageError(f"Settings of a network are {settings!r}: expected a table.")
    for name, value in settings.items():
        where = f"Setting {name!r} of a network"
        if name not in SETTINGS:
            raise UsageError(f"{where}: no such setting: expected one of {', '.join(SETTINGS)}.")
        _check_gene(where, name, value)
    _check_alternatives("Settings of a network", settings)


def _check_alternatives(where: str, names: Collection[str]) -> None:
    """Raise UsageError if two names set the same hyperparameter; `where` begins the message."""
    for one, other in (
        ("learning_rate", "learning_rate_scale"), ("steps", "steps_scale"),
        ("batch", "batch_share"),
    ):  # fmt: skip
        if one in names and other in names:
            raise UsageError(f"{where}: use {one} or {other}, not both.")


def _parse_values(name: str, gene: str, given: object) -> tuple[Any, ...]:
    """Parse the values of a gene: a list, or a range {low, high, log}, which becomes a list."""
    if not isinstance(given, Mapping):
        if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
            raise UsageError(
                f"Space {name!r}, choice {gene!r}: is {given!r}: expected a list of values, "
                "or a range {low, high, log}."
            )
        return tuple(given)
    low, high = _parse_number(given.get("low")), _parse_number(given.get("high"))
    log = given.get("log", False)
    known = not set(given) - {"low", "high", "log"} and isinstance(log, bool)
    if not (known and low < high and (low > 0 or not log)):
        raise UsageError(
            f"Space {name!r}, choice {gene!r}: range {dict(given)!r}: expected finite numbers "
            "low < high, both above 0 when log is true, and nothing else."
        )
    shares = (index / (RANGE_POINTS - 1) for index in range(RANGE_POINTS))
    if log:
        return tuple(low * (high / low) ** share for share in shares)
    return tuple(low + (high - low) * share for share in shares)


def _parse_number(value: object) -> float:
    """Convert a finite number to float; anything else to NaN, which fails every check."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    try:
        return float(value) if math.isfinite(value) else math.nan
    except OverflowError:
        return math.nan


def _check_gene(where: str, gene: str, value: object) -> None:
    """Raise UsageError for an invalid value of a gene; `where` begins the message."""
    number, expected = _parse_number(value), ""
    if gene.startswith(("front_end", "activation", "conv_activation")):
        try:
            if gene == "front_end":
                parse_front_end(value if isinstance(value, str) else repr(value))
            else:
                check_activation(value)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from None
    elif gene == "cell":
        expected = "" if value in ("lstm", "gru") else "lstm or gru"
    elif gene == "head":
        expected = "" if type(value) is int and number >= 0 else "an integer, or 0 for no layer"
    elif gene.startswith("trainable"):
        expected = "" if isinstance(value, bool) else "true or false"
    elif gene.startswith("dropout") or gene == "momentum":
        expected = "" if 0.0 <= number < 1.0 else "a number in [0, 1)"
    elif gene in ("batch_share", "learning_rate_end"):
        expected = "" if 0.0 < number <= 1.0 else "a fraction in (0, 1]"
    elif gene == "weight_decay":
        expected = "" if 0.0 <= number <= MAX_SCALE else f"a number from 0 to {MAX_SCALE:g}"
    elif gene.startswith("learning_rate") or gene in ("steps_scale", "clip_norm"):
        if not 0.0 < number <= MAX_SCALE:
            expected = f"a finite number above 0, at most {MAX_SCALE:g}"
    elif gene == "average":
        expected = "" if 0.0 < number < 1.0 else "a fraction in (0, 1)"
    elif gene == "layers":
        if not (isinstance(value, int) and 0 <= number <= MAX_HIDDEN_LAYERS):
            expected = f"an integer from 0 (a linear model) to {MAX_HIDDEN_LAYERS}"
    elif not (isinstance(value, int) and number > 0):
        expected = "an integer above 0"
    elif gene in ("steps", "batch"):
        check_positive_integer(where, value)
    elif number > MAX_LAYER_SIZE:
        expected = f"at most {MAX_LAYER_SIZE:,}"
    elif gene == "blocks" and number > 3:
        expected = "1, 2 or 3"
    if expected:
        raise UsageError(f"{where}: {value!r}: expected {expected}.")


BUILT_IN_NAMES = tuple(BUILT_IN_SPACES)
