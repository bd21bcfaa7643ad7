"""Warnings about a plan, and reasons to refuse it, before it runs.

Everything is computed from public numbers, so it has no privacy cost.
"""

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
"""Maximum frequency that a category needs to be found by private estimation, without a warning.

It is a fraction of the records."""

INTERVAL_DEVIATIONS = 3.92
"""Width of a 95 % confidence interval, in standard deviations."""

NOISE_PHRASE = "is below the noise level at this budget"
"""Phrase by which other modules recognise the warning about a signal below the noise level."""

MIN_CLASS_PROBABILITY = 0.1
"""Minimum probability of finding one of two equally frequent classes by private estimation.

A run with a smaller one is refused, because it would find both classes in at most 1 % of runs."""

MIN_SIGNAL = 5.0
"""Minimum signal-to-noise ratio per class, below which accuracy is near chance.

The ratio is mu (Gaussian DP) times the number of training records, divided by the classes."""

MIN_GOOD_SIGNAL = 20.0
"""Minimum signal-to-noise ratio per class, below which noise reduces the accuracy much."""

MIN_CLASSES = 2  # minimum number of classes of a target


def find_estimation_failures(
    estimate: SchemaEstimate | None, classes: SchemaEstimate | None, split: Split, schema: AnySchema
) -> list[str]:
    """Return the reasons why the undeclared schema cannot be estimated from the records.

    Args:
        estimate: Estimation of undeclared columns and bounds; None if nothing is estimated.
        classes: Estimation of an undeclared class list; None if the classes are declared.
        split: Sizes of the partitions.
        schema: Declared schema of the data.

    Returns:
        Sentences; each ends with what to change.
    """
    found, slots, train = [], getattr(split, choose_estimation_partition(split)), split.train
    what, least = _find_rarest_item(estimate, schema)
    if least > slots:
        item, source = "schema", "; `pasearch check` proposes one"
        if what == "word":
            item, source = "vocabulary", ""
        found.append(
            f"the undeclared {item} would be estimated from {slots:,} records, and a {what} is "
            f"found only if about {least:,} records have it, more than there are: declare the "
            f"{item} (`schema=`{source}), raise `epsilon=`, or add records."
        )
    if isinstance(schema, Schema):
        return found  # arrays always get two classes or more
    if (
        classes is not None
        and classes.category_mechanism.compute_detectable_count(MIN_CLASS_PROBABILITY)
        > train / MIN_CLASSES
    ):
        found.append(
            f"the undeclared classes would be estimated from {train:,} training records, and "
            f"{MIN_CLASSES} classes are found only if about {classes.min_records:,} records have "
            "each: declare the classes (`labels=no,yes`), raise `epsilon=`, or add records."
        )
    return found


def _find_rarest_item(estimate: SchemaEstimate | None, schema: AnySchema | None) -> tuple[str, int]:
    """Return the noun for an estimated item, and its minimum number of records; 0: no estimate."""
    if estimate is None:
        return "", 0
    text = getattr(schema, "token_column", None)
    if schema is not None and text is not None and text in schema.undeclared:
        return "word", estimate.vocabulary_mechanism.threshold
    return "category or a class", estimate.min_records


def find_signal_failures(signal: float | None, schema: AnySchema, epsilon: float) -> list[str]:
    """Return the reason why accuracy would be near chance, in a list; empty if it would not be.

    Args:
        signal: Signal-to-noise ratio of the released model's training, summed over all outputs;
            None if nothing is trained.
        schema: Declared schema of the data.
        epsilon: Total epsilon of the run.
    """
    outputs = schema.outputs or MIN_CLASSES
    if signal is None or signal >= MIN_SIGNAL * outputs:
        return []
    return [
        f"the signal-to-noise ratio{'' if schema.regression else ' per class'} is "
        f"{signal / outputs:.2g} at epsilon {epsilon:g}; below {MIN_SIGNAL:g}, accuracy is near "
        "chance: raise `epsilon=`, or add records."
    ]


def warn_of_undeclared_task(schema: AnySchema) -> list[str]:
    """Warn if the type of the target, classes or numbers, is not declared."""
    aim = schema.undeclared_task
    if aim is None:
        return []
    return [
        f"the type of target {aim!r} is not declared; using classification. For regression use "
        "`regression=True` in a new run (this run's budget is not refunded); otherwise declare its "
        "classes (`labels=`)."
    ]


