"""How often the forecast's range of a crossing holds the measured one: data sets left out in turn.

For every data set of a study and every two of its entries: the range that `find_pair_crossing`
gives of
the other data sets, and the crossing of Definition 2 on the curves of the one left out, at the
epsilons of `EPSILONS` whose signal was measured on it. n is the number of records at which the last
of these epsilons has the last measured signal. Another n or delta moves all crossings, and changes
nothing else.

The measured crossings are noisy themselves: they are of one seed at most signals, with a line
between two signals and no smoothing, and where two models are about as good, noise alone says which
one is ahead last. A part of what a range misses is that noise. And the pairs of a data set are
alike: independent cases are as many as data sets, not as many as pairs.

Source: Bao et al., section III, Definition 2; the evaluation is ours.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import combinations

import numpy as np

from pasearch.accounting.gdp_approximation import compute_gaussian_mu
from pasearch.crossover.forecast import (
    FORECAST_EPSILONS,
    Epsilons,
    choose_models,
    describe_model,
    find_crossings,
    find_last_lead,
    find_pair_crossing,
    interpolate_curves,
)
from pasearch.spaces.portfolio import PHOTO_CHANNELS, Study, compute_signal

DELTA = 1e-5
"""Of the epsilons of an evaluation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A data set of the study, and what the others say of it.

    Args:
        kind: Of data.
        data_set: Its name.
        models: Names of the entries, the simplest one first.
        records: How many it is taken to have.
        epsilons: Rising.
        curves: Of the other data sets, (models, data sets, epsilons).
        measured: Accuracy on this one, (models, epsilons).
    """

    kind: str
    data_set: str
    models: tuple[str, ...]
    records: int
    epsilons: Epsilons
    curves: np.ndarray = field(repr=False)
    measured: np.ndarray = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """A crossing as it was forecast and as it was measured.

    Args:
        kind: Of data.
        data_set: That was left out.
        before: The model that is the better one up to the crossing.
        after: The other.
        epsilons: The first and the last at which it was measured.
        measured: 0: below the first; infinity: above the last.
        epsilon: As forecast, likewise.
        low: Where its range begins, likewise.
        high: Where that ends, likewise.
    """

    kind: str
    data_set: str
    before: str
    after: str
    epsilons: tuple[float, float]
    measured: float
    epsilon: float
    low: float
    high: float

    @property
    def covered(self) -> bool:
        """Whether the measured crossing lies in the range."""
        return bool(self.low <= self.measured <= self.high)

    @property
    def whole(self) -> bool:
        """Whether the range is every epsilon: it says nothing."""
        return bool(self.low == 0.0 and math.isinf(self.high))

    @property
    def width(self) -> float:
        """The range's end over its beginning, both on the grid: 1 or above."""
        low, high = np.clip([self.low, self.high], *self.epsilons)
        return float(high / low)


def left_out(study: Study) -> Iterator[LeftOut]:
    """Yield every data set of a study, left out in turn; none where there is one alone."""
    if len(study.signals) < 2:
        return
    mus = [compute_gaussian_mu(epsilon, DELTA) for epsilon in FORECAST_EPSILONS]
    for name, signals in study.signals.items():
        classes = study.classes[name]
        records = math.ceil(10 ** signals[-1] * classes / mus[-1])
        drawn = {
            epsilon: signal
            for epsilon, mu in zip(FORECAST_EPSILONS, mus, strict=True)
            if (signal := compute_signal(mu, records, classes)) >= signals[0]
        }
        curves = interpolate_curves(
            study.without_data_set(name).rescale_to_classes(classes), list(drawn.values())
        )
        measured = [np.interp(list(drawn.values()), signals, each) for each in study.accuracy[name]]
        shape = _shape(study, name)
        sizes = [each.parameters(shape, classes)[0] for each in study.entries]
        order = sorted(range(len(sizes)), key=lambda place: (sizes[place], place))
        yield LeftOut(
            kind=study.kind, data_set=name, records=records, epsilons=tuple(drawn),
            models=tuple(describe_model(study.entries[place]) for place in order),
            curves=curves[order], measured=np.array(measured)[order],
        )  # fmt: skip


def pairs(left: LeftOut) -> list[Compared]:
    """Return every two models of a data set that was left out."""
    return [
        _compared(left, *pair, find_pair_crossing(left.curves, *pair, left.epsilons))
        for pair in combinations(range(len(left.models)), 2)
    ]


def shown(left: LeftOut) -> list[Compared]:
    """Return the crossings in the forecast of a run that released the best model at epsilon 1."""
    epsilon = min(max(1.0, left.epsilons[0]), left.epsilons[-1])
    place = int(np.abs(np.log(left.epsilons) - math.log(epsilon)).argmin())
    released = int(left.curves.mean(axis=1)[:, place].argmax())
    route, found = choose_models(left.curves, released, epsilon, left.epsilons), []
    for each in find_crossings(route, left.curves, list(left.models), left.epsilons):
        pair = left.models.index(each.before), left.models.index(each.after)
        high = math.inf if each.high is None else each.high
        found.append(_compared(left, *pair, (each.epsilon, each.low, high)))
    return found


def _compared(
    left: LeftOut, before: int, after: int, forecast: tuple[float, float, float]
) -> Compared:
    epsilon, low, high = forecast
    return Compared(
        kind=left.kind, data_set=left.data_set, before=left.models[before],
        after=left.models[after], epsilons=(left.epsilons[0], left.epsilons[-1]),
        measured=find_last_lead(left.measured[before], left.measured[after], left.epsilons),
        epsilon=epsilon, low=low, high=high,
    )  # fmt: skip


def _shape(study: Study, name: str) -> tuple[int, ...]:
    """Return the shape of a data set's records: images are square."""
    features = study.features[name]
    channels = {"image": 1, "photo": PHOTO_CHANNELS}.get(study.kind, 0)
    if not channels:
        return (features,)
    side = math.isqrt(features // channels)
    return (channels, side, side)
