"""A forecast, from public data, of the epsilon at which another model becomes the best.

The study behind the portfolio (benchmarks/portfolio) has the accuracy of each entry at many signals
mu n / C, for several public data sets of a kind. For the data at hand n, C and the plan are public,
so each epsilon has a signal, and

    a_m(eps) = own + mean over the study's data sets d of  a_m,d(eps) - a_w,d(eps_run)

w is the model that was released and `own` its noisy test score, so all curves are moved until the
winner's passes through that: data sets differ in how hard they are far more than models do. The
band holds the middle half of the study's data sets.

A crossing is an epsilon at which another model becomes the best on average. Its range tells how far
single data sets differ: it is the shortest that holds the crossings of enough of them,

    ceil(.8 (m + 1)) of m data sets                of fewer than four: all epsilons

where the crossing of one data set is the last epsilon at which the model from below is still the
better one there (Definition 2). m + 1 and not m, because the data at hand are one more. This counts
on them to be like the study's, and has no proof: `left_out` and benchmarks/crossover/forecast.py
measure how often a data set's crossing lies in the range that the others give.

Cost: none. Everything is public, or was released and paid for already.

Source: the question is that of Bao et al., sections III and VI (Definition 2); the answer is ours.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pasearch.accounting.sketch import gaussian_mu
from pasearch.crossover.curves import crossover
from pasearch.data.front_ends import Raw
from pasearch.spaces.candidate import Candidate
from pasearch.spaces.portfolio import FEW_CATEGORIES, Study, features_of, signal_of, study_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pasearch.data.tables import AnySchema

Epsilons = tuple[float, ...]

EPSILONS: Epsilons = tuple(round(float(each), 4) for each in np.geomspace(0.1, 10.0, 25))
"""Where a forecast is made."""

BEYOND = 0.3
"""By how many powers of ten a signal may lie outside what was measured, and is still drawn."""

LEAST_DRAWN = 5
"""With fewer epsilons there is no forecast."""

NEARLY = 0.002
"""Models that are nearer to each other than this are said to do about equally well."""

HELD = 0.8
"""The range of a crossing holds those of at least so many of the study's data sets, as a share."""

