"""Forecast, from public data, of the epsilon at which another model becomes clearly better.

The study behind the portfolio (benchmarks/portfolio) has measured the accuracy of each entry of the
portfolio at many signal-to-noise ratios mu n / C, for several public data sets of each kind. For
the data at hand, n, the number of classes C and the plan are public, so that each epsilon
corresponds to a signal-to-noise ratio. The forecast accuracy of model m is

    a_m(eps) = own + mean over the study's data sets d of  a_m,d(eps) - a_w,d(eps_run)

w is the released model and `own` its noisy test score. All curves are shifted so that the curve of
w passes through this score, because data sets differ in difficulty far more than models do. The
band contains the middle half of the study's data sets. Only models of the searched space are
compared.

A model is clearly better than another at an epsilon if its mean lead over the data sets is more
than `MIN_LEAD`, and more than half the width of its 95 % confidence interval (Student's t). A
crossing is the next epsilon, from the released model at the run's epsilon, at which another model
is clearly better. The crossing on one data set is the last epsilon at which the first model is
better (Definition 2). The range of a crossing is the shortest interval that contains the crossings
on at least

    ceil(.8 (m + 1)) of m data sets                (for fewer than four data sets: all epsilons)

It is m + 1 instead of m, because the data at hand are one more data set. A crossing is reported
only if its range excludes some epsilons. This assumes that the data at hand are similar to those of
the study, and has no proof: benchmarks/crossover/forecast.py measures how often the crossing on one
data set is in the range of the others.

Cost: none. All inputs are public, or were charged and released before.

Source: the question is that of Bao et al., sections III and VI (Definition 2); the answer is
original to this project.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import stats

from pasearch.accounting.gdp_approximation import compute_gaussian_mu
from pasearch.crossover.curves import (
    CONFIDENCE_LEVEL,
    assign_roles,
    find_crossover,
    round_to_four_decimals,
    round_to_three_digits,
)
from pasearch.data.front_ends import Raw
from pasearch.spaces.candidate import Candidate
from pasearch.spaces.portfolio import (
    ASSUMED_CATEGORIES,
    Study,
    compute_signal,
    count_features,
    load_study,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pasearch.data.tables import AnySchema

Epsilons = tuple[float, ...]

FORECAST_EPSILONS: Epsilons = tuple(round(float(each), 4) for each in np.geomspace(0.1, 10.0, 25))
"""Epsilons of a forecast, if the study covers them."""

MAX_EXTRAPOLATION = 0.3
"""Maximum distance of a signal-to-noise ratio from the measured range, in powers of ten."""

MIN_FORECAST_EPSILONS = 5
"""Minimum number of epsilons of a forecast."""

MIN_LEAD = 0.01
"""Minimum lead that is reported: one percentage point, or 1 % of a target's range."""

RANGE_COVERAGE = 0.8
"""Fraction of data sets whose crossings a range contains."""

