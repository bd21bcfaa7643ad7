"""Base of all plans: the noise of every release is calibrated before a record is read.

    total epsilon = max over partitions of the composed epsilon of that partition's lines <= budget

A plan is a list of lines. Each line states a release, the partition of the records that it reads,
and its privacy event. Each noise parameter is calibrated to the budget that is left in the
partition. Rounding always increases the noise. The order of the lines is:

| line | partition | largest fraction of epsilon |
|---|---|---|
| private estimation of undeclared columns | `validation`, else `test` | .75 |
| private estimation of an undeclared class list | `train` | .25 |
| fit of each feature extractor | that of the trials | .1 |
| lines of `search.plan` or `features.plan` | any | the rest |
| test score | `test` | the rest |

All inputs are public: n, shapes, the search space, the strategy.

Source: docs/rules.md, rules 1 and 4. Proof: docs/guarantees/composition-and-partitions.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pasearch import notebooks, plan_warnings
from pasearch.accounting.accountants import PrivacyCost, price_partitions
from pasearch.accounting.budget import Budget
from pasearch.accounting.calibration import NoiseParameters
from pasearch.accounting.events import (
    Composition,
    Event,
    Gaussian,
    Geometric,
    PureDP,
    SelfComposition,
    WorstCase,
    event_from_json,
    event_to_json,
)
from pasearch.data.estimation import (
    CLASS_DETECTION_PROBABILITY,
    RARE_CLASS_FRACTION,
    SchemaEstimate,
    find_undeclared_classes,
)
from pasearch.data.split import Split, choose_estimation_partition
from pasearch.data.tables import AnySchema
from pasearch.errors import BudgetError, UsageError
from pasearch.runs.ledger import PlannedRelease
from pasearch.training.metrics import Metric, choose_test_metric, find_metric

if TYPE_CHECKING:
    from pasearch.data.front_ends import FrontEnd


ESTIMATE_SHARE = 0.75
"""Fraction of epsilon for the estimation of undeclared columns, in the partition that it reads."""

ESTIMATE_DELTA = 0.1
"""Fraction of delta for the estimation: the probability of releasing a category of one record."""

CLASSES_LINE = "classes"
"""Name of the line for the estimation of an undeclared class list."""

MAX_CLASS_SHARE = 0.25
"""Largest fraction of epsilon for the estimation of the class list, on the training records.

