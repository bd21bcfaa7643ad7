"""Measuring on public data at which epsilon one model becomes better than another.

    for every model and epsilon: a plan of one training, its noise solved (as `arch` would)
    for every repeat: the same training and test records for all, each model trained on them at
    each epsilon and once without noise; exact error on the test records

Nothing private is read: the records are declared public. With a private table as `data` and public
records as `proxy`, only the form and n of the private one are used, and every signal mu n is that
of its n records.

Source: Bao et al., sections III, VI-C and VI-D.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pasearch.accounting.budget import Budget
from pasearch.accounting.checks import whole
from pasearch.api.request import SearchRequest
from pasearch.api.resolve import assume_public, dataset_of, device_of, public_data
from pasearch.api.search import prepared
from pasearch.crossover.curves import Crossover, band, crossover, envelope
from pasearch.data.front_ends import Fitted, Raw, front_end, ready
from pasearch.errors import UsageError
from pasearch.runs.keys import Keys
from pasearch.search.candidates import candidate_recipe
from pasearch.search.fitness import counts, failed, train_candidate
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.candidate import Candidate, read_candidate
from pasearch.spaces.space import space
from pasearch.training.settings import full_batches

if TYPE_CHECKING:
    from pasearch.data.partitions import Dataset, Records
    from pasearch.search.plan import Plan

MOST_TRAININGS = 100_000
"""A grid of more is refused: it would take days."""

FAMILIES = ("linear", "fcn", "cnn")
"""Models with a name; a network's file is another."""

OTHERS = ("rwt", "full-batches")
"""What may stand behind a model's name, beside a front end."""

