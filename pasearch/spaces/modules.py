"""PyTorch modules that PyTorch lacks, such as dropout whose masks are drawn from a key."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from pasearch.data.column import PADDING_TOKEN, TOKEN_SCALE, UNKNOWN_TOKEN
from pasearch.errors import UsageError, is_out_of_memory

Uniform = Callable[[torch.Size, int, int, int, torch.device], torch.Tensor]
"""Function (shape, key, step, draw, device) that returns uniform float32 numbers in [0, 1)."""


class Rescale(nn.Module):
    """Module that scales values from declared bounds to [0, 1]; values outside are clamped.

    Args:
        low: Declared lower bound, in the data's units.
        high: Declared upper bound, in the data's units.

    Source: docs/rules.md, rule 13: the bounds are declared, never read from the records.
    """

    def __init__(self, low: float, high: float):
        super().__init__()
        self.low, self.high = low, high

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scale x, of any shape and element type, to float32 in [0, 1].

        As in training, the computation is in float64, because bounds can be narrow and far from 0.
        """
        inside = x.double().clamp(self.low, self.high)
        return ((inside - self.low) / (self.high - self.low)).float()

    def extra_repr(self) -> str:
        """Show the bounds."""
        return f"low={self.low}, high={self.high}"


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Compute 1 / (1 + exp(-x)) by tanh, so that a record's result does not depend on its index.

    PyTorch's sigmoid rounds the last numbers of a tensor, and of each thread's part, differently.
    """
    return torch.tanh(0.5 * x) * 0.5 + 0.5


def sigmoid_(x: torch.Tensor) -> torch.Tensor:
    """Compute the sigmoid in place."""
    return x.mul_(0.5).tanh_().mul_(0.5).add_(0.5)


class TemperedSigmoid(nn.Module):
    """Tempered sigmoid s / (1 + exp(-T x)) - o, whose bounded output keeps gradients small.

    It is tanh for scale s = 2, temperature T = 2 and offset o = 1, the defaults.

    Source: Papernot et al. 2020, arXiv 2007.14191.
    """

    def __init__(self, scale: float = 2.0, temperature: float = 2.0, offset: float = 1.0):
        super().__init__()
        self.scale, self.temperature, self.offset = scale, temperature, offset

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the activation to every element."""
        return torch.tanh(0.5 * self.temperature * x) * (0.5 * self.scale) + (
            0.5 * self.scale - self.offset
        )

    def extra_repr(self) -> str:
        """Show the three parameters."""
        return f"scale={self.scale}, temperature={self.temperature}, offset={self.offset}"


