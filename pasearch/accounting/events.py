"""Privacy events: frozen descriptions of releases, which accountants interpret.

`EVENT_TYPES` lists all types of events; accountants refuse others. Every number is checked (module
`checks`), so a float32 sigma, an int sigma or a NaN cannot change a privacy cost. In files, events
have the short names of this table; reading a file never imports a class that the file names.

An event is a multiset of atomic releases. Only `count_atomic_releases` counts repetitions, so that
an accountant multiplies by a count exactly once. Adjacency is zero-out: one record is replaced by
the null record.

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

MAX_EVENT_DEPTH = 32  # maximum nesting of events in a file
MAX_ORDER = 1024.0  # maximum Renyi order at which accountants compute bounds
MAX_SHOWN_PARTS = 6  # maximum number of parts of a composition in its description


class Event:
    """Base class: one release, or a fixed composition of releases."""

    __slots__ = ()
    name: ClassVar[str]
    """Name of the event type in files."""
    description_template: ClassVar[str] = ""
    """Description with the fields as placeholders; empty for compositions."""


def _check_event(name: str, value: object) -> Event:
    """Check that a value is an event of `EVENT_TYPES`, and return it."""
    if type(value) not in EVENT_TYPES.values():
        raise UsageError(f"{name} is {value!r}; expected an event class of `accounting.events`.")
    return value  # type: ignore[return-value]


def _check_events(name: str, value: object) -> tuple[Event, ...]:
    """Check that a value is a tuple or list of events, and return a tuple."""
    if not isinstance(value, tuple | list) or not value:
        raise UsageError(f"{name} is {value!r}; expected at least one event (or NoRelease()).")
    return tuple(_check_event(name, each) for each in value)


def _make_instance_check(kind: type, expected: str) -> Callable[[str, Any], Any]:
    """Make a field check for instances of one class, without subclasses."""

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
    """Sum with Gaussian noise; the noise multiplier is sigma / sensitivity."""

    name: ClassVar[str] = "gaussian"
    description_template: ClassVar[str] = "Gaussian noise (multiplier {noise_multiplier:g})"
    noise_multiplier: float
    __post_init__ = make_post_init(noise_multiplier=check_positive)


@dataclass(frozen=True, slots=True)
class PoissonGaussian(Event):
    """One step of DP-SGD: a sum with Gaussian noise over an exact Poisson sample of the records."""

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
    """`PoissonGaussian` with a sample of at most `truncated_batch_size` records (PLD only)."""

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
    """One step with Gaussian noise on each record of a sample that counts as public.

    The noise multiplier is the standard deviation of this noise divided by the clipping norm. It is
    also the event of a noisy sum of encoded micro-batches, with this deviation divided by 2 C.
    """

    name: ClassVar[str] = "noisy-records"
    description_template: ClassVar[str] = (
        "Gaussian noise (multiplier {noise_multiplier:g}) on records or micro-batches of a sample "
        "that counts as public (probability {sampling_probability:g})"
    )
    sampling_probability: float
    noise_multiplier: float
    __post_init__ = make_post_init(
        sampling_probability=check_probability, noise_multiplier=check_positive
    )


@dataclass(frozen=True, slots=True)
class AdditiveNoise(Event):
    """Sum over a Poisson sample, with independent noise on every coordinate (RDP only).

    `shifts` are upper bounds of the sorted magnitudes that one record adds. The scale of the
    density and the shifts have the same unit.
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
    """Count with sensitivity 1 plus two-sided geometric noise, P(z) ~ exp(-epsilon |z|)."""

    name: ClassVar[str] = "geometric"
    description_template: ClassVar[str] = "a noisy count: geometric noise (epsilon {epsilon:g})"
    epsilon: float
    __post_init__ = make_post_init(epsilon=check_positive)


@dataclass(frozen=True, slots=True)
class PureDP(Event):
    """Any epsilon-DP release, such as an exponential mechanism; it costs as much as `Geometric`."""

    name: ClassVar[str] = "pure"
    description_template: ClassVar[str] = "a pure-DP release (epsilon {epsilon:g})"
    epsilon: float
    __post_init__ = make_post_init(epsilon=check_positive)


