"""The steps in jax: jit of vmap of grad, and jax_privacy.

Records are on the device from the start; a step is one jitted call, whose old weights are donated.
Random bits come from XLA's own generator ("rbg"), which on a CPU is faster than jax's default.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import numpy as np
import torch
from jax import lax
from jax import numpy as jnp
from peers import Absent, Made, Setting
from rows import CLIP, RATE

from pasearch.spaces.layers import Conv, Dense, Lstm, Pool

jax.config.update("jax_default_prng_impl", "rbg")


def on_gpu() -> bool:
    """Return whether jax has one."""
    return jax.default_backend() == "gpu"


def forward(s: Setting):
    """Return the network of one record as a function of (parameters, x)."""
    layers = (*s.row.architecture.layers, Dense(units=s.row.classes, activation="linear"))
    activations = {"tanh": jnp.tanh, "relu": jax.nn.relu, "sigmoid": jax.nn.sigmoid,
                   "linear": lambda value: value}  # fmt: skip

    def network(parameters: list[Any], x: Any, key: Any) -> Any:
        left = iter(parameters)
        if x.ndim == 2 and not isinstance(layers[0], Lstm):
            x = x[None]
        for layer in layers:
            if isinstance(layer, Dense):
                x = activations[layer.activation](next(left) @ x.reshape(-1) + next(left))
                if layer.dropout:
                    key, own = jax.random.split(key)
                    kept = jax.random.bernoulli(own, 1.0 - layer.dropout, x.shape)
                    x = jnp.where(kept, x / (1.0 - layer.dropout), 0.0)
            elif isinstance(layer, Pool):
                window = (1, layer.size, layer.size)
                x = lax.reduce_window(x, -jnp.inf, lax.max, window, window, "VALID")
            elif isinstance(layer, Conv):
                weight, bias = next(left), next(left)
                x = lax.conv_general_dilated(x[None], weight, (1, 1), str(layer.padding).upper())[0]
                x = activations[layer.activation](x + bias[:, None, None])
            else:
                x = _lstm(next(left), next(left), x)
        return x

    return network


def _lstm(weight: Any, bias: Any, x: Any) -> Any:
    units, width = len(bias) // 4, x.shape[1]

    def cell(state: tuple[Any, Any], z: Any) -> tuple[tuple[Any, Any], None]:
        h, c = state
        i, f, g, o = jnp.split(z + weight[:, width:] @ h, 4)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    zero = jnp.zeros(units)
    return lax.scan(cell, (zero, zero), x @ weight[:, :width].T + bias)[0][0]


def _loss(s: Setting):
    network = forward(s)

    def loss(parameters: list[Any], x: Any, y: Any, key: Any = None) -> Any:
        return -jax.nn.log_softmax(network(parameters, x, key))[y]

    return loss


def _start(s: Setting) -> tuple[list[Any], Any, Any]:
    parameters = [jnp.array(p.detach().numpy()) for p in s.row.network().parameters()]
    return parameters, jnp.array(s.data.x.cpu().numpy()), jnp.array(s.data.y.cpu().numpy())


class _State:
    """What a step carries: the weights, and a key."""

    def __init__(self, parameters: list[Any]):
        self.parameters, self.key = parameters, jax.random.key(5)

    def weights(self) -> list[torch.Tensor]:
        return [torch.from_numpy(np.array(p)) for p in self.parameters]


def vmapped(s: Setting) -> Made:
    """Return the step of jit(vmap(grad))."""
    parameters, x_all, y_all = _start(s)
    state, gradient = _State(parameters), jax.grad(_loss(s))

    @partial(jax.jit, donate_argnums=(0, 1))
    def move(parameters: list[Any], key: Any, x_all: Any, y_all: Any) -> tuple[list[Any], Any]:
        key, batch_key, mask_key, *keys = jax.random.split(key, 3 + len(parameters))
        chosen = jax.random.randint(batch_key, (s.batch,), 0, s.n)
        chosen = jnp.arange(s.n) if s.whole else chosen
        masks = jax.random.split(mask_key, s.batch) if s.row.has_dropout else None
        formed = jax.vmap(gradient, in_axes=(None, 0, 0, masks if masks is None else 0))(
            parameters, x_all[chosen], y_all[chosen], masks
        )
        squares = sum(jnp.square(g).sum(axis=range(1, g.ndim)) for g in formed)
        factors = jnp.minimum(1.0, CLIP / (jnp.sqrt(squares) + 1e-6))
        sums = [jnp.tensordot(factors, g, 1) for g in formed]
        noisy = [v + s.sigma * CLIP * jax.random.normal(k, v.shape)
                 for v, k in zip(sums, keys, strict=True)]  # fmt: skip
        return [p - RATE / s.batch * v for p, v in zip(parameters, noisy, strict=True)], key

    def step() -> None:
        state.parameters, state.key = move(state.parameters, state.key, x_all, y_all)
        jax.block_until_ready(state.parameters)

    return step, lambda: s.loaded(state.weights())


def private(s: Setting) -> Made:
    """Return jax_privacy's step, of batches padded to a few sizes, for which it is compiled."""
    from jax_privacy import batch_selection, clipping, noise_addition

    if s.row.has_dropout:
        raise Absent("this step has no dropout")
    parameters, x_all, y_all = _start(s)
    state, single = _State(parameters), _loss(s)
    gradient = clipping.clipped_grad(
        single, l2_clip_norm=CLIP, batch_argnums=(1, 2), keep_batch_dim=False
    )
    privatizer = noise_addition.gaussian_privatizer(stddev=s.sigma * CLIP, prng_key=state.key)
    noise = privatizer.init(parameters)

    @partial(jax.jit, donate_argnums=(0,))
    def move(parameters: list[Any], noise: Any, x_all: Any, y_all: Any, chosen: Any):
        sums = gradient(parameters, x_all[chosen], y_all[chosen], is_padding_example=chosen == -1)
        noisy, noise = privatizer.update(sums, noise)
        return [p - RATE / s.batch * v for p, v in zip(parameters, noisy, strict=True)], noise

    sampler = batch_selection.CyclicPoissonSampling(
        sampling_prob=s.batch / s.n, iterations=10_000_000
    )
    multiple = 1 if s.whole else max(16, 2 ** ((s.batch // 8).bit_length() - 1))
    drawn = sampler.batch_iterator(s.n, rng=7)

    def step(chosen: np.ndarray | None = None) -> None:
        nonlocal noise
        if chosen is None:
            chosen = batch_selection.pad_to_multiple_of(next(drawn).astype(np.int32), multiple)
        state.parameters, noise = move(state.parameters, noise, x_all, y_all, chosen)
        jax.block_until_ready(state.parameters)

    if not s.whole:  # every size that five deviations reach is compiled before the clock starts
        spread = 5 * s.batch**0.5
        for size in range(multiple, int(s.batch + spread) + 2 * multiple, multiple):
            if size > s.batch - spread:
                step(np.arange(size, dtype=np.int32) - 1)
    return step, lambda: s.loaded(state.weights())