Told = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model of a comparison.

    Args:
        name: As the user says it.
        candidate: What is trained.
        parameters: How many are trained.
    """

    name: str
    candidate: Candidate
    parameters: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CrossoverReport:
    """Error over epsilon of several models, and where the best of them changes.

    Args:
        data: What it was measured on.
        n: Training records.
        delta: Of every training.
        metric: What an error is: 1 - accuracy, or the mean absolute error.
        names: Of the models, the one with the fewest trained parameters first.
        parameters: How many each trains.
        epsilons: Rising.
        errors: (models, epsilons, repeats).
        plain: Without privacy, (models, repeats).
        crossovers: Of every pair.
        assumes: What must hold for it to tell of other records; nothing, of these.
    """

    data: str
    n: int
    delta: float
    metric: str
    names: tuple[str, ...]
    parameters: tuple[int, ...]
    epsilons: tuple[float, ...]
    errors: np.ndarray
    plain: np.ndarray
    crossovers: tuple[Crossover, ...]
    assumes: str = ""

    @property
    def repeats(self) -> int:
        """How often each model was trained at each epsilon."""
        return self.errors.shape[2]

    @property
    def best(self) -> tuple[str, ...]:
        """The model of least mean error at each epsilon."""
        return tuple(self.names[place] for place in envelope(self.errors))

    def cost_of_privacy(self) -> np.ndarray:
        """Return cost(eps, h) = err_eps(h) - err(h), means over repeats, (models, epsilons)."""
        return self.errors.mean(axis=2) - self.plain.mean(axis=1)[:, None]

    def model_at(self, epsilon: float) -> str:
        """Return the model to take at an epsilon: the best at the nearest one measured.

        Raises:
            UsageError: It is not above 0.
        """
        if not (epsilon > 0.0 and math.isfinite(epsilon)):
            raise UsageError(f"epsilon is {epsilon!r}: expected a number above 0.")
        logs = np.abs(np.log(self.epsilons) - math.log(epsilon))
        return self.best[int(logs.argmin())]

    def sentence(self) -> str:
        """Return which model to take where, in one or two sentences."""
        best, changes = self.best, []
        for before, after, epsilon in zip(best, best[1:], self.epsilons[1:], strict=False):
            if before != after:
                changes.append(f"from about {epsilon:.2g} on, {after}")
        said = f"From epsilon {self.epsilons[0]:g} on take {best[0]}"
        said += f"; {'; '.join(changes)}." if changes else f", up to {self.epsilons[-1]:g}."
        return said

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "data": self.data, "n": self.n, "delta": self.delta, "metric": self.metric,
            "repeats": self.repeats, "epsilons": list(self.epsilons),
            "models": [
                {
                    "name": name, "parameters": size, "error": np.round(means, 5).tolist(),
                    "half_width": np.round(halves, 5).tolist(),
                    "error_without_privacy": round(float(plain.mean()), 5),
                    "cost_of_privacy": np.round(cost, 5).tolist(),
                }
                for name, size, (means, halves), plain, cost in zip(
                    self.names, self.parameters, map(band, self.errors), self.plain,
                    self.cost_of_privacy(), strict=True,
                )
            ],
            "best": list(self.best),
            "crossovers": [
                {
                    "simple": each.simple, "complex": each.complex,
                    "epsilon": _number(each.epsilon), "low": _number(each.low),
                    "high": _number(each.high), "every": [round(e, 4) for e in each.every],
                    "text": each.text(self.epsilons),
                }
                for each in self.crossovers
            ],
            "sentence": self.sentence(),
            "assumes": self.assumes,
        }  # fmt: skip

    def table(self) -> str:
        """Return mean errors, half the width of their intervals, and crossovers, as text."""
        width = max(19, *(len(name) + 2 for name in self.names))
        bands = [band(each) for each in self.errors]
        lines = [f"{'epsilon':>8}" + "".join(f"{name:>{width}}" for name in self.names)]
        for place, epsilon in enumerate(self.epsilons):
            cells = (f"{means[place]:.4f} +- {halves[place]:.4f}" for means, halves in bands)
            lines.append(f"{epsilon:8.3g}" + "".join(f"{cell:>{width}}" for cell in cells))
        plain = "".join(f"{f'{each.mean():.4f}':>{width}}" for each in self.plain)
        lines += [f"{'none':>8}{plain}", ""]
        lines += [
            f"{each.simple} is better than {each.complex} up to epsilon {each.text(self.epsilons)}."
            for each in self.crossovers
        ]
        return "\n".join([*lines, self.sentence()])


def measure_crossover(
    data: Any,
    models: Sequence[str | Path | Candidate],
    *,
    epsilons: str | Sequence[float] = ".1:10:log12",
    repeats: int = 10,
    delta: float | None = None,
    proxy: str | Path | None = None,
    seed: int = 0,
    on_training: Told | None = None,
    **options: Any,
) -> CrossoverReport:
    """Measure the error of models over epsilon, and at which epsilon another one becomes the best.

    Args:
        data: As of `search_architecture`. Public, with `data_is_public=True`; or private, and then
            `proxy` is what is measured on.
        models: Two or more: "linear", "fcn", "cnn" or a network's file; behind a "+", a front end
            (`linear+scattering`), `rwt` (random weights training) or `full-batches`.
        epsilons: Rising, two or more, or "low:high:logN".
        repeats: How often each model is trained at each epsilon, 2 or more for an interval.
        delta: Of each training; None: the default for n.
        proxy: Public data of the same form, measured on at the n of `data`.
        seed: Of splits and noise: nothing here is private.
        on_training: Called with (trainings finished, all trainings).
        options: Others of `search_architecture` that say what the data are: bounds, classes,
            schema, target, data_root, steps, batch, device ...

    Raises:
        UsageError: A grid, models or data that do not fit; nothing was trained.

    Cost: none: only records that were declared public are read.
    """
    grid, number = _grid(epsilons), whole("repeats", repeats)
    dataset, plans_of, assumes = _public(data, proxy, options)
    if len(grid) * number * len(models) > MOST_TRAININGS:
        raise UsageError(
            f"That is {len(grid) * number * len(models):,} trainings: expected at most "
            f"{MOST_TRAININGS:,}. Take fewer epsilons or repeats."
        )
    found = _models(models, dataset)
    plans = [[plans_of(each.candidate, Budget(epsilon, delta)) for epsilon in grid]
             for each in found]  # fmt: skip
    errors, plain = np.empty((len(found), len(grid), number)), np.empty((len(found), number))
    keys, device = Keys.from_seed(seed), device_of(plans_of.request)
    every = list(product(range(number), range(len(found)), range(len(grid) + 1)))
    for done, (repeat, model, place) in enumerate(every):
        if on_training is not None:
            on_training(done, len(every))
        noisy = place < len(grid)
        error = _error(
            dataset, found[model].candidate, plans[model][place if noisy else 0],
            _split(dataset, plans[0][0], keys.stream("split", repeat)),
            keys.stream("training", model, place, repeat), device=device, noisy=noisy,
        )  # fmt: skip
        if noisy:
            errors[model, place, repeat] = error
        else:
            plain[model, repeat] = error
    return _report(dataset, found, plans[0][0], grid, errors, plain, assumes)


def _report(
    dataset: Dataset, models: list[Model], plan: Plan, grid: tuple[float, ...],
    errors: np.ndarray, plain: np.ndarray, assumes: str,
) -> CrossoverReport:  # fmt: skip
    pairs = [(a, b) for a in range(len(models)) for b in range(a + 1, len(models))]
    metric = plan.scored_by
    return CrossoverReport(
        data=dataset.name, n=plan.split.train, delta=plan.delta,
        metric=metric.noun if metric.of_numbers else f"1 - {metric.noun}",
        names=tuple(each.name for each in models),
        parameters=tuple(each.parameters for each in models), epsilons=grid, errors=errors,
        plain=plain,
        crossovers=tuple(
            crossover(errors[a], errors[b], grid, (models[a].name, models[b].name))
            for a, b in pairs
        ),
        assumes=assumes,
    )  # fmt: skip


class _Plans:
    """Plans of one training of a candidate at a budget, for the n of the data at hand."""

    def __init__(self, request: SearchRequest, dataset: Dataset):
        self.request, self._dataset = request, dataset

    def __call__(self, candidate: Candidate, budget: Budget) -> Plan:
        asked = replace(self.request, architecture=candidate, strategy="fixed", budget=budget)
        return prepared(asked, self._dataset).plan


def _public(
    data: Any, proxy: str | Path | None, options: dict[str, Any]
) -> tuple[Dataset, _Plans, str]:
    """Return the public records, what plans for the n of the data at hand, and what is assumed."""
    request = SearchRequest(data, **options)
    dataset = dataset_of(request.data, request)
    if proxy is None:
        if not dataset.public:
            raise UsageError(
                "A crossover is measured on public data: say `data_is_public=True` if these are, "
                "or give public records of the same form (`proxy=`), of which it is measured at "
                "your number of records."
            )
        dataset, _ = assume_public(dataset, request.max_categories)
        return dataset, _Plans(request, dataset), ""
    records, sized, _ = public_data("proxy", str(proxy), request, dataset)
    said = (
        f"measured on {records.name} at the signal of {dataset.n:,} records of {dataset.name}: it "
        "tells of yours as far as the two are alike in how hard they are and in what they need"
    )
    return records, _Plans(request, sized), said


def _models(given: Sequence[str | Path | Candidate], dataset: Dataset) -> list[Model]:
    """Return the models, the one with the fewest trained parameters first."""
    schema = dataset.schema
    found = []
    for each in given:
        candidate = each if isinstance(each, Candidate) else _named(str(each), schema.regression)
        name = each.describe_network() if isinstance(each, Candidate) else str(each)
        trained = candidate.parameters(schema.shape, schema.outputs)[1]
        found.append(Model(name=name, candidate=candidate, parameters=trained))
    if len(found) < 2:
        raise UsageError("A crossover is of two or more models: name another.")
    for first, one in enumerate(found):
        for other in found[first + 1 :]:
            if one.candidate == other.candidate or one.name == other.name:
                raise UsageError(f"{one.name} and {other.name} are the same model: name another.")
    return sorted(found, key=lambda model: model.parameters)


def _named(text: str, regression: bool) -> Candidate:
    """Return the candidate of a model's name, or of its file, with what stands behind it."""
    name, *more = text.split("+")
    if name == "linear":
        found = Candidate(architecture=Architecture(layers=()))
    elif name in FAMILIES:
        chosen = space(name)
        found = Candidate(architecture=chosen.candidate(chosen.fixed()).architecture)
    elif name.endswith(".toml"):
        found = read_candidate(name)
    else:
        raise UsageError(
            f"Model {name!r} is not known: expected {', '.join(FAMILIES)} or a network's .toml "
            "file."
        )
    for each in more:
        if each == "rwt":
            layers = sum(bool(getattr(layer, "trainable", False))
                         for layer in found.architecture.layers)  # fmt: skip
            found = replace(found, architecture=found.architecture.frozen(max(0, layers - 1) or 1))
        elif each == "full-batches":
            found = replace(found, settings=full_batches(regression))
        elif isinstance(found.front_end, Raw):
            found = replace(found, front_end=front_end(each))
        else:
            raise UsageError(f"Model {text!r} has two front ends: expected one.")
    return found