The signal-to-noise ratio of the training decreases by at most 5 %, as squared ratios add up."""

LEDGER_ESTIMATE_DELTA = 1e-3
"""Value of `ESTIMATE_DELTA` for a run with a shared ledger, whose delta covers many runs."""

FRONT_END_SHARE = 0.1
"""Fraction of epsilon for the fit of one feature extractor, in the partition that it reads."""

TEST_LINE = "test accuracy"  # name of the line for the test score of the released model

FALSE_POSITIVE_RATES = (0.01, 0.1)
"""False-positive rates at which the membership inference bound is reported."""

MU_RANGE = (1e-4, 50.0)
"""Range of the parameter mu (Gaussian DP) of a training; a small mu means much noise."""

SIGMA_RANGE = (0.05, 1e6)
"""Range of the noise multiplier of the fit of a feature extractor, or of an estimation."""

SCORE_RANGE = (1e-5, 50.0)  # range of the epsilon of one score

ADJACENCY = "zero-out (the record is replaced by a null record; n is public)"
"""Adjacency relation of every guarantee, as documents state it."""

UNIT = "one record"  # unit of privacy of every guarantee, as documents state it

SELECTION_RULES = {
    "none": "nothing is compared",
    "composition": "every planned candidate run is composed",
    "disjoint portions": "the maximum over portions, each with records of its own; the pick by "
    "the exponential mechanism, P ~ e^(epsilon points / (2 points of one record))",
    "repeat-and-select": "least of eps_Q(delta / E[K]) + log c (privacy profile) and the RDP "
    "bound of Papernot and Steinke 2022",
    "not private": "the search reads data that the user declared public",
}
"""Rules for selecting a winner, each with a description of its privacy cost."""


def check_selection_rule(kind: type) -> None:
    """Refuse a strategy, or a selector, whose selection rule has no privacy proof."""
    rule = getattr(kind, "selection_rule", None)
    if rule is not None and rule not in SELECTION_RULES:
        raise UsageError(
            f"{kind.__name__} has selection_rule {rule!r}: expected one of "
            f"{', '.join(SELECTION_RULES)}."
        )
    if getattr(kind, "memoised", False) and rule not in ("composition", "not private"):
        raise UsageError(
            f"{kind.__name__} is memoised, and with selection_rule {rule!r} the number of "
            "different candidates would reveal information on the records: set memoised = False."
        )
    if rule == "not private" and getattr(kind, "private_trials", False):
        raise UsageError(
            f"{kind.__name__} has selection_rule 'not private': set private_trials = False, or "
            "use a rule that is accounted for."
        )


@dataclass(frozen=True, kw_only=True)
class PlanTerms:
    """Public inputs of a plan.

    Args:
        name: Name of the data set.
        schema: Declared schema of the data.
        public: Whether the user declared the data public.
        budget: Total epsilon and delta; delta None: the default for n.
        split: Sizes of the partitions.
        most: Maximum number of categories that are estimated for an undeclared column.
        assumed_public: Names of items that the user allowed to read from the records uncharged.
        leak_share: Fraction of delta for the estimation of categories (`ESTIMATE_DELTA`).
        metric: Name of the metric, one of `METRICS`; None: the default for the target.
        notes: Public remarks on the data's source, shown in the plan.
        type_failures: Reasons why the types of columns make every run fail.
    """

    name: str
    schema: AnySchema
    public: bool
    budget: Budget
    split: Split
    most: int = 32
    assumed_public: tuple[str, ...] = ()
    leak_share: float = ESTIMATE_DELTA
    metric: str | None = None
    notes: tuple[str, ...] = field(default=(), compare=False)
    type_failures: tuple[str, ...] = ()

    @property
    def score_metric(self) -> Metric:
        """Metric by which models are scored."""
        return find_metric(self.metric, regression=self.schema.regression, outputs=None)

    def resolved(self) -> PlanTerms:
        """Return these terms with a known delta and the full name of the metric.

        Raises:
            UsageError: The metric does not fit the target.
        """
        schema = self.schema
        own = find_metric(self.metric, regression=schema.regression, outputs=schema.outputs)
        metric = None if self.metric is None else own.name
        return replace(self, budget=self.budget.resolve(self.split.n), metric=metric)

    def basis_json(self) -> dict[str, Any]:
        """Return plain values of the inputs that `result.json` states nowhere else."""
        return {
            "declared": self.schema.to_json(),
            "most_categories": self.most,
            "leak_share": self.leak_share,
            "fixed_tail": self.split.fixed_tail,
            **({"unused": self.split.unused} if self.split.unused else {}),
            "metric": self.metric,
        }

    def collect_warnings(
        self, estimate: SchemaEstimate | None, classes: SchemaEstimate | None, mu: float | None
    ) -> tuple[str, ...]:
        """Collect the warnings of the plan.

        Args:
            estimate: Estimation of undeclared columns and bounds; None if nothing is estimated.
            classes: Estimation of an undeclared class list; None if the classes are declared.
            mu: mu of the released model's training (Gaussian DP); None if it has no noise.
        """
        split, outputs = self.split, bound_network_form(self.schema, self.most)[1]
        return (
            *self.budget.warnings(split.n),
            *plan_warnings.warn_of_auc_classes(self.metric, self.schema),
            *plan_warnings.warn_of_undeclared_task(self.schema),
            *plan_warnings.warn_of_identifiers(self.schema, self.assumed_public),
            *plan_warnings.warn_of_rare_categories(estimate, split, self.schema),
            *plan_warnings.warn_of_rare_classes(classes, split),
            *plan_warnings.warn_of_weak_signal(mu, split.train, outputs),
        )


@dataclass(frozen=True, kw_only=True)
class CalibratedPlan(PlanTerms):
    """Calibrated plan of any task, with the privacy cost of its lines.

    Args:
        lines: All releases that will be charged.
        schema_estimate: Estimation of undeclared columns; None if nothing is undeclared.
        class_estimate: Estimation of an undeclared class list from the training records; None if
            the classes are declared, or are an item of `schema_estimate`.
        auto: Automatic choice of the strategy with its reason; None if the user named one.
        warnings: Warnings to show before the run.
        basis: Plain values of the inputs that `result.json` states nowhere else. `verification`
            reconstructs the plan from them.
        searched_on: Name of the declared-public data that was searched, if any.
        validated_on: Name of the public data of the validation queries, if any.
    """

    lines: tuple[PlannedRelease, ...]
    schema_estimate: SchemaEstimate | None = None
    class_estimate: SchemaEstimate | None = None
    auto: dict[str, Any] | None = field(default=None, hash=False)
    warnings: tuple[str, ...] = ()
    basis: dict[str, Any] = field(default_factory=dict, hash=False, compare=False)
    searched_on: str | None = None
    validated_on: str | None = None

    @property
    def front_ends(self) -> tuple[FrontEnd, ...]:
        """Feature extractors that a candidate may have."""
        return ()

    @property
    def signal(self) -> float | None:
        """Signal-to-noise ratio of the released model's training, summed over all outputs.

        It is the number of training records times mu (Gaussian DP). None if nothing is trained with
        privacy.
        """
        return None

    @property
    def refusals(self) -> tuple[str, ...]:
        """Reasons why a run of this plan is certain to fail; empty for public data.

        The reasons depend on public facts: number of records, schema, column types and budget.
        """
        if self.public:
            return ()
        return (
            *self.type_failures,
            *plan_warnings.find_estimation_failures(
                self.schema_estimate, self.class_estimate, self.split, self.schema
            ),
            *plan_warnings.find_signal_failures(self.signal, self.schema, self.budget.epsilon),
        )

    @property
    def parts(self) -> tuple[Any, ...]:
        """Components of the plan, among which extensions from other packages are searched."""
        return (self,)

    @property
    def delta(self) -> float:
        """Total delta of the run."""
        assert self.budget.delta is not None
        return self.budget.delta

    @cached_property
    def prices(self) -> tuple[PrivacyCost, dict[str, PrivacyCost]]:
        """Privacy cost of the whole run, and of each partition."""
        return price_partitions(events_by_partition(self.lines), self.delta)

    @cached_property
    def attack(self) -> list[list[float]] | None:
        """Membership inference bound: pairs (false-positive rate, maximum true-positive rate).

        None if no accountant gives a bound.
        """
        from pasearch.accounting.attack import max_true_positive_rate
        from pasearch.accounting.renyi import UnsupportedEvent

        events = events_by_partition(self.lines)
        try:
            return [
                [alpha, round(max_true_positive_rate(events, alpha), 6)]
                for alpha in FALSE_POSITIVE_RATES
            ]
        except UnsupportedEvent:
            return None

    @cached_property
    def two_runs(self) -> dict[str, float] | None:
        """Total budget of a shared ledger for this run and another one like it.

        The keys are `epsilon` and `delta`. None if no accountant bounds both runs. The second run
        would use the ledger, where the estimation of categories has a smaller fraction of delta.
        """
        from pasearch.runs.shared_ledger import calibrate_total

        leak = LEDGER_ESTIMATE_DELTA / self.leak_share
        first = events_by_partition(self.lines)
        second = {
            name: event_from_json(_scale_pure_delta(event_to_json(each), leak))
            for name, each in first.items()
        }
        epsilon = calibrate_total([first, second], self.delta)
        return {"epsilon": epsilon, "delta": self.delta} if 0.0 < epsilon < math.inf else None

    @property
    def price(self) -> PrivacyCost:
        """Privacy cost of the whole run: the maximum over its partitions."""
        return self.prices[0]

    @property
    def estimate_partition(self) -> str:
        """Name of the partition on which undeclared columns are estimated."""
        return choose_estimation_partition(self.split)

    @property
    def trial_partition(self) -> str:
        """Name of the partition on which candidates are trained: `search` if it exists."""
        return self.split.trial_partition

    @property
    def ranking_metric(self) -> Metric:
        """Metric that ranks candidates."""
        return self.score_metric

    @property
    def test_metric(self) -> Metric:
        """Metric of the test, which may release a table of counts; requires a complete schema."""
        return choose_test_metric(
            self.score_metric, outputs=self.schema.outputs, slots=self.split.test,
            # A field of `Plan` and a property of `FeaturePlan`.
            epsilon=self.test.epsilon,  # pyright: ignore[reportAttributeAccessIssue]
        )  # fmt: skip

    @property
    def score_slots(self) -> int:
        """Number of records on which a candidate is scored, including null records."""
        return self.split.validation

    @property
    def max_count_per_record(self) -> int:
        """Maximum contribution of one record to a score count."""
        return self.score_metric.max_points

    def estimated_privately(self) -> list[str]:
        """Describe each privately estimated item of the schema in one line; all are released."""
        return list(self.schema.describe_items()) if self.estimates_schema else []

    @property
    def estimates_schema(self) -> bool:
        """Whether a part of the schema is estimated privately."""
        return not (self.schema_estimate is None and self.class_estimate is None)

    def __str__(self) -> str:
        """Format the plan as text: every release and the total privacy cost."""
        return notebooks.render_plan_text(self)

    def _repr_html_(self) -> str:
        return notebooks.render_plan_html(self)

    def plot(self, ax: Any = None, **kwargs: Any) -> Any:
        """Draw the privacy cost of each partition, split by release.

        Args:
            ax: Axes of matplotlib to draw on; None makes a figure.
            kwargs: Further arguments of `BudgetDisplay.plot`.

        Returns:
            BudgetDisplay: Its attributes `figure_` and `ax_` are the matplotlib objects.

        Raises:
            UsageError: matplotlib is not installed (`pip install 'pasearch[plots]'`).
        """
        return notebooks.plot_figure(self, ["budget"], None, ax, **kwargs)

    def plan_json(self) -> dict[str, Any]:
        """Return plain values of the fields that plans of all tasks have: budget, lines, costs."""
        total, by_partition = self.prices
        return {
            "budget": {"epsilon": self.budget.epsilon, "delta": self.delta},
            "split": self.split.sizes(),
            "fixed_tail": self.split.fixed_tail,
            "metric": self.score_metric.name,
            "lines": [
                {
                    "name": line.name,
                    "partition": line.partition,
                    "count": line.count,
                    "event": event_to_json(line.event),
                }
                for line in self.lines
            ],
            "price": {
                "epsilon": total.epsilon,
                "delta": total.delta,
                "accountant": total.accountant,
                "adjacency": ADJACENCY,
                "unit": UNIT,
            },
            "price_by_partition": {
                name: {"epsilon": price.epsilon, "accountant": price.accountant}
                for name, price in by_partition.items()
            },
            "data": {"name": self.name, "n": self.split.n, **self.schema.to_json()},
            "schema_estimate": None
            if self.schema_estimate is None
            else self.schema_estimate.to_json(),
            "class_estimate": None
            if self.class_estimate is None
            else self.class_estimate.to_json(),
            "assumed_public": list(self.assumed_public),
            "data_is_public": self.public,
            "auto": self.auto,
            "warnings": list(self.warnings),
            "refusals": list(self.refusals),
        }


def _scale_pure_delta(event: Any, factor: float) -> Any:
    """Multiply the deltas of all events with epsilon 0 in an event's plain values by a factor."""
    if isinstance(event, list):
        return [_scale_pure_delta(each, factor) for each in event]
    if not isinstance(event, dict):
        return event
    if event.get("type") == "approximate" and event["epsilon"] == 0.0:
        return {**event, "delta": event["delta"] * factor}
    return {name: _scale_pure_delta(value, factor) for name, value in event.items()}


