"""Private logistic regression: one model by diffprivlib, hundreds of feature subsets in one call.

    v_i = (x_i, 1) / T,  T = sqrt(data_norm^2 + 1);  a null record has v_i = 0, the 1 included
    u   = argmin  sum_i log(1 + e^(v_i u)) - y_i v_i u  +  (a / 2) ||u||^2  +  b u
    b   has the density ~ exp(-epsilon ||b||),  and  a >= 1 / epsilon;  weights = u / T

That is objective perturbation, epsilon-DP under zero-out adjacency. `fit_one` hands the bounded
rows to `diffprivlib.models.LogisticRegression`; `fit_many` minimises the same objective, with the
same noise for the same stream, for all subsets at once. More than two classes: one against the
rest, each with epsilon / classes.

One file, because the minimiser is the mechanism's: its proof is for the exact minimum alone.

Source: Chaudhuri, Monteleoni and Sarwate 2011, Algorithm 2; docs/rules.md, rules 2, 3, 8 and 11.
Proof: docs/guarantees/objective-perturbation.md.
"""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pasearch.accounting.checks import positive, whole
from pasearch.accounting.events import Pure
from pasearch.accounting.profiles import Array
from pasearch.errors import UsageError
from pasearch.runs.keys import Stream

if TYPE_CHECKING:
    from torch import Tensor

STRENGTH = 8.0
"""The usual regularisation, in units of 1 / epsilon: by measurement, on the proof's page."""
SLACK = 1 + 1e-9
"""How much too large a norm, and too small an epsilon, is taken for the rounding of its numbers."""
LARGEST = 10.0
"""Features are clamped to this size; those of encoded records are in [0, 1]."""
TOLERANCE = 1e-7
"""How far weights may be from the minimiser, in the L2 norm, beside rounding."""
MEMORY = 8
"""How many earlier steps an accelerated step combines."""
MOST_STEPS = 1000
MOST_NEWTON, LEAST_STEP = 200, 1e-8
"""How many Newton steps are tried, and the least share of one."""
NEAR_STEPS, ROUGH_STEPS = 200, 60
"""How many steps are tried with a curvature that bounds nothing, and of those in float32."""
ROUGH = 1e-7
"""How near float32 comes, in units of the gradient's rounding."""
GRAIN = 2.0**-24
"""Released weights are multiples of this: the low bits, of solver and noise, stay inside."""
FEWEST = 8
"""For fewer problems a curvature of their own is not worth its price."""
HALVES = np.full(4, 0.5)
CHUNK = 1 << 22
"""How many numbers, for each of a few arrays, the solver holds at a time."""
ROWS = 2048
"""Records at a time in a gradient: what is computed of them stays in a core's cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectivePerturbation:
    """A logistic regression whose objective has noise.

    Guarantee: `fit_one`, and each model of `fit_many`, costs `event`, as far as float64 weights are
    the exact minimiser.

    Args:
        epsilon: The price of one fit, all classes together, above 0.
        data_norm: A public bound of a record's norm, its features that are used; above 0. Longer
            records are shortened to it.
        classes: How many classes, 2 or more: public, whether they occur or not.
        regularisation: a, for records of norm at most 1 (`scale`); at least `outputs` / epsilon.
            None takes `STRENGTH` times that.
    """

    epsilon: float
    data_norm: float
    classes: int = 2
    regularisation: float | None = None

    def __post_init__(self) -> None:
        for name in ("epsilon", "data_norm"):
            object.__setattr__(self, name, positive(name, getattr(self, name)))
        object.__setattr__(self, "classes", _classes(self.classes))
        least = self.outputs / self.epsilon
        given = STRENGTH * least if self.regularisation is None else self.regularisation
        strength = positive("regularisation", given)
        if not strength >= least:
            raise UsageError(
                f"regularisation is {strength:g}: expected {least:g} or above, which is outputs / "
                "epsilon; with less, a record could cost more than epsilon. Leave it out for the "
                "usual one."
            )
        object.__setattr__(self, "regularisation", strength)

    @property
    def outputs(self) -> int:
        """How many models a fit has: one for two classes, otherwise one a class."""
        return 1 if self.classes == 2 else self.classes

    @property
    def event(self) -> Pure:
        """What one fit costs."""
        return Pure(epsilon=self.epsilon)

    @property
    def scale(self) -> float:
        """T: what records, the intercept's 1 included, are divided by to have norm at most 1."""
        return _scale(self.data_norm)

    @property
    def rate(self) -> float:
        """What a model's noise b is drawn with: its density falls as exp(-rate ||b||)."""
        return self.epsilon / self.outputs / SLACK

    @property
    def strength(self) -> float:
        """The regularisation, a."""
        assert self.regularisation is not None
        return self.regularisation

    @property
    def library_epsilon(self) -> float:
        """The epsilon at which diffprivlib draws this noise.

        It promises epsilon for a record that is replaced, and charges a curvature of up to 1/4
        beside the largest gradient: 2 rate + 2 log(1 + 1/(4 a)) for each output.
        """
        return self.outputs * (2 * self.rate + 2 * math.log1p(0.25 / self.strength))