GRID = re.compile(r"([0-9.e+-]+):([0-9.e+-]+):log([0-9]+)", re.IGNORECASE)


def _grid(given: str | Sequence[float]) -> tuple[float, ...]:
    """Return a grid of epsilons, rising."""
    expected = "expected rising numbers above 0, two or more, or low:high:logN such as .1:10:log12"
    if isinstance(given, str):
        if (match := GRID.fullmatch(given.strip())) is None:
            try:
                values = [float(each) for each in given.split(",")]
            except ValueError:
                raise UsageError(f"`epsilons={given}`: {expected}.") from None
        else:
            try:
                low, high, count = float(match[1]), float(match[2]), int(match[3])
            except ValueError:
                raise UsageError(f"`epsilons={given}`: {expected}.") from None
            if not (0.0 < low < high < math.inf and 2 <= count <= 1000):
                raise UsageError(f"`epsilons={given}`: {expected}.")
            values = [float(f"{each:.4g}") for each in np.geomspace(low, high, count)]
    else:
        values = [float(each) for each in given]
    rising = all(a < b for a, b in pairwise(values))
    if not (len(values) >= 2 and rising and values[0] > 0.0 and math.isfinite(values[-1])):
        raise UsageError(f"`epsilons={given}`: {expected}.")
    return tuple(values)