def events_by_partition(
    lines: tuple[PlannedRelease, ...] | list[PlannedRelease],
) -> dict[str, Event]:
    """Return the composition of all lines of each partition, by its name."""
    grouped: dict[str, list[Event]] = {}
    for line in lines:
        repeated = (
            line.event if line.count == 1 else SelfComposition(event=line.event, count=line.count)
        )
        grouped.setdefault(line.partition, []).append(repeated)
    return {
        partition: events[0] if len(events) == 1 else Composition(events=tuple(events))
        for partition, events in grouped.items()
    }


LinesOfValue = Callable[[float], list[PlannedRelease]]
"""Function from the value of a noise parameter to the plan lines that it determines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseParameter:
    """A noise parameter of a release, to be calibrated: a larger value means less noise.

    Args:
        bounds: Minimum and maximum value.
        event: Function from the value to the privacy event of the release.
        noise: Function from the value to the noise that the plan stores.
    """

    bounds: tuple[float, float]
    event: Callable[[float], Event]
    noise: Callable[[float], float] = float


GAUSSIAN_NOISE = NoiseParameter(
    bounds=(1.0 / SIGMA_RANGE[1], 1.0 / SIGMA_RANGE[0]),
    event=lambda inverse: Gaussian(1.0 / inverse),
    noise=lambda inverse: 1.0 / inverse,
)
"""Noise parameter of a Gaussian release: 1 / noise multiplier."""

PURE_NOISE = NoiseParameter(bounds=SCORE_RANGE, event=PureDP)
"""Noise parameter of a release by an epsilon-DP mechanism: epsilon."""

SCORE_NOISE = NoiseParameter(bounds=SCORE_RANGE, event=lambda epsilon: Geometric(epsilon=epsilon))
"""Noise parameter of a noisy count of correct predictions: epsilon."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseTemplate:
    """A line of a plan before its noise is calibrated.

    Args:
        name: Name of the line, by which its noise is looked up.
        knob: Noise parameter of the line.
        share: Fraction of the epsilon of the selection for this line.
        times: Number of releases.
        composed: Function from the event of one release to the event that is charged, such as a
            selection among several releases; None charges the release alone.
        partition: Name of the partition to read; None: the partition of the selection.
    """

    name: str
    knob: NoiseParameter
    share: float = 1.0
    times: int = 1
    composed: Callable[[Event], Event] | None = None
    partition: str | None = None

    def make_lines(self, value: float) -> list[PlannedRelease]:
        """Make a list with the line for a value of the noise parameter."""
        assert self.partition is not None
        event = self.knob.event(value)
        charged = event if self.composed is None else self.composed(event)
        return [
            PlannedRelease(
                name=self.name, partition=self.partition, event=charged, count=self.times
            )
        ]


