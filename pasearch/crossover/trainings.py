"""The models of a crossover comparison, and their trainings on public data.

| name of a model | meaning |
|---|---|
| `linear`, `fcn`, `cnn`, `net.toml` | no hidden layer; the default network of a space; a file |
| `...+scattering`, `...+pca:60` | the network after a front end (feature extractor) |
| `...+rwt` | random weights training: only the last two layers are trained, as by recipe `rwt` |
| `...+full-batches`, `...+recipe:NAME` | the network, trained with full batches or another recipe |
| `...+cfs:6`, `...+random:6` | the network on six features, selected by CFS-Greedy or at random |
| `...+columns:age,sex`, `...+numbers` | the network on these columns, or on all numeric columns |

A point is one training: (index of the model, index of the epsilon, repeat). The index after the
last epsilon stands for a training without noise. A point depends on the seed and on its three
numbers only, and every training has one thread. So the result does not depend on the number of
trainings at a time or on interruptions. All records are declared public, so nothing is charged.

Source: Bao et al., sections III-C, VI-C (features), VII-B (front ends), VII-C (random weights
training), C-D (categories).
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
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from pasearch.accounting.checks import check_positive_integer
from pasearch.data.front_ends import Raw, prepare_front_end
from pasearch.data.front_ends.parsing import parse_front_end
from pasearch.data.tables import AnySchema, TableSchema
from pasearch.data.threads import use_threads
from pasearch.errors import UsageError, suggest_name
from pasearch.files import parse_json, read_bytes
from pasearch.runs.executors import Executor, Work
from pasearch.runs.keys import Keys
from pasearch.search.candidate_training import (
    compute_metric_counts,
    has_failed,
    train_candidate,
    training_streams,
)
from pasearch.search.plan import make_candidate_recipe
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.candidate import Candidate, read_candidate
from pasearch.spaces.parsing import make_space
from pasearch.training.metrics import METRICS
from pasearch.training.presets import RWT_TRAINED_LAYERS
from pasearch.training.recipe import Recipe
from pasearch.training.settings import make_full_batch_settings

if TYPE_CHECKING:
    from pasearch.data.partitions import Dataset, Records

Point = tuple[int, int, int]
"""Training of a comparison: (index of the model, index of the epsilon, repeat)."""

ProgressCallback = Callable[[int, int], None]
"""Function of (finished trainings, all trainings)."""

MAX_FILE_BYTES = 2**26  # maximum size of a file of finished trainings

MAX_SERIAL_TRAININGS = 24
"""Maximum number of trainings that run one after another, without worker processes."""

MODEL_FAMILIES = ("linear", "fcn", "cnn")
"""Names of models; a model may also be the path of a network's .toml file."""


