"""The ways of one step that are compared: each draws its batch, gathers it, and moves the weights.

    ours       the library's step: Poisson batch, clipping to a norm, exact normal noise, SGD
    sgd        plain PyTorch, without privacy: a batch of fixed size, autograd, torch.optim
    captured   the same, captured once as a CUDA graph and replayed: on a GPU
    hand       what a careful expert writes for this one network: norms and sums in closed form
               (Goodfellow 2015; of convolutions by unfolding; of the LSTM from its gates'
               gradients), one flat buffer each for weights, gradient and noise, torch.randn
    hooks      Opacus, gradients of every record by hooks
    ghost      Opacus, ghost clipping: two backward passes
    fastdp     FastDP (Bu et al.), clipping_mode MixOpt
    jax        jit of vmap of grad: every gradient formed, where XLA does not fuse it away
    jax-privacy   Google's jax_privacy: its Poisson batches, `clipped_grad`, Gaussian privatizer

A private peer's batch is a Poisson sample, drawn the cheapest exact way: its size is binomial, and
the records are then drawn without replacement. `jax` takes a fixed size, as its shapes are static.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rows import CLIP, RATE, Row
from torch import Tensor, nn
from torch.nn import functional

from pasearch.data.partitions import Records
from pasearch.runs.keys import Keys
from pasearch.runs.normals import MIN_COMPILED_NUMBERS, choose_compiled_code
from pasearch.spaces.modules import KeyedDropout, Lstm
from pasearch.training.clipping import FlatClipping
from pasearch.training.recipe import Recipe
from pasearch.training.trainer import Training, full_precision, start_training

Step = Callable[[], object]
Made = tuple[Step, Callable[[], nn.Module]]
"""A step, and what gives the network with its weights of now."""

FASTDP = Path(os.environ.get("SPEED_PEERS", Path(__file__).parents[3] / "shared" / "peers"))


class Absent(Exception):
    """Why a peer does not run here."""


class Setting:
    """What a peer's step is made for.

    Args:
        row: The network.
        data: Its records.
        device: "cpu" or "cuda".
        sigma: Noise multiplier; the check takes next to none.
        whole: Whether a batch is all records, without dropout: for the check that all ways do the
            same.
    """

    def __init__(self, row: Row, data: Records, device: str, sigma: float, whole: bool):
        self.row = row.without_dropout() if whole else row
        self.data, self.device, self.sigma = data, device, sigma
        self.n, self.whole = len(data), whole
        self.batch = self.n if whole else row.batch
        self.random = np.random.default_rng(3)

    def poisson(self) -> Tensor:
        """Return a Poisson sample."""
        if self.whole:
            return torch.arange(self.n, device=self.device)
        size = self.random.binomial(self.n, self.batch / self.n)
        chosen = self.random.choice(self.n, size, replace=False, shuffle=False)
        return torch.from_numpy(chosen).to(self.device)

    def fixed(self) -> Tensor:
        """Return so many records, drawn with replacement."""
        if self.whole:
            return torch.arange(self.n, device=self.device)
        return torch.randint(self.n, (self.batch,), device=self.device)

    def loaded(self, weights: Iterable[Tensor]) -> nn.Module:
        """Return the row's network with these weights."""
        network = self.row.network()
        with torch.no_grad():
            for parameter, value in zip(network.parameters(), weights, strict=True):
                parameter.copy_(value)
        return network

    def at(self, chosen: Tensor) -> tuple[Tensor, Tensor]:
        """Return the batch."""
        return self.data.x.index_select(0, chosen), self.data.y.index_select(0, chosen)


