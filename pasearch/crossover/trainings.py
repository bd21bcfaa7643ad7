"""The trainings of a measured curve: side by side, each written down as soon as it is done.

    a point     (model, place of its epsilon, repeat); behind the last epsilon: without noise
    a setting   how a model is trained at an epsilon: recipe, dial, noise of its front end

A point depends on the seed and its own numbers alone, and every training has one thread, so what
comes out does not depend on how many are trained at a time, nor on where a study was interrupted.
All records are declared public: nothing here is charged.

Source: Bao et al., sections III-C and VI-C.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pasearch.crossover.models import Model
from pasearch.data.front_ends import Fitted, Raw, ready
from pasearch.data.threads import threads
from pasearch.errors import UsageError
from pasearch.files import parse_json, read_bytes
from pasearch.runs.executors import Executor, Work
from pasearch.runs.keys import Keys, Stream
from pasearch.search.candidate_training import counts, failed, train_candidate, training_streams
from pasearch.search.plan import candidate_recipe
from pasearch.training.metrics import METRICS
from pasearch.training.recipe import Recipe

if TYPE_CHECKING:
    from pasearch.data.partitions import Dataset, Records

Point = tuple[int, int, int]
"""(model, place of its epsilon, repeat)."""

Told = Callable[[int, int], None]

MOST_BYTES = 2**26
"""The longest file of finished trainings."""

FEW = 24
"""For so few trainings it does not pay to begin processes, unless each takes long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a model is trained at one epsilon.

    Args:
        recipes: As the plan of one such training has them.
        mu: Its dial.
        front_noise: Of its fitted front end, if it has one.
    """

    recipes: tuple[Recipe, ...]
    mu: float
    front_noise: float | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Study:
    """Everything that a point's training needs.

    Args:
        dataset: Declared public, its schema complete.
        models: Of the comparison.
        settings: (models, epsilons).
        train: Records to train on, of which the dial is.
        test: Records to test on.
        metric: The name of the metric of which errors are.
        seed: Of splits and noise.
        device: "cpu" or "cuda".
        places: Of the training records, and of those that errors are on, the same for every point;
            None: drawn anew for every repeat.
    """

    dataset: Dataset
    models: Sequence[Model]
    settings: Sequence[Sequence[Setting]]
    train: int
    test: int
    metric: str
    seed: int
    device: str = "cpu"
    places: tuple[np.ndarray, np.ndarray] | None = None

    def error(self, point: Point) -> float:
        """Return the exact error of one training on the held-out records; of one that failed, 1."""
        model, place, repeat = point
        keys = Keys.from_seed(self.seed)
        noisy = place < len(self.settings[model])
        stream = keys.stream("training", model, place, repeat)
        own, held, candidate, shape = self._records(point, keys)
        setting = self.settings[model][place if noisy else 0]
        front = candidate.front_end
        if front.fitted:
            form = self.dataset.schema.row_form
            noise = setting.front_noise if noisy else None
            fitted = front.fit(own.x, own.valid, noise, stream.child("front"), form)
            own, held = (_behind(fitted, each) for each in (own, held))
        # As many records as planned have the planned signal; fewer have the same, by less noise.
        mu = setting.mu * self.train / len(own) if noisy else None
        recipes = tuple(each.within(len(own)) for each in setting.recipes)
        outputs = self.dataset.schema.outputs
        recipe = candidate_recipe(recipes, candidate, mu, len(own), outputs=outputs)
        schema: Any = _Form(shape=shape, outputs=outputs)
        streams = training_streams(stream)
        network = train_candidate(candidate, own, schema, recipe, streams, device=self.device)
        if failed(network):
            return 1.0
        metric = METRICS[self.metric]
        found = counts(network, held, metric, device=self.device)
        return 1.0 - metric.points(found, len(held)) / (len(held) * metric.most)

    def _records(self, point: Point, keys: Keys) -> tuple[Records, Records, Any, Any]:
        """Return training and test records of a point, its candidate, and their shape."""
        model, (_, _, repeat) = self.models[point[0]], point
        own, held = self.places or self._split(keys.stream("split", repeat))
        candidate, schema = model.candidate, self.dataset.schema
        if model.features is not None:
            every = self.dataset.all_records(None)
            draw = keys.stream("features", repeat).generator()
            kept = model.features.places(schema, every.take(own), draw)
            cut = replace(every, x=every.x.flatten(1)[:, kept])
            return cut.take(own), cut.take(held), candidate, model.shape(schema)
        front = candidate.front_end
        before = front.before if front.fitted else front
        mapped = None
        if before is not None and not isinstance(before, Raw):
            mapped = ready(before, schema.shape, self.device)
        every = self.dataset.all_records(mapped)
        return every.take(own), every.take(held), candidate, schema.shape

    def _split(self, stream: Stream) -> tuple[np.ndarray, np.ndarray]:
        """Return the places of training and test records: as many as planned, or as there are."""
        n = self.dataset.n
        if self.dataset.official_test == self.test:  # the last records, as every result on them
            order = stream.generator().permutation(n - self.test)
            return order[: self.train], np.arange(n - self.test, n)
        order = stream.generator().permutation(n)
        held = min(self.test, max(1, n // 5))
        return order[held : held + self.train], order[:held]


@dataclass(frozen=True, slots=True)
class _Form:
    """What a network's first and last layer are made for."""

    shape: tuple[int, ...]
    outputs: int