class KeyedDropout(nn.Module):
    """Dropout with masks from a key that the trainer sets before every step.

    Guarantee: the same key and input give the same mask, independently of other random draws.
    """

    def __init__(self, rate: float):
        super().__init__()
        if not 0.0 <= rate < 1.0:
            raise UsageError(f"The dropout rate is {rate!r}: expected a number in [0, 1).")
        self.rate = rate
        self.reseed(0)

    def reseed(self, seed64: int, number: int = 0, uniform: Uniform | None = None) -> None:
        """Set the key of the masks of the next step.

        Args:
            seed64: 64-bit key of the step.
            number: Index of the step among those with the same key; used by `uniform` only.
            uniform: Generator of the GPU kernels (`gpu.kernels.uniform`); None: PyTorch's or
                numpy's.
        """
        self.seed, self._number, self._draws, self._kernel = seed64, number, 0, uniform
        self._row: tuple[Tensor, int] | None = None

    @property
    def draws(self) -> int:
        """Number of masks drawn in this step."""
        return self._draws

    def enter_record(self, row: Tensor | None, rows: int, draws: int) -> None:
        """Draw the next masks for all records at once, and use one row of each (`PerRecord`).

        Args:
            row: Index of the record under `torch.func.vmap`, shape (). None: not under vmap.
            rows: Number of records.
            draws: Number of masks already drawn in this step.
        """
        self._row, self._draws = None if row is None else (row, rows), draws

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Zero each element with probability `rate` in training, and rescale the others."""
        return self.apply_mask(x, self.draw_mask(x))

    def draw_mask(self, x: torch.Tensor) -> torch.Tensor | None:
        """Draw the next mask of this step, True for a kept element; None if all are kept."""
        if not self.training or not self.rate:
            return None
        self._draws += 1
        if self._row is None:
            return self._uniform(x.shape, x.device) >= self.rate
        row, rows = self._row
        every = self._uniform(torch.Size((rows, *x.shape)), x.device)
        return every.index_select(0, row[None])[0] >= self.rate

    def apply_mask(self, x: torch.Tensor, kept: torch.Tensor | None) -> torch.Tensor:
        """Zero the masked elements of x, or of its gradient, and rescale the others."""
        return x if kept is None else x * kept / (1.0 - self.rate)

    def _uniform(self, shape: torch.Size, device: torch.device) -> torch.Tensor:
        """Draw uniform float32 numbers in [0, 1).

        On the CPU they are from numpy's Philox generator. PyTorch's generator uses only 32 bits of
        a seed there, so two steps could have the same masks.
        """
        if self._kernel is not None:
            return self._kernel(shape, self.seed, self._number, self._draws - 1, device)
        if device.type == "cpu":
            philox = np.random.Philox(key=(self._draws << 64) | self.seed)
            drawn = np.random.Generator(philox).random(tuple(shape), dtype=np.float32)
            return torch.from_numpy(drawn)
        generator = torch.Generator(device=device)
        generator.manual_seed((self.seed + 0x9E3779B97F4A7C15 * self._draws) % 2**64)
        return torch.rand(shape, generator=generator, device=device)

    def extra_repr(self) -> str:
        """Show the rate."""
        return f"rate={self.rate}"


class SkipConcat(nn.Sequential):
    """Layers in sequence whose input is concatenated with their output, (batch, inputs + outputs).

    Source: Cheng et al. 2016 ("wide and deep"); Huang et al. 2017 (dense connections).
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Concatenate the input with the layers' output."""
        return torch.cat((input, super().forward(input)), dim=1)


class RowSequence(nn.Module):
    """Module that converts images to sequences of their rows, with all channels of a row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Convert (batch, channels, height, width) to (batch, height, channels * width)."""
        return x.transpose(1, 2).flatten(2)