def fit_one(
    x: Any, y: Any, valid: Any, mechanism: ObjectivePerturbation, stream: Stream, mask: Any = None
) -> Array:
    """Fit one model with diffprivlib.

    diffprivlib stops near the minimiser, and the proof is for the minimiser itself: so its weights
    are then moved there, with the noise that it drew.

    Args:
        x: (n, d) features.
        y: (n,) classes, whole numbers.
        valid: (n,) False for a null record; one that is not finite, or of no class, is null too.
        mechanism: What is fitted, and at what price.
        stream: The fit's own randomness; its key contains the records.
        mask: (d,) which features are used; None for all.

    Returns:
        Array: (outputs, d + 1), the intercept last; one output for two classes, 0 for a feature
        that is not used.

    Raises:
        UsageError: Shapes that do not fit.

    Cost: `mechanism.event`, on every partition that the records are from; charge it first.
    """
    import torch

    rows, hot = _prepared(x, y, valid, mechanism.classes)
    used = np.ones((1, rows.shape[1] - 1), bool) if mask is None else _masks([mask], rows)
    columns = np.append(used[0], True)
    own = rows[:, columns]
    own[:, :-1] *= _factors(own[:, :-1], mechanism.data_norm)[:, None]
    own /= mechanism.scale
    [key] = _keys(rows, hot, used, [mechanism], [stream])
    noise = _noise(mechanism, own.shape[1], key)
    found = _library_fit(own, hot, mechanism, key)
    points = torch.from_numpy(own)
    solved = _minimised(
        points,
        None,
        torch.from_numpy((hot.T @ own - noise)[None]),
        torch.ones(1, own.shape[1], dtype=torch.float64),
        torch.tensor([mechanism.strength], dtype=torch.float64),
        torch.from_numpy(found[None]),
        points.T @ points / 4,
    )
    weights = np.zeros((mechanism.outputs, rows.shape[1]))
    weights[:, columns] = solved[0].numpy() / mechanism.scale
    return _without_low_bits(weights)


def fit_many(
    x: Any,
    y: Any,
    valid: Any,
    masks: Any,
    mechanisms: Sequence[ObjectivePerturbation],
    streams: Sequence[Stream],
    *,
    device: str = "cpu",
) -> Array:
    """Fit one model for each subset of the features, all in one call.

    Guarantee: the model of a subset is what `fit_one` gives for its mechanism and stream, to 1e-6
    a weight; so each costs its own `event`, and no two share noise unless they share a stream.

    Args:
        x: As of `fit_one`, like y and valid.
        y: See x.
        valid: See x.
        masks: (p, d) bool, which features each model uses.
        mechanisms: p of them, for the same number of classes.
        streams: p of them, each the own randomness of one model.
        device: Where torch computes.

    Returns:
        (p, outputs, d + 1) float64: weights, 0 for features that are not used; the intercept last.

    Raises:
        UsageError: Shapes or numbers of things that do not fit.

    Cost: the `event` of every mechanism, on every partition that the records are from.
    """
    used = np.asarray(masks, dtype=bool)
    classes = {each.classes for each in mechanisms}
    if not len(used) == len(mechanisms) == len(streams) or len(classes) > 1:
        raise UsageError(
            f"there are {len(used)} masks, {len(mechanisms)} mechanisms of {len(classes)} numbers "
            f"of classes and {len(streams)} streams: expected one of each a model, and one number."
        )
    rows, hot = _prepared(x, y, valid, classes.pop() if classes else 2)
    used = _masks(used, rows)
    keys = _keys(rows, hot, used, mechanisms, streams)
    noise = np.zeros((len(used), hot.shape[1], rows.shape[1]))
    columns = np.pad(used, ((0, 0), (0, 1)), constant_values=True)
    widths = columns.sum(axis=1).tolist()
    for own, at, width, mechanism, key in zip(
        noise, columns, widths, mechanisms, keys, strict=True
    ):
        own[:, at] = mechanism.scale * _noise(mechanism, width, key)
    norms = np.array([each.data_norm for each in mechanisms])
    ridges = np.array([each.strength * each.scale**2 for each in mechanisms])
    return _without_low_bits(_solved(rows, hot, used, norms, ridges, noise, device))


