"""A network that a class or a function of the user makes, as the only layer of an architecture.

The class is stored by its import path, never as code. A file that names a class is not allowed to
import it: the user imports the class, or names it in a command.

Source: Bao et al., section VIII-A (the space is a dictionary of choices); docs/rules.md, rule 11.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pasearch.errors import UsageError
from pasearch.registry import describe_source

if TYPE_CHECKING:
    import numpy as np

FILLED_PARAMETERS = ("shape", "outputs")
"""Parameters that pasearch fills if the class declares them: the shape of one record after the
feature extractor, and the number of outputs (classes, or 1 for a numeric target)."""

_MAKERS: dict[str, Callable[..., Any]] = {}
"""Classes and functions that this process has named, by import path."""


class ClassError(UsageError):
    """The class of a network is not imported, or has changed since the run."""


def name_maker(maker: Callable[..., Any]) -> str:
    """Return the import path of a class or function, such as "my_nets:MyNet".

    That of a class of the running script has the name by which another process can import it.
    """
    is_main = maker.__module__ in MAIN_MODULES
    path = f"{_name_main() if is_main else maker.__module__}:{maker.__qualname__}"
    _MAKERS[path] = maker
    return path


MAIN_MODULES = ("__main__", "__mp_main__")
"""Names of the running script, in this process and in one that it starts."""


def _name_main() -> str:
    """Return the module name of the running script; "" if it is not a file."""
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    return spec.name if spec is not None else Path(file).stem if file else ""


def check_importable(maker: Callable[..., Any]) -> None:
    """Refuse a class or function that no other process could import to load the run.

    Raises:
        UsageError: The message names the fix.
    """
    describe_source(maker)
    module, _, name = name_maker(maker).partition(":")
    if not all(map(str.isidentifier, [*module.split("."), *name.split(".")])):
        raise UsageError(
            f"{module}:{name} cannot be imported by another program, so its runs could not be "
            "loaded: define it at the top level of a file such as my_nets.py."
        )


def find_maker(path: object) -> Callable[..., Any]:
    """Return the class or function of an import path, if the user has imported it.

    A path is read from files of others, so nothing is imported or called that is neither a class of
    `nn.Module` nor named by `name_maker` in this process.

    Raises:
        ClassError: The module is not imported, or has no such class.
    """
    from torch import nn

    if (known := _MAKERS.get(str(path))) is not None:
        return known
    module, _, name = str(path).partition(":")
    found: Any = sys.modules.get("__main__" if module == _name_main() else module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not (inspect.isclass(found) and issubclass(found, nn.Module)):
        raise ClassError(
            f"This network needs the class {str(path)!r}, which is not imported. If you trust its "
            f"code: on the command line, use `import={path}`; in Python, run `from {module} import "
            f"{name}` first (for a function also `pasearch.module_space({name}, ...)`)."
        )
    return found


def find_makers(plan: Any) -> list[Callable[..., Any]]:
    """List the classes and functions of the networks of a plan."""
    space = getattr(plan, "space", None)
    layers = (layer for each in getattr(space, "entries", ()) for layer in each.architecture.layers)
    found = [getattr(space, "maker", None), *(getattr(layer, "maker", None) for layer in layers)]
    return [each for each in dict.fromkeys(found) if each is not None]


def describe_changed_class(document: Mapping[str, Any]) -> str:
    """Describe how the class of a run's network differs from that of the run; "" if it does not.

    Args:
        document: Content of `result.json`.

    Raises:
        ClassError: The class is not imported.
    """
    layers = document["best"].get("layers", ())
    for path in (layer["class"] for layer in layers if layer["kind"] == UserModule.kind):
        wrote, own = document["versions"].get(path), describe_source(find_maker(path))
        if wrote != own:
            told = "" if wrote is None else f"; in result.json {wrote.partition(', ')[2]}"
            return (
                f"The file of the class {path!r} has changed since the run "
                f"({own.partition(', ')[2]}{told}), so the network may compute something else: "
                "restore the file."
            )
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserModule:
    """Whole network that a class or function of the user makes; no output layer is added.

    Args:
        maker: Class or function that returns an `nn.Module` from (batch, *shape) to (batch,
            outputs).
        arguments: Pairs (name, value) of hyperparameters.
        outputs: Number of outputs; None: not known yet (`Architecture.list_all_layers`).
    """

    kind: ClassVar[str] = "module"
    maker: Callable[..., Any]
    arguments: tuple[tuple[str, Any], ...] = ()
    outputs: int | None = field(default=None, compare=False)

    def output_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return (outputs,)."""
        return () if self.outputs is None else (self.outputs,)

    def parameters(self, shape: tuple[int, ...]) -> int:
        """Return the number of all parameters, trainable or not."""
        return sum(self.count_parameters(shape))

    def count_parameters(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Return the numbers of trainable and of frozen parameters; the network is built once."""
        return _count_parameters(self, tuple(shape), self.outputs or 1)

    def module(self, shape: tuple[int, ...], generator: np.random.Generator | None = None):
        """Build the network, which sees one record at a time.

        Args:
            shape: Shape of one record.
            generator: Random generator of the seed of the initial weights, which need not be
                secret; None: seed 0.

        Raises:
            UsageError: The class fails, or what it returns is no `nn.Module`.
        """
        import torch
        from torch import nn

        from pasearch.spaces.modules import LogitScale, PerRecord

        assert self.outputs is not None, "list_all_layers sets it"
        given = dict(self.arguments)
        filled = {"shape": tuple(shape), "outputs": self.outputs}
        given |= {name: filled[name] for name in FILLED_PARAMETERS if name in self._names()}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0 if generator is None else int(generator.integers(2**63)))
            what = "cannot be constructed"
            try:
                made = self.maker(**given)
                what = f"fails on records of shape {tuple(shape)}"
                if any(map(nn.parameter.is_lazy, getattr(made, "parameters", tuple)())):
                    made.eval()(torch.zeros(2, *shape))  # gives the lazy layers their sizes
                    made.train()
            except Exception as error:
                raise UsageError(
                    f"{self.describe()} {what}: {type(error).__name__}: {error}."
                ) from error
        if not isinstance(made, nn.Module):
            raise UsageError(f"{self.describe()} returns {type(made).__name__}, not an nn.Module.")
        return [PerRecord(made, tuple(shape), self.outputs), LogitScale(self.outputs)]

    def _names(self) -> list[str]:
        return list(inspect.signature(self.maker).parameters)

    def describe(self) -> str:
        """Describe the network, such as `MyNet(width=32, depth=2)`."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments)
        return f"{self.maker.__qualname__}({given})"

    def to_json(self) -> dict[str, Any]:
        """Return the kind, the import path and the arguments as JSON-compatible values."""
        return {"kind": self.kind, "class": name_maker(self.maker), **dict(self.arguments)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> UserModule:
        """Parse the result of `to_json`; the class must have been imported."""
        arguments = tuple((n, v) for n, v in values.items() if n not in ("kind", "class"))
        if not all(isinstance(value, (bool, int, float, str)) for _, value in arguments):
            raise UsageError(f"Arguments of {values.get('class')!r}: expected numbers or strings.")
        return cls(maker=find_maker(values.get("class")), arguments=arguments)


@lru_cache(maxsize=4096)
def _count_parameters(layer: UserModule, shape: tuple[int, ...], outputs: int) -> tuple[int, int]:
    """Build a network, and return its numbers of trainable and of frozen parameters."""
    alone, _ = replace(layer, outputs=outputs).module(shape)
    every = [(p.numel(), p.requires_grad) for p in alone.parameters()]
    trained = sum(number for number, requires in every if requires)
    return trained, sum(number for number, _ in every) - trained