class TokenEmbedding(nn.Module):
    """One trained vector per token; padding is the vector 0, whatever its row of the weight is.

    Tokens from `tokens` on are read as the unknown token: a smaller embedding has a smaller
    vocabulary, the first words of the declared or estimated one. The row of the padding token has
    no effect and no gradient. Otherwise, the padding of short texts would dominate their gradients.

    Args:
        tokens: Number of tokens, padding and the unknown token included, 2 or more.
        units: Length of each vector.
        device: Device of the weight.

    Source: Bao et al., Tables XXVII and XXVIII (1,000 tokens, 50 units).
    """

    def __init__(self, tokens: int, units: int, device: torch.device | str | None = None):
        super().__init__()
        self.tokens, self.units = tokens, units
        self.weight = nn.Parameter(torch.empty(tokens, units, device=device))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial weights from PyTorch's global generator."""
        nn.init.normal_(self.weight, std=self.units**-0.5)

    def find_tokens(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Decode token numbers, and find the factor of the vector at each position.

        Args:
            x: Token numbers in multiples of 1 / `TOKEN_SCALE`, of any shape.

        Returns:
            Token numbers, int64, and factors: 1, 0 for padding, NaN for a value that is not finite;
            both of the shape of x.
        """
        numbers = (x.nan_to_num() * TOKEN_SCALE).round().clamp(0, self.tokens).long()
        numbers = numbers.masked_fill(numbers == self.tokens, UNKNOWN_TOKEN)
        return numbers, (numbers != PADDING_TOKEN).to(self.weight.dtype) + 0.0 * x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, length) to (batch, length, units)."""
        numbers, kept = self.find_tokens(x)
        return functional.embedding(numbers, self.weight) * kept[..., None]

    def extra_repr(self) -> str:
        """Show the sizes."""
        return f"{self.tokens}, {self.units}"


class Recurrent(nn.Module):
    """Recurrent layer over the steps of a record; the output is its last state, or all states.

    Args:
        inputs: Number of values in one step.
        units: Number of values in the state, which starts at 0.
        biases: Number of biases, 1 or 2. The sum of two is one bias, trained at twice the rate.
        sequence: Whether the output is the states of all steps instead of the last one.
        device: Device of the parameters.
    """

    gates: int
    second_bias: nn.Parameter | None

    def __init__(
        self,
        inputs: int,
        units: int,
        biases: int = 1,
        sequence: bool = False,
        device: torch.device | str | None = None,
    ):
        super().__init__()
        self.inputs, self.units, self.biases, self.sequence = inputs, units, biases, sequence
        rows = self.gates * units
        self.weight = nn.Parameter(torch.empty(rows, inputs + units, device=device))
        self.bias = nn.Parameter(torch.empty(rows, device=device))
        second = nn.Parameter(torch.empty(rows, device=device)) if biases == 2 else None
        self.register_parameter("second_bias", second)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the initial weights as PyTorch's LSTM does, from its global generator."""
        bound = self.units**-0.5
        for parameter in self.parameters(recurse=False):
            nn.init.uniform_(parameter, -bound, bound)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (batch, steps, inputs) to the last state, (batch, units), or to all if `sequence`."""
        self.check(x)
        return self.select_output(self.states(self.projected(x)))

    def select_output(self, states: torch.Tensor) -> torch.Tensor:
        """Select the output from the states, (batch, steps, units)."""
        return states if self.sequence else states[:, -1]

    def check(self, x: torch.Tensor) -> None:
        """Raise UsageError for an input that is not a batch of sequences."""
        if x.ndim != 3:
            raise UsageError(
                f"Layer {self} saw a tensor of shape {tuple(x.shape)}: expected (batch, steps, "
                "inputs). Keep records the first axis and steps the second."
            )

    @property
    def recurrent(self) -> torch.Tensor:
        """Recurrent weights of h_(t-1), (units, gates * units)."""
        return self.weight[:, self.inputs :].T

    def projected(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the part of z_t that depends on inputs and biases, (batch, steps, ...)."""
        bias = self.bias if self.second_bias is None else self.bias + self.second_bias
        return functional.linear(x, self.weight[:, : self.inputs], bias)

    def states(self, projected: torch.Tensor) -> torch.Tensor:
        """Compute h_1 ... h_T, (batch, steps, units), from the output of `projected`.

        The gradient with respect to `projected` is the gradient with respect to z_t, through all
        later steps.
        """
        raise NotImplementedError

    def extra_repr(self) -> str:
        """Show the sizes."""
        sequence = ", sequence=True" if self.sequence else ""
        return f"{self.inputs}, {self.units}, biases={self.biases}{sequence}"


class Lstm(Recurrent):
    """Long short-term memory (LSTM); arguments and shapes are those of `Recurrent`.

        z_t = W [x_t, h_(t-1)] + b (+ b')          i, f, g, o: the quarters of z_t, as in PyTorch
        c_t = sigmoid(f) c_(t-1) + sigmoid(i) tanh(g),       h_t = sigmoid(o) tanh(c_t)

    Source: Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000.
    """

    gates = 4

    def states(self, projected: torch.Tensor) -> torch.Tensor:
        recurrent = self.recurrent
        state = memory = projected.new_zeros(len(projected), self.units)
        states = []
        for step in projected.unbind(1):
            i, f, g, o = (step + state @ recurrent).chunk(4, dim=1)
            memory = sigmoid(f) * memory + sigmoid(i) * g.tanh()
            state = sigmoid(o) * memory.tanh()
            states.append(state)
        return torch.stack(states, dim=1)


class Gru(Recurrent):
    """Gated recurrent unit (GRU); arguments and shapes are those of `Recurrent`.

        r, u = sigmoid of the first two thirds of W [x_t, h_(t-1)] + b (+ b')
        n = tanh of the last third of W [x_t, r h_(t-1)] + b (+ b')
        h_t = u h_(t-1) + (1 - u) n

    The reset gate r is applied before the product. PyTorch's GRU applies it after the product, so
    it differs.

    Source: Cho et al. 2014.
    """

    gates = 3

    def states(self, projected: torch.Tensor) -> torch.Tensor:
        both, units = self.recurrent, self.units
        state = projected.new_zeros(len(projected), units)
        states = []
        for step in projected.unbind(1):
            early = sigmoid(step[:, : 2 * units] + state @ both[:, : 2 * units])
            r, u = early.chunk(2, dim=1)
            n = (step[:, 2 * units :] + (r * state) @ both[:, 2 * units :]).tanh()
            state = u * state + (1.0 - u) * n
            states.append(state)
        return torch.stack(states, dim=1)


class WeightStandardisedConv2d(nn.Conv2d):
    """Convolution that standardises each filter w, of I weights, before it is used.

        standardised filter = v / sqrt(I (mean(v^2) + eps)),        v = w - mean(w)

    This is Qiao et al.'s filter divided by sqrt(I), so that outputs have the scale of the inputs. A
    group normalisation, which follows in their networks, removes this factor except from the bias.

    Source: Qiao et al. 2019, equation 6; Brock et al. 2021 (the scale).
    """

    eps = 1e-5

    def centred(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return v for all filters, of the weight's shape, and the divisor of each filter."""
        centred = self.weight - self.weight.mean(dim=(1, 2, 3), keepdim=True)
        squares = centred.square().sum(dim=(1, 2, 3), keepdim=True)
        return centred, (squares + self.eps * self.weight[0].numel()).sqrt()

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Convolve with the standardised filters."""
        centred, scale = self.centred()
        return self._conv_forward(input, centred / scale, self.bias)


class _CallWatch(TorchFunctionMode):
    """Watch over the calls of PyTorch's functions by a module under `torch.func.vmap`.

    Attributes:
        raised: Whether a call raised an error.
    """

    def __init__(self):
        super().__init__()
        self.raised = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a function, unless its own rule for vmap could see all records.

        Raises:
            UsageError: An `autograd.Function` with such a rule, or a custom operator.
        """
        try:
            if name := _find_vmap_rule(func, args):
                raise UsageError(
                    f"{name}: may have a rule for vmap of its own, which sees all records; use "
                    "functions of PyTorch, or an autograd.Function with generate_vmap_rule = True."
                )
            return func(*args, **(kwargs or {}))
        except Exception:
            self.raised = True
            raise


def _find_vmap_rule(func: Any, args: tuple[Any, ...]) -> str:
    """Return the name of a call that may have a rule for vmap from outside of PyTorch, or ""."""
    if args and inspect.isclass(args[0]) and issubclass(args[0], torch.autograd.Function):
        has_rule = args[0].vmap is not torch.autograd.Function.vmap
        return args[0].__qualname__ if has_rule else ""
    is_operator = isinstance(func, (torch._ops.OpOverload, torch._ops.OpOverloadPacket))
    return str(func) if is_operator and not str(func).startswith("aten") else ""


class PerRecord(nn.Module):
    """Module of the user that sees one record at a time, in training and in prediction.

    `torch.func.vmap` runs the module on batches of one record, (1, ...). So it cannot mix records,
    and PyTorch refuses control flow that depends on a record, and buffers that store one. A record
    for which a function of PyTorch raises an error (such as an index out of range), caught or not,
    has NaN as output and as derivatives, so it adds 0 to a sum and stops no run.

    Guarantee: row i of the output, and its derivatives, depend on row i of the input alone, if the
    module keeps nothing outside of itself (in a global variable, or in another object).

    Args:
        module: Module from (1, *shape) to (1, outputs).
        shape: Shape of one record.
        outputs: Number of outputs.

    Attributes:
        raises: Whether errors of the module are raised, as in checks on synthetic records.

    Source: docs/rules.md, rule 14; Horace He and Richard Zou 2021 (functorch).
    """

    def __init__(self, module: nn.Module, shape: tuple[int, ...], outputs: int):
        super().__init__()
        self.module, self.shape, self.outputs, self.raises = module, shape, outputs, False

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, *shape) to (batch, outputs).

        Raises:
            UsageError: The module changed an attribute or a buffer, which could store a record.
        """
        return self.map_records(lambda record: self.module(record[None])[0], x)

    def map_records(self, function: Callable[..., Any], *rows: Tensor) -> Any:
        """Map a function, which may call the module once, over the rows of tensors by vmap.

        Args:
            function: Function of one row of each tensor.
            rows: Tensors, (batch, ...); the first one holds records.
        """
        keyed = [each for each in self.module.modules() if isinstance(each, KeyedDropout)]
        draws, state = [each.draws for each in keyed], list(self._iterate_state())

        def run(row: Tensor, *values: Tensor) -> Any:
            for each, drawn in zip(keyed, draws, strict=True):
                each.enter_record(row, len(rows[0]), drawn)
            return function(values[0].clone(), *values[1:])  # the module may change it in place

        places = torch.arange(len(rows[0]), device=rows[0].device)
        try:
            result = self._map_or_fill(torch.func.vmap(run, randomness="error"), places, *rows)
        finally:
            for each in keyed:
                each.enter_record(None, 0, each.draws)
        for (name, before), (_, now) in zip(state, self._iterate_state(), strict=True):
            if before is not now:
                raise UsageError(
                    f"{name}: changes when the network runs, so it could store a record; compute "
                    "it in `__init__`, or use a local variable."
                )
        return result

    def _map_or_fill(self, mapped: Callable[..., Any], *rows: Tensor) -> Any:
        """Apply a function under vmap; rows for which it raises an error have NaN as results.

        A batch that raises is divided in two, down to single rows, so that the result of a row does
        not depend on other rows. Errors that the module catches count too: its `except` would run
        for all rows. Errors of the memory are raised.
        """
        watch = _CallWatch()
        try:
            with watch:
                result = mapped(*rows)
            if not watch.raised:
                return result
            if self.raises:
                raise UsageError(
                    "the network: catches an error of PyTorch, which depends on all records; use "
                    "torch.where or clamp."
                )
        except Exception as error:
            if self.raises or isinstance(error, UsageError) or is_out_of_memory(error):
                raise
        if len(rows[0]) > 1:
            halves = [self._map_or_fill(mapped, *half) for half in zip(
                *(each.tensor_split(2) for each in rows), strict=True
            )]  # fmt: skip
            return tree_map(lambda *parts: torch.cat(parts), *halves)
        known = make_synthetic_records(self, 1).to(rows[1])  # the plan has checked this record
        given = (rows[0], known, *map(torch.zeros_like, rows[2:]))
        return tree_map(lambda each: torch.full_like(each, math.nan), mapped(*given))

    def _iterate_state(self) -> Iterator[tuple[str, object]]:
        """Yield the name and the value of each attribute, buffer and item of the module."""
        for path, module in self.module.named_modules():
            if isinstance(module, KeyedDropout):
                continue
            own = {**vars(module), **vars(module)["_buffers"]}
            for name in sorted(set(own) - {"_buffers", "_parameters", "_modules"}):
                where = f"{path or 'the network'} ({type(module).__name__}).{name}"
                yield from _iterate_items(where, own[name])


def _iterate_items(where: str, value: object) -> Iterator[tuple[str, object]]:
    """Yield a name and a value, or those of the items of a container."""
    if isinstance(value, (list, tuple, dict, set)):
        yield where, len(value)
        for item in [*value.items()] if isinstance(value, dict) else [*value]:
            yield from _iterate_items(where, item)
    else:
        yield where, value


def make_synthetic_records(alone: PerRecord, count: int) -> Tensor:
    """Make synthetic records, (count, *shape), in [-1, 1], for checks before data is read."""
    parameter = next(alone.module.parameters())
    return torch.sin(9.0 * spread_values(count, alone.shape).to(parameter))


def spread_values(count: int, shape: tuple[int, ...]) -> Tensor:
    """Spread values evenly from -1 to 1 over synthetic records, float32, (count, *shape)."""
    values = np.linspace(-1.0, 1.0, count * math.prod(shape), dtype=np.float32)
    return torch.from_numpy(values).reshape(count, *shape)


class LogitScale(nn.Module):
    """Fixed factor and offset of each output, 1 and 0 at first; the temperature divides both.

    Args:
        outputs: Number of outputs.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, outputs: int):
        super().__init__()
        self.register_buffer("weight", torch.ones(outputs))
        self.register_buffer("bias", torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Scale (batch, outputs)."""
        return x * self.weight + self.bias
