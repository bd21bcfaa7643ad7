"""Forecast, from public data, of the epsilon at which another model becomes clearly better.

The study behind the portfolio (benchmarks/portfolio) has the accuracy of each entry at many signals
mu n / C, for several public data sets of a kind. For the data at hand n, C and the plan are public,
so each epsilon has a signal, and

    a_m(eps) = own + mean over the study's data sets d of  a_m,d(eps) - a_w,d(eps_run)

w is the released model and `own` its noisy test score: all curves are shifted until that of w
passes through the score, because data sets differ in difficulty far more than models do. The band
holds the middle half of the study's data sets. Only models of the searched space are compared.

A model is clearly better than another at an epsilon if its lead is more than `POINT` and more than
the noise of the study, the half width of the 95 % interval of the mean lead over data sets
(Student's t). Starting from the released model at the run's epsilon, a crossing is the next epsilon
at which another model is clearly better. It is reported only if its range excludes a part of the
epsilons. The range is the shortest that holds the crossings of enough single data sets,

    ceil(.8 (m + 1)) of m data sets                of fewer than four: all epsilons

where the crossing of one data set is the last epsilon at which the first model is still the better
one (Definition 2). m + 1 and not m, because the data at hand are one more data set. This assumes
that they are like the study's, and has no proof: benchmarks/crossover/forecast.py
measures how often a data set's crossing is in the range that the others give.

Cost: none. Everything is public, or was released and paid for already.

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
"""Epsilons of a forecast."""

MAX_EXTRAPOLATION = 0.3
"""Largest distance of a signal from the measured range, in powers of ten."""

MIN_FORECAST_EPSILONS = 5
"""Minimum number of epsilons of a forecast."""

MIN_LEAD = 0.01
"""Smallest lead that is reported: one percentage point, or 1 % of a target's range."""

RANGE_COVERAGE = 0.8
"""Fraction of the study's data sets whose crossings the range of a crossing contains."""

MAX_DRAWN_MODELS = 4
"""Maximum number of models: the winner, the simplest, the largest, and the best in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredModel:
    """Released, or planned, model of a run."""

    epsilon: float  # of the whole run
    delta: float  # of the whole run
    mu: float  # signal to noise of the released model's training, of one record
    slots: int  # training records
    score: float | None  # the noisy test score as a share; None before a run
    error: float  # the standard error of that score
    has_compared: bool = False  # whether the run compared models on its own records

    @property
    def status(self) -> str:
        """Status of the model: "released" by a run, or "planned"."""
        return "planned" if self.score is None else "released"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyModel:
    """A model of the study."""

    name: str  # in words
    parameters: int  # number of parameters on the data at hand
    released: bool  # whether it is the one that the run released


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """An epsilon beyond which another model is clearly better."""

    epsilon: float  # where the better model's lead becomes clear
    low: float  # start of the range over single data sets; 0: below the first epsilon
    high: float | None  # end of that range; None: above the last epsilon
    before: str  # the model to take below
    after: str  # the model to take above


def forecast_crossover(
    schema: AnySchema,
    name: str,
    own: MeasuredModel,
    winner: Candidate,
    outputs: int,
    searched: Callable[[Candidate], bool],
) -> dict[str, Any] | None:
    """Return the forecast of a run as plain values, or None if there is nothing to compare.

    Args:
        schema: Declared; model sizes are approximate if columns are not.
        name: Data set name, which is left out of the study.
        own: Released model with its score.
        winner: Candidate of the released model, or of the planned one before a run.
        outputs: Number of classes; 1 for a numeric target.
        searched: Whether a model belongs to the searched space.

    Returns:
        Plain values. None if the study has no entry like the winner, no other entry of the searched
        space, or no signal like that of the run.
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
    """Interpolate the accuracy of every entry, (entries, data sets, signals).

    Curves are made monotone, because a larger epsilon does not reduce accuracy.

    Args:
        study: Study of one kind of data.
        signals: Signals as log10, rising.
    """
    curves = np.stack(
        [study.accuracy_at(signal) for signal in signals]
    )  # (signals, data sets, entries)
    return np.maximum.accumulate(curves.transpose(2, 1, 0), axis=2)


def describe_model(candidate: Candidate) -> str:
    """Describe a model: the network, and its feature extractor."""
    layers = candidate.architecture.layers
    network = f"network ({candidate.architecture.describe()})" if layers else "linear model"
    front = candidate.front_end
    return network if isinstance(front, Raw) else f"{network} on {front.describe()}"


def _interpolate_at(curves: np.ndarray, epsilon: float, epsilons: Epsilons) -> np.ndarray:
    place = math.log(epsilon)
    return np.apply_along_axis(lambda one: np.interp(place, np.log(epsilons), one), -1, curves)


def _choose_drawn_models(
    curves: np.ndarray, sizes: list[int], study: Study, winner: Candidate
) -> list[int]:
    """Choose winner, simplest, largest and the best at some epsilon; the better of equals."""
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
    """Return the models' curves, shifted so that the winner's curve passes through its score."""
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
    """Return the index of the model to take at each epsilon, from the run's epsilon outwards.

    The released model is kept until another one is clearly better and the range of their crossing
    excludes a part of the epsilons; then that one is kept likewise.

    Args:
        curves: Accuracy, (models, data sets, epsilons).
        released: Index of the released model.
        epsilon: Epsilon of the run.
        epsilons: Epsilons, rising.
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
        curves: Accuracy, (models, data sets, epsilons).
        names: Names of the models.
        epsilons: Epsilons, rising.
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
    """Return up to which epsilon one of two models is the better one, with its range.

    Each is 0 where that is below the first epsilon, and infinite where it is above the last.

    Args:
        curves: Accuracy, (models, data sets, epsilons).
        before: Index of the model that is better at small epsilons, usually the simpler one.
        after: Index of the other model.
        epsilons: Epsilons, rising.

    Returns:
        (epsilon, low, high): by the mean over data sets, and the range by single ones.
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
    """Return the last epsilon at which one curve is above another (Definition 2).

    Args:
        one: Accuracy of one model, (epsilons,).
        other: Accuracy of the other model, (epsilons,).
        epsilons: Epsilons, rising.

    Returns:
        0 where it never is, and infinity where it is at the last epsilon.
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
    # Of equal ones the middle one.
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
    """Return the forecast in one sentence, and one for each crossing.

    Args:
        found: Crossings from `find_crossings`.
        route: Index of the recommended model at each epsilon, from `choose_models`.
        curves: Accuracy, (models, data sets, epsilons).
        entries: Models.
        own: Released model with its score.
        epsilons: Epsilons, rising.
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
    """Describe the range of a crossing over data sets; empty if it is all epsilons."""
    low, high = crossing["low"], crossing["high"]
    if low <= epsilons[0] and high is None:
        return ""
    first = f"{low:g}" if low > epsilons[0] else f"{epsilons[0]:g} or below"
    last = f"{epsilons[-1]:g} or above" if high is None else f"{high:g}"
    return f"on most of the data sets between {first} and {last}"