def warn_of_identifiers(schema: AnySchema, assumed: tuple[str, ...] = ()) -> list[str]:
    """Warn of undeclared columns with names that look like identifiers, such as "id"."""
    columns = getattr(schema, "columns", ())
    open_ = [each.name for each in columns if each.kind is None or each.name in assumed]
    named = [name for name in open_ if IDENTIFIER_NAME_PATTERN.search(name)]
    if not named:
        return []
    one = len(named) == 1
    return [
        f"column{'' if one else 's'} {', '.join(map(repr, named))} look{'s' if one else ''} like "
        f"{'an identifier' if one else 'identifiers'}. If rows are sorted, the model may learn the "
        "row order, and its test accuracy will be meaningless. Exclude "
        f'{"it" if one else "them"} in a schema (kind = "ignore"), or declare the '
        f"{'kind' if one else 'kinds'}."
    ]


def warn_of_auc_classes(metric: str | None, schema: AnySchema) -> list[str]:
    """Warn if the metric requires two classes, but the classes are undeclared."""
    if metric != "auc" or schema.outputs:
        return []
    return [
        "the area under the ROC curve is defined for two classes, and the classes are not "
        "declared. If more are found, the score is for the first two classes only."
    ]


def warn_of_rare_categories(
    estimate: SchemaEstimate | None, split: Split, schema: AnySchema | None = None
) -> list[str]:
    """Warn if only common categories, or words of a text, can be estimated privately."""
    slots = getattr(split, choose_estimation_partition(split))
    what, least = _find_rarest_item(estimate, schema)
    if not least > MAX_CATEGORY_SHARE * slots:
        return []
    found = (
        f"only what at least about {least:,} of them hold will be found: rarer "
        f"{'words' if what == 'word' else 'categories'} are lost."
        if least <= slots
        else f"that is too few to find any {what.replace('or a', 'or')} at this budget."
    )
    return [
        f"the undeclared schema is estimated privately from {slots:,} records, and {found} Declare "
        "the schema, or enlarge the validation and test fractions (`split=`)."
    ]


def warn_of_rare_classes(estimate: SchemaEstimate | None, split: Split) -> list[str]:
    """Warn if only common classes can be found privately."""
    if estimate is None:
        return []
    count = math.ceil(
        estimate.category_mechanism.compute_detectable_count(CLASS_DETECTION_PROBABILITY)
    )
    if not count > 2 * RARE_CLASS_FRACTION * split.train:
        return []
    return [
        f"the undeclared classes are estimated privately from {split.train:,} training records, "
        f"and a class with fewer than about {count:,} records may not be found. Declare the "
        "classes (`labels=no,yes`, or in the schema)."
    ]


def warn_of_test_noise(metric: Metric, noise: ScoreNoise, slots: int) -> list[str]:
    """Warn if the noise of the test score is too large to measure the model's quality.

    Args:
        metric: Metric of the test score.
        noise: Noise of the test score; a confusion matrix is used only if its noise is similar.
        slots: Number of test records including null records.
    """
    spread = noise.standard_deviation / (metric.max_points * max(1, slots))
    if metric.worst != 1.0 or INTERVAL_DEVIATIONS * spread <= metric.worst / 2:
        return []
    return [
        f"the noise of the test score has a standard deviation of {100 * spread:.0f} %, too large "
        "to measure the model's quality. Add records, or raise `epsilon=`."
    ]


def warn_of_weak_signal(mu: float | None, slots: int, classes: int) -> list[str]:
    """Warn if the training noise is close to, or above, the signal of all records.

    Measured with `fixed` on digits: epsilon .05 is below `MIN_SIGNAL` and its accuracy is near
    chance; epsilon .1 reaches .5, and .25 reaches .7. On a table of two classes whose best accuracy
    is .85, a signal of 8 reached .5 and one of 19 reached .57 (medians of a few runs).
    """
    if mu is None or mu * slots >= MIN_GOOD_SIGNAL * classes:
        return []
    if mu * slots >= MIN_SIGNAL * classes:
        return [
            f"the signal of {slots:,} training records is only slightly above the noise: expect a "
            "model well below what more records, or a larger `epsilon=`, would give."
        ]
    return [
        f"the signal of {slots:,} training records {NOISE_PHRASE}: expect an accuracy near chance. "
        "More records or a larger `epsilon=` help; more trials do not."
    ]