def _behind(fitted: Fitted, records: Records) -> Records:
    """Return records behind a front end's last part, which are not kept for another training."""
    import torch

    with torch.no_grad():
        x = fitted.module(records.x)
    x[~records.valid] = 0.0
    return replace(records, x=x)


@dataclass(slots=True, eq=False)
class Kept:
    """Finished points in a file, one JSON line each; the first line says of what they are.

    Args:
        path: None keeps nothing.
        of: What must be equal for a line to be used again.
    """

    path: Path | None
    of: dict[str, Any]

    def read(self) -> dict[Point, float]:
        """Return what was finished before.

        Raises:
            UsageError: The file is of another study, or damaged.
        """
        if self.path is None or not self.path.exists():
            return {}
        text = read_bytes(self.path, "finished trainings", most=MOST_BYTES)
        whole = text[: text.rfind(b"\n") + 1]
        where = str(self.path)
        try:
            head, *rest = [parse_json(each, where) for each in whole.splitlines()] or [self.of]
            found = {tuple(each["point"]): float(each["error"]) for each in rest}
        except (KeyError, TypeError, ValueError):
            raise UsageError(f"{self.path} is damaged: delete it, and measure anew.") from None
        if head != parse_json(json.dumps(self.of), where):
            raise UsageError(
                f"{self.path} is of another comparison (other data, models, epsilons or seed): "
                "give another folder."
            )
        if whole != text:  # a line that was not written whole: it was interrupted
            self.path.write_bytes(whole)
        return found  # pyright: ignore[reportReturnType]

    def add(self, lines: list[dict[str, Any]]) -> None:
        """Write lines behind the others; the first time, what they are of before them."""
        if self.path is None:
            return
        new = not self.path.exists() or not self.path.stat().st_size
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            for each in ([self.of] if new else []) + lines:
                file.write(json.dumps(each) + "\n")
            file.flush()
            os.fsync(file.fileno())


def measured(
    study: Study,
    points: list[Point],
    kept: Kept,
    *,
    executor: Executor,
    told: Told | None,
    few: int = FEW,
) -> dict[Point, float]:
    """Return the error of every point, trained side by side; finished ones are not trained again.

    Args:
        study: What the points are of.
        points: Which.
        kept: Where finished ones are.
        executor: Who trains; open.
        told: Called with (points finished, all points).
        few: For so few it does not pay to begin processes.
    """
    found = {p: e for p, e in kept.read().items() if p in set(points)}
    left = [point for point in points if point not in found]
    for point, error in _trained(study, left, executor, few):
        found[point] = error
        kept.add([{"point": list(point), "error": error}])
        if told is not None:
            told(len(found), len(points))
    return found


def _trained(
    study: Study, points: list[Point], executor: Executor, few: int
) -> Iterator[tuple[Point, float]]:
    """Yield points and their errors, in any order."""
    shared = study.device != "cpu" and not executor.elsewhere
    if shared or not executor.takes(len(points), long=len(points) > few):
        with threads(1):  # results do not depend on how many are at hand
            for point in points:
                yield point, study.error(point)
        return
    from joblib import cpu_count, dump

    with tempfile.TemporaryDirectory(prefix="pasearch-") as folder:
        source = _Stored(Path(folder))
        own = replace(study.dataset, cache=source.folder)
        device = "cuda" if executor.gpus else "cpu"
        dump(replace(study, dataset=own, device=device), source.path)
        works = [
            Work(key=f"point {point}", do=partial(_error_of, point), reads=(source,))
            for point in points
        ]
        with closing(executor.finished(works, 1, cpu_count())) as finished:
            for place, error in finished:
                yield points[place], float.fromhex(error.decode())


@dataclass(frozen=True, slots=True)
class _Stored:
    """A study in a folder of this machine, which a worker reads once: it is public."""

    folder: Path
    kept = True

    @property
    def path(self) -> Path:
        return self.folder / "study"

    def load(self) -> Study:
        """Return it."""
        return _study(str(self.path))


def _error_of(point: Point, study: Study) -> bytes:
    """Return a point's error: in another process, or on another machine."""
    cache = study.dataset.cache
    if cache is not None and not cache.is_dir():
        study.dataset.cache = None
    with threads(1):
        return study.error(point).hex().encode()


@lru_cache(maxsize=1)
def _study(path: str) -> Study:
    from joblib import load

    return load(path)  # this program wrote it just now, into a folder of its own
