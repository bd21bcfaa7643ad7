"""What a plan warns of before it runs: from public numbers alone, so it costs nothing."""

from __future__ import annotations

import math

from pasearch.data.column import IDENTIFIER_NAME_PATTERN
from pasearch.data.estimation import (
    CLASS_DETECTION_PROBABILITY,
    RARE_CLASS_FRACTION,
    SchemaEstimate,
)
from pasearch.data.schema import Schema
from pasearch.data.split import Split, choose_estimation_partition
from pasearch.data.tables import AnySchema
from pasearch.training.metrics import Metric, ScoreNoise

MAX_CATEGORY_SHARE = 0.1
"""The share of slots that an estimated category may need, before the plan warns of it."""

INTERVAL_DEVIATIONS = 3.92
"""How many standard deviations wide an interval is that holds a score 95 times in 100: where that
is more than half of all values, the score is said to be unknown."""

NOISE_PHRASE = "at this budget say no more than the noise"
"""What is said of training records whose sum does not stand out of the noise."""

MIN_CLASS_PROBABILITY = 0.1
"""The probability of finding one of two equal classes, below which a run is refused: both are then
found with a probability of 1 % at most."""

MIN_SIGNAL = 5.0
"""Training records times mu, a class: below it accuracy is close to guessing."""

MIN_GOOD_SIGNAL = 20.0
"""Likewise: below it a model is far from what its records could teach it without noise."""

MIN_CLASSES = 2
"""Number of classes that an undeclared target has at least, if a model is to predict it."""


def find_estimation_failures(
    estimate: SchemaEstimate | None, classes: SchemaEstimate | None, split: Split, schema: AnySchema
) -> list[str]:
    """Return the reasons in public numbers why what is undeclared cannot be estimated.

    Args:
        estimate: How what is undeclared is estimated, but for a class list.
        classes: How an undeclared class list is estimated.
        split: Sizes of the partitions.
        schema: The declared form of the data.

    Returns:
        Sentences, each of which ends with what to change.
    """
    found, slots, train = [], getattr(split, choose_estimation_partition(split)), split.train
    if estimate is not None and estimate.min_records > slots:
        found.append(
            f"the undeclared schema would be estimated from {slots:,} records, and a category or a "
            f"class is found only if about {estimate.min_records:,} records have it: declare the "
            "schema (`schema=`; `pasearch check` proposes one), raise `epsilon=`, or add records."
        )
    if isinstance(schema, Schema):
        return found  # two classes are the least that are counted of arrays
    if (
        classes is not None
        and classes.category_mechanism.count_found(MIN_CLASS_PROBABILITY) > train / MIN_CLASSES
    ):
        found.append(
            f"the undeclared classes would be estimated from {train:,} training records, and "
            f"{MIN_CLASSES} classes are found only if about {classes.min_records:,} records have "
            "each: declare the classes (`labels=no,yes`), raise `epsilon=`, or add records."
        )
    return found


def find_signal_failures(signal: float | None, schema: AnySchema, epsilon: float) -> list[str]:
    """Return the reason in public numbers why a model can only guess, if it can.

    Args:
        signal: Signal-to-noise ratio of the released model's training, over all outputs; None if
            nothing is trained.
        schema: The declared form of the data.
        epsilon: Of the whole run.
    """
    outputs = schema.outputs or MIN_CLASSES
    if signal is None or signal >= MIN_SIGNAL * outputs:
        return []
    return [
        f"the signal-to-noise ratio{'' if schema.regression else ' per class'} is "
        f"{signal / outputs:.2g} at epsilon {epsilon:g}, and below {MIN_SIGNAL:g} a model "
        "guesses: raise `epsilon=`, or add records."
    ]


def warn_of_undeclared_task(schema: AnySchema) -> list[str]:
    """Warn when nobody said whether a class or a number is to be predicted."""
    aim = schema.undeclared_task
    if aim is None:
        return []
    return [
        f"the type of target {aim!r} is not declared, so its values are taken as classes. If it is "
        "a number to predict, use `regression=True`; otherwise declare its classes (`labels=`)."
    ]


