"""Privacy events: a closed table of frozen values, which accountants interpret.

Only these types reach an accountant, so this table decides what is supported. `checks` validates
every number, so a float32 sigma, an int sigma or a NaN cannot change a privacy cost. Files name
events by this table's short names; reading a file never imports what it names.

`count_atomic_releases` alone knows about counts: an event is a multiset of atomic releases, and an
accountant multiplies by the count once. Adjacency is zero-out: one record is replaced by the null
record.

Source: the idea is Google's `dp_accounting.dp_event`; costs are in `accountants`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from pasearch.accounting.additive import Shifts
from pasearch.accounting.checks import (
    check_fraction,
    check_nonnegative,
    check_positive,
    check_positive_integer,
    check_probability,
    make_post_init,
)
from pasearch.accounting.densities import Density, check_known_density, density_from_json
from pasearch.accounting.selection import RunCountDistribution
from pasearch.errors import UsageError

MAX_DEPTH = 32
MAX_ORDER = 1024.0  # largest order of the Renyi grid
MAX_SHOWN_PARTS = 6  # parts of a composition in one line of text


class Event:
    """One release, or a fixed composition of releases."""

    __slots__ = ()
    name: ClassVar[str]
    """Name of the event type in files."""
    description_template: ClassVar[str] = ""
    """Text with the fields as placeholders; `describe_event` describes compositions."""


def _check_event(name: str, value: object) -> Event:
    if type(value) not in EVENT_TYPES.values():
        raise UsageError(f"{name} is {value!r}; expected an event class of `accounting.events`.")
    return value  # type: ignore[return-value]


def _check_events(name: str, value: object) -> tuple[Event, ...]:
    if not isinstance(value, tuple | list) or not value:
        raise UsageError(f"{name} is {value!r}; expected at least one event (or NoRelease()).")
    return tuple(_check_event(name, each) for each in value)


def _make_instance_check(kind: type, expected: str) -> Callable[[str, Any], Any]:
    """Create a field check for values of one class, excluding subclasses."""

    def check(name: str, value: object) -> object:
        if type(value) is not kind:
            raise UsageError(f"{name} is {value!r}; expected {expected}.")
        return value

    return check


@dataclass(frozen=True, slots=True)
class NoRelease(Event):
    """No private release: public data, or post-processing."""

    name: ClassVar[str] = "no-release"
    description_template: ClassVar[str] = "nothing private"


@dataclass(frozen=True, slots=True)
class Gaussian(Event):
    """A sum with Gaussian noise; the noise multiplier is sigma / sensitivity."""

    name: ClassVar[str] = "gaussian"
    description_template: ClassVar[str] = "Gaussian noise (multiplier {noise_multiplier:g})"
    noise_multiplier: float
    __post_init__ = make_post_init(noise_multiplier=check_positive)


@dataclass(frozen=True, slots=True)
class PoissonGaussian(Event):
    """One step of DP-SGD: a Gaussian release on an exact Poisson sample of the records."""

    name: ClassVar[str] = "poisson-gaussian"
    description_template: ClassVar[str] = (
        "Gaussian noise (multiplier {noise_multiplier:g}) on a Poisson sample (probability "
        "{sampling_probability:g})"
    )
    sampling_probability: float
    noise_multiplier: float
    __post_init__ = make_post_init(
        sampling_probability=check_probability, noise_multiplier=check_positive
    )


@dataclass(frozen=True, slots=True)
class TruncatedPoissonGaussian(Event):
    """A `PoissonGaussian` whose sample has at most `truncated_batch_size` records (PLD only)."""

    name: ClassVar[str] = "truncated-poisson-gaussian"
    description_template: ClassVar[str] = (
        "Gaussian noise (multiplier {noise_multiplier:g}) on a Poisson sample (probability "
        "{sampling_probability:g}) of {dataset_size} records, at most {truncated_batch_size}"
    )
    dataset_size: int
    sampling_probability: float
    truncated_batch_size: int
    noise_multiplier: float
    __post_init__ = make_post_init(
        dataset_size=check_positive_integer,
        truncated_batch_size=check_positive_integer,
        sampling_probability=check_probability,
        noise_multiplier=check_positive,
    )


@dataclass(frozen=True, slots=True)
class NoisyRecords(Event):
    """One step in which each sampled record has separate Gaussian noise, and the sample is public.

    The noise multiplier is the noise's standard deviation / the clipping norm of one record.
    """

    name: ClassVar[str] = "noisy-records"
    description_template: ClassVar[str] = (
        "records with separate Gaussian noise (multiplier {noise_multiplier:g}) in a public "
        "sample (probability {sampling_probability:g})"
    )
    sampling_probability: float
    noise_multiplier: float
    __post_init__ = make_post_init(
        sampling_probability=check_probability, noise_multiplier=check_positive
    )


@dataclass(frozen=True, slots=True)
class AdditiveNoise(Event):
    """A sum over a Poisson sample, with noise of one density on every coordinate (RDP only).

    The sorted magnitudes that one record adds are at most the shifts. Density and shifts have the
    same unit.
    """

    name: ClassVar[str] = "additive"
    description_template: ClassVar[str] = (
        "{density.name} noise (scale {density.scale:g}) on each of {shifts.coordinates:,} "
        "coordinates of encoded gradients (at most {shifts.reach:.3g} each), on a Poisson sample "
        "(probability {sampling_probability:g})"
    )
    sampling_probability: float
    density: Density
    shifts: Shifts
    __post_init__ = make_post_init(
        sampling_probability=check_probability,
        density=check_known_density,
        shifts=_make_instance_check(Shifts, "Shifts"),
    )


@dataclass(frozen=True, slots=True)
class Geometric(Event):
    """A count of sensitivity 1 plus two-sided geometric noise, P(z) ~ exp(-epsilon |z|)."""

    name: ClassVar[str] = "geometric"
    description_template: ClassVar[str] = "a noisy count: geometric noise (epsilon {epsilon:g})"
    epsilon: float
    __post_init__ = make_post_init(epsilon=check_positive)


@dataclass(frozen=True, slots=True)
class PureDP(Event):
    """Any epsilon-DP release, such as an exponential mechanism; accounted for like `Geometric`."""

    name: ClassVar[str] = "pure"
    description_template: ClassVar[str] = "a pure-DP release (epsilon {epsilon:g})"
    epsilon: float
    __post_init__ = make_post_init(epsilon=check_positive)


@dataclass(frozen=True, slots=True)
class ApproximateDP(Event):
    """Any (epsilon, delta)-DP release; with epsilon 0, a purely additive delta.

    The accountant uses the worst such release: it reveals everything with probability delta, and is
    `PureDP` otherwise.
    """

    name: ClassVar[str] = "approximate"
    description_template: ClassVar[str] = (
        "an approximate-DP release (epsilon {epsilon:g}, delta {delta:g})"
    )
    epsilon: float
    delta: float
    __post_init__ = make_post_init(epsilon=check_nonnegative, delta=check_fraction)


@dataclass(frozen=True, slots=True)
class DiscreteGaussian(Event):
    """Integers of L2 sensitivity `sensitivity` with discrete Gaussian noise `sigma` (RDP only)."""

    name: ClassVar[str] = "discrete-gaussian"
    description_template: ClassVar[str] = (
        "discrete Gaussian noise (sigma {sigma:g} at {sensitivity:g})"
    )
    sigma: float
    sensitivity: float
    __post_init__ = make_post_init(sigma=check_positive, sensitivity=check_positive)


@dataclass(frozen=True, slots=True)
class Composition(Event):
    """All of these releases, in a fixed plan."""

    name: ClassVar[str] = "composed"
    events: tuple[Event, ...]
    __post_init__ = make_post_init(events=_check_events)


@dataclass(frozen=True, slots=True)
class SelfComposition(Event):
    """The same release `count` times, with fresh randomness."""

    name: ClassVar[str] = "self-composed"
    event: Event
    count: int
    __post_init__ = make_post_init(event=_check_event, count=check_positive_integer)


@dataclass(frozen=True, slots=True)
class WorstCase(Event):
    """One of these releases, chosen adaptively: the cost is the maximum over all of them."""

    name: ClassVar[str] = "worst"
    events: tuple[Event, ...]
    __post_init__ = make_post_init(events=_check_events)


@dataclass(frozen=True, slots=True)
class RepeatAndSelect(Event):
    """The best of K runs of `event`, with its noisy score; K is secret and drawn from `law`."""

    name: ClassVar[str] = "repeat-and-select"
    event: Event
    law: RunCountDistribution
    __post_init__ = make_post_init(
        event=_check_event,
        law=_make_instance_check(RunCountDistribution, "a RunCountDistribution"),
    )


@dataclass(frozen=True, slots=True)
class FilteredReleases(Event):
    """Adaptively chosen releases whose total RDP is at most that of `event` (RDP only).

    `renyi.PrivacyFilter` enforces it at every order of the accountant's grid up to `highest_order`.
    At higher orders there is no bound.
    """

    name: ClassVar[str] = "filtered"
    event: Event
    highest_order: float = MAX_ORDER
    __post_init__ = make_post_init(event=_check_event, highest_order=check_positive)


EVENT_TYPES: dict[str, type[Event]] = {
    kind.name: kind
    for kind in (
        NoRelease, Gaussian, PoissonGaussian, TruncatedPoissonGaussian, NoisyRecords, AdditiveNoise,
        Geometric, PureDP, ApproximateDP, DiscreteGaussian, Composition, SelfComposition, WorstCase,
        RepeatAndSelect, FilteredReleases,
    )
}  # fmt: skip
FIELD_READERS: dict[str, Callable[[Any], object]] = {
    "law": RunCountDistribution.from_json,
    "density": density_from_json,
    "shifts": Shifts.from_json,
}


def count_atomic_releases(event: Event) -> dict[Event, int]:
    """Count the atomic releases of an event.

    Guarantee: `SelfComposition(e, k)` and k copies of e have the same counts, so no accountant can
    charge them differently. Public releases are dropped; a `WorstCase` of one event is that event.
    A `FilteredReleases` is atomic: only its limit is known.
    """
    counts: dict[Event, int] = {}
    for atom, count in _iterate_atoms(event, 1):
        counts[atom] = counts.get(atom, 0) + count
    return counts


def _iterate_atoms(event: Event, count: int) -> Iterable[tuple[Event, int]]:
    match event:
        case NoRelease():
            return
        case SelfComposition():
            yield from _iterate_atoms(event.event, count * event.count)
        case Composition():
            for part in event.events:
                yield from _iterate_atoms(part, count)
        case WorstCase() if len(set(event.events)) == 1:
            yield from _iterate_atoms(event.events[0], count)
        case FilteredReleases() if not count_atomic_releases(event.event):
            return
        case _:
            yield event, count


def event_to_json(event: Event) -> dict[str, Any]:
    """Convert an event to JSON values with its short type name."""
    values = {
        name: _to_plain(value)
        for name, value in _field_values(_check_event("event", event)).items()
    }
    return {"type": event.name, **values}


def event_from_json(document: object) -> Event:
    """Read the event that `event_to_json` wrote.

    Raises:
        UsageError: The type is unknown, a field is missing or unknown, or a number is invalid.
    """
    return _read_event(document, MAX_DEPTH)


def _read_event(document: object, depth: int) -> Event:
    if not depth > 0:
        raise UsageError(f"an event is nested deeper than {MAX_DEPTH}: use fewer levels.")
    if not isinstance(document, Mapping):
        raise UsageError(f"an event is {document!r}; expected a JSON object with a type.")
    name = document.get("type")
    if not isinstance(name, str) or name not in EVENT_TYPES:
        raise UsageError(
            f"event type {name!r} is unknown; expected one of {', '.join(EVENT_TYPES)}."
        )
    kind = EVENT_TYPES[name]
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    if set(document) != names | {"type"}:
        raise UsageError(
            f"event {name!r} has the fields {sorted(map(str, document))}; expected exactly "
            f"{sorted(names | {'type'})}."
        )
    return kind(**{key: _read_field(key, document[key], depth) for key in names})


def _read_field(key: str, value: object, depth: int) -> object:
    if key == "event":
        return _read_event(value, depth - 1)
    if key == "events":
        if not isinstance(value, list):
            raise UsageError(f"events is {value!r}; expected a list of events.")
        return tuple(_read_event(each, depth - 1) for each in value)
    if key in FIELD_READERS:
        return FIELD_READERS[key](value)
    return value


def _to_plain(value: object) -> object:
    if isinstance(value, Event):
        return event_to_json(value)
    if isinstance(value, tuple):
        return [_to_plain(each) for each in value]
    if isinstance(value, RunCountDistribution | Density | Shifts):
        return value.to_json()
    return value


def describe_event(event: Event) -> str:
    """Describe an event in one line.

    >>> describe_event(SelfComposition(Gaussian(noise_multiplier=2.0), 10))
    '10 x [Gaussian noise (multiplier 2)]'
    """
    match event:
        case ApproximateDP(epsilon=0.0):
            return f"an additive delta ({event.delta:g})"
        case SelfComposition():
            return f"{event.count:,} x [{describe_event(event.event)}]"
        case Composition():
            shown = [describe_event(part) for part in event.events]
            if len(shown) > MAX_SHOWN_PARTS:
                shown[2:-1] = [f"({len(shown) - 3} more)"]
            return " + ".join(shown)
        case WorstCase():
            return "the worst of [" + "; ".join(describe_event(part) for part in event.events) + "]"
        case RepeatAndSelect():
            return (
                f"the best of K runs, K {event.law.describe()}, of [{describe_event(event.event)}]"
            )
        case FilteredReleases():
            limited = event.highest_order < MAX_ORDER
            kept = f", at orders up to {event.highest_order:g}" if limited else ""
            return f"adaptive releases within the RDP of [{describe_event(event.event)}]{kept}"
    if not isinstance(event, tuple(EVENT_TYPES.values())):
        raise UsageError(f"event is {event!r}; expected an event class of `accounting.events`.")
    return event.description_template.format_map(_field_values(event))


def _field_values(event: Event) -> dict[str, Any]:
    return {field.name: getattr(event, field.name) for field in fields(event)}  # type: ignore[arg-type]