@dataclass(slots=True, kw_only=True)
class PlanCalibrator:
    """Calibrates the lines of a plan one after another, each within the budget of its partition.

    Args:
        terms: Public inputs of the plan; delta is known.
        dials: Source of the noise parameters; the default calibrates them to the budget.
        lines: Lines that were calibrated so far.
    """

    terms: PlanTerms
    dials: NoiseParameters = field(default_factory=NoiseParameters)
    lines: list[PlannedRelease] = field(default_factory=list)

    def calibrate(
        self, make_lines: LinesOfValue, bounds: tuple[float, float], share: float = 1.0
    ) -> float:
        """Return the largest value of a noise parameter (least noise) that the budget allows.

        Args:
            make_lines: Function from a value to the plan lines that it determines.
            bounds: Minimum and maximum value.
            share: Fraction of epsilon that is reserved for these lines; 1: all that the previous
                lines left.
        """
        budget = Budget(share * self.terms.budget.epsilon, self.terms.budget.delta)
        make_event = compose_with(make_lines, self.lines if share == 1.0 else [])
        return self.dials.calibrate_max(make_lines(bounds[0])[0].name, make_event, budget, *bounds)

    def solve(
        self, make_lines: LinesOfValue, bounds: tuple[float, float], share: float = 1.0
    ) -> float:
        """Calibrate a noise parameter, add its lines to the plan, and return its value."""
        value = self.calibrate(make_lines, bounds, share)
        self.lines += make_lines(value)
        return value

    def solve_line(self, line: ReleaseTemplate, share: float = 1.0) -> float:
        """Calibrate a line, add it to the plan, and return its noise."""
        return line.knob.noise(self.solve(line.make_lines, line.knob.bounds, share))

    def solve_estimates(self) -> tuple[SchemaEstimate | None, SchemaEstimate | None]:
        """Calibrate the private estimation of undeclared columns and of an undeclared class list.

        Returns:
            The estimation of columns, and that of the class list; None for each that is declared.
        """
        terms, budget = self.terms, self.terms.budget
        # With disjoint subsets, the class list is one item of the schema.
        apart = terms.split.portions == 1 and find_undeclared_classes(terms.schema) is not None
        items = len(terms.schema.undeclared) - apart
        assert budget.delta is not None
        leak = terms.leak_share * budget.delta

        def estimate(sigma: float, delta: float) -> SchemaEstimate:
            return SchemaEstimate(noise_multiplier=sigma, delta=delta, most=terms.most)

        classes = found = None
        if apart:
            # A class is found from 1 + slope sigma records on. A sigma that finds every class with
            # `RARE_CLASS_FRACTION` of the records is small enough.
            far = 1e3
            slope = (
                estimate(far, leak).category_mechanism.compute_detectable_count(
                    CLASS_DETECTION_PROBABILITY
                )
                - 1.0
            ) / far
            enough = max(SIGMA_RANGE[0], (RARE_CLASS_FRACTION * terms.split.train - 1.0) / slope)
            sigma = self.dials.calibrate_min(
                CLASSES_LINE, lambda value: estimate(value, leak).event,
                Budget(MAX_CLASS_SHARE * budget.epsilon, budget.delta),
                enough, SIGMA_RANGE[1],
            )  # fmt: skip
            classes = estimate(sigma, leak)
        if items:
            sigma = self.dials.calibrate_min(
                "schema",
                lambda value: SelfComposition(
                    event=estimate(value, leak / items).event, count=items
                ),
                Budget(ESTIMATE_SHARE * budget.epsilon, budget.delta),
                *SIGMA_RANGE,
            )
            found = estimate(sigma, leak / items)
            place = choose_estimation_partition(terms.split)
            self.lines.append(
                PlannedRelease(name="schema", partition=place, event=found.event, count=items)
            )
        if classes is not None:
            self.lines.append(
                PlannedRelease(name=CLASSES_LINE, partition="train", event=classes.event, count=1)
            )
        return found, classes

    def solve_front_ends(
        self, front_ends: tuple[FrontEnd, ...], partition: str
    ) -> tuple[tuple[str, float], ...]:
        """Calibrate the fit of each feature extractor; return pairs (name, noise multiplier)."""
        budget, noise = self.terms.budget, []
        share = Budget(FRONT_END_SHARE * budget.epsilon, budget.delta)
        for each in dict.fromkeys(front for front in front_ends if front.fitted):
            name = f"front end {each.text}"
            sigma = self.dials.calibrate_min(name, each.event, share, *SIGMA_RANGE)
            noise.append((each.text, sigma))
            self.lines.append(
                PlannedRelease(name=name, partition=partition, event=each.event(sigma), count=1)
            )
        return tuple(noise)