MAX_DRAWN_MODELS = 4
"""Maximum number of models: the winner, the simplest, the largest, and the best in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredModel:
    """Released or planned model of a run, with its score."""

    epsilon: float  # total epsilon of the run
    delta: float  # total delta of the run
    mu: float  # parameter of Gaussian DP of the model's training
    slots: int  # number of training records, including null records
    score: float | None  # noisy test score in [0, 1], higher is better; None before a run
    error: float  # standard error of the score
    has_compared: bool = False  # whether the run compared models on the private records

    @property
    def status(self) -> str:
        """Status of the model: "released" by a run, or "planned"."""
        return "planned" if self.score is None else "released"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyModel:
    """A model of the study."""

    name: str  # description of the model
    parameters: int  # number of parameters for the data at hand
    released: bool  # whether the run released this model


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """An epsilon above which another model is clearly better."""

    epsilon: float  # epsilon of the crossing, by the mean over data sets
    low: float  # lower end of its range; 0: below the first epsilon
    high: float | None  # upper end of its range; None: above the last epsilon
    before: str  # name of the better model below
    after: str  # name of the better model above


def forecast_crossover(
    schema: AnySchema,
    name: str,
    own: MeasuredModel,
    winner: Candidate,
    outputs: int,
    searched: Callable[[Candidate], bool],
) -> dict[str, Any] | None:
    """Forecast the crossovers of a run from the study on public data.

    Args:
        schema: Declared schema; for undeclared columns, sizes of models are approximate.
        name: Name of the data set, which is left out of the study.
        own: Released or planned model with its score.
        winner: Candidate of this model.
        outputs: Number of classes; 1 for regression.
        searched: Function that checks whether a candidate belongs to the searched space.

    Returns:
        Plain values, as `result.json` stores them. None if the study does not contain the winner
        and another model of the searched space, or has not measured this signal-to-noise ratio.
    """
    study = load_study(schema, name).rescale_to_classes(outputs)
    study = study.select_flagged([searched(each) for each in study.entries])
    here = compute_gaussian_mu(own.epsilon, own.delta)
    ratios = [compute_gaussian_mu(epsilon, own.delta) / here for epsilon in FORECAST_EPSILONS]
    signals = [compute_signal(own.mu * ratio, own.slots, outputs) for ratio in ratios]
    features = count_features(schema)
    drawn = [
        place
        for place, signal in enumerate(signals)
        if not study.describe_extrapolation(signal, outputs, features, MAX_EXTRAPOLATION)
    ]
    if winner not in study.entries or len(study.entries) < 2 or len(drawn) < MIN_FORECAST_EPSILONS:
        return None
    epsilons = tuple(FORECAST_EPSILONS[place] for place in drawn)
    if not epsilons[0] <= own.epsilon <= epsilons[-1]:
        return None
    curves = interpolate_curves(study, [signals[place] for place in drawn])
    shape = schema.max_shape(ASSUMED_CATEGORIES)
    sizes = [each.parameters(shape, outputs)[0] for each in study.entries]
    shown = _choose_drawn_models(curves, sizes, study, winner)
    entries = [
        StudyModel(
            name=describe_model(study.entries[place]),
            parameters=sizes[place],
            released=study.entries[place] == winner,
        )
        for place in shown
    ]
    released = next(place for place, each in enumerate(entries) if each.released)
    route = choose_models(curves[shown], released, own.epsilon, epsilons)
    names = [each.name for each in entries]
    found = find_crossings(route, curves[shown], names, epsilons)
    return {
        "kind": "forecast",
        "data_sets": curves.shape[1],
        "epsilons": list(epsilons),
        "models": _curves_json(curves[shown], entries, own, epsilons),
        "own": {"epsilon": own.epsilon, "score": own.score, "standard_error": round(own.error, 5)},
        "crossings": [asdict(each) for each in found],
        "sentence": summarize_forecast(found, route, curves[shown], entries, own, epsilons),
    }


def interpolate_curves(study: Study, signals: Sequence[float]) -> np.ndarray:
    """Interpolate the accuracy of each entry of a study, (entries, data sets, signals).

    The curves are made monotone, because a larger epsilon does not reduce accuracy.

    Args:
        study: Study of one kind of data.
        signals: log10 of the signal-to-noise ratios, ascending.
    """
    # Shape (signals, data sets, entries).
    curves = np.stack([study.accuracy_at(signal) for signal in signals])
    return np.maximum.accumulate(curves.transpose(2, 1, 0), axis=2)


def describe_model(candidate: Candidate) -> str:
    """Describe a model in a phrase: its network and its feature extractor."""
    layers = candidate.architecture.layers
    network = f"network ({candidate.architecture.describe()})" if layers else "linear model"
    front = candidate.front_end
    return network if isinstance(front, Raw) else f"{network} on {front.describe()}"


def _interpolate_at(curves: np.ndarray, epsilon: float, epsilons: Epsilons) -> np.ndarray:
    """Interpolate curves over log epsilon, along the last axis."""
    place = math.log(epsilon)
    return np.apply_along_axis(lambda one: np.interp(place, np.log(epsilons), one), -1, curves)


def _choose_drawn_models(
    curves: np.ndarray, sizes: list[int], study: Study, winner: Candidate
) -> list[int]:
    """Choose the winner, the simplest, the largest model, and the best at any epsilon."""
    means = curves.mean(axis=1)
    level = means.mean(axis=1)
    simplest = min(range(len(sizes)), key=lambda place: (sizes[place], -level[place]))
    largest = max(range(len(sizes)), key=lambda place: (sizes[place], level[place]))
    own = [place for place, each in enumerate(study.entries) if each == winner]
    best = means.argmax(axis=0).tolist()
    chosen = list(dict.fromkeys([*own, simplest, largest, *map(int, best)]))[:MAX_DRAWN_MODELS]
    return sorted(chosen, key=lambda place: (sizes[place], place))


def _curves_json(
    curves: np.ndarray, entries: list[StudyModel], own: MeasuredModel, epsilons: Epsilons
) -> list[dict[str, Any]]:
    """Return curves as plain values, shifted so that the winner's curve has its noisy score."""
    here = _interpolate_at(curves, own.epsilon, epsilons)
    released = [entry.released for entry in entries]
    reference = here[released.index(True)]
    level = float(reference.mean()) if own.score is None else own.score
    moved = np.clip(curves - reference[None, :, None] + level, 0.0, 1.0)
    roles = assign_roles(released, [entry.parameters for entry in entries])
    return [
        {
            "name": entry.name,
            "roles": each,
            "parameters": entry.parameters,
            "accuracy": round_to_four_decimals(lines.mean(axis=0)),
            "low": round_to_four_decimals(np.quantile(lines, 0.25, axis=0)),
            "high": round_to_four_decimals(np.quantile(lines, 0.75, axis=0)),
        }
        for entry, each, lines in zip(entries, roles, moved, strict=True)
    ]


