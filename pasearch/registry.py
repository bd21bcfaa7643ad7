"""Registries of named components: training stages, strategies and selectors.

A component is a frozen dataclass with its own description. Its class attributes state everything
that other code must know about it, so that no other code tests for its class. A registry finds the
class by its name:

    @CLIPPING_METHODS.register
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Flat(ClippingMethod):
        name: ClassVar[str] = "flat"

A registry looks for a name in the imported modules, then in its packages, then in the installed
extensions. An extension is a module that registers components when it is imported, and that an
installed package names as an entry point. A user's file cannot name a module to import.

    [project.entry-points."pasearch.extensions"]
    jsonl = "my_package.jsonl"

A script can also import the module itself, before it calls this package.

Source: docs/extending.md.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import pkgutil
import sys
from abc import ABC
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pasearch.accounting.checks import resolve_named_type
from pasearch.errors import UsageError

if TYPE_CHECKING:
    from pasearch.accounting.published_bounds import PublishedBound


EXTENSION_NOTE = "from outside pasearch"
"""Note on the privacy card for a component from an extension, which its author must prove."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSteps:
    """Steps of a training: the numbers that published privacy formulas use.

    Args:
        sampling_probability: Probability q with which a step samples a record.
        noise_multiplier: Noise multiplier sigma of the first step.
        count: Number of steps.
        noises: Pairs (noise multiplier, number of releases with it), in order.
        sampled: Whether each step draws an independent Poisson sample.
        delta: Delta of the whole budget.
    """

    sampling_probability: float
    noise_multiplier: float
    count: int
    noises: tuple[tuple[float, int], ...]
    sampled: bool
    delta: float


FieldChecks = Mapping[str, Callable[[str, Any], Any]]
"""Check of each field, by its name: a function of name and value that returns the valid value."""


class NamedComponent:
    """Base class of the components that a registry contains."""

    __slots__ = ()

    name: ClassVar[str]  # name in requests, recipes, spaces and `result.json`


class Stage(NamedComponent, ABC):
    """A component of a training: a frozen dataclass whose fields are public numbers."""

    __slots__ = ()

    named: ClassVar[bool] = True  # whether the JSON values contain the name
    checks: ClassVar[FieldChecks] = {}
    """Check of each field, by its name (`accounting.checks`); it may also convert the value."""
    description_template: ClassVar[str] = ""
    """Description of the stage, with fields in braces; a subclass may override `describe`
    instead."""

    def __post_init__(self) -> None:
        for name, check in self.checks.items():
            object.__setattr__(self, name, check(name, getattr(self, name)))

    def describe(self) -> str:
        """Describe the stage in plan, card and report, with each non-default field."""
        if not self.description_template:
            raise NotImplementedError(
                f"{type(self).__name__} has no description: give it a `description_template`."
            )
        return self.description_template.format_map(
            {name: getattr(self, name) for name in self.field_names()}
        )

    def list_published_bounds(self, steps: TrainingSteps) -> list[PublishedBound]:
        """Return the published bounds for a training with this stage."""
        return []

    @classmethod
    def field_names(cls) -> list[str]:
        """Return the names of the fields."""
        return [field.name for field in fields(cls)]  # pyright: ignore[reportArgumentType]

    def to_json(self) -> dict[str, Any]:
        """Convert the stage to plain values."""
        values: dict[str, Any] = {"name": self.name} if self.named else {}
        for name in self.field_names():
            value = getattr(self, name)
            values[name] = list(value) if isinstance(value, tuple) else value
        return values


Kind = TypeVar("Kind", bound=NamedComponent)
Each = TypeVar("Each", bound=NamedComponent)


class Registry(Generic[Kind]):
    """Components of one kind, by name.

    Args:
        noun: Name of the kind in messages.
        base: Base class of the components.
        places: Packages or modules with components, the most used first. A package is imported
            only if the name is not found in the previous ones.
        default: Name of the component if JSON values state none; empty: they must.
        example: Example of a component in a recipe file, for messages.
    """

    every: ClassVar[list[Registry[Any]]] = []

    def __init__(
        self, noun: str, base: type[Kind], *places: str, default: str = "", example: str = ""
    ):
        self.noun, self.base, self.default, self.example = noun, base, default, example
        self._places = places
        self._kinds: dict[str, Any] = {}
        Registry.every.append(self)

    def register(self, kind: type[Each]) -> type[Each]:
        """Register a class; used as a decorator above `dataclass`.

        Raises:
            UsageError: Another class has this name.
        """
        other = self._kinds.setdefault(kind.name, kind)
        if (other.__module__, other.__qualname__) != (kind.__module__, kind.__qualname__):
            raise UsageError(
                f"The {self.noun} name {kind.name!r} belongs to {other.__module__}."
                f"{other.__qualname__}: give {kind.__module__}.{kind.__qualname__} another name."
            )
        self._kinds[kind.name] = kind
        return kind

    def kinds(self) -> dict[str, type[Kind]]:
        """Return all component classes by name, those of extensions last."""
        for _ in self._loads():
            pass
        return dict(self._kinds)

    def __iter__(self) -> Iterator[str]:
        return iter(self.kinds())

    def find(self, name: object) -> type[Kind] | None:
        """Return the class of the component with a name; None if it is unknown."""
        if not isinstance(name, str):
            return None
        loads = self._loads()
        while name not in self._kinds and next(loads, None) is not None:
            pass
        return self._kinds.get(name)

    def __getitem__(self, name: str) -> type[Kind]:
        found = self.find(name)
        assert found is not None, f"{self.noun} {name!r} is not registered"
        return found

    def check(self, field: str, value: object) -> None:
        """Refuse a value that is not a registered component, because `from_json` needs its name.

        Args:
            field: Name of the field that has the value, for the message.
            value: Value to check.

        Raises:
            UsageError: The value is not a registered component.
        """
        if isinstance(value, self.base) and self.find(value.name) is type(value):
            return
        known = ", ".join(kind.__name__ for kind in self.kinds().values())
        raise UsageError(f"{field} is {value!r}: expected one of {known}.")

    def from_json(self, values: Mapping[str, Any]) -> Kind:
        """Restore a component from the values that `to_json` returned.

        Raises:
            UsageError: A name or a field is unknown.
        """
        if isinstance(values, Mapping):
            values = {"name": self.default, **values} if self.default else values
            self.find(values.get("name"))
        kind, numbers = resolve_named_type(self.noun, self._kinds, values)
        return kind(**{key: tuple(v) if isinstance(v, list) else v for key, v in numbers.items()})

    def _loads(self) -> Iterator[bool]:
        """Import the packages of the registry and the extensions, one at each iteration."""
        for place in self._places:
            _import_package(place)
            yield True
        load_extensions()
        yield True


