"""How fast this machine trains privately: `pasearch bench`.

Networks of the registered search spaces, the smallest, the middle and the largest by operations,
are trained for a moment on made-up records: by the default recipe, with all that privacy adds, and
by plain SGD. No data is read, so nothing is charged. The limit is that of `bench_rates`.
"""

from __future__ import annotations

import statistics
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasearch.accounting.checks import positive, whole
from pasearch.api.bench_rates import Rates, measured, synchronize
from pasearch.errors import UsageError, nearest
from pasearch.shown import duration
from pasearch.spaces.candidate import Candidate
from pasearch.spaces.cost import Cost, cost, planned_seconds
from pasearch.spaces.families import NAMED
from pasearch.spaces.layers import Shape
from pasearch.spaces.space import Space, space

if TYPE_CHECKING:
    from torch import nn

    from pasearch.data.partitions import Records
    from pasearch.training.recipe import Recipe

SLOTS = 8192
"""Made-up records: the least for which the default recipe takes its largest batch."""
IMAGE, TABLE = ((28, 28), 10), ((100,), 2)
"""Shape and classes of a made-up record; the second for the space `tables`."""
STEPS = 1500
"""Of the training whose speed is told, the default of many records: of so many, machine code is
worth loading for small networks too."""
SEARCHES = ((10, 20, 10_000), (60, 50, 60_000), (60, 50, 1_000_000))
"""Candidates, epochs and records of typical searches."""
SIZES = ("smallest", "middle", "largest")
RATES_SHARE = 0.08
"""The share of the time that the machine's rates are measured in."""
NOTE = (
    f"private: records a second of a private training of {STEPS:,} steps. plain SGD: of the same "
    "without privacy. of plain: the first as a share of the second. limit: what no private "
    "training on this "
    "machine exceeds. It follows from what the machine did at best, by itself, in a second: "
    "{operations:,.0f} billion multiplications and additions, {bytes:,.1f} GB copied, "
    "{random:,.1f} GB of random bits for the noise.",
    "What a front end such as scattering computes once, before the first step, is not in these "
    "figures. Candidates that are trained side by side, one on each core, take less time than is "
    "told here.",
)
"""What the columns mean, and what is left out."""

WIDTH = 80
"""Characters of a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast one network is trained.

    Args:
        spaces: The search spaces that it is of, each with its size there.
        record: What it is given, in words.
        network: In words.
        parameters: All of them.
        batch: Expected records of a step.
        private: Records a second, trained privately.
        plain: Records a second by plain SGD.
        limit: Records a second that this machine cannot exceed.
        planned: Records a second that a plan reckons with, on two CPU cores.
    """

    spaces: tuple[tuple[str, str], ...]
    record: str
    network: str
    parameters: int
    batch: int
    private: float
    plain: float
    limit: float
    planned: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What `bench` measured.

    Args:
        device: "cpu" or "cuda".
        threads: Of torch.
        rates: What the machine does in a second.
        speeds: One a network, in the order of the spaces.
        searches: Candidates, epochs and records of the searches whose time is told.
    """

    device: str
    threads: int
    rates: Rates
    speeds: tuple[Speed, ...]
    searches: tuple[tuple[int, int, int], ...]

    def hours(self, name: str) -> list[float]:
        """Return how long each search takes with a space's middle network, one after another."""
        middle = self._of(name, "middle")
        return [k * epochs * n / middle.private / 3600 for k, epochs, n in self.searches]

    @property
    def names(self) -> list[str]:
        """The search spaces, in their order."""
        return list(dict.fromkeys(name for each in self.speeds for name, _ in each.spaces))

    def describe(self) -> str:
        """Return the tables, and what their figures mean."""
        many = f"{self.threads} thread{'s' * (self.threads > 1)}"
        rates = {name: value / 1e9 for name, value in self.rates.to_json().items()}
        lines = (
            f"Device: {self.device}{f', {many}' if self.device == 'cpu' else ''}",
            "\nRecords a second, of three networks of each space, in batches of "
            f"{self.speeds[0].batch:,}:\n",
            *_columns(self._speed_rows()),
            "\nHow long a search takes of middle networks, trained one after another:\n",
            *_columns(self._search_rows()),
            "\nThe middle networks, each behind the size of the made-up records:\n",
            *self._middle_networks(),
            *(f"\n{textwrap.fill(each.format(**rates), WIDTH)}" for each in NOTE),
        )
        return "\n".join(lines)

    def _shown(self) -> dict[str, list[str]]:
        """Return the spaces that have rows, each with the spaces behind it of the same networks."""
        found: dict[tuple[int, ...], list[str]] = {}
        for name in self.names:
            found.setdefault(tuple(id(self._of(name, size)) for size in SIZES), []).append(name)
        return {first: others for first, *others in found.values()}

    def _of(self, name: str, size: str) -> Speed:
        """Return the speed of a space's network of a size."""
        (found,) = (each for each in self.speeds if (name, size) in each.spaces)
        return found

    def _middle_networks(self) -> Iterator[str]:
        for name, same in self._shown().items():
            each = self._of(name, "middle")
            told = f"{name}: {each.record}; {each.network}"
            told += f". {', '.join(same)}: the same three networks, so the same times" * bool(same)
            yield textwrap.fill(told, WIDTH, initial_indent="  ", subsequent_indent="    ")

    def _speed_rows(self) -> Iterator[tuple[str, ...]]:
        yield "space", "network", "parameters", "private", "plain SGD", "of plain", "limit"
        for name in self._shown():
            for size in SIZES:
                each = self._of(name, size)
                yield (
                    name, size, f"{each.parameters:,}", f"{each.private:,.0f}",
                    f"{each.plain:,.0f}", f"{each.private / each.plain:.0%}", f"{each.limit:,.0f}",
                )  # fmt: skip

    def _search_rows(self) -> Iterator[tuple[str, ...]]:
        for place, what in enumerate(("candidates", "epochs", "records")):
            yield what, *(f"{each[place]:,}" for each in self.searches)
        for name in self._shown():
            yield name, *(duration(3600 * each) for each in self.hours(name))

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        searches = [
            {"candidates": k, "epochs": epochs, "records": n,
             "hours": {name: self.hours(name)[place] for name in self.names}}
            for place, (k, epochs, n) in enumerate(self.searches)
        ]  # fmt: skip
        return {
            "device": self.device, "threads": self.threads, "rates": self.rates.to_json(),
            "speeds": [{**asdict(each), "spaces": dict(each.spaces)} for each in self.speeds],
            "searches": searches,
        }  # fmt: skip