def choose_models(
    curves: np.ndarray, released: int, epsilon: float, epsilons: Epsilons = FORECAST_EPSILONS
) -> list[int]:
    """Return the index of the recommended model at each epsilon.

    Starting at the run's epsilon with the released model, in both directions, the model changes at
    the next epsilon at which another model is clearly better, if the range of this crossing
    excludes some epsilons.

    Args:
        curves: Accuracies, (models, data sets, epsilons).
        released: Index of the released model.
        epsilon: Epsilon of the run.
        epsilons: Epsilons, ascending.
    """
    means = curves.mean(axis=1)
    start = int(np.abs(np.log(epsilons) - math.log(epsilon)).argmin())
    route, first = [released] * len(epsilons), released
    for way in (range(start, len(epsilons)), range(start, -1, -1)):
        kept = first
        for place in way:
            best = int(means[:, place].argmax())
            if _is_better(curves, best, kept, place):
                _, low, high = find_pair_crossing(curves, best, kept, epsilons)
                if place == start or low >= epsilons[0] or high <= epsilons[-1]:
                    kept = best
            route[place] = kept
            first = kept if place == start else first
    return route


def _is_better(curves: np.ndarray, one: int, other: int, place: int) -> bool:
    """Check whether one model is clearly better than another at an epsilon."""
    lead = curves[one, :, place] - curves[other, :, place]
    if len(lead) < 2:
        return False
    noise = (
        stats.t.ppf((1 + CONFIDENCE_LEVEL) / 2, len(lead) - 1)
        * lead.std(ddof=1)
        / math.sqrt(len(lead))
    )
    return bool(lead.mean() > max(MIN_LEAD, noise))


def find_crossings(
    route: list[int], curves: np.ndarray, names: list[str], epsilons: Epsilons = FORECAST_EPSILONS
) -> list[Crossing]:
    """Find the epsilons at which the recommended model changes, with their ranges.

    Args:
        route: Index of the recommended model at each epsilon, from `choose_models`.
        curves: Accuracies, (models, data sets, epsilons).
        names: Names of the models.
        epsilons: Epsilons, ascending.
    """
    found = []
    for place in range(1, len(route)):
        before, after = route[place - 1], route[place]
        if before == after:
            continue
        mean, low, high = find_pair_crossing(curves, before, after, epsilons)
        within = min(max(mean, epsilons[place - 1]), epsilons[place])
        found.append(
            Crossing(
                epsilon=round_to_three_digits(within),
                low=round_to_three_digits(min(low, within)),
                high=None if math.isinf(high) else round_to_three_digits(max(high, within)),
                before=names[before],
                after=names[after],
            )
        )
    return found


def find_pair_crossing(
    curves: np.ndarray, before: int, after: int, epsilons: Epsilons = FORECAST_EPSILONS
) -> tuple[float, float, float]:
    """Return the epsilon up to which one of two models is better, with its range.

    Each number is 0 if it is below the first epsilon, and infinite if it is above the last.

    Args:
        curves: Accuracies, (models, data sets, epsilons).
        before: Index of the model that is better at small epsilons, usually the simpler one.
        after: Index of the other model.
        epsilons: Epsilons, ascending.

    Returns:
        The epsilon by the mean over data sets, and the lower and upper end of the range of the
        epsilons of single data sets.
    """
    mean = find_last_lead(curves[before].mean(axis=0), curves[after].mean(axis=0), epsilons)
    by_set = [
        find_last_lead(one, other, epsilons)
        for one, other in zip(curves[before], curves[after], strict=True)
    ]
    low, high = _find_shortest_range(by_set, epsilons)
    return mean, min(low, mean), max(high, mean)