def check_affordable(plan: CalibratedPlan, advice: str) -> None:
    """Refuse a plan that costs more than its budget.

    Raises:
        BudgetError: The cost exceeds the budget; `advice` states what to change.
    """
    if not plan.price.epsilon <= plan.budget.epsilon:
        raise BudgetError(
            f"The plan costs epsilon {plan.price.epsilon:.4g}, the budget is "
            f"{plan.budget.epsilon:.4g}: {advice}."
        )


def check_class_weights(weights: tuple[float, ...] | None, schema: AnySchema) -> None:
    """Refuse class weights that do not fit the declared classes, before anything is charged."""
    if weights is None:
        return
    if schema.regression:
        raise UsageError("class_weights requires classes; leave it out for a regression target.")
    if not schema.outputs:
        raise UsageError(
            "class_weights requires the order of the classes: declare them (`classes=`, or in the "
            "schema)."
        )
    if len(weights) != schema.outputs:
        raise UsageError(
            f"class_weights has {len(weights)} numbers, but there are {schema.outputs} classes: "
            "give one number per class, in the order of the classes."
        )


def bound_network_form(schema: AnySchema, most: int) -> tuple[tuple[int, ...], int]:
    """Return the maximum record shape and number of outputs that an estimated schema may have.

    Args:
        schema: Declared schema, possibly with undeclared items.
        most: Maximum number of categories, or classes, that are estimated for a column.
    """
    return schema.max_shape(most), schema.outputs or max(2, most)


def compose_with(
    make_lines: LinesOfValue, others: Sequence[PlannedRelease]
) -> Callable[[float], Event]:
    """Make the function from a noise parameter to the event of all lines in the same partitions.

    If the lines read several partitions, the event is the worst case over them, because each record
    is in one partition.
    """

    def make_event(value: float) -> Event:
        own = make_lines(value)
        partitions = {line.partition for line in own}
        previous = [line for line in others if line.partition in partitions]
        found = tuple(dict.fromkeys(events_by_partition([*previous, *own]).values()))
        return found[0] if len(found) == 1 else WorstCase(events=found)

    return make_event