def fit_public(
    x: Any,
    y: Any,
    valid: Any,
    masks: Any,
    *,
    data_norms: Any,
    classes: int = 2,
    regularisation: float = 1.0,
    device: str = "cpu",
) -> Array:
    """Fit one model for each subset without noise: of public data only.

    Args:
        x: As of `fit_many`, like y, valid and masks.
        y: See x.
        valid: See x.
        masks: See x.
        data_norms: (p,) as `ObjectivePerturbation.data_norm`.
        classes: How many classes.
        regularisation: a, above 0, as `ObjectivePerturbation.regularisation`.
        device: Where torch computes.

    Returns:
        (p, outputs, d + 1) float64, as of `fit_many`.

    Cost: none is charged, so the records must be public.
    """
    rows, hot = _prepared(x, y, valid, _classes(classes))
    used = _masks(masks, rows)
    norms = np.array([positive("data_norms", float(norm)) for norm in np.asarray(data_norms)])
    if norms.shape != (len(used),):
        raise UsageError(
            f"data_norms are {norms.shape}: expected one of each of {len(used)} masks."
        )
    ridges = positive("regularisation", regularisation) * np.array([_scale(r) for r in norms]) ** 2
    noise = np.zeros((len(used), hot.shape[1], rows.shape[1]))
    return _solved(rows, hot, used, norms, ridges, noise, device)


def plain(name: str, values: Any, shape: tuple[int, ...]) -> Array:
    """Return a model's numbers as float64 that nobody can write to; -1 in a shape is any length.

    Raises:
        UsageError: Not numbers, not finite, or of another shape.
    """
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise UsageError(
            f"{name} of a model are no numbers: expected what `to_json` wrote."
        ) from None
    fits = array.ndim == len(shape) and all(
        wanted in (-1, side) for side, wanted in zip(array.shape, shape, strict=True)
    )
    if not (fits and np.isfinite(array).all()):
        raise UsageError(
            f"{name} of a model have the shape {array.shape}: expected {shape}, finite numbers."
        )
    array.flags.writeable = False
    return array


def usable_rows(x: Any, valid: Any) -> Array:
    """Return (n, d + 1) float64 rows (x, 1), clamped to `LARGEST`; null ones are 0, the 1 included.

    Raises:
        UsageError: Shapes that do not fit.
    """
    features, usable = np.asarray(x, dtype=np.float64), np.asarray(valid, dtype=bool)
    if features.ndim != 2 or usable.shape != features.shape[:1]:
        raise UsageError(
            f"records are {features.shape} and valid is {usable.shape}: expected (n, d) and (n,)."
        )
    usable = usable & np.isfinite(features).all(axis=1)
    rows = np.empty((len(features), features.shape[1] + 1))
    np.clip(features, -LARGEST, LARGEST, out=rows[:, :-1])
    rows[:, -1] = 1.0
    rows[~usable] = 0.0
    return rows


def _without_low_bits(weights: Array) -> Array:
    return np.round(weights / GRAIN) * GRAIN


def _classes(value: object) -> int:
    number = whole("classes", value)
    if not number >= 2:
        raise UsageError(f"classes is {number}: expected 2 or more, declared by the schema.")
    return number


def _scale(data_norm: float) -> float:
    return math.sqrt(data_norm**2 + 1) * SLACK