def find_last_lead(
    one: np.ndarray, other: np.ndarray, epsilons: Epsilons = FORECAST_EPSILONS
) -> float:
    """Return the last epsilon at which one curve is above another (Definition 2), interpolated.

    Args:
        one: Accuracies of one model, (epsilons,).
        other: Accuracies of the other model, (epsilons,).
        epsilons: Epsilons, ascending.

    Returns:
        The epsilon; 0 if the curve is never above, and infinity if it is at the last epsilon.
    """
    return find_crossover(1.0 - one[:, None], 1.0 - other[:, None], epsilons, ("", "")).epsilon


def _find_shortest_range(crossings: list[float], epsilons: Epsilons) -> tuple[float, float]:
    """Return the shortest range with `RANGE_COVERAGE` of the crossings; (0, inf) if too few exist.

    Widths count a crossing outside the grid as the nearest end of the grid; returned ends are not
    clipped.
    """
    count = math.ceil(RANGE_COVERAGE * (len(crossings) + 1) - 1e-9)
    if count > len(crossings):
        return 0.0, math.inf
    rising = sorted(crossings)
    logs = np.log(np.clip(rising, epsilons[0], epsilons[-1]))
    widths = logs[count - 1 :] - logs[: len(logs) - count + 1]
    # If several ranges have this width, the middle one is returned.
    equal = np.flatnonzero(widths <= widths.min() + 1e-9)
    first = int(equal[(len(equal) - 1) // 2])
    return rising[first], rising[first + count - 1]


def summarize_forecast(
    found: list[Crossing],
    route: list[int],
    curves: np.ndarray,
    entries: list[StudyModel],
    own: MeasuredModel,
    epsilons: Epsilons = FORECAST_EPSILONS,
) -> str:
    """Describe the forecast in one sentence, followed by one sentence for each crossing.

    Args:
        found: Crossings from `find_crossings`.
        route: Index of the recommended model at each epsilon, from `choose_models`.
        curves: Accuracies, (models, data sets, epsilons).
        entries: Models.
        own: Released or planned model with its score.
        epsilons: Epsilons, ascending.
    """
    means, names = curves.mean(axis=1), [each.name for each in entries]
    released = next(place for place, each in enumerate(entries) if each.released)
    start = int(np.abs(np.log(epsilons) - math.log(own.epsilon)).argmin())
    here = route[start]
    same = [place for place, each in enumerate(route) if each == here]
    above = [each for each in found if each.epsilon > epsilons[start]]
    below = [each for each in found if each.epsilon <= epsilons[start]]
    first = f"{below[-1].epsilon if below else epsilons[0]:.2g}"
    last = f"{above[0].epsilon if above else epsilons[-1]:.2g}"
    lead = (means - means[here])[:, same].max()
    simplest = entries[here].parameters == min(each.parameters for each in entries)
    if here != released:
        gap = 100 * float(_interpolate_at(means[here] - means[released], own.epsilon, epsilons))
        said = (
            f"At epsilon {own.epsilon:g}, {names[here]} is expected to be better than the "
            f"{own.status} model, {names[released]}, by {gap:.1f} points on public data."
        )
        if own.has_compared:
            said += " The noisy scores on your own records preferred the released model."
    elif np.ptp(means[:, same], axis=0).max() <= MIN_LEAD and simplest:
        said = (
            f"From epsilon {first} to {last} no difference of more than one point is expected; "
            f"the simplest model {'was' if own.status == 'released' else 'is'} {own.status}."
        )
    else:
        margin = "one point" if lead <= MIN_LEAD else "the noise of the study on public data"
        said = (
            f"From epsilon {first} to {last} no other model of the searched space is expected to "
            f"be better than the {own.status} one by more than {margin}."
        )
    for each in above:
        said += f" From about epsilon {each.epsilon:.2g} on, {each.after} is expected to be better."
    for each in reversed(below):
        said += f" Below about epsilon {each.epsilon:.2g}, {each.before} is expected to be better."
    return said


def describe_range(crossing: dict[str, Any], epsilons: Sequence[float]) -> str:
    """Describe the range of a crossing in a phrase; empty if it contains all epsilons."""
    low, high = crossing["low"], crossing["high"]
    if low <= epsilons[0] and high is None:
        return ""
    first = f"{low:g}" if low > epsilons[0] else f"{epsilons[0]:g} or below"
    last = f"{epsilons[-1]:g} or above" if high is None else f"{high:g}"
    return f"on most of the data sets between {first} and {last}"