SHOWN = 4
"""At most so many models: the winner, the simplest, the largest, and the best ones in between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """What a run released of itself.

    Args:
        epsilon: Its total.
        delta: Of the total.
        mu: Signal to noise of the released model's training, of one record.
        slots: Training records.
        score: The noisy test score as a share; None where it is no accuracy.
        error: The standard error of that score.
        compared: Whether the run compared models on its own records.
    """

    epsilon: float
    delta: float
    mu: float
    slots: int
    score: float | None
    error: float
    compared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A model of the study.

    Args:
        name: In words.
        parameters: How many it has on the data at hand.
        released: Whether it is the one that the run released.
    """

    name: str
    parameters: int
    released: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One model of a forecast.

    Args:
        name: In words.
        roles: Any of "released", "simplest" and "largest".
        parameters: How many it has on these data.
        accuracy: At `epsilons`, as a share.
        low: The lower quartile over the study's data sets.
        high: The upper quartile.
    """

    name: str
    roles: tuple[str, ...]
    parameters: int
    accuracy: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """An epsilon from which on another model is the best.

    Args:
        epsilon: On average over the study's data sets.
        low: Where its range by single data sets begins; 0: on some of them it is better at all
            epsilons.
        high: Where that ends; None: on some of them it is not better, up to the last epsilon.
        before: The model that is best below.
        after: The model that is best above.
    """

    epsilon: float
    low: float
    high: float | None
    before: str
    after: str


def forecast(
    schema: AnySchema, name: str, own: Own, winner: Candidate, outputs: int
) -> dict[str, Any] | None:
    """Return the forecast of a run as plain values; None where nothing like it was measured.

    Args:
        schema: Declared; sizes of models are about right where columns are not.
        name: Of the data set, which is left out of the study.
        own: What the run released.
        winner: The model that it released.
        outputs: Classes; 1 where a number is predicted.
    """
    study = study_for(schema, name).among(outputs)
    signals = [signal_of(own.mu * ratio, own.slots, outputs) for ratio in _ratios(own)]
    features = features_of(schema)
    drawn = [
        place
        for place, signal in enumerate(signals)
        if not study.outside(signal, outputs, features, BEYOND)
    ]
    if len(study.entries) < 2 or len(drawn) < LEAST_DRAWN:
        return None
    epsilons = tuple(EPSILONS[place] for place in drawn)
    curves = curves_at(study, [signals[place] for place in drawn])
    shape = schema.widest_shape(FEW_CATEGORIES)
    sizes = [each.parameters(shape, outputs)[0] for each in study.entries]
    shown = _shown(curves, sizes, study, winner)
    entries = [
        Entry(
            name=plain_name(study.entries[place]),
            parameters=sizes[place],
            released=study.entries[place] == winner,
        )
        for place in shown
    ]
    lines = _lines(curves[shown], entries, own, epsilons)
    means = np.array([line.accuracy for line in lines])
    names = [line.name for line in lines]
    found = crossings(means, curves[shown], names, epsilons)
    return {
        "kind": "forecast",
        "data_sets": curves.shape[1],
        "epsilons": list(epsilons),
        "models": [_plain(line) for line in lines],
        "own": {"epsilon": own.epsilon, "score": own.score, "standard_error": round(own.error, 5)},
        "crossings": [_plain(each) for each in found],
        "sentence": sentence(means, names, found, own.epsilon, epsilons)
        + _beside(means, lines, own, epsilons),
    }


def curves_at(study: Study, signals: Sequence[float]) -> np.ndarray:
    """Return the accuracy of every entry, (entries, data sets, signals).

    More epsilon does no harm: where a measured curve falls, that is its own noise.

    Args:
        study: Of one kind of data.
        signals: Rising.
    """
    curves = np.stack([study.at(signal) for signal in signals])  # (signals, data sets, entries)
    return np.maximum.accumulate(curves.transpose(2, 1, 0), axis=2)


def plain_name(candidate: Candidate) -> str:
    """Return a model in words: the network, and what it is given."""
    layers = candidate.architecture.layers
    network = f"network ({candidate.architecture.describe()})" if layers else "linear model"
    front = candidate.front_end
    return network if isinstance(front, Raw) else f"{network} on {front.words()}"


def _at(curves: np.ndarray, epsilon: float, epsilons: Epsilons) -> np.ndarray:
    """Return curves at one epsilon: the last axis is gone."""
    place = math.log(epsilon)
    return np.apply_along_axis(lambda one: np.interp(place, np.log(epsilons), one), -1, curves)


def _ratios(own: Own) -> list[float]:
    """Return mu at each epsilon, as a share of what the run had: that of one Gaussian release."""
    here = gaussian_mu(own.epsilon, own.delta)
    return [gaussian_mu(epsilon, own.delta) / here for epsilon in EPSILONS]


def _shown(curves: np.ndarray, sizes: list[int], study: Study, winner: Candidate) -> list[int]:
    """Return which entries are drawn: winner, simplest, largest, and those that are best somewhere.

    Of equal sizes the better one is taken.
    """
    means = curves.mean(axis=1)
    level = means.mean(axis=1)
    simplest = min(range(len(sizes)), key=lambda place: (sizes[place], -level[place]))
    largest = max(range(len(sizes)), key=lambda place: (sizes[place], level[place]))
    own = [place for place, each in enumerate(study.entries) if each == winner]
    best = means.argmax(axis=0).tolist()
    chosen = list(dict.fromkeys([*own, simplest, largest, *map(int, best)]))[:SHOWN]
    return sorted(chosen, key=lambda place: (sizes[place], place))


def _lines(curves: np.ndarray, entries: list[Entry], own: Own, epsilons: Epsilons) -> list[Line]:
    """Return the models' curves, moved until that of the winner passes through its score.

    Args:
        curves: (models, data sets, epsilons).
        entries: Of each model.
        own: What was released.
        epsilons: Rising.
    """
    here = _at(curves, own.epsilon, epsilons)
    released = [each for each, entry in zip(here, entries, strict=True) if entry.released]
    reference = released[0] if released else here.max(axis=0)
    level = float(reference.mean()) if own.score is None else own.score
    moved = np.clip(curves - reference[None, :, None] + level, 0.0, 1.0)
    sizes = [entry.parameters for entry in entries]
    found = []
    for entry, lines in zip(entries, moved, strict=True):
        roles = [("released", entry.released), ("simplest", entry.parameters == min(sizes)),
                 ("largest", entry.parameters == max(sizes))]  # fmt: skip
        found.append(
            Line(
                name=entry.name,
                parameters=entry.parameters,
                roles=tuple(role for role, has in roles if has),
                accuracy=_rounded(lines.mean(axis=0)),
                low=_rounded(np.quantile(lines, 0.25, axis=0)),
                high=_rounded(np.quantile(lines, 0.75, axis=0)),
            )
        )
    return found


def crossings(
    means: np.ndarray, curves: np.ndarray, names: list[str], epsilons: Epsilons = EPSILONS
) -> list[Crossing]:
    """Return where the best model changes; not where it changes back at once, as of equal ones.

    Args:
        means: (models, epsilons), their accuracy on average.
        curves: (models, data sets, epsilons).
        names: Of the models.
        epsilons: Rising.
    """
    best = means.argmax(axis=0)
    found = []
    for place in range(1, len(best)):
        before, after = int(best[place - 1]), int(best[place])
        if before == after:
            continue
        _, low, high = pair_crossing(curves, before, after, epsilons)
        mean = _zero(means[after] - means[before], place, epsilons)
        low, high = min(low, mean), max(high, mean)
        crossing = Crossing(
            epsilon=_rounded_epsilon(mean),
            low=_rounded_epsilon(low),
            high=None if math.isinf(high) else _rounded_epsilon(high),
            before=names[before],
            after=names[after],
        )
        if found and _takes_back(crossing, found[-1]):
            found.pop()
        else:
            found.append(crossing)
    return found


def _takes_back(crossing: Crossing, last: Crossing) -> bool:
    """Whether two models change places and change back at what is one epsilon when it is told."""
    there = (crossing.before, crossing.after, crossing.epsilon)
    return there == (last.after, last.before, last.epsilon)


def pair_crossing(
    curves: np.ndarray, before: int, after: int, epsilons: Epsilons = EPSILONS
) -> tuple[float, float, float]:
    """Return up to which epsilon one of two models is the better one, with its range.

    Each is 0 where that is below the first epsilon, and infinite where it is above the last.

    Args:
        curves: Accuracy, (models, data sets, epsilons).
        before: Place of the model that is asked about, as a rule the simpler one.
        after: Place of the other.
        epsilons: Rising.

    Returns:
        (epsilon, low, high): by the mean over data sets, and the range by single ones.
    """
    mean = last_ahead(curves[before].mean(axis=0), curves[after].mean(axis=0), epsilons)
    by_set = [
        last_ahead(one, other, epsilons)
        for one, other in zip(curves[before], curves[after], strict=True)
    ]
    low, high = _range(by_set, epsilons)
    return mean, min(low, mean), max(high, mean)


def last_ahead(one: np.ndarray, other: np.ndarray, epsilons: Epsilons = EPSILONS) -> float:
    """Return the last epsilon at which one curve is above another (Definition 2).

    Args:
        one: Accuracy, (epsilons,).
        other: Likewise.
        epsilons: Rising.

    Returns:
        0 where it never is, and infinity where it is at the last epsilon.
    """
    return crossover(1.0 - one[:, None], 1.0 - other[:, None], epsilons, ("", "")).epsilon


def _range(crossings: list[float], epsilons: Epsilons) -> tuple[float, float]:
    """Return the shortest range that holds `HELD` of them and one more; of few, everything.

    What is off the grid counts as long as the grid's end.
    """
    count = math.ceil(HELD * (len(crossings) + 1) - 1e-9)
    if count > len(crossings):
        return 0.0, math.inf
    rising = sorted(crossings)
    logs = np.log(np.clip(rising, epsilons[0], epsilons[-1]))
    widths = logs[count - 1 :] - logs[: len(logs) - count + 1]
    # Of equal ones the middle one.
    equal = np.flatnonzero(widths <= widths.min() + 1e-9)
    first = int(equal[(len(equal) - 1) // 2])
    return rising[first], rising[first + count - 1]


def _zero(lead: np.ndarray, place: int, epsilons: Epsilons) -> float:
    """Return where a lead passes 0 between two epsilons, on a logarithmic scale."""
    low, high = float(lead[place - 1]), float(lead[place])
    share = 0.5 if high == low else min(1.0, max(0.0, -low / (high - low)))
    first, second = math.log(epsilons[place - 1]), math.log(epsilons[place])
    return math.exp(first + share * (second - first))


def sentence(
    means: np.ndarray,
    names: list[str],
    found: list[Crossing],
    epsilon: float,
    epsilons: Epsilons = EPSILONS,
) -> str:
    """Return what the forecast says, in one or two sentences."""
    at, asked = _at(means, epsilon, epsilons), epsilon
    best = int(at.argmax())
    others = [place for place in range(len(names)) if place != best]
    close = [names[place] for place in others if at[best] - at[place] < NEARLY]
    epsilon = min(max(epsilon, epsilons[0]), epsilons[-1])
    said = f"At epsilon {epsilon:g} the best model is expected to be: {names[best]}."
    if close:
        equal = "; ".join([names[best], *close])
        said = (
            f"At epsilon {epsilon:g} these models are expected to be about equally good: {equal}."
        )
    above = [each for each in found if each.epsilon > epsilon]
    below = [each for each in found if each.epsilon <= epsilon]
    # Of two that read alike only what lies beyond both is said.
    later = {f"{each.epsilon:.2g}": each.after for each in above}
    earlier = {f"{each.epsilon:.2g}": each.before for each in reversed(below)}
    for words, changes in ((" From about {} on", later), (" Below about {}", earlier)):
        last = names[best]
        for where, name in changes.items():
            said += "" if name == last else f"{words.format(where)} the best would be: {name}."
            last = name
    if asked != epsilon:
        said = f"Nothing like this was measured at epsilon {asked:g}. {said}"
    if not found:
        said += f" The same holds from {epsilons[0]:.2g} to {epsilons[-1]:.2g}."
    return said


def range_words(crossing: dict[str, Any], epsilons: Sequence[float]) -> str:
    """Return where most data sets have a crossing, in words; empty where they do not agree."""
    low, high = crossing["low"], crossing["high"]
    if low <= epsilons[0] and high is None:
        return ""
    first = f"{low:g}" if low > epsilons[0] else f"{epsilons[0]:g} or below"
    last = f"{epsilons[-1]:g} or above" if high is None else f"{high:g}"
    return f"on most of the data sets between {first} and {last}"


def _beside(means: np.ndarray, lines: list[Line], own: Own, epsilons: Epsilons) -> str:
    """Say so where a run found another model to be the best on its own records."""
    at = _at(means, own.epsilon, epsilons)
    for line, value in zip(lines, at, strict=True):
        if own.compared and "released" in line.roles and value < at.max() - NEARLY:
            return (
                f" This run released another, {line.name}: it was ahead in the noisy scores of "
                "your own records, which other data do not know. Take that one."
            )
    return ""


def _rounded(values: np.ndarray) -> tuple[float, ...]:
    return tuple(round(float(each), 4) for each in values)


def _rounded_epsilon(epsilon: float) -> float:
    return float(f"{epsilon:.3g}")


def _plain(value: Line | Crossing) -> dict[str, Any]:
    return {
        name: list(each) if isinstance(each, tuple) else each
        for name, each in asdict(value).items()
    }
