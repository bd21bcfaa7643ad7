"""Private logistic regression: hundreds of feature subsets in one call.

    v_i = (x_i, 1) / T,  T = sqrt(data_norm^2 + 1);  a null record has v_i = 0, the 1 included
    u   = argmin  sum_i log(1 + e^(v_i u)) - y_i v_i u  +  (a / 2) ||u||^2  +  b u
    b   has the density ~ exp(-epsilon ||b||),  and  a >= 1 / epsilon;  weights = u / T

This is objective perturbation, epsilon-DP under zero-out adjacency. Objective and noise
distribution are those of `diffprivlib.models.LogisticRegression`; the tests compare the two. For
more than two classes, one model per class separates it from the rest, with epsilon / classes.

The proof is for the exact minimum, so `minimise_objectives` finds it, for all subsets at once. It
takes accelerated steps with one bound of the curvature, then Newton steps for the problems that are
not solved yet.

Source: Chaudhuri, Monteleoni and Sarwate 2011, Algorithm 2; Anderson 1965, Walker and Ni 2011
(combined steps); docs/rules.md, rules 2, 3, 8 and 11.
Proof: docs/guarantees/objective-perturbation.md.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pasearch.accounting.checks import check_positive, check_positive_integer
from pasearch.accounting.events import PureDP
from pasearch.accounting.profiles import Array
from pasearch.errors import UsageError
from pasearch.runs.keys import Stream

WEIGHT_TOLERANCE = 1e-12  # maximum L2 distance from the minimiser, if float64 rounding permits
GRADIENT_ROUNDING = 1e-14
"""Gradient norm that floating-point rounding may cause, relative to a bound of the gradient."""
COMBINED_STEPS = 8  # number of earlier steps that an accelerated step combines
MAX_ACCELERATED_STEPS = 1000
MAX_NEWTON_STEPS = 200
MIN_NEWTON_FRACTION = 1e-8  # minimum fraction of a Newton step, when steps are halved
MAX_CHUNK_NUMBERS = 1 << 22  # maximum length of each of a few solver arrays: a memory limit
GRADIENT_BLOCK_RECORDS = 2048
"""Number of records per block of a gradient; intermediate results fit into a core's cache."""


