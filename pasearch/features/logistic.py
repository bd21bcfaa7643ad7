"""Private logistic regression: hundreds of feature subsets in one call.

    v_i = (x_i, 1) / T,  T = sqrt(data_norm^2 + 1);  a null record has v_i = 0, the 1 included
    u   = argmin  sum_i log(1 + e^(v_i u)) - y_i v_i u  +  (a / 2) ||u||^2  +  b u
    b   has the density ~ exp(-epsilon ||b||),  and  a >= 1 / epsilon;  weights = u / T

That is objective perturbation, epsilon-DP under zero-out adjacency: the objective and the law of
the noise of `diffprivlib.models.LogisticRegression`, which the tests hold it against. More than two
classes: one against the rest, each with epsilon / classes.

The proof is for the exact minimum alone: `minimiser` finds it.

Source: Chaudhuri, Monteleoni and Sarwate 2011, Algorithm 2; docs/rules.md, rules 2, 3, 8 and 11.
Proof: docs/guarantees/objective-perturbation.md.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pasearch.accounting.checks import positive, whole
from pasearch.accounting.events import Pure
from pasearch.accounting.profiles import Array
from pasearch.errors import UsageError
from pasearch.features.minimiser import solved
from pasearch.runs.keys import Stream

STRENGTH = 8.0
"""The usual regularisation, in units of 1 / epsilon: by measurement, on the proof's page."""
SLACK = 1 + 1e-9
"""How much too large a norm, and too small an epsilon, is taken for the rounding of its numbers."""
LARGEST = 10.0
"""Features are clamped to this size; those of encoded records are in [0, 1]."""
GRAIN = 2.0**-24
"""Released weights are multiples of this: the low bits, of solver and noise, stay inside."""
HALVES = np.full(4, 0.5)
MOST_BYTES = 2**34
"""The most memory that objective perturbation may take, about: 16 GiB."""
COPIES = 6
"""How often it holds all records in float64 at its largest, about."""


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


def fit_one(
    x: Any, y: Any, valid: Any, mechanism: ObjectivePerturbation, stream: Stream, mask: Any = None
) -> Array:
    """Fit one model: `fit_many` of one subset.

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
    if mask is None:
        rows = np.asarray(x)
        mask = np.ones(rows.shape[1] if rows.ndim == 2 else 1, bool)
    return fit_many(x, y, valid, [mask], [mechanism], [stream])[0]


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

    x, y and valid are as of `fit_one`. Of each of p models: masks, (p, d) bool, say which features
    it uses, mechanisms, for the same number of classes, its price, streams its own randomness.
    Torch computes on the device.

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
    return _without_low_bits(solved(rows, hot, used, norms, ridges, noise, device))


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

    x, y, valid, masks and device are as of `fit_many`; data_norms, (p,), and regularisation, a,
    above 0, as of `ObjectivePerturbation`.

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
    return solved(rows, hot, used, norms, ridges, noise, device)


def check_objective(slots: int, features: int) -> None:
    """Refuse records that take objective perturbation too much memory.

    Args:
        slots: How many it is fitted to.
        features: The most that a fit sees of each.

    Raises:
        UsageError: About more than `MOST_BYTES`.
    """
    needed = 8 * COPIES * slots * (features + 1)
    if not needed <= MOST_BYTES:
        raise UsageError(
            f"Objective perturbation needs all records at once: {slots:,} slots of {features:,} "
            f"features take about {needed / 2**30:.0f} GiB, expected at most "
            f"{MOST_BYTES / 2**30:.0f}. Take `trainer=dpsgd`, which goes through them in parts, or "
            "fewer features (`method=top`, `k=`)."
        )


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
    return np.round(weights / GRAIN) * GRAIN + 0.0  # the sign of a zero would tell more


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
    """Return Philox under a key in the form of numpy's older generators: diffprivlib's own."""
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