def _prepared(x: Any, y: Any, valid: Any, classes: int) -> tuple[Array, Array]:
    """Return rows (n, d + 1), and 1 where a record is of an output's class, (n, outputs)."""
    labels = np.asarray(y)
    if labels.shape != np.asarray(valid).shape:
        raise UsageError(f"y is {labels.shape}: expected one class a record.")
    known = (labels >= 0) & (labels < classes)
    rows = usable_rows(x, np.asarray(valid, dtype=bool) & known)
    counted = np.array([1]) if classes == 2 else np.arange(classes)
    return rows, (labels[:, None] == counted).astype(np.float64)


def _masks(masks: Any, rows: Array) -> np.ndarray[Any, Any]:
    used = np.asarray(masks, dtype=bool)
    if used.ndim != 2 or used.shape[1] != rows.shape[1] - 1:
        raise UsageError(f"masks are {used.shape}: expected (p, {rows.shape[1] - 1}).")
    return used


def _factors(features: Array, data_norm: float) -> Array:
    """Return by what each row's features are multiplied to have at most the norm."""
    norms = np.sqrt(np.einsum("ij,ij->i", features, features))
    return data_norm / np.maximum(norms, data_norm)


def _keys(
    rows: Array,
    hot: Array,
    masks: np.ndarray[Any, Any],
    mechanisms: Sequence[ObjectivePerturbation],
    streams: Sequence[Stream],
) -> list[Stream]:
    """Return each model's own randomness, bound to everything that the model depends on."""
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
    """Return Philox under a key in the form that diffprivlib takes."""
    return np.random.RandomState(key.generator().bit_generator)


def _noise(mechanism: ObjectivePerturbation, dimension: int, key: Stream) -> Array:
    """Return b of each output, (outputs, dimension), number for number as diffprivlib draws it.

    The norm is Gamma(dimension, 1 / rate), the direction uniform: a density ~ exp(-rate ||b||).
    Both are sums of four draws, so that the low bits tell less of them.
    """
    source = _random_state(key)
    noise = np.empty((mechanism.outputs, dimension))
    for own in noise:
        own[:] = source.standard_normal((dimension, 4)) @ HALVES
        norm = source.gamma(dimension / 4, 1 / mechanism.rate, 4).sum()
        own *= norm / math.sqrt(own @ own)
    return noise