def _columns(rows: Iterator[tuple[str, ...]]) -> Iterator[str]:
    """Yield rows with their cells below each other: words to the left, numbers to the right."""
    cells = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    words = [not any(letter.isdigit() for letter in each) for each in cells[-1]]
    for row in cells:
        told = zip(row, widths, words, strict=True)
        yield "  ".join(
            f"{cell:{'<' if left else '>'}{width}}" for cell, width, left in told
        ).rstrip()


def bench(
    *,
    spaces: tuple[str, ...] = (),
    device: str = "auto",
    threads: int | None = None,
    seconds: float = 20.0,
    searches: tuple[tuple[int, int, int], ...] = SEARCHES,
    on_start: Callable[[int], None] | None = None,
) -> Bench:
    """Measure how fast this machine trains privately, and what a search would take.

    Args:
        spaces: Names of search spaces, or paths of their TOML files; () for all that are built in.
        device: "auto", "cpu" or "cuda".
        threads: Of torch; None leaves them as they are.
        seconds: About how long the measurement may take, above 0. A network that is slow is
            trained for one step at least. Machine code is loaded before; the first time on a
            machine it is compiled, in half a minute.
        searches: Triples (candidates, epochs, records), whose time is told.
        on_start: Called with the number of networks when the first is about to be trained.

    Returns:
        The speeds, the machine's rates, and each search's hours.

    Raises:
        UsageError: A space that is not known, a GPU that is not there, a number that cannot be.

    Cost: none: the records are made up, and no data is read.
    """
    import torch

    from pasearch.api.request import TrainRequest
    from pasearch.api.resolve import device_of

    positive("seconds", seconds)
    for place, name in enumerate(("candidates", "epochs", "records")):
        for each in searches:
            whole(name, each[place])
    networks = list(_networks([_space(name) for name in spaces or NAMED]))
    where = device_of(TrainRequest(data="digits", device=device))  # pyright: ignore[reportArgumentType]
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(whole("threads", threads))
    if on_start is not None:
        on_start(len(networks))
    try:
        if where == "cpu":
            _load()
        end = time.perf_counter() + seconds
        own = torch.get_num_threads()
        rates = measured(where, RATES_SHARE * seconds)
        speeds = []
        for place, network in enumerate(networks):
            share = (end - time.perf_counter()) / (len(networks) - place)
            speeds.append(_speed(*network, rates, where, share))
    finally:
        torch.set_num_threads(before)
    return Bench(device=where, threads=own, rates=rates, speeds=tuple(speeds), searches=searches)


def _load() -> None:
    """Load what private trainings load before their first step."""
    from pasearch.training import linear_backend

    linear_backend.load_kernel()


def _space(name: str) -> Space:
    """Return a space that can be measured without data."""
    if name in NAMED or (Path(name).suffix == ".toml" and Path(name).is_file()):
        return space(name)
    auto = " 'auto' is another space for every kind of data, and no data is read here."
    raise UsageError(
        f"Space {name!r} cannot be measured: expected one of {', '.join(NAMED)}, or the path of a "
        f".toml file.{auto if name == 'auto' else nearest(name, NAMED)}"
    )