@dataclass(frozen=True, slots=True)
class ApproximateDP(Event):
    """Any (epsilon, delta)-DP release; with epsilon 0, an additive delta only.

    It costs as much as the worst such release, which reveals everything with probability delta and
    is a `PureDP` release otherwise.
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
    """Integers with L2 sensitivity `sensitivity` and discrete Gaussian noise `sigma` (RDP only)."""

    name: ClassVar[str] = "discrete-gaussian"
    description_template: ClassVar[str] = (
        "discrete Gaussian noise (sigma {sigma:g} at {sensitivity:g})"
    )
    sigma: float
    sensitivity: float
    __post_init__ = make_post_init(sigma=check_positive, sensitivity=check_positive)


@dataclass(frozen=True, slots=True)
class Composition(Event):
    """All of these events, in a plan that is fixed in advance."""

    name: ClassVar[str] = "composed"
    events: tuple[Event, ...]
    __post_init__ = make_post_init(events=_check_events)


@dataclass(frozen=True, slots=True)
class SelfComposition(Event):
    """The same event `count` times, with independent random numbers."""

    name: ClassVar[str] = "self-composed"
    event: Event
    count: int
    __post_init__ = make_post_init(event=_check_event, count=check_positive_integer)


@dataclass(frozen=True, slots=True)
class WorstCase(Event):
    """One of these events, chosen adaptively; the cost is their maximum."""

    name: ClassVar[str] = "worst"
    events: tuple[Event, ...]
    __post_init__ = make_post_init(events=_check_events)


@dataclass(frozen=True, slots=True)
class RepeatAndSelect(Event):
    """Release of the best of K runs of `event`, by noisy scores; K is secret, drawn from `law`."""

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

    `renyi.PrivacyFilter` ensures this at every order of `renyi.ORDERS` up to `highest_order`. At
    higher orders there is no bound.
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
"""All types of events, by their names in files."""
FIELD_READERS: dict[str, Callable[[Any], object]] = {
    "law": RunCountDistribution.from_json,
    "density": density_from_json,
    "shifts": Shifts.from_json,
}
"""Functions that create the values of fields from JSON, by name of the field."""


def count_atomic_releases(event: Event) -> dict[Event, int]:
    """Count the atomic releases of an event: all that are not compositions.

    Guarantee: `SelfComposition(e, k)` and k copies of e have equal results, so no accountant can
    charge them differently. `NoRelease` is omitted, and a `WorstCase` of a single event counts as
    this event. `FilteredReleases` is atomic, because only its limit is known.
    """
    counts: dict[Event, int] = {}
    for atom, count in _iterate_atoms(event, 1):
        counts[atom] = counts.get(atom, 0) + count
    return counts


def _iterate_atoms(event: Event, count: int) -> Iterable[tuple[Event, int]]:
    """Yield (atomic release, count) for `count` repetitions of an event; releases may repeat."""
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
    """Convert an event to a dictionary of JSON values, with its name as `type`."""
    values = {
        name: _to_plain(value)
        for name, value in _field_values(_check_event("event", event)).items()
    }
    return {"type": event.name, **values}


def event_from_json(document: object) -> Event:
    """Create an event from JSON values as written by `event_to_json`.

    Raises:
        UsageError: The type is unknown, a field is missing or unknown, or a number is invalid.
    """
    return _read_event(document, MAX_EVENT_DEPTH)


def _read_event(document: object, depth: int) -> Event:
    """Create an event from JSON values with at most `depth` levels."""
    if not depth > 0:
        raise UsageError(f"an event is nested deeper than {MAX_EVENT_DEPTH}: use fewer levels.")
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
    """Create the value of a field from JSON."""
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
    """Convert the value of a field to JSON."""
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
    """Get the fields of an event by name."""
    return {field.name: getattr(event, field.name) for field in fields(event)}  # type: ignore[arg-type]