def _library_fit(rows: Array, hot: Array, mechanism: ObjectivePerturbation, key: Stream) -> Array:
    """Return diffprivlib's weights, (outputs, columns), of rows of norm at most 1.

    A null record of each class is added, so that which classes occur decides nothing; the intercept
    is a column of the rows, because diffprivlib would not regularise its own.
    """
    from diffprivlib.accountant import BudgetAccountant
    from diffprivlib.models import LogisticRegression

    labels = hot[:, 0] if mechanism.classes == 2 else np.where(hot.any(1), hot.argmax(1), 0)
    anchors = np.zeros((mechanism.classes, rows.shape[1]))
    model = LogisticRegression(
        epsilon=mechanism.library_epsilon, data_norm=1.0, C=1 / mechanism.strength, tol=1e-9,
        fit_intercept=False, max_iter=1000, n_jobs=1, random_state=_random_state(key),
        accountant=BudgetAccountant(),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it did not converge would tell of the records
        model.fit(np.concatenate([rows, anchors]), np.append(labels, np.arange(mechanism.classes)))
    return np.asarray(model.coef_, dtype=np.float64)


def _solved(
    rows: Array,
    hot: Array,
    masks: np.ndarray[Any, Any],
    norms: Array,
    ridges: Array,
    noise: Array,
    device: str,
) -> Array:
    """Return the minimisers, (p, outputs, d + 1), in chunks that fit into memory.

    In units of the weights: the ridge is a T^2, the noise T b.
    """
    import torch

    def on(array: Any) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float64)).to(device)

    (n, width), outputs = rows.shape, hot.shape[1]
    points, answers = on(rows), on(hot)
    quarter, near, rough = points.T @ points / 4, None, None
    if n > ROWS:  # of few records a step costs little, whatever its precision
        near, rough = quarter, points.float()
        if len(masks) >= FEWEST:
            near = _curvature(points, rough, answers, quarter, float(np.median(ridges)))
    size = max(1, CHUNK // (n * outputs + width * (width + 3 * MEMORY * outputs)))
    found = np.empty((len(masks), outputs, width))
    for start in range(0, len(masks), size):
        part = slice(start, start + size)
        used = on(np.pad(masks[part], ((0, 0), (0, 1)), constant_values=True))
        lengths, bounds = _lengths(points, used), on(norms[part])[:, None]
        shrink = None
        target = (answers.T @ points)[None] * used[:, None] - on(noise[part])
        if bool((lengths > bounds).any()):
            shrink = bounds / torch.maximum(lengths, bounds)
            kept = (shrink[:, None] * answers.T).reshape(-1, n) @ points[:, :-1]
            target[..., :-1] = kept.view(len(used), outputs, -1) * used[:, None, :-1]
            target[..., :-1] -= on(noise[part])[..., :-1]
        zero = torch.zeros_like(target)
        found[part] = (
            _minimised(
                points, shrink, target, used, on(ridges[part]), zero, quarter, near=near,
                rough=rough,
            ).cpu().numpy()
        )  # fmt: skip
    return found


def _lengths(points: Tensor, used: Tensor) -> Tensor:
    """Return the norms of the rows' features on each set, (p, n)."""
    import torch

    blocks = points[:, :-1].split(max(1, CHUNK // points.shape[1]))
    return torch.cat([used[:, :-1] @ (block**2).T for block in blocks], dim=1).sqrt_()


def _curvature(
    points: Tensor, rough: Tensor, answers: Tensor, quarter: Tensor, ridge: float
) -> Tensor:
    """Return a curvature of these records that is nearer to that of their models than a quarter.

    X' diag(tanh(z/2) / 2z) X, with z the records' logits under all features, without noise: at z
    no smaller parabola lies above log(1 + e^z) (Jaakkola and Jordan 2000). It decides how fast a
    minimiser is found, not which one.
    """
    import torch

    width, outputs = points.shape[1], answers.shape[1]
    every, ridges = torch.ones_like(points[:1]), torch.full_like(points[0, :1], ridge)
    enough = _rounding(ROUGH, quarter, len(points)) * torch.ones_like(ridges)
    weights, _ = _descended(
        (rough,), (None,), (answers.T @ points)[None], every, ridges,
        points.new_zeros(1, outputs, width), quarter, (enough,), ROUGH_STEPS,
    )  # fmt: skip
    near, size = torch.zeros_like(quarter), max(1, CHUNK // width)
    for block, own in zip(points.split(size), rough.split(size), strict=True):
        z = (own @ weights[0].to(own.dtype).T).abs().clamp(min=1e-3).to(block.dtype)
        near += (block * (torch.tanh(z / 2) / (2 * z)).amax(dim=1, keepdim=True)).T @ block
    return near


def _rounding(unit: float, quarter: Tensor, n: int) -> float:
    """Return how long a gradient is that may be rounding alone."""
    return unit * math.sqrt(n * float(quarter.trace()))


def _minimised(
    rows: Tensor,
    shrink: Tensor | None,
    target: Tensor,
    masks: Tensor,
    ridges: Tensor,
    w: Tensor,
    quarter: Tensor,
    *,
    near: Tensor | None = None,
    rough: Tensor | None = None,
) -> Tensor:
    """Return argmin of sum_i log(1 + e^(z_i)) - w target + (ridge / 2) ||w||^2 for many problems.

    H = (X'X / 4 restricted to the mask) + ridge is at least the curvature everywhere, so
    w - H^-1 gradient never makes the gradient longer, in the norm of H^-1: from anywhere such steps
    arrive. `near` and `rough` are tried first, which are fewer steps, and cheaper ones; a problem
    that is not solved so starts again, and one that `MOST_STEPS` do not solve is left to Newton.

    Args:
        rows: (n, D), the last column the intercept's.
        shrink: (p, n) factors of a row's features, not of its intercept; None for 1.
        target: (p, outputs, D), 0 outside the mask.
        masks: (p, D), 1 or 0.
        ridges: (p,).
        w: (p, outputs, D), where to start.
        quarter: X'X / 4, (D, D).
        near: Another curvature, (D, D), below the true one in places.
        rough: The rows in float32.

    Cost: for each step two matrix products of all problems.
    """
    import torch

    rounding = _rounding(1e-14, quarter, len(rows))
    enough = torch.clamp(TOLERANCE * ridges, min=rounding)
    if near is None or rough is None:
        found, missed = _descended(
            (rows,), (shrink,), target, masks, ridges, w, quarter, (enough,), MOST_STEPS
        )
        for i in torch.nonzero(missed)[:, 0].tolist():
            seen = rows.clone()
            if shrink is not None:
                seen[:, :-1] *= shrink[i][:, None]
            used = masks[i] > 0
            for o in range(w.shape[1]):
                own = _newton(seen[:, used], target[i, o, used], ridges[i], enough[i])
                found[i, o] = torch.zeros_like(w[i, o]).index_put_((used,), own)
        return found
    first = torch.clamp(enough, min=_rounding(ROUGH, quarter, len(rows)))
    shrinks = (None if shrink is None else shrink.to(rough.dtype), shrink)
    found, missed = _descended(
        (rough, rows), shrinks, target, masks, ridges, w, near, (first, enough), NEAR_STEPS
    )
    if bool(missed.any()):
        shrink = None if shrink is None else shrink[missed]
        found[missed] = _minimised(
            rows, shrink, target[missed], masks[missed], ridges[missed], w[missed], quarter
        )
    return found


def _descended(
    rows: tuple[Tensor, ...],
    shrinks: tuple[Tensor | None, ...],
    target: Tensor,
    masks: Tensor,
    ridges: Tensor,
    w: Tensor,
    curvature: Tensor,
    enough: tuple[Tensor, ...],
    most: int,
) -> tuple[Tensor, Tensor]:
    """Return where steps lead, (p, outputs, D), and which problems have no minimiser yet, (p,).

    Each step is the combination of the last ones that would be best if the objective were
    quadratic (Anderson 1965; Walker and Ni 2011), and is replaced by the last one's own,
    w - H^-1 gradient, if the gradient grew.

    Args:
        rows: As of `_minimised`, once for each precision: the next one takes over when most
            gradients are short enough, or after `ROUGH_STEPS`.
        shrinks: Of each precision.
        target: As of `_minimised`, like masks, ridges and w.
        masks: See target.
        ridges: See target.
        w: See target.
        curvature: H without its ridge and before it is restricted, (D, D).
        enough: Of each precision, (p,), how short a gradient has to be.
        most: How many steps.
    """
    import torch

    p, outputs, width = w.shape
    bound = masks[:, :, None] * masks[:, None]
    bound *= curvature
    bound.diagonal(dim1=1, dim2=2).add_(ridges[:, None] * masks + (1 - masks))
    eye = torch.eye(width, dtype=w.dtype, device=w.device)
    # H^-1 = root' root
    root = torch.linalg.solve_triangular(torch.linalg.cholesky_ex(bound).L, eye, upper=False)
    result, left = w.clone(), torch.arange(p, device=w.device)
    missed = torch.ones_like(left, dtype=torch.bool)
    changes = w.new_zeros(p, outputs, MEMORY, width)  # of gradients, in the norm of H^-1
    moves = torch.zeros_like(changes)  # of where safe steps lead
    merit = w.new_full((p, outputs), math.inf)
    lead = whitened = w
    stage, last = 0, len(rows) - 1
    for count in range(most):
        gradient = _gradient(rows[stage], shrinks[stage], w) - target
        gradient = gradient * masks[:, None] + ridges[:, None, None] * w
        done = (gradient.norm(dim=2) <= enough[stage][:, None]).all(dim=1)
        result[left], missed[left] = w, ~done
        if stage == last and bool(done.all()):
            break
        if stage < last and (int(done.sum()) * 2 > len(done) or count == ROUGH_STEPS):
            # What the next precision says of the same place may be longer.
            stage, merit = stage + 1, torch.full_like(merit, math.inf)
        elif stage == last and int(done.sum()) * 8 > len(done):
            kept = ~done
            shrinks = tuple(None if each is None else each[kept] for each in shrinks)
            enough = tuple(each[kept] for each in enough)
            left, w, gradient, target, masks, ridges, root = (
                each[kept] for each in (left, w, gradient, target, masks, ridges, root)
            )
            changes, moves, merit, lead, whitened = (
                each[kept] for each in (changes, moves, merit, lead, whitened)
            )
        new = gradient @ root.transpose(1, 2)
        new_lead, length = w - new @ root, (new * new).sum(dim=2)
        worse = ~(length <= merit)
        if count:
            changes[:, :, count % MEMORY] = new - whitened
            moves[:, :, count % MEMORY] = new_lead - lead
        if bool(worse.any()):
            changes[worse] = 0.0
            new = torch.where(worse[..., None], whitened, new)
            new_lead = torch.where(worse[..., None], lead, new_lead)
            # After a safe step any length will do: if it grew, that was rounding.
            length = torch.where(worse, math.inf, length)
        whitened, lead, merit = new, new_lead, length
        shares = _shares(changes[:, :, : count + 1], whitened)
        w = lead - (shares[:, :, None] @ moves[:, :, : count + 1])[:, :, 0]
    return result, missed


def _newton(rows: Tensor, target: Tensor, ridge: Tensor, enough: Tensor) -> Tensor:
    """Return one problem's minimiser by Newton's method, each step halved until it helps.

    A strictly convex objective and exact curvature: it arrives from anywhere, however different the
    features' sizes are and however small the ridge.

    Args:
        rows: (n, c), of the features that are used.
        target: (c,).
        ridge: As of `_minimised`.
        enough: How short the gradient has to be.
    """
    import torch

    def slopes(w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = rows @ w
        gradient = torch.sigmoid(z) @ rows - target + ridge * w
        loss = torch.nn.functional.softplus(z).sum() - w @ target + ridge / 2 * (w @ w)
        return z, gradient, loss

    w = torch.zeros_like(target)
    z, gradient, loss = slopes(w)
    for _ in range(MOST_NEWTON):
        if bool(gradient.norm() <= enough):
            break
        curvature = (rows * (torch.sigmoid(z) * torch.sigmoid(-z))[:, None]).T @ rows
        curvature.diagonal().add_(ridge)
        step = torch.linalg.solve(curvature, gradient)
        helps, length, new, value = False, 2.0, gradient, loss
        while not helps and length > LEAST_STEP:
            length /= 2
            z, new, value = slopes(w - length * step)
            # Near the minimum the loss is all rounding, and the gradient tells.
            gains = value <= loss - 1e-4 * length * (gradient @ step)
            helps = bool(gains | (new.norm() <= gradient.norm() / 2))
        w, gradient, loss = w - length * step, new, value
    return w


def _shares(changes: Tensor, gradient: Tensor) -> Tensor:
    """Return which combination of earlier changes comes nearest to a gradient, (p, outputs, m).

    Least squares for each model, the changes scaled to length 1; those that are 0 stay out.
    """
    import torch

    products = changes @ changes.transpose(2, 3)
    squares = products.diagonal(dim1=2, dim2=3)
    empty = squares == 0
    sizes = torch.where(empty, 1.0, squares).sqrt()
    scaled = products / (sizes[..., None] * sizes[:, :, None])
    scaled.diagonal(dim1=2, dim2=3).add_(1e-12 + empty.to(changes.dtype))
    along = (changes @ gradient[..., None])[..., 0] / sizes
    return torch.linalg.solve(scaled, along) / sizes


def _gradient(rows: Tensor, shrink: Tensor | None, w: Tensor) -> Tensor:
    """Return the sum over records of sigmoid(z_i) times the row that gave z_i, (p, outputs, D)."""
    import torch

    p, outputs, width = w.shape
    kind, w = w.dtype, w.to(rows.dtype)
    features, found = w[..., :-1].reshape(p * outputs, width - 1), torch.zeros_like(w)
    for start in range(0, len(rows), ROWS):
        part = rows[start : start + ROWS]
        if shrink is None:
            chances = torch.sigmoid_(w.reshape(-1, width) @ part.T)
            found += (chances @ part).view(p, outputs, width)
            continue
        own = shrink[:, None, start : start + ROWS]
        z = (features @ part[:, :-1].T).view(p, outputs, -1)
        chances = z.mul_(own).add_(w[..., -1:] * part[:, -1]).sigmoid_()
        found[..., -1] += chances @ part[:, -1]
        chances = chances.mul_(own).reshape(-1, len(part))
        found[..., :-1] += (chances @ part[:, :-1]).view(p, outputs, width - 1)
    return found.to(kind)
