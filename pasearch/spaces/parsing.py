"""Search spaces from a name, a file, a dictionary, a class or the import path of a class."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from pasearch.data.front_ends.parsing import resolve_front_end_text
from pasearch.errors import UsageError, suggest_name
from pasearch.files import read_toml
from pasearch.spaces.module_space import ModuleSpace, module_space
from pasearch.spaces.space import BUILT_IN_NAMES, BUILT_IN_SPACES, Portfolio, SearchSpace, Space
from pasearch.spaces.user_modules import name_maker


def make_space(given: str | Path | Mapping[str, Any] | Space | type) -> Space:
    """Make a search space from its name, file, dictionary or class.

    Args:
        given: Name of a built-in space, path of a TOML file, dictionary with the same keys, a
            space, a class of `nn.Module`, or its import path, such as "my_nets:MyNet". Built-in
            spaces: `fcn`, `cnn`, `rnn`, `images` and `tables` are this project's, `fcn-paper` and
            `cnn-paper` are Tables XI and XII, `fcn-deep` has up to 16 layers, and `fcn-rwt` and
            `cnn-rwt` add a trainable flag per layer to Tables XI and XII.

    Raises:
        UsageError: An unknown name, a missing file, or an invalid space.

    >>> make_space("fcn-paper").count()
    4860
    """
    if isinstance(given, Space):
        return given
    if isinstance(given, Mapping):
        return _parse_space(_resolve_front_ends(given, None), "user")
    if not isinstance(given, (str, Path)):
        return module_space(given)
    if str(given) in BUILT_IN_SPACES:
        return SearchSpace.from_dict(BUILT_IN_SPACES[str(given)], name=str(given))
    path = Path(given)
    if path.suffix == ".toml" and path.exists():
        values = read_toml(path, "a search space (TOML)")
        if "class" in values:
            raise UsageError(
                f"{path} names a class, but a file may not import code: name the class, or a "
                "`module_space` with its choices (`space=my_nets:MyNet`)."
            )
        return _parse_space(_resolve_front_ends(values, path.parent), path.stem)
    if re.fullmatch(r"[\w.]+:[\w.]+|\S+\.py:[\w.]+", str(given)):
        found = import_maker(str(given))
        return found if isinstance(found, Space) else module_space(found)
    raise UsageError(
        f"Space {str(given)!r} is not known: expected one of auto, {', '.join(BUILT_IN_NAMES)}, "
        "the path of a .toml file, or module:CLASS."
        f"{suggest_name(given, ('auto', *BUILT_IN_NAMES))}"
    )


def _resolve_front_ends(values: Mapping[str, Any], folder: Path | None) -> dict[str, Any]:
    """Replace front ends that are tables (with the path of a file) by their strings."""
    found = dict(values)
    if isinstance(entries := values.get("entries"), list):
        found["entries"] = [
            {**each, "front_end": resolve_front_end_text(each.get("front_end", "raw"), folder)}
            if isinstance(each, Mapping) else each
            for each in entries
        ]  # fmt: skip
    for part in ("choices", "default"):
        told = values.get(part)
        if isinstance(told, Mapping) and "front_end" in told:
            front = told["front_end"]
            if isinstance(front, (list, tuple)):
                front = [resolve_front_end_text(each, folder) for each in front]
            elif part == "default":
                front = resolve_front_end_text(front, folder)
            found[part] = {**told, "front_end": front}
    return found


def _parse_space(values: Mapping[str, Any], name: str) -> Space:
    """Parse a portfolio or another space from a dictionary."""
    if values.get("family") == Portfolio.family:
        return Portfolio.from_json({"name": name, **values})
    if "class" in values:
        return ModuleSpace.from_dict(values, name=name)
    return SearchSpace.from_dict(values, name=name)


def import_maker(text: str) -> Any:
    """Import "module", or a class, a function or a space by "module:name".

    The current folder is searched first. Files of runs may name the class or function from then on.

    Raises:
        UsageError: The module cannot be imported, or has no such name.
    """
    module, _, name = text.partition(":")
    folder = Path.cwd()
    if module.endswith(".py"):
        file = Path(module)
        place = "" if file.parent == Path() else f" in the folder {file.parent}"
        raise UsageError(
            f"{text!r} is a file: write {file.stem}{name and ':' + name}, without .py{place}."
        )
    sys.path.insert(0, str(folder))
    try:
        found: Any = import_module(module)
        for part in name.split(".") if name else ():
            found = getattr(found, part)
    except Exception as error:
        where = f" Searched: {folder}, PYTHONPATH and the installed packages."
        where = where if isinstance(error, ModuleNotFoundError) else ""
        raise UsageError(f"{text!r} cannot be imported: {error!r}.{where}") from error
    finally:
        sys.path.pop(0)
    if inspect.isfunction(found) or inspect.isclass(found):
        name_maker(found)
    return found