def extension_files(*makers: Any) -> list[Path]:
    """List the files of registered extensions, and of loaded modules beside or inside of them.

    These are modules in the same folders, and in the same packages.

    Args:
        makers: Further classes or functions from outside of this package.
    """
    kinds = (kind for registry in Registry.every for kind in registry._kinds.values())
    outside = [kind for kind in kinds if kind.__module__.partition(".")[0] != "pasearch"]
    outside += makers
    own = {_find_source_file(kind) for kind in outside}
    folders = {each.parent for each in own}
    if not folders:
        return []  # avoids a search through thousands of loaded modules
    packages = {kind.__module__.partition(".")[0] for kind in outside} - {"__main__"}
    loaded = ((n, getattr(each, "__file__", None)) for n, each in list(sys.modules.items()))
    beside = {
        Path(file)
        for name, file in loaded
        if file and (Path(file).parent in folders or name.partition(".")[0] in packages)
    }
    return sorted(own | {each for each in beside if each.suffix == ".py"})


def describe_extensions(value: object) -> dict[str, str]:
    """Return the note and the hash of the file for each extension component in a plan, by name."""
    found = {}
    for each in _extension_parts(value):
        found[_qualified_name(each)] = describe_source(type(each))
    return found


@cache
def describe_source(kind: Any) -> str:
    """Return the note on a class or function from outside, with its file's hash at the first call.

    Raises:
        UsageError: It is not defined in a file.
    """
    code = hashlib.sha256(_find_source_file(kind).read_bytes()).hexdigest()
    return f"{EXTENSION_NOTE}, SHA-256 {code[:16]}"


def check_descriptions(value: object) -> None:
    """Refuse a plan with an extension component that does not describe all its fields.

    Raises:
        UsageError: A description is missing, or does not contain a non-default field.
    """
    for each in _extension_parts(value):
        try:
            text = each.describe()
            usual = {field.name: field.default for field in fields(each)}
            for name in usual:
                if usual[name] in (MISSING, getattr(each, name)):
                    continue
                if replace(each, **{name: usual[name]}).describe() == text:
                    raise UsageError(f"it lacks {name}, which is {getattr(each, name)!r}")
        except (NotImplementedError, LookupError, ValueError, UsageError) as error:
            raise UsageError(
                f"{_qualified_name(each)} has no complete description for plan, card and report "
                f"({error}): put all its fields into its `description_template` or `describe`."
            ) from None


def _extension_parts(value: object) -> Iterator[Any]:
    """Yield the components from extensions in a value and, recursively, in its fields or items."""
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        if issubclass(kind, NamedComponent) and kind.__module__.partition(".")[0] != "pasearch":
            yield value
        inside: Iterable[object] = (getattr(value, each.name) for each in fields(value))
    elif isinstance(value, Mapping):
        inside = value.values()
    else:
        inside = value if isinstance(value, tuple | list) else ()
    for each in inside:
        yield from _extension_parts(each)


def _qualified_name(part: object) -> str:
    return f"{type(part).__module__}.{type(part).__qualname__}"


def _find_source_file(kind: Any) -> Path:
    """Return the file that defines a class or function."""
    try:
        if (file := Path(inspect.getfile(kind))).is_file():
            return file
    except (OSError, TypeError):
        pass
    raise UsageError(
        f"{kind.__qualname__} is not defined in a file, so a resumed run could not check "
        "whether it is unchanged: define it in a module, and import that."
    )


@cache
def _import_package(place: str) -> None:
    """Import a module, or a package with all its modules, once."""
    module = importlib.import_module(place)
    for each in pkgutil.iter_modules(getattr(module, "__path__", ()), f"{place}."):
        importlib.import_module(each.name)


@cache
def load_extensions() -> None:
    """Import all installed extensions, once.

    Raises:
        UsageError: An extension cannot be imported.
    """
    for point in entry_points(group="pasearch.extensions"):
        try:
            point.load()
        except Exception as error:
            raise UsageError(
                f"The extension {point.name!r} ({point.value}) cannot be imported: {error!r}. "
                "Repair or uninstall it."
            ) from error