def ours(
    s: Setting,
    *,
    secure: bool = False,
    query: Callable[[nn.Module, int], float] | None = None,
    **settings: Any,
) -> Made:
    """Return the library's step; settings are other fields of its recipe.

    Its noise is in machine code, as in every process that has drawn some millions of numbers.
    """
    choose_compiled_code(MIN_COMPILED_NUMBERS)
    network = s.row.network()
    plain = {"bounding": FlatClipping(clip_norm=CLIP), "optimizer": "sgd", "average": None}
    recipe = Recipe(
        expected_batch_size=s.batch, steps=1_000_000, learning_rate=RATE, noise_multiplier=s.sigma,
        **{**plain, **settings},
    )  # fmt: skip
    keys = Keys(secure=secure)
    streams = {purpose: keys.stream(purpose) for purpose in ("batch", "noise", "dropout")}
    training = start_training(network, s.data, recipe, streams, device=s.device, query=query)
    exact = full_precision() if s.device == "cpu" else contextlib.nullcontext()
    exact.__enter__()  # as `train` does, once for all steps; on a CPU it changes no peer
    step = training.step if s.device == "cpu" else in_rounds(training)
    return step, lambda: (exact, network)[1]


def in_rounds(training: Training) -> Step:
    """Return a whole round of steps, as a GPU makes them; it says how many they are."""

    def many() -> None:
        training.steps(training.max_round_steps)

    many.steps = training.max_round_steps  # pyright: ignore[reportFunctionMemberAccess]
    return many


def _by_optimizer(s: Setting, network: nn.Module, optimizer: Any, drawn: Callable[[], Any]) -> Made:
    """Return the step that torch's users write: forward, backward, update."""

    def step() -> None:
        x, y = s.at(drawn())
        functional.cross_entropy(network(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, lambda: network


def sgd(s: Setting) -> Made:
    """Return plain PyTorch's step."""
    network = torch_network(s)
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE)

    return _by_optimizer(s, network, optimizer, s.fixed)


def captured(s: Setting) -> Made:
    """Return plain PyTorch's step, captured and replayed; its batch is drawn outside."""
    if s.device != "cuda":
        raise Absent("CUDA graphs are for a GPU")
    network = torch_network(s)
    optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
    chosen = s.fixed()

    def once() -> None:
        optimizer.zero_grad(set_to_none=True)
        x, y = s.at(chosen)
        functional.cross_entropy(network(x), y).backward()
        optimizer.step()

    beside = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):
            once()
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once()

    def step() -> None:
        chosen.copy_(s.fixed())
        graph.replay()

    return step, lambda: network


def hooks(s: Setting) -> Made:
    """Return Opacus' step, with gradients of every record."""
    from opacus.grad_sample import GradSampleModule
    from opacus.optimizers import DPOptimizer

    network = GradSampleModule(torch_network(s, private=True))
    optimizer = DPOptimizer(torch.optim.SGD(network.parameters(), lr=RATE), **_opacus(s))

    return _by_optimizer(s, network, optimizer, s.poisson)


