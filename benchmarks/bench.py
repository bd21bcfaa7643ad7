"""How fast this machine trains privately, and how long a search would take.

    python benchmarks/bench.py
    python benchmarks/bench.py --space cnn --candidates 60 --epochs 500 --n 60000

Networks of the registered search spaces, the smallest, the middle and the largest by operations,
are trained for a moment on synthetic records: by the default recipe, with all that privacy adds,
and by plain SGD. No data is read, so nothing is charged. The limit of a private step is

    least = max(bytes moved / copied a second,
                operations / multiplied a second + random bytes / drawn a second)

A step draws 4 random bytes per trained number. It moves 16 bytes per trained number (the sum is
written, and read with the noise; the weight is read and written), and 8 bytes per number of a
record. Products and random bits use the same cores; memory is read at the same time. Further work
of a step, such as activations or the transform from bits to normal numbers, is not counted: the
limit is a bound that no implementation of this kind reaches, not a forecast.
"""

from __future__ import annotations

import argparse
import json
import statistics
import textwrap
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from pasearch.accounting.checks import check_positive, check_positive_integer
from pasearch.data.partitions import Records
from pasearch.errors import UsageError, suggest_name
from pasearch.runs.keys import Keys
from pasearch.spaces.candidate import Candidate
from pasearch.spaces.cost import StepWork, estimate_seconds, measure_step_work
from pasearch.spaces.layers import Shape
from pasearch.spaces.parsing import make_space
from pasearch.spaces.space import BUILT_IN_SPACES, Space
from pasearch.terminal_escaping import format_duration
from pasearch.training import linear_backend
from pasearch.training.recipe import Recipe, make_default_recipe
from pasearch.training.trainer import start_training

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
        rates = {name: value / 1e9 for name, value in asdict(self.rates).items()}
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
            yield name, *(format_duration(3600 * each) for each in self.hours(name))

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        searches = [
            {"candidates": k, "epochs": epochs, "records": n,
             "hours": {name: self.hours(name)[place] for name in self.names}}
            for place, (k, epochs, n) in enumerate(self.searches)
        ]  # fmt: skip
        return {
            "device": self.device, "threads": self.threads, "rates": asdict(self.rates),
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


SIDE = {"cpu": 512, "cuda": 8192}
"""Rows of the square matrices that are multiplied."""
COPIED = {"cpu": 2**24, "cuda": 2**30}
"""Bytes that are copied at once: more than a core's own cache holds. On a CPU each call takes about
a millisecond, so that some of them meet no other work."""
WORDS = {"cpu": 2**15, "cuda": 2**26}
"""Random 64-bit words that are drawn at once: on a CPU as many as the noise draws at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What a machine does in a second, at best.

    Args:
        operations: Of float32 products.
        bytes: Read and written in a copy.
        random: Bytes from the generator that the noise is made of.
        normals: Of torch.randn, float32 numbers, for comparison.
    """

    operations: float
    bytes: float
    random: float
    normals: float

    def least(self, cost: StepWork, batch: float) -> float:
        """Return the least seconds of a private step over so many records."""
        computing = cost.operations * batch / self.operations + 4.0 * cost.trained / self.random
        return max(computing, self._moved(cost, batch) / self.bytes)

    def parts(self, cost: StepWork, batch: float) -> dict[str, float]:
        """Return the seconds of each part by itself."""
        return {
            "products": cost.operations * batch / self.operations,
            "memory": self._moved(cost, batch) / self.bytes,
            "random": 4.0 * cost.trained / self.random,
            "randn": cost.trained / self.normals,
        }

    @staticmethod
    def _moved(cost: StepWork, batch: float) -> float:
        """Return bytes that go through memory in a step."""
        return 8.0 * cost.features * batch + 16.0 * cost.trained


def measured(device: str, seconds: float) -> Rates:
    """Measure a machine's rates, with the threads that torch has now.

    Args:
        device: "cpu" or "cuda".
        seconds: About how long that takes, all in all.
    """
    side, size, words = SIDE[device], COPIED[device] // 8, WORDS[device]
    a, b, product = (torch.rand(side, side, device=device) for _ in range(3))
    source, target = (torch.zeros(size, dtype=torch.int64, device=device) for _ in range(2))
    normal = torch.empty(words, device=device)
    each = seconds / 4
    if device == "cpu":
        stream = Keys().stream("bench").random_words()
        drawn: Callable[[], object] = lambda: stream.take(words)  # noqa: E731
    else:
        drawn = torch.empty(words, dtype=torch.int64, device=device).random_
    return Rates(
        operations=2.0 * side**3 / best(lambda: torch.mm(a, b, out=product), each, device),
        bytes=16.0 * size / best(lambda: target.copy_(source), each, device),
        random=8.0 * words / best(drawn, each, device),
        normals=words / best(normal.normal_, each, device),
    )


def best(call: Callable[[], object], seconds: float, device: str) -> float:
    """Return the least seconds of one call, of as many as fit into the time, three at least."""
    found: list[float] = []
    call()
    end = time.perf_counter() + seconds
    while len(found) < 3 or time.perf_counter() < end:
        synchronize(device)
        start = time.perf_counter()
        call()
        synchronize(device)
        found.append(time.perf_counter() - start)
    return min(found)


def synchronize(device: str | torch.device) -> None:
    """Wait for a device."""
    if str(device) == "cuda":
        torch.cuda.synchronize()


def bench(
    *,
    spaces: tuple[str, ...] = (),
    device: str = "auto",
    threads: int | None = None,
    seconds: float = 20.0,
    searches: tuple[tuple[int, int, int], ...] = SEARCHES,
) -> Bench:
    """Measure how fast this machine trains privately, and how long a search would take.

    Args:
        spaces: Names of search spaces, or paths of their TOML files; () for all built-in spaces.
        device: "auto", "cpu" or "cuda".
        threads: Threads of torch; None leaves them as they are.
        seconds: Approximate duration of the measurement, above 0. Each network is trained for at
            least one step. Compiled code is loaded before; the first time on a machine it is
            compiled.
        searches: Triples (candidates, epochs, records) whose duration is estimated.
    """
    check_positive("seconds", seconds)
    networks = list(_networks([_space(name) for name in spaces or BUILT_IN_SPACES]))
    found = "cuda" if torch.cuda.is_available() else "cpu"
    where = found if device == "auto" else device
    before = torch.get_num_threads()
    if threads is not None:
        torch.set_num_threads(check_positive_integer("threads", threads))
    try:
        if where == "cpu":
            linear_backend.load_kernel()
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


def _space(name: str) -> Space:
    """Return a space that can be measured without data."""
    if name in BUILT_IN_SPACES or (Path(name).suffix == ".toml" and Path(name).is_file()):
        return make_space(name)
    auto = " 'auto' is another space for every kind of data, and no data is read here."
    raise UsageError(
        f"Space {name!r} cannot be measured: expected one of {', '.join(BUILT_IN_SPACES)}, or "
        "the path of a .toml file."
        f"{auto if name == 'auto' else suggest_name(name, BUILT_IN_SPACES)}"
    )


Network = tuple[Candidate, Shape, int, tuple[tuple[str, str], ...]]


def _networks(spaces: list[Space]) -> Iterator[Network]:
    """Yield each network that is trained, with its record's shape, its classes, and its places."""
    places: dict[tuple[Any, ...], list[tuple[str, str]]] = {}
    kept: dict[tuple[Any, ...], Candidate] = {}
    for each in spaces:
        shape, classes = TABLE if each.name == "tables" else IMAGE
        by_work = sorted(
            each.iterate_shapes(), key=lambda one: _work(one, shape, classes).operations
        )
        for size, one in zip(SIZES, (by_work[0], by_work[len(by_work) // 2], by_work[-1]),
                             strict=True):  # fmt: skip
            key = (one.architecture, one.front_end.text, shape, classes)
            kept.setdefault(key, one)
            places.setdefault(key, []).append((each.name, size))
    for key, one in kept.items():
        yield one, key[2], key[3], tuple(places[key])


def _work(candidate: Candidate, shape: Shape, classes: int) -> StepWork:
    return measure_step_work(
        candidate.architecture, candidate.front_end.output_shape(shape), classes
    )


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
    recipe = make_default_recipe(SLOTS, steps=STEPS, learning_rate=0.1, noise_multiplier=1.0)
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
        planned=batch * recipe.steps / estimate_seconds(work, batch, recipe.steps),
    )  # fmt: skip


def _start() -> np.random.Generator:
    return Keys().stream("weights").generator()


def _made_up(shape: Shape, classes: int) -> Records:
    """Return records that nobody has."""
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
    keys = Keys()
    streams = {purpose: keys.stream(purpose) for purpose in ("batch", "noise", "dropout")}
    training = start_training(network, records, recipe, streams, device=device)
    return lambda: training.steps(training.max_round_steps)


def _plain(network: nn.Module, records: Records, batch: int, device: str) -> Callable[[], None]:
    """Return a step of plain SGD, on a batch of fixed size."""
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


def main() -> None:
    """Measure, print the tables, and write the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--space", nargs="+", default=[], help="Spaces. Default: all built in.")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--threads", type=int, help="Of the processor. Default: all.")
    parser.add_argument("--seconds", type=float, default=20.0, help="Of the measurement.")
    parser.add_argument("--candidates", type=int, help="Of one search. Default: 60.")
    parser.add_argument("--epochs", type=int, help="Of each of its trainings. Default: 50.")
    parser.add_argument("--n", type=int, help="Records of that search. Default: 60,000.")
    parser.add_argument("--out", type=Path, help="A new .json file for the figures.")
    given = parser.parse_args()
    if given.out is not None and given.out.exists():
        parser.error(f"--out {given.out} exists: name a new file.")
    own = (given.candidates, given.epochs, given.n)
    k, epochs, n = SEARCHES[1]
    one = (given.candidates or k, given.epochs or epochs, given.n or n)
    found = bench(
        spaces=tuple(given.space), device=given.device, threads=given.threads,
        seconds=given.seconds, searches=(one,) if any(own) else SEARCHES,
    )  # fmt: skip
    print(found.describe())
    if given.out is not None:
        given.out.write_text(json.dumps(found.to_json(), indent=2) + "\n")


if __name__ == "__main__":
    main()