def _split(dataset: Dataset, plan: Plan, stream: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of training and test records: as many as planned, or as there are."""
    order = stream.generator().permutation(dataset.n)
    held = min(plan.split.test, max(1, dataset.n // 5))
    return order[held : held + plan.split.train], order[:held]


def _error(
    dataset: Dataset, candidate: Candidate, plan: Plan, split: tuple[np.ndarray, np.ndarray],
    stream: Any, *, device: str, noisy: bool,
) -> float:  # fmt: skip
    """Return the exact error on the test records of one training; of one that failed, 1."""
    front, shape = candidate.front_end, dataset.schema.shape
    before = front.before if front.fitted else front
    every = dataset.all_records(None if before is None else ready(before, shape))
    own, held = (every.take(places) for places in split)
    if front.fitted:
        noise = dict(plan.front_noise).get(front.text) if noisy else None
        form = dataset.schema.row_form
        fitted = front.fit(own.x, own.valid, noise, stream.child("front"), form)
        own, held = (_behind(fitted, each) for each in (own, held))
    assert plan.trial_mu is not None
    # As many records as planned have the planned signal; fewer have the same, by less noise.
    mu = plan.trial_mu * plan.split.train / len(own) if noisy else None
    recipe = candidate_recipe(
        tuple(each.within(len(own)) for each in plan.recipes), candidate, mu, len(own)
    )
    network = train_candidate(candidate, own, dataset.schema, recipe, stream, device=device)
    if failed(network):
        return 1.0
    metric = plan.scored_by
    found = counts(network, held, metric, device=device)
    return 1.0 - metric.points(found, len(held)) / (len(held) * metric.most)


def _behind(fitted: Fitted, records: Records) -> Records:
    """Return records behind a front end's last part, which are not kept for another training."""
    import torch

    with torch.no_grad():
        x = fitted.module(records.x)
    x[~records.valid] = 0.0
    return replace(records, x=x)


def _number(epsilon: float) -> float | None:
    """Return an epsilon as JSON has it: nothing for one beyond every grid."""
    return None if math.isinf(epsilon) else round(epsilon, 5)