def warn_of_identifiers(schema: AnySchema, assumed: tuple[str, ...] = ()) -> list[str]:
    """Warn of columns that nobody declared and that are identifiers by their names: public."""
    columns = getattr(schema, "columns", ())
    open_ = [each.name for each in columns if each.kind is None or each.name in assumed]
    named = [name for name in open_ if IDENTIFIER_NAME_PATTERN.search(name)]
    if not named:
        return []
    one = len(named) == 1
    return [
        f"column{'' if one else 's'} {', '.join(map(repr, named))} look{'s' if one else ''} like "
        f"{'an identifier' if one else 'identifiers'} by name: where records are in some order, a "
        "model learns that instead of your question, and its accuracy is worth nothing. Ignore "
        f'{"it" if one else "them"} in a schema (kind = "ignore"), or declare what '
        f"{'it is' if one else 'they are'}."
    ]


def warn_of_auc_classes(metric: str | None, schema: AnySchema) -> list[str]:
    """Warn when the classes are not known yet, and the metric is of two."""
    if metric != "auc" or schema.outputs:
        return []
    return [
        "the area under the ROC curve is of two classes, and yours are not declared: should more "
        "be found, it is of the first two, and says nothing of the others."
    ]


def warn_of_rare_categories(estimate: SchemaEstimate | None, split: Split) -> list[str]:
    """Warn when a category must be common to be estimated privately."""
    if estimate is None:
        return []
    slots = getattr(split, choose_estimation_partition(split))
    if not estimate.min_records > MAX_CATEGORY_SHARE * slots:
        return []
    found = (
        f"only what at least about {estimate.min_records:,} of them hold will be found: rarer "
        "categories are lost."
        if estimate.min_records <= slots
        else "that is too few to find any category or class at this budget."
    )
    return [
        f"the undeclared schema is estimated privately from {slots:,} records, and {found} Declare "
        "the schema, or have larger scored parts (`split=`)."
    ]


def warn_of_rare_classes(estimate: SchemaEstimate | None, split: Split) -> list[str]:
    """Warn when a class must be common to be found."""
    if estimate is None:
        return []
    count = math.ceil(estimate.category_mechanism.count_found(CLASS_DETECTION_PROBABILITY))
    if not count > 2 * RARE_CLASS_FRACTION * split.train:
        return []
    return [
        f"the undeclared classes are estimated privately from {split.train:,} training records, "
        f"and one that fewer than about {count:,} of them have may not be found. Declare the "
        "classes (`labels=no,yes`, or in the schema)."
    ]


def warn_of_test_noise(metric: Metric, noise: ScoreNoise, slots: int) -> list[str]:
    """Warn when the test's noise is so large that it will not tell how good the model is.

    Args:
        metric: By what models are scored.
        noise: Of the test score; a table of counts is taken only where it has little more.
        slots: Of the test.
    """
    spread = noise.standard_deviation / (metric.max_points * max(1, slots))
    if metric.worst != 1.0 or INTERVAL_DEVIATIONS * spread <= metric.worst / 2:
        return []
    return [
        f"the noise of the test has a standard deviation of {100 * spread:.0f} %, so this run will "
        "not tell how good its model is. More records, or a larger `epsilon=`, would."
    ]


def warn_of_weak_signal(mu: float | None, slots: int, classes: int) -> list[str]:
    """Warn when the training's noise is as large as what its records can say together.

    Measured with `fixed` on digits: epsilon .05 is below `MIN_SIGNAL` and guesses; .1 is not and
    gets .5, .25 gets .7. On a table of two classes that .85 can be had of, a signal of 8 gave .5
    and one of 19 gave .57 (both medians of a few runs).
    """
    if mu is None or mu * slots >= MIN_GOOD_SIGNAL * classes:
        return []
    if mu * slots >= MIN_SIGNAL * classes:
        return [
            f"{slots:,} training records stand little out of the noise at this budget: expect a "
            "model far from what more records, or a larger `epsilon=`, would give."
        ]
    return [
        f"{slots:,} training records {NOISE_PHRASE}: expect little better than guessing. More "
        "records or a larger `epsilon=` would help; more trainings would not."
    ]
