"""Search space of a class of the user: any `nn.Module` with typed hyperparameters.

Source: Bao et al., section VIII-A: a space is a dictionary from choices to possible values.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pasearch.errors import UsageError
from pasearch.spaces.candidate import SETTINGS
from pasearch.spaces.layers import Layer
from pasearch.spaces.space import SearchSpace, _parse_values
from pasearch.spaces.user_modules import (
    FILLED_PARAMETERS,
    UserModule,
    check_importable,
    find_maker,
    name_maker,
)

MAX_NETWORKS = 1000
"""Maximum number of networks of a class: each is built and checked before data is read."""

TYPES = (int, float, bool, str)
"""Types of hyperparameters, in addition to `Literal`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSpace(SearchSpace):
    """Search space of the networks that a class or function makes; make it by `module_space`.

    Args:
        maker: Class or function.
    """

    maker: Callable[..., Any]

    def list_known_genes(self) -> dict[str, Any]:
        names = inspect.signature(self.maker).parameters
        return {"front_end": None, **dict.fromkeys(SETTINGS), **dict.fromkeys(names)}

    def is_shape_gene(self, gene: str) -> bool:
        return gene not in SETTINGS

    def check_value(self, where: str, gene: str, value: object) -> None:
        if gene not in inspect.signature(self.maker).parameters:
            SearchSpace.check_value(self, where, gene, value)

    def make_layers(self, genes: Mapping[str, Any]) -> tuple[Layer, ...]:
        names = inspect.signature(self.maker).parameters
        own = tuple((name, value) for name, value in genes.items() if name in names)
        return (UserModule(maker=self.maker, arguments=own),)

    def to_json(self) -> dict[str, Any]:
        return {**SearchSpace.to_json(self), "class": name_maker(self.maker)}

    def check_fits(self, shape: tuple[int, ...], outputs: int) -> None:
        for each in self.iterate_shapes():
            each.parameters(shape, outputs)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], name: str = "user") -> ModuleSpace:
        maker = find_maker(values.get("class"))
        found = module_space(maker, **dict(values.get("choices", {})))
        return cls(
            name=str(values.get("name", name)), family="module", maker=maker,
            choices=found.choices, default=tuple(dict(values.get("default", {})).items()),
        )  # fmt: skip


def module_space(maker: Callable[..., Any], **choices: Any) -> ModuleSpace:
    """Make a search space of a class or function that makes networks.

    The network gets records, (batch, *shape), and returns (batch, outputs). It sees one record at a
    time. Parameters `shape` and `outputs` are filled by pasearch.

    Args:
        maker: Class of `nn.Module`, or function that returns one. Its hyperparameters are int,
            float, bool, str or `Literal`, by annotation. A parameter of another type keeps its
            default.
        choices: Values of a hyperparameter, or of a gene of the recipe such as
            `learning_rate_scale`; or one fixed value. Without values, a `Literal` and a bool have
            all their values, and other hyperparameters have their default.

    Raises:
        UsageError: Unknown or missing hyperparameters, or values of another type, all at once; or
            no class or function that another program can import.

    Cost: none. `plan_architecture_search` checks all networks before a record is read.

    Example:
        >>> from torch import nn
        >>> class Net(nn.Module):
        ...     def __init__(self, width: int, outputs: int):
        ...         super().__init__()
        ...         self.body = nn.Sequential(nn.Flatten(), nn.LazyLinear(width))
        >>> module_space(Net, width=(16, 32, 64)).count()
        3
    """
    _check_maker(maker)
    try:
        names = inspect.signature(maker).parameters
        hints = get_type_hints(maker.__init__ if inspect.isclass(maker) else maker)
    except (NameError, TypeError, ValueError) as error:
        raise UsageError(
            f"The annotations of {maker.__qualname__} cannot be read: {error}."
        ) from None
    what, problems = maker.__qualname__, []
    found: dict[str, tuple[Any, ...]] = {}
    default: dict[str, Any] = {}
    for name, parameter in names.items():
        if name in FILLED_PARAMETERS or parameter.kind in (
            parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD,
        ):  # fmt: skip
            continue
        hint, own = hints.get(name), parameter.default
        finite = get_args(hint) if get_origin(hint) is Literal else (False, True) * (hint is bool)
        if name in choices:
            values = _list_values(choices[name])
        elif finite:
            values = finite
        elif own is parameter.empty:
            problems.append(f"{name}: give values, such as {name}=(16, 32)")
            continue
        else:
            continue  # the class's default
        if name in ("kind", "front_end", *SETTINGS):
            problems.append(f"{name}: is the name of a gene of a recipe; rename the parameter")
        wrong = [v for v in values if not _has_type(v, hint) or (finite and v not in finite)]
        if wrong or not values:
            told = hint.__name__ if hint in TYPES else "a number, a bool or a string"
            told = " | ".join(map(repr, finite)) or told
            given = ", ".join(map(repr, wrong)) or "no values"
            problems.append(f"{name}: {given}; expected {told}")
        found[name] = tuple(dict.fromkeys(values))
        if own is not parameter.empty and own in found[name]:
            default[name] = own
    for name in choices:
        if name in names and name in FILLED_PARAMETERS:
            problems.append(f"{name}: pasearch fills it from the data; leave it out")
        elif name not in names and name not in (*SETTINGS, "front_end"):
            known = ", ".join(n for n in names if n not in FILLED_PARAMETERS)
            problems.append(f"{name}: is no parameter of {what} ({known}) and no gene of a recipe")
        elif name not in names:
            given = choices[name]
            is_range = isinstance(given, Mapping)
            found[name] = _parse_values(what, name, given) if is_range else _list_values(given)
    many = math.prod(len(found[name]) for name in found if name in names)
    if many > MAX_NETWORKS:
        problems.append(f"{many:,} networks; expected at most {MAX_NETWORKS:,}, as each is checked")
    if problems:
        raise UsageError(f"The space of {what}: " + "; ".join(problems) + ".")
    check_importable(maker)
    return ModuleSpace(
        name=what, family="module", maker=maker, choices=tuple(found.items()),
        default=tuple(default.items()),
    )  # fmt: skip


def _check_maker(maker: Any) -> None:
    """Refuse what is neither a class of `nn.Module` nor a function."""
    from torch import nn

    if inspect.isfunction(maker) or (inspect.isclass(maker) and issubclass(maker, nn.Module)):
        return
    hint = "; give the class, not a network" if isinstance(maker, nn.Module) else ""
    raise UsageError(
        f"{type(maker).__name__ if hint else repr(maker)} is no search space: expected a class of "
        f"nn.Module, or a function that returns one{hint}."
    )


def _list_values(given: object) -> tuple[Any, ...]:
    """List the values of a choice: those of an iterable, or one fixed value."""
    single = isinstance(given, str) or not isinstance(given, Iterable)
    return (given,) if single else tuple(given)  # pyright: ignore[reportArgumentType]


def _has_type(value: object, hint: object) -> bool:
    """Check a value against an annotation; an int is also a float, and a bool is no number."""
    if hint is bool or isinstance(value, bool):
        return isinstance(value, bool) and hint in (bool, None)
    if hint is float:
        return isinstance(value, (int, float))
    if hint in TYPES:
        return isinstance(value, hint)  # pyright: ignore[reportArgumentType]
    return isinstance(value, TYPES)