def solve_in_chunks(
    rows: Array, hot: Array, masks: np.ndarray[Any, Any], norms: Array, ridges: Array, noise: Array,
    device: str,
) -> Array:  # fmt: skip
    """Compute the weights of p models, (p, outputs, d + 1), in chunks of models that fit in memory.

    Args:
        rows: Features of the records and a last column of ones, (n, d + 1); 0 for a null record.
        hot: 1 if a record is of an output's class, else 0, (n, outputs).
        masks: Features of each model, (p, d) bool.
        norms: Bound of the L2 norm of a record's used features, (p,); longer records are scaled
            down to it.
        ridges: Regularisation of each model's weights, a T^2, (p,).
        noise: Noise vector of each model's objective, T b, (p, outputs, d + 1).
        device: Torch device.
    """

    def to_device(array: Any) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float64)).to(device)

    (n, width), outputs = rows.shape, hot.shape[1]
    points, answers = to_device(rows), to_device(hot)
    quarter = points.T @ points / 4
    size = max(
        1, MAX_CHUNK_NUMBERS // (n * outputs + width * (width + 3 * COMBINED_STEPS * outputs))
    )
    found = np.empty((len(masks), outputs, width))
    blocks = points[:, :-1].split(max(1, MAX_CHUNK_NUMBERS // width))
    for start in range(0, len(masks), size):
        part = slice(start, start + size)
        used = to_device(np.pad(masks[part], ((0, 0), (0, 1)), constant_values=True))
        squares = torch.cat([used[:, :-1] @ (block**2).T for block in blocks], dim=1)
        lengths, bounds = squares.sqrt_(), to_device(norms[part])[:, None]
        shrink = None
        target = (answers.T @ points)[None] * used[:, None] - to_device(noise[part])
        if bool((lengths > bounds).any()):
            shrink = bounds / torch.maximum(lengths, bounds)
            kept = (shrink[:, None] * answers.T).reshape(-1, n) @ points[:, :-1]
            target[..., :-1] = kept.view(len(used), outputs, -1) * used[:, None, :-1]
            target[..., :-1] -= to_device(noise[part])[..., :-1]
        weights = minimise_objectives(
            points, shrink, target, used, to_device(ridges[part]), quarter, to_device(norms[part])
        )
        found[part] = weights.cpu().numpy()
    return found


def minimise_objectives(
    rows: Tensor, shrink: Tensor | None, target: Tensor, masks: Tensor, ridges: Tensor,
    quarter: Tensor, norms: Tensor,
) -> Tensor:  # fmt: skip
    """Minimise sum_i log(1 + e^(z_i)) - w target + (ridge / 2) ||w||^2 over w, for p problems.

    z_i is w times row i. The matrix H = (X'X / 4 restricted to the mask) + ridge bounds the
    curvature from above everywhere. Therefore the step to w - H^-1 gradient never makes the
    gradient longer in the norm of H^-1, and such steps converge from any start. Newton's method
    solves the problems that remain after `MAX_ACCELERATED_STEPS` steps.

    Args:
        rows: Features of the records and a last column for the intercept, X, (n, D).
        shrink: Factor of each row's features in each problem, (p, n), the intercept excluded; None:
            all factors are 1.
        target: Linear term of each objective, (p, outputs, D), 0 outside the mask.
        masks: Used columns of each problem, (p, D), 1 or 0.
        ridges: Regularisation of each problem, (p,).
        quarter: X'X / 4, (D, D).
        norms: Bound of the L2 norm of a row's features in each problem, (p,). The tolerance of the
            solution depends on it and other public numbers.

    Returns:
        Weights, (p, outputs, D).

    Cost: two matrix products for all problems per step.
    """
    rounding = GRADIENT_ROUNDING * len(rows) * (norms**2 + 1.0).sqrt() / 2.0
    enough = torch.maximum(WEIGHT_TOLERANCE * ridges, rounding)
    found = torch.zeros_like(target)
    missed = torch.ones(len(target), dtype=torch.bool, device=target.device)
    left = torch.arange(len(target), device=target.device)  # problems that are not solved yet
    w, scale, aim, used, ridge, near = found.clone(), shrink, target, masks, ridges, enough
    steps = _AndersonSteps(w, _invert_curvature_root(masks, quarter, ridges))
    for _ in range(MAX_ACCELERATED_STEPS):
        gradient = (_sum_gradients(rows, scale, w) - aim) * used[:, None] + ridge[:, None, None] * w
        done = (gradient.norm(dim=2) <= near[:, None]).all(dim=1)
        found[left], missed[left] = w, ~done
        if bool(done.all()):
            break
        if int(done.sum()) * 8 > len(done):
            kept = ~done
            scale = None if scale is None else scale[kept]
            left, gradient, w, aim, used, ridge, near = (
                each[kept] for each in (left, gradient, w, aim, used, ridge, near)
            )
            steps.keep_problems(kept)
        w = steps.next_weights(w, gradient)
    for i in torch.nonzero(missed)[:, 0].tolist():
        seen, columns = rows.clone(), masks[i] > 0
        if shrink is not None:
            seen[:, :-1] *= shrink[i][:, None]
        for o in range(target.shape[1]):
            own = _minimise_by_newton(seen[:, columns], target[i, o, columns], ridges[i], enough[i])
            found[i, o] = torch.zeros_like(target[i, o]).index_put_((columns,), own)
    return found


class _AndersonSteps:
    """Anderson acceleration: combines earlier steps into one, the best for a quadratic objective.

    If the gradient became longer, the next weights are those of the last safe step, which is
    w - H^-1 gradient.

    Source: Anderson 1965; Walker and Ni 2011.
    """

    def __init__(self, w: Tensor, root: Tensor):
        p, outputs, width = w.shape
        self.root, self.count = root, 0
        # Changes of the gradient, multiplied by the root of H^-1, and of the safe step's result.
        self.changes = w.new_zeros(p, outputs, COMBINED_STEPS, width)
        self.moves = torch.zeros_like(self.changes)
        self.merit = w.new_full((p, outputs), math.inf)
        self.lead = self.whitened = w

    def keep_problems(self, kept: Tensor) -> None:
        """Drop the solved problems; `kept` is True for the others, (p,)."""
        for name in ("root", "changes", "moves", "merit", "lead", "whitened"):
            setattr(self, name, getattr(self, name)[kept])

    def next_weights(self, w: Tensor, gradient: Tensor) -> Tensor:
        """Compute the next weights from the weights and their gradient."""
        count, changes, moves = self.count, self.changes, self.moves
        new = gradient @ self.root.transpose(1, 2)
        new_lead, length = w - new @ self.root, (new * new).sum(dim=2)
        worse = ~(length <= self.merit)
        if count:
            changes[:, :, count % COMBINED_STEPS] = new - self.whitened
            moves[:, :, count % COMBINED_STEPS] = new_lead - self.lead
        if bool(worse.any()):
            changes[worse] = 0.0
            new = torch.where(worse[..., None], self.whitened, new)
            new_lead = torch.where(worse[..., None], self.lead, new_lead)
            # Any length is accepted after a safe step: it can grow by rounding only.
            length = torch.where(worse, math.inf, length)
        self.whitened, self.lead, self.merit, self.count = new, new_lead, length, count + 1
        shares = _combine_changes(changes[:, :, : count + 1], new)
        return new_lead - (shares[:, :, None] @ moves[:, :, : count + 1])[:, :, 0]


def _invert_curvature_root(masks: Tensor, curvature: Tensor, ridges: Tensor) -> Tensor:
    """Compute a matrix R with R'R = H^-1 for each mask, (p, D, D)."""
    bound = masks[:, :, None] * masks[:, None]
    bound *= curvature
    bound.diagonal(dim1=1, dim2=2).add_(ridges[:, None] * masks + (1 - masks))
    eye = torch.eye(masks.shape[1], dtype=masks.dtype, device=masks.device)
    return torch.linalg.solve_triangular(torch.linalg.cholesky_ex(bound).L, eye, upper=False)


def _minimise_by_newton(rows: Tensor, target: Tensor, ridge: Tensor, enough: Tensor) -> Tensor:
    """Minimise one objective by Newton's method, halving each step until it improves.

    The objective is strictly convex and the curvature exact, so the method converges from any
    start, for any scales of the features and any ridge.

    Args:
        rows: Columns of the used features, (n, c).
        target: Target of the used features, (c,).
        ridge: Ridge penalty, above 0.
        enough: Maximum gradient norm of a solution.
    """

    def slopes(w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = rows @ w
        gradient = torch.sigmoid(z) @ rows - target + ridge * w
        loss = torch.nn.functional.softplus(z).sum() - w @ target + ridge / 2 * (w @ w)
        return z, gradient, loss

    w = torch.zeros_like(target)
    z, gradient, loss = slopes(w)
    for _ in range(MAX_NEWTON_STEPS):
        if bool(gradient.norm() <= enough):
            break
        curvature = (rows * (torch.sigmoid(z) * torch.sigmoid(-z))[:, None]).T @ rows
        curvature.diagonal().add_(ridge)
        step = torch.linalg.solve(curvature, gradient)
        helps, length, new, value = False, 2.0, gradient, loss
        while not helps and length > MIN_NEWTON_FRACTION:
            length /= 2
            z, new, value = slopes(w - length * step)
            # Near the minimum the loss is dominated by rounding, so the gradient decides.
            gains = value <= loss - 1e-4 * length * (gradient @ step)
            helps = bool(gains | (new.norm() <= gradient.norm() / 2))
        w, gradient, loss = w - length * step, new, value
    return w


def _combine_changes(changes: Tensor, gradient: Tensor) -> Tensor:
    """Compute the coefficients of m earlier changes whose sum is nearest to a gradient.

    The result has shape (p, outputs, m). The changes are scaled to length 1 for the least squares;
    changes that are 0 are excluded.
    """
    products = changes @ changes.transpose(2, 3)
    squares = products.diagonal(dim1=2, dim2=3)
    empty = squares == 0
    sizes = torch.where(empty, 1.0, squares).sqrt()
    scaled = products / (sizes[..., None] * sizes[:, :, None])
    scaled.diagonal(dim1=2, dim2=3).add_(1e-12 + empty.to(changes.dtype))
    along = (changes @ gradient[..., None])[..., 0] / sizes
    return torch.linalg.solve(scaled, along) / sizes


def _sum_gradients(rows: Tensor, shrink: Tensor | None, w: Tensor) -> Tensor:
    """Compute the sum over records i of sigmoid(z_i) times row i, (p, outputs, D)."""
    p, outputs, width = w.shape
    features, found = w[..., :-1].reshape(p * outputs, width - 1), torch.zeros_like(w)
    for start in range(0, len(rows), GRADIENT_BLOCK_RECORDS):
        part = rows[start : start + GRADIENT_BLOCK_RECORDS]
        if shrink is None:
            chances = torch.sigmoid_(w.reshape(-1, width) @ part.T)
            found += (chances @ part).view(p, outputs, width)
            continue
        own = shrink[:, None, start : start + GRADIENT_BLOCK_RECORDS]
        z = (features @ part[:, :-1].T).view(p, outputs, -1)
        chances = z.mul_(own).add_(w[..., -1:] * part[:, -1]).sigmoid_()
        found[..., -1] += chances @ part[:, -1]
        chances = chances.mul_(own).reshape(-1, len(part))
        found[..., :-1] += (chances @ part[:, :-1]).view(p, outputs, width - 1)
    return found


REGULARISATION_FACTOR = 8.0
"""Default regularisation in units of outputs / epsilon; measured, see the proof page."""
ROUNDING_FACTOR = 1 + 1e-9
"""Factor that enlarges norms and reduces epsilon to cover floating-point rounding."""
MAX_FEATURE_SIZE = 10.0  # maximum absolute feature value; features of encoded records are in [0, 1]
WEIGHT_RESOLUTION = 2.0**-24
"""Resolution of released weights; the low bits of solver and noise are not released."""
DRAW_WEIGHTS = np.full(4, 0.5)  # weights of four normal draws whose sum has variance 1
MAX_MEMORY_BYTES = 2**34  # approximate maximum memory of objective perturbation: 16 GiB
RECORD_COPIES = 6  # approximate maximum number of float64 copies of all records in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectivePerturbation:
    """Logistic regression by objective perturbation: noise in the objective.

    Guarantee: each model of `fit_many` costs `event`, if its float64 weights are the exact
    minimiser.

    Args:
        epsilon: Privacy cost of one fit, all classes together, above 0.
        data_norm: Public bound of the L2 norm of a record's used features, above 0. Longer records
            are scaled down to it.
        classes: Number of classes, 2 or more: public, independent of the records.
        regularisation: Regularisation a for records divided by `scale`, at least outputs / epsilon.
            None: `REGULARISATION_FACTOR` times that minimum.
    """

    epsilon: float
    data_norm: float
    classes: int = 2
    regularisation: float | None = None

    def __post_init__(self) -> None:
        for name in ("epsilon", "data_norm"):
            object.__setattr__(self, name, check_positive(name, getattr(self, name)))
        object.__setattr__(self, "classes", _check_classes(self.classes))
        least = self.outputs / self.epsilon
        given = (
            REGULARISATION_FACTOR * least if self.regularisation is None else self.regularisation
        )
        strength = check_positive("regularisation", given)
        if not strength >= least:
            raise UsageError(
                f"regularisation is {strength:g}: expected {least:g} or above, which is outputs / "
                "epsilon; otherwise a record could cost more than epsilon. Omit it for the default."
            )
        object.__setattr__(self, "regularisation", strength)

    @property
    def outputs(self) -> int:
        """Number of models per fit: one for two classes, otherwise one per class."""
        return 1 if self.classes == 2 else self.classes

    @property
    def event(self) -> PureDP:
        """Privacy event of one fit."""
        return PureDP(epsilon=self.epsilon)

    @property
    def scale(self) -> float:
        """Divisor T of a record and the intercept's 1: the quotient has an L2 norm of at most 1."""
        return _compute_row_scale(self.data_norm)

    @property
    def rate(self) -> float:
        """Rate of the noise vector b of one model, of density proportional to exp(-rate ||b||)."""
        return self.epsilon / self.outputs / ROUNDING_FACTOR

    @property
    def strength(self) -> float:
        """Regularisation a, the default included."""
        assert self.regularisation is not None
        return self.regularisation


def fit_many(
    x: Any, y: Any, valid: Any, masks: Any, mechanisms: Sequence[ObjectivePerturbation],
    streams: Sequence[Stream], *, device: str = "cpu",
) -> Array:  # fmt: skip
    """Fit one model for each subset of the features, all in one call.

    Guarantee: a model depends on its own mechanism, stream and subset alone, to 1e-6 a weight; so
    each costs its own `event`, and no two share noise unless they share a stream.

    Args:
        x: Features, (n, d).
        y: Classes, integers (n,).
        valid: False for a null record, (n,). Records with a non-finite feature or an unknown class
            are treated as null.
        masks: Features that each of p models uses, (p, d) bool.
        mechanisms: Mechanism of each model, for the same number of classes.
        streams: Random stream of each model; the noise also depends on the records.
        device: Torch device of the computation.

    Returns:
        (p, outputs, d + 1) float64: weights, 0 for features that are not used, the intercept last;
        one output for two classes.

    Raises:
        UsageError: Arrays of other shapes, or different numbers of masks, mechanisms and streams.

    Cost: the `event` of every mechanism, on every partition that the records are from; charge it
        first.
    """
    used = np.asarray(masks, dtype=bool)
    classes = {each.classes for each in mechanisms}
    if not len(used) == len(mechanisms) == len(streams) or len(classes) > 1:
        raise UsageError(
            f"there are {len(used)} masks, {len(mechanisms)} mechanisms with {len(classes)} "
            f"different numbers of classes and {len(streams)} streams: expected one mask, one "
            "mechanism and one stream per model, and the same number of classes."
        )
    rows, hot = _prepare_problem(x, y, valid, classes.pop() if classes else 2)
    used = _check_masks(used, rows)
    keys = _derive_streams(rows, hot, used, mechanisms, streams)
    noise = np.zeros((len(used), hot.shape[1], rows.shape[1]))
    columns = np.pad(used, ((0, 0), (0, 1)), constant_values=True)
    widths = columns.sum(axis=1).tolist()
    for own, at, width, mechanism, key in zip(
        noise, columns, widths, mechanisms, keys, strict=True
    ):
        own[:, at] = mechanism.scale * _draw_noise(mechanism, width, key)
    norms = np.array([each.data_norm for each in mechanisms])
    ridges = np.array([each.strength * each.scale**2 for each in mechanisms])
    weights = solve_in_chunks(rows, hot, used, norms, ridges, noise, device)
    return (
        np.round(weights / WEIGHT_RESOLUTION) * WEIGHT_RESOLUTION + 0.0
    )  # + 0.0: the sign of a zero would reveal more


def fit_public(
    x: Any, y: Any, valid: Any, masks: Any, *, data_norms: Any, classes: int = 2,
    regularisation: float = 1.0, device: str = "cpu",
) -> Array:  # fmt: skip
    """Fit one model for each subset without noise, on public data only.

    Args:
        x: Features, (n, d).
        y: Classes, integers (n,).
        valid: False for a null record, (n,).
        masks: Features of each model, (p, d) bool.
        data_norms: Bounds of the L2 norm of a record's used features, (p,), above 0.
        classes: Number of classes, 2 or more.
        regularisation: Regularisation a, above 0.
        device: Torch device of the computation.

    Returns:
        (p, outputs, d + 1) float64: weights, 0 for unused features; the intercept last.

    Cost: none is charged, so the records must be public.
    """
    rows, hot = _prepare_problem(x, y, valid, _check_classes(classes))
    used = _check_masks(masks, rows)
    norms = np.array([check_positive("data_norms", float(norm)) for norm in np.asarray(data_norms)])
    if norms.shape != (len(used),):
        raise UsageError(f"data_norms are {norms.shape}: expected ({len(used)},), one per mask.")
    ridges = (
        check_positive("regularisation", regularisation)
        * np.array([_compute_row_scale(r) for r in norms]) ** 2
    )
    noise = np.zeros((len(used), hot.shape[1], rows.shape[1]))
    return solve_in_chunks(rows, hot, used, norms, ridges, noise, device)


def check_objective_memory(slots: int, features: int) -> None:
    """Raise UsageError if objective perturbation would need too much memory for the records.

    Args:
        slots: Number of records, null records included.
        features: Maximum number of features of a fit.

    Raises:
        UsageError: The fit would need more than about `MAX_MEMORY_BYTES`.
    """
    needed = 8 * RECORD_COPIES * slots * (features + 1)
    if not needed <= MAX_MEMORY_BYTES:
        raise UsageError(
            f"Objective perturbation needs all records at once: {slots:,} positions of "
            f"{features:,} features take about {needed / 2**30:.0f} GiB, expected at most "
            f"{MAX_MEMORY_BYTES / 2**30:.0f}. Take `trainer=dpsgd`, which reads them in parts, "
            "or fewer features (`method=top`, `k=`)."
        )


def append_intercept(x: Any, valid: Any) -> Array:
    """Return the features, clamped to +-`MAX_FEATURE_SIZE`, with a column of ones, (n, d + 1).

    The row of a null record, or of one with a non-finite feature, is 0.

    Args:
        x: Features, (n, d).
        valid: False for a null record, (n,).

    Raises:
        UsageError: Arrays of other shapes.
    """
    features, usable = np.asarray(x, dtype=np.float64), np.asarray(valid, dtype=bool)
    if features.ndim != 2 or usable.shape != features.shape[:1]:
        raise UsageError(
            f"records are {features.shape} and valid is {usable.shape}: expected (n, d) and (n,)."
        )
    usable = usable & np.isfinite(features).all(axis=1)
    rows = np.empty((len(features), features.shape[1] + 1))
    np.clip(features, -MAX_FEATURE_SIZE, MAX_FEATURE_SIZE, out=rows[:, :-1])
    rows[:, -1] = 1.0
    rows[~usable] = 0.0
    return rows


def _check_classes(value: object) -> int:
    number = check_positive_integer("classes", value)
    if not number >= 2:
        raise UsageError(f"classes is {number}: expected 2 or more, declared by the schema.")
    return number


def _compute_row_scale(data_norm: float) -> float:
    return math.sqrt(data_norm**2 + 1) * ROUNDING_FACTOR


def _prepare_problem(x: Any, y: Any, valid: Any, classes: int) -> tuple[Array, Array]:
    """Return the rows, (n, d + 1), and 1 for each record of an output's class, (n, outputs)."""
    labels = np.asarray(y)
    if labels.shape != np.asarray(valid).shape:
        raise UsageError(f"y is {labels.shape}: expected one class a record.")
    known = (labels >= 0) & (labels < classes)
    rows = append_intercept(x, np.asarray(valid, dtype=bool) & known)
    counted = np.array([1]) if classes == 2 else np.arange(classes)
    return rows, (labels[:, None] == counted).astype(np.float64)


def _check_masks(masks: Any, rows: Array) -> np.ndarray[Any, Any]:
    used = np.asarray(masks, dtype=bool)
    if used.ndim != 2 or used.shape[1] != rows.shape[1] - 1:
        raise UsageError(f"masks are {used.shape}: expected (p, {rows.shape[1] - 1}).")
    return used


def _derive_streams(
    rows: Array,
    hot: Array,
    masks: np.ndarray[Any, Any],
    mechanisms: Sequence[ObjectivePerturbation],
    streams: Sequence[Stream],
) -> list[Stream]:
    """Derive the random stream of each model from all its inputs, records included."""
    digest = hashlib.blake2b(repr(rows.shape).encode(), digest_size=32)
    for each in (rows, hot):
        digest.update(np.ascontiguousarray(each).data)
    numbers = np.array([(each.rate, each.strength, each.data_norm) for each in mechanisms])
    keys = []
    for mask, own, stream in zip(masks, numbers, streams, strict=True):
        bound = digest.copy()
        bound.update(own.tobytes() + mask.tobytes())
        keys.append(stream.child("objective perturbation " + bound.hexdigest()))
    return keys


def _random_state(key: Stream) -> np.random.RandomState:
    """Make numpy's older generator from a Philox stream, as diffprivlib uses it."""
    return np.random.RandomState(key.generator().bit_generator)


def _draw_noise(mechanism: ObjectivePerturbation, dimension: int, key: Stream) -> Array:
    """Draw the noise vector b of each output, (outputs, dimension), equal to diffprivlib's draw.

    The norm is Gamma(dimension, 1 / rate) and the direction is uniform, so the density is
    proportional to exp(-rate ||b||). Norm and direction are computed from sums of four draws, so
    that the low bits reveal less about each draw.
    """
    source = _random_state(key)
    noise = np.empty((mechanism.outputs, dimension))
    for own in noise:
        own[:] = source.standard_normal((dimension, 4)) @ DRAW_WEIGHTS
        norm = source.gamma(dimension / 4, 1 / mechanism.rate, 4).sum()
        own *= norm / math.sqrt(own @ own)
    return noise
