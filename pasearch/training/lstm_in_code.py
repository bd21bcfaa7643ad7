"""LSTMs in machine code: what a kernel of theirs does, in a call for each pass.

Torch takes some thirty calls a step of the sequence, forward and backward, and its products are of
copies. Here passes, norms and sums work on rooms that are made once. It is the same mechanism, but
for roundings: see `machine_code`, whose terms are these.

Source: docs/rules.md, rules 7, 11 and 14. Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from pasearch.runs.loops import loaded
from pasearch.runs.team import Team
from pasearch.spaces.modules import Lstm
from pasearch.training import machine_code
from pasearch.training.kernels import NOWHERE, Captured, LstmKernel
from pasearch.training.norms import ROUNDINGS
from pasearch.training.one_step import EVEN
from pasearch.training.products import product
from pasearch.training.watched import Watched

if TYPE_CHECKING:
    from pasearch.training.recipe import Recipe

CALLS, UNIT = 1e-4, 2e-8
"""Seconds that each step of a sequence saves, and of each record each unit: on one core."""

LARGEST = float(torch.finfo(torch.float32).max)

FOURTH = 4
"""Norms take so many steps of a sequence at once."""


class LstmInCode(LstmKernel):
    """The kernel of one layer, with rooms of its own: what it leaves is good until its next pass.

    Args:
        code: `compiled_lstm`.
        team: The threads, which divide records among them.
        watched: Whose layer it is: it knows which rows of a batch are records. None: all are.
    """

    def __init__(self, code: ModuleType, team: Team, watched: Watched | None = None):
        self._code, self._team, self._product = code, team, product()
        self._watched = watched
        self._rooms: dict[str, Tensor] = {}
        self._wide: list[tuple[Any, Any]] = []

    def forward(self, layer: nn.Module, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Go through the steps; dz_t is the gradient of what only stands for z_t."""
        assert isinstance(layer, Lstm)
        layer.check(x)
        shape = len(x), x.shape[1], 4 * layer.units
        gates = torch.zeros((), dtype=x.dtype).expand(shape).requires_grad_()
        last, a = _Passes.apply(gates, x, layer, self)  # pyright: ignore[reportGeneralTypeIssues]
        return last, (gates, a)

    def keep(self, seen: Captured, inner: tuple[Tensor, ...], gradient: Tensor) -> None:
        """Keep a_t and dz_t."""
        seen.kept["replayed"] = inner[1], gradient

    def squared_norms(self, seen: Captured, views: int = 1) -> Tensor:
        """The Gram form, whose roundings `norms.positions` tells of."""
        layer, (a, d) = seen.layer, self._replayed(seen)
        assert isinstance(layer, Lstm)
        if views > 1:
            return super().squared_norms(seen, views)
        sizes, found = self._sizes(a, layer), np.zeros((len(a), 4))
        flat = _steps_first(a), _steps_first(d)
        rooms = self._of_norms(a.shape[1], layer)

        def part(place: int, low: int, high: int) -> None:
            self._code.squares(*flat, sizes, *_slots(low, high), *rooms[place], found)

        self._team.divided(len(a), part)
        return torch.from_numpy(self._with_roundings(layer, found, a.shape[1])).to(a.dtype)

    @np.errstate(all="ignore")  # a warning would tell of a value
    def _with_roundings(self, layer: Lstm, found: Any, steps: int) -> Any:
        of_weight, of_bias, whole_a, whole_d = np.sqrt(found.clip(min=0.0)).T
        rounding = ROUNDINGS * steps * torch.finfo(torch.float32).eps if steps > 1 else 0.0
        squares = np.zeros(len(found))
        if layer.weight.requires_grad:
            squares += (of_weight + rounding * whole_a * whole_d) ** 2
        for bias in (layer.bias, layer.second_bias):
            if bias is not None and bias.requires_grad:
                squares += (of_bias + rounding * math.sqrt(steps) * whole_d) ** 2
        # Times a factor, what belongs to a square that float32 lacks would be of few bits.
        squares[~(found[:, 2:] <= LARGEST).all(axis=1)] = math.inf
        return squares

    def weighted_sum(
        self,
        seen: Captured,
        factors: Tensor,
        into: Mapping[int, Tensor] = NOWHERE,
        *,
        views: int = 1,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """(c * d)^T a and the sum of c * d, over records and steps; d is overwritten."""
        if views > 1:
            yield from super().weighted_sum(seen, factors, into, views=views)
            return
        layer, (a, d) = seen.layer, self._replayed(seen)
        assert isinstance(layer, Lstm)
        del seen.kept["replayed"]
        sizes, team, code = self._sizes(a, layer), self._team, self._code
        flat_a, flat_d, c = _steps_first(a), _steps_first(d), factors.numpy()
        biases = np.zeros((team.threads, 4 * layer.units))

        def weigh(place: int, low: int, high: int) -> None:
            code.weigh(flat_d, c, sizes, *_slots(low, high), biases[place])

        team.divided(len(a), weigh)
        if layer.weight.requires_grad:
            to = into.get(id(layer.weight))
            to = torch.empty_like(layer.weight) if to is None else to
            given = flat_a, flat_d, sizes
            own = to.view(-1).numpy(), self._room("formed", to.numel()).numpy()
            self._divided(4 * layer.units, code.sum_up, given, own)
            yield layer.weight, to
        for bias in (layer.bias, layer.second_bias):
            if bias is not None and bias.requires_grad:
                yield bias, torch.from_numpy(biases.sum(axis=0)).to(a.dtype)

    def go_forward(self, layer: Lstm, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the last states, (batch, units), and a_t, (batch, steps, inputs + units)."""
        (batch, steps, inputs), units = x.shape, layer.units
        last, cells = x.new_zeros(batch, units), steps * batch
        bias = layer.bias if layer.second_bias is None else layer.bias + layer.second_bias
        a, rest = self._room("a", cells * (inputs + units)), self._of_gates(cells, batch, units)
        given = (
            x.contiguous().view(-1).numpy(), layer.weight.detach().view(-1).numpy(),
            bias.detach().numpy(), self._sizes(x, layer),
        )  # fmt: skip
        own = a.numpy(), *rest, last.view(-1).numpy()
        self._divided(batch, self._code.forward, given, own, EVEN)
        return last, a.view(steps, batch, inputs + units).transpose(0, 1)

    def go_back(self, layer: Lstm, x: Tensor, gradient: Tensor) -> Tensor:
        """Return dz_t, (batch, steps, 4 units)."""
        (batch, steps, inputs), units = x.shape, layer.units
        cells = steps * batch
        found = self._room("found", cells * 4 * units)
        rooms = [self._room(name, batch * units).numpy() for name in ("of state", "of memory")]
        back = layer.weight.detach()[:, inputs:].contiguous().view(-1).numpy()
        given = gradient.contiguous().view(-1).numpy(), back, self._sizes(x, layer)
        own = *self._of_gates(cells, batch, units), found.numpy(), *rooms
        self._divided(batch, self._code.backward, given, own, EVEN)
        return found.view(steps, batch, 4 * units).transpose(0, 1)

    def _sizes(self, x: Tensor, layer: Lstm) -> tuple[Any, ...]:
        """Rows, steps, inputs, units, and how many rows are records: as the loops take them."""
        rows, steps = x.shape[:2]
        real = None if self._watched is None else self._watched.real
        return _slots(rows, steps, layer.inputs, layer.units, rows if real is None else real)

    def _divided(
        self, count: int, loop: Callable[..., None], given: tuple[Any, ...], own: tuple[Any, ...],
        even: int = 1,
    ) -> None:  # fmt: skip
        """Divide so many records or rows among the threads, for a loop that multiplies."""

        def part(place: int, low: int, high: int) -> None:
            with self._product.in_thread():
                loop(*given, *_slots(low, high), *own, self._product.address)

        with self._product.in_process():
            self._team.divided(count, part, even)

    def _of_gates(self, cells: int, batch: int, units: int) -> tuple[Any, ...]:
        rooms = ("z", 4 * cells), ("memories", cells + batch), ("bent", cells)
        return tuple(self._room(name, many * units).numpy() for name, many in rooms)

    def _room(self, name: str, count: int) -> Tensor:
        """Return room for so many numbers: the same from pass to pass."""
        room = self._rooms.get(name)
        if room is None or len(room) < count:
            room = self._rooms[name] = torch.zeros(count)
        return room[:count]

    def _of_norms(self, steps: int, layer: Lstm) -> list[tuple[Any, Any]]:
        rows = FOURTH * math.ceil(steps / FOURTH)
        sizes = rows * layer.weight.shape[1], rows * 4 * layer.units
        if not self._wide or len(self._wide[0][0]) != sizes[0]:
            self._wide = [
                (np.zeros(sizes[0]), np.zeros(sizes[1])) for _ in range(self._team.threads)
            ]
        return self._wide


class _Passes(torch.autograd.Function):
    """A layer's passes, for autograd: from x, and what stands for z_t, to the last states."""

    @staticmethod
    def forward(
        ctx: Any, gates: Tensor, x: Tensor, layer: Lstm, kernel: LstmInCode
    ) -> tuple[Tensor, Tensor]:
        """Go through the steps."""
        ctx.layer, ctx.kernel, ctx.x = layer, kernel, x
        last, a = kernel.go_forward(layer, x)
        ctx.mark_non_differentiable(a)
        return last, a

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        """Go back through them."""
        layer, kernel = ctx.layer, ctx.kernel
        found = kernel.go_back(layer, ctx.x, gradients[0])
        below = None
        if ctx.needs_input_grad[1]:
            below = found @ layer.weight.detach()[:, : layer.inputs]
        return found, below, None, None


def take_over(watched: Watched, recipe: Recipe, x: Tensor, team: Team) -> bool:
    """Let a network's LSTMs be machine code, where a training saves a second by it.

    Which it is follows from the network, the recipe, the records' shape and the threads: public.

    Args:
        watched: The network, on a processor.
        recipe: How it is trained.
        x: Records of this kind, made up.
        team: The threads of a step.

    Returns:
        Whether there was one.

    Raises:
        MachineError: As of `machine_code.loops`.
    """
    own = [layer for layer, kernel in watched.kernels.items() if type(kernel) is LstmKernel]
    if not own or {(p.dtype, p.device.type) for p in watched.parameters} != machine_code.KNOWN:
        return False
    layers = {layer: given.shape[1] for layer, given, _ in watched.inputs(x)
              if isinstance(layer, Lstm) and layer in own
              and given.dtype is torch.float32}  # fmt: skip
    batch = recipe.expected_batch_size
    saved = sum(steps * (CALLS + UNIT * batch * each.units) for each, steps in layers.items())
    if not layers or recipe.steps * saved < machine_code.WORTH or (code := loops()) is None:
        return False
    watched.take({layer: LstmInCode(code, team, watched) for layer in layers})
    return True


@cache
def loops() -> ModuleType | None:
    """Load the loops and try them on public numbers: see `runs.loops`."""
    return loaded("pasearch.training.compiled_lstm", _agrees)


def _agrees(code: ModuleType) -> bool:
    """Whether the loops find torch's norms and sums, of made-up sequences of five steps."""
    layer = Lstm(3, 4)
    with torch.no_grad():
        for p in layer.parameters():
            p.copy_(torch.linspace(-1.0, 1.0, p.numel()).sin_().view_as(p))
    x, asked = torch.linspace(-2.0, 2.0, 45).view(3, 5, 3), torch.linspace(-1.0, 2.0, 12).view(3, 4)
    found = []
    for kernel in (LstmKernel(), LstmInCode(code, Team(1))):
        output, inner = kernel.forward(layer, x)
        gradient = torch.autograd.grad(output, inner[0], asked)[0]
        seen = Captured(layer, x, asked)
        kernel.keep(seen, tuple(each.detach() for each in inner), gradient)
        norms, factors = kernel.squared_norms(seen), torch.tensor([0.5, 0.0, 2.0])
        sums = [value for _, value in kernel.weighted_sum(seen, factors)]
        found.append(torch.cat([each.detach().reshape(-1) for each in (output, norms, *sums)]))
    return bool(torch.allclose(*found, rtol=1e-4, atol=1e-5))


def _slots(*numbers: int) -> tuple[Any, ...]:
    return tuple(np.uint64(each) for each in numbers)


def _steps_first(values: Tensor) -> Any:
    """(batch, steps, numbers) as they lie, step after step."""
    return values.transpose(0, 1).contiguous().view(-1).numpy()