def ghost(s: Setting) -> Made:
    """Return Opacus' step with ghost clipping."""
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    network = GradSampleModuleFastGradientClipping(
        torch_network(s, private=True), max_grad_norm=CLIP, use_ghost_clipping=True
    )
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(network.parameters(), lr=RATE), **_opacus(s)
    )
    loss = DPLossFastGradientClipping(network, optimizer, nn.CrossEntropyLoss())

    def step() -> None:
        x, y = s.at(s.poisson())
        loss(network(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, lambda: network


def _opacus(s: Setting) -> dict[str, Any]:
    return {
        "noise_multiplier": s.sigma,
        "max_grad_norm": CLIP,
        "expected_batch_size": s.batch,
    }


def fastdp(s: Setting) -> Made:
    """Return FastDP's step."""
    if not (FASTDP / "load_fastdp.py").exists():
        raise Absent(f"no FastDP in {FASTDP}: name its folder with SPEED_PEERS")
    if s.row.kind == "lstm":
        raise Absent("FastDP knows no LSTM, and would leave its weights out in silence")
    if str(FASTDP) not in sys.path:
        sys.path.insert(0, str(FASTDP))
    with contextlib.redirect_stdout(io.StringIO()):  # it prints what it does
        from load_fastdp import engine  # pyright: ignore[reportMissingImports]

        network = torch_network(s)
        optimizer = torch.optim.SGD(network.parameters(), lr=RATE)
        private = engine()(
            network, batch_size=s.batch, sample_size=s.n, epochs=1, noise_multiplier=s.sigma,
            max_grad_norm=CLIP, clipping_fn="Abadi", clipping_mode="MixOpt",
            clipping_style="all-layer", loss_reduction="mean",
        )  # fmt: skip
        private.attach(optimizer)
    if private.n_components != len(list(network.parameters())):
        raise Absent("FastDP does not know all of this network's layers")

    return _by_optimizer(s, network, optimizer, s.poisson)


def hand(s: Setting) -> Made:
    """Return the hand-written step of this network."""
    import hand_written

    return hand_written.step_of(s)


def jax(s: Setting) -> Made:
    """Return the step of jit(vmap(grad))."""
    return _with_jax(s).vmapped(s)


def jax_privacy(s: Setting) -> Made:
    """Return jax_privacy's step."""
    return _with_jax(s).private(s)


def _with_jax(s: Setting):
    try:
        import jax_peers
    except ImportError as error:
        raise Absent(f"{error.name} is not installed: pip install jax jax_privacy") from None
    if s.device == "cuda" and not jax_peers.on_gpu():
        raise Absent("this jax finds no GPU: pip install 'jax[cuda12]'")
    return jax_peers


class LastState(nn.Module):
    """A torch LSTM and a linear layer on its last state."""

    def __init__(self, lstm: nn.Module, head: nn.Module):
        super().__init__()
        self.lstm, self.head = lstm, head

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, (batch, classes)."""
        return self.head(self.lstm(x)[0][:, -1])


def torch_network(s: Setting, *, private: bool = False) -> nn.Module:
    """Return the row's network as users of torch have it.

    That is with torch's LSTM, or Opacus' for Opacus, its dropout, and convolutions padded by so
    many pixels.

    Torch's LSTM has a second bias, which starts at 0; the check freezes it.
    """
    network = s.row.network().to(s.device).train()
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):  # FastDP takes numbers alone
            same = layer.padding == "same"
            layer.padding = tuple(same * (side // 2) for side in layer.kernel_size)
    for name, layer in network.named_children():
        if isinstance(layer, KeyedDropout):
            setattr(network, name, nn.Dropout(layer.rate))
    if s.row.kind != "lstm":
        return network
    own, head = list(network.children())
    assert isinstance(own, Lstm)
    if private:
        from opacus.layers import DPLSTM as Made
    else:
        from torch.nn import LSTM as Made
    made = Made(own.inputs, own.units, batch_first=True).to(s.device)
    with torch.no_grad():
        for name, value in made.named_parameters():
            part = own.weight[:, : own.inputs] if "ih" in name else own.weight[:, own.inputs :]
            zero = torch.zeros_like(own.bias)
            value.copy_(part if "weight" in name else own.bias if "ih" in name else zero)
            value.requires_grad_(not (s.whole and "bias" in name and "hh" in name))
    return LastState(made, head)


def quiet() -> None:
    """Silence what the peers warn of: the same at every step, and known."""
    warnings.filterwarnings("ignore")


PEERS: dict[str, Callable[[Setting], Made]] = {
    "sgd": sgd,
    "captured": captured,
    "hand": hand,
    "hooks": hooks,
    "ghost": ghost,
    "fastdp": fastdp,
    "jax": jax,
    "jax-privacy": jax_privacy,
    "ours again": ours,
}
"""By the name that `--peer` takes; `ours again` is the A/A row."""

DRAWN = {"sgd": "fixed size", "captured": "fixed size", "jax": "fixed size"}
"""How a peer's batch is drawn, where that is not a Poisson sample."""