_Network = tuple[Candidate, Shape, int, tuple[tuple[str, str], ...]]


def _networks(spaces: list[Space]) -> Iterator[_Network]:
    """Yield each network that is trained, with its record's shape, its classes, and its places."""
    places: dict[tuple[Any, ...], list[tuple[str, str]]] = {}
    kept: dict[tuple[Any, ...], Candidate] = {}
    for each in spaces:
        shape, classes = TABLE if each.name == "tables" else IMAGE
        by_work = sorted(each.extremes(), key=lambda one: _work(one, shape, classes).operations)
        for size, one in zip(SIZES, (by_work[0], by_work[len(by_work) // 2], by_work[-1]),
                             strict=True):  # fmt: skip
            key = (one.architecture, one.front_end.text, shape, classes)
            kept.setdefault(key, one)
            places.setdefault(key, []).append((each.name, size))
    for key, one in kept.items():
        yield one, key[2], key[3], tuple(places[key])


def _work(candidate: Candidate, shape: Shape, classes: int) -> Cost:
    return cost(candidate.architecture, candidate.front_end.output_shape(shape), classes)


def _speed(
    candidate: Candidate,
    shape: Shape,
    classes: int,
    spaces: tuple[tuple[str, str], ...],
    rates: Rates,
    device: str,
    seconds: float,
) -> Speed:
    """Train one network for so long, half privately and half not."""
    from pasearch.training.recipe import default_recipe

    recipe = default_recipe(SLOTS, steps=STEPS, learning_rate=0.1, noise_multiplier=1.0)
    given = candidate.front_end.output_shape(shape)
    records, batch = _made_up(given, classes), recipe.expected_batch_size
    work = _work(candidate, shape, classes)
    private = _private(
        candidate.architecture.build(given, classes, _start()), records, recipe, device
    )
    plain = _plain(candidate.architecture.build(given, classes, _start()), records, batch, device)
    own, theirs = _seconds_of((private, plain), seconds, device)
    return Speed(
        spaces=spaces, record=f"{' x '.join(map(str, shape))} numbers, {classes} classes",
        network=candidate.describe_network(), parameters=work.parameters,
        batch=batch, private=batch / own, plain=batch / theirs,
        limit=batch / rates.least(work, batch),
        planned=batch * recipe.steps / planned_seconds(work, batch, recipe.steps),
    )  # fmt: skip


def _start():
    from pasearch.runs.keys import Keys

    return Keys().stream("weights").generator()


def _made_up(shape: Shape, classes: int) -> Records:
    """Return records that nobody has."""
    import torch

    from pasearch.data.partitions import Records

    generator = torch.Generator().manual_seed(1)
    return Records(
        x=torch.rand((SLOTS, *shape), generator=generator),
        y=torch.randint(classes, (SLOTS,), generator=generator),
        valid=torch.ones(SLOTS, dtype=torch.bool),
        public=False,
    )


def _private(
    network: nn.Module, records: Records, recipe: Recipe, device: str
) -> Callable[[], int]:
    """Return what makes private steps as a run makes them, and says how many: on a GPU a round."""
    from pasearch.runs.keys import Keys
    from pasearch.training.trainer import Training

    keys = Keys()
    streams = {purpose: keys.stream(purpose) for purpose in ("batch", "noise", "dropout")}
    training = Training(network, records, recipe, streams, device=device)
    return lambda: training.steps(training.round)


def _plain(network: nn.Module, records: Records, batch: int, device: str) -> Callable[[], None]:
    """Return a step of plain SGD, on a batch of fixed size."""
    import torch
    from torch.nn.functional import cross_entropy

    network.to(device).train()
    x, y = records.x.to(device), records.y.to(device)
    weights: list[torch.Tensor] = [each for each in network.parameters() if each.requires_grad]

    def step() -> None:
        chosen = torch.randint(len(y), (batch,), device=device)
        loss = cross_entropy(network(x.index_select(0, chosen)), y.index_select(0, chosen))
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients, strict=True):
                weight.add_(gradient, alpha=-0.1)

    return step


def _seconds_of(
    steps: tuple[Callable[[], int | None], ...], seconds: float, device: str
) -> list[float]:
    """Return the median seconds of each step; they take turns until the time is over.

    Each says how many steps it has made; None: one.
    """
    times: list[list[float]] = [[] for _ in steps]
    end = time.perf_counter() + seconds
    while not times[0] or time.perf_counter() < end:
        for step, found in zip(steps, times, strict=True):
            synchronize(device)
            start = time.perf_counter()
            made = step() or 1
            synchronize(device)
            found.append((time.perf_counter() - start) / made)
    # The first one warms up.
    return [statistics.median(found[1:] or found) for found in times]