# --- the models


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureChoice:
    """Selection of the input features of a model."""

    choice: str  # method: "cfs", "random", "columns" or "numbers"
    size: int = 0  # number of features, for `cfs` and `random`
    names: tuple[str, ...] = ()  # names of columns, for `columns`

    @classmethod
    def parse(cls, text: str) -> FeatureChoice | None:
        """Parse a part of a model's name, such as "cfs:6"; None if it selects no features.

        Raises:
            UsageError: `cfs` or `random` without a number, or `columns` without a name.
        """
        choice, _, rest = text.partition(":")
        if choice in ("cfs", "random"):
            if not rest.isdecimal():
                raise UsageError(f"`+{text}`: expected a number of features, +{choice}:6 for six.")
            return cls(choice=choice, size=check_positive_integer("features", int(rest)))
        if choice not in ("columns", "numbers"):
            return None
        names = tuple(filter(None, rest.split(",")))
        if (choice == "columns") is not bool(names):
            raise UsageError(f"`+{text}`: expected +numbers, or names such as +columns:age,sex.")
        return cls(choice=choice, names=names)

    def width(self, schema: AnySchema) -> int:
        """Return the number of features.

        Raises:
            UsageError: An unknown column, more features than exist, or no feature at all.
        """
        if not self.size:
            return len(self._find_features_of_columns(schema))
        if not self.size <= (every := int(np.prod(schema.shape))):
            raise UsageError(f"`+{self.choice}:{self.size}`: the records have {every} features.")
        return self.size

    def select_indices(
        self, schema: AnySchema, own: Records, draw: np.random.Generator
    ) -> np.ndarray:
        """Select the features.

        Args:
            schema: Complete schema.
            own: Public training records, which CFS-Greedy reads.
            draw: Random generator for the method `random`.

        Returns:
            Indices of the features, ascending.

        Cost: none, because the records are declared public.
        """
        if self.choice == "random":
            return np.sort(draw.permutation(int(np.prod(schema.shape)))[: self.size])
        if self.choice == "cfs":
            from pasearch.features.cfs import cfs_greedy, compute_symmetrical_uncertainty
            from pasearch.features.contingency import count_tables, make_attributes

            attributes = make_attributes(schema)
            joint = count_tables(attributes.codes(own.x, own.y, own.valid), attributes)
            order = cfs_greedy(*compute_symmetrical_uncertainty(joint, attributes), self.size)
            return np.sort(np.array(order.selected))
        return self._find_features_of_columns(schema)

    def _find_features_of_columns(self, schema: AnySchema) -> np.ndarray:
        """Return the indices of the features of the selected columns, ascending."""
        if not isinstance(schema, TableSchema):
            raise UsageError(f"`+{self.choice}` requires a table: use +cfs or +random.")
        known = [each.name for each in schema.columns]
        if missing := [name for name in self.names if name not in known]:
            raise UsageError(
                f"`+columns:`: the table has no column {missing[0]!r}; it has {', '.join(known)}."
            )
        kept = [
            each.name in self.names if self.names else each.kind == "number"
            for each in schema.columns
        ]
        widths = [len(column.feature_names()) for column in schema.columns]
        found = np.flatnonzero(np.repeat(kept, widths))
        if not len(found):
            raise UsageError(f"`+{self.choice}` selects no feature: name other columns.")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model of a comparison."""

    name: str  # name that the user gave
    candidate: Candidate  # network and settings
    features: FeatureChoice | None = None  # selection of its input features; None: all
    recipe: str | None = None  # name of its recipe; None: that of the request
    parameters: int = 0  # number of trained parameters

    def shape(self, schema: AnySchema) -> tuple[int, ...]:
        """Return the shape of a record after the selection of features."""
        return schema.shape if self.features is None else (self.features.width(schema),)

    def with_parameters(self, schema: AnySchema) -> Model:
        """Return the model with its number of trained parameters for records of a schema."""
        trained = self.candidate.parameters(self.shape(schema), schema.outputs)[1]
        return replace(self, parameters=trained)


def parse_models(given: Sequence[str | Path | Candidate], schema: AnySchema) -> list[Model]:
    """Parse the models of a comparison, sorted by increasing number of trained parameters.

    Raises:
        UsageError: Fewer than two models, two equal ones, or one that does not fit the records.
    """
    found: list[Model] = []
    for each in given:
        if isinstance(each, Candidate):
            model = Model(name=each.describe_network(), candidate=each)
        else:
            model = parse_model(str(each), schema.regression)
        model = model.with_parameters(schema)
        for other in found:
            if other.name == model.name or replace(other, name="") == replace(model, name=""):
                raise UsageError(f"{other.name} and {model.name} are the same model: name another.")
        found.append(model)
    if len(found) < 2:
        raise UsageError("A crossover requires two or more models: name another.")
    return sorted(found, key=lambda model: model.parameters)


def parse_model(text: str, regression: bool) -> Model:
    """Parse the name of a model, such as "linear+cfs:6"; the module lists all forms.

    Args:
        text: Name of the model.
        regression: Whether the target is a number.

    Raises:
        UsageError: An unknown name, or parts that exclude each other.
    """
    name, *parts = text.split("+")
    if name == "linear":
        candidate = Candidate(architecture=Architecture(layers=()))
    elif name in MODEL_FAMILIES:
        chosen = make_space(name)
        candidate = Candidate(architecture=chosen.candidate(chosen.default_genotype()).architecture)
    elif name.endswith(".toml"):
        candidate = read_candidate(name)
    else:
        raise UsageError(
            f"Model {name!r} is not known: expected {', '.join(MODEL_FAMILIES)} or a network's "
            f".toml file.{suggest_name(name, MODEL_FAMILIES)}"
        )
    features, recipe = None, None
    for part in parts:
        if part == "rwt":
            frozen = candidate.architecture.train_last(RWT_TRAINED_LAYERS)
            candidate = replace(candidate, architecture=frozen)
        elif part == "full-batches":
            candidate = replace(candidate, settings=make_full_batch_settings(regression))
        elif part.startswith("recipe:"):
            recipe = part.removeprefix("recipe:")
        elif (chosen := FeatureChoice.parse(part)) is not None:
            if features is not None:
                raise UsageError(f"Model {text!r} selects features twice: expected once.")
            features = chosen
        elif not isinstance(candidate.front_end, Raw):
            raise UsageError(f"Model {text!r} has two front ends: expected one.")
        else:
            candidate = replace(candidate, front_end=parse_front_end(part))
    if features is not None and not isinstance(candidate.front_end, Raw):
        raise UsageError(
            f"Model {text!r} selects features and has a front end: expected one of the two."
        )
    return Model(name=text, candidate=candidate, features=features, recipe=recipe)


# --- the trainings


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSetting:
    """Recipes and noise of a model at one epsilon."""

    recipes: tuple[Recipe, ...]  # recipes of the plan of one training
    mu: float  # parameter of Gaussian DP that determines the noise
    front_noise: float | None = None  # noise multiplier of its fitted front end; None without one


@dataclass(slots=True, kw_only=True, eq=False)
class CrossoverStudy:
    """Inputs of all trainings of a comparison."""

    dataset: Dataset  # records, declared public, with a complete schema
    models: Sequence[Model]  # models of the comparison
    settings: Sequence[Sequence[TrainingSetting]]  # settings, (models, epsilons)
    train: int  # number of training records for which `TrainingSetting.mu` was calibrated
    test: int  # number of test records
    metric: str  # name of the metric of the errors
    seed: int  # seed of splits and noise
    device: str = "cpu"  # "cpu" or "cuda"
    # indices of the training records and of the test records, the same for every point; None: they
    # are drawn for every repeat
    places: tuple[np.ndarray, np.ndarray] | None = None

    def measure_error(self, point: Point) -> float:
        """Run one training, and return its exact error on the test records; 1 if it failed."""
        import torch

        number, place, repeat = point
        model, schema, keys = self.models[number], self.dataset.schema, Keys.from_seed(self.seed)
        noisy = place < len(self.settings[number])
        setting = self.settings[number][place if noisy else 0]
        stream = keys.stream("training", number, place, repeat)
        own_places, held_places = self.places or self._split(keys, repeat)
        front = model.candidate.front_end
        before = front.first_stage if front.fitted else front
        mapped = None
        if before is not None and not isinstance(before, Raw):
            mapped = prepare_front_end(before, schema.shape, self.device)
        every = self.dataset.all_records(mapped)
        if model.features is not None:
            draw = keys.stream("features", repeat).generator()
            kept = model.features.select_indices(schema, every.take(own_places), draw)
            every = replace(every, x=every.x.flatten(1)[:, kept])
        own, held = every.take(own_places), every.take(held_places)
        if front.fitted:
            noise = setting.front_noise if noisy else None
            fitted = front.fit(own.x, own.valid, noise, stream.child("front"), schema.row_layout)
            behind = []
            for records in (own, held):
                with torch.no_grad():
                    x = fitted.module(records.x)
                x[~records.valid] = 0.0
                behind.append(replace(records, x=x))
            own, held = behind
        # With fewer records than planned, less noise gives the same signal-to-noise ratio.
        mu = setting.mu * self.train / len(own) if noisy else None
        recipes = tuple(each.within(len(own)) for each in setting.recipes)
        recipe = make_candidate_recipe(
            recipes, model.candidate, mu, len(own), outputs=schema.outputs
        )
        form: Any = SimpleNamespace(shape=model.shape(schema), outputs=schema.outputs)
        network = train_candidate(
            model.candidate, own, form, recipe, training_streams(stream), device=self.device
        )
        if has_failed(network):
            return 1.0
        metric = METRICS[self.metric]
        found = compute_metric_counts(network, held, metric, device=self.device)
        return 1.0 - metric.compute_points(found, len(held)) / (len(held) * metric.max_points)

    def _split(self, keys: Keys, repeat: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw the indices of the training records and of the test records of a repeat."""
        n, draw = self.dataset.n, keys.stream("split", repeat).generator()
        if self.dataset.official_test == self.test:  # the last records are the official test set
            return draw.permutation(n - self.test)[: self.train], np.arange(n - self.test, n)
        order = draw.permutation(n)
        held = min(self.test, max(1, n // 5))
        return order[held : held + self.train], order[:held]


@dataclass(slots=True, eq=False)
class CheckpointFile:
    """File of finished points, with one JSON line each after a description of the comparison.

    Args:
        path: Path of the file; None stores nothing.
        of: Description of the comparison; points of another description are not reused.
    """

    path: Path | None
    of: dict[str, Any]

    def load_points(self) -> dict[Point, float]:
        """Read the finished points, with their errors.

        Raises:
            UsageError: The file belongs to another comparison, or is damaged.
        """
        if self.path is None or not self.path.exists():
            return {}
        text = read_bytes(self.path, "finished trainings", most=MAX_FILE_BYTES)
        whole = text[: text.rfind(b"\n") + 1]
        where = str(self.path)
        try:
            head, *rest = [parse_json(each, where) for each in whole.splitlines()] or [self.of]
            found = {tuple(each["point"]): float(each["error"]) for each in rest}
        except (KeyError, TypeError, ValueError):
            raise UsageError(f"{self.path} is damaged: delete it, and measure again.") from None
        if head != parse_json(json.dumps(self.of), where):
            raise UsageError(
                f"{self.path} belongs to another comparison (other data, models, epsilons or "
                "seed): name another folder."
            )
        if whole != text:  # remove an incomplete last line, which an interruption left
            self.path.write_bytes(whole)
        return found  # pyright: ignore[reportReturnType]

    def add(self, point: Point, error: float) -> None:
        """Append a finished point; a new file gets the description first."""
        if self.path is None:
            return
        new = not self.path.exists() or not self.path.stat().st_size
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            for each in [*([self.of] if new else []), {"point": list(point), "error": error}]:
                file.write(json.dumps(each) + "\n")
            file.flush()
            os.fsync(file.fileno())


def measure_points(
    study: CrossoverStudy,
    points: list[Point],
    kept: CheckpointFile,
    *,
    executor: Executor,
    on_training: ProgressCallback | None,
    max_serial: int = MAX_SERIAL_TRAININGS,
) -> dict[Point, float]:
    """Train every point that is not finished, and return the errors of all points.

    Args:
        study: Inputs of the trainings.
        points: Points of the comparison.
        kept: File of finished points.
        executor: Open execution backend.
        on_training: Callback with (finished points, all points).
        max_serial: Maximum number of points that run without worker processes.
    """
    found = {p: e for p, e in kept.load_points().items() if p in set(points)}
    left = [point for point in points if point not in found]
    for point, error in _train_points(study, left, executor, max_serial):
        found[point] = error
        kept.add(point, error)
        if on_training is not None:
            on_training(len(found), len(points))
    return found


def _train_points(
    study: CrossoverStudy, points: list[Point], executor: Executor, max_serial: int
) -> Iterator[tuple[Point, float]]:
    """Train points, and yield each with its error as soon as it is finished."""
    shared = study.device != "cpu" and not executor.is_remote
    if shared or not executor.accepts(len(points), long=len(points) > max_serial):
        with use_threads(1):  # results do not depend on the number of processors
            for point in points:
                yield point, study.measure_error(point)
        return
    from joblib import cpu_count, dump

    with tempfile.TemporaryDirectory(prefix="pasearch-") as folder:
        source = _StoredStudy(Path(folder))
        own = replace(study.dataset, cache=source.folder)
        device = "cuda" if executor.gpus else "cpu"
        dump(replace(study, dataset=own, device=device), source.folder / "study")
        works = [
            Work(key=f"point {point}", do=partial(_run_point, point), reads=(source,))
            for point in points
        ]
        with closing(executor.run_in_any_order(works, 1, cpu_count())) as finished:
            for place, error in finished:
                yield points[place], float.fromhex(error.decode())


@dataclass(frozen=True, slots=True)
class _StoredStudy:
    """Copy of a study in a temporary folder, which each worker reads once."""

    folder: Path
    kept = True

    def load(self) -> CrossoverStudy:
        """Read the study."""
        return _load_study(str(self.folder / "study"))


@lru_cache(maxsize=1)
def _load_study(path: str) -> CrossoverStudy:
    """Read a study from a file that this program has written, once per process."""
    from joblib import load

    return load(path)


def _run_point(point: Point, study: CrossoverStudy) -> bytes:
    """Run one training in a worker, and return its error as bytes."""
    cache = study.dataset.cache
    if cache is not None and not cache.is_dir():
        study.dataset.cache = None
    with use_threads(1):
        return study.measure_error(point).hex().encode()
