"""Method `top`: the k features most associated with the target, selected privately without tables.

    class shares    one Gaussian release of the classes' counts, a tenth of the selection's epsilon
    points(X)       sum over codes v and classes c of |1000 n(v, c) - P_c n(v)|
    picks           k private selections by these scores, the rest of the epsilon

n(v, c) counts the records with X = v and class c, and n(v) those with X = v. P_c is the public or
released fraction of class c in thousandths. Scores are integers, and 0 for a feature X whose every
value has these class fractions. One record changes a score by at most 2 (1000 - min P_c). Each of k
rounds selects one of the remaining features:

    GumbelTop         P(i) ~ e^(epsilon points_i / (2 sensitivity)), the exponential mechanism: the
                      same distribution as adding Gumbel noise once and taking the k largest
    PermuteAndFlip    in a random order, take the first i whose Bernoulli draw of probability
                      e^(-epsilon gap_i / (2 sensitivity)) is 1, where gap_i is the best score
                      minus points_i: also epsilon-DP per round, and the expected gap is never
                      larger

Both use integers only, so their distributions are exact. k rounds cost at most k epsilon.

Source: McSherry and Talwar 2007; Durfee and Rogers 2019 (one-shot top k); McKenna and Sheldon 2020
(permute and flip). Proof: docs/guarantees/picking-features.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import reduce
from operator import add
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from pasearch.accounting.checks import check_positive, check_positive_integer, make_post_init
from pasearch.accounting.events import PureDP, SelfComposition
from pasearch.data.partitions import Records
from pasearch.data.schema import is_integer
from pasearch.errors import UsageError
from pasearch.features.contingency import Attributes, make_attributes
from pasearch.features.selector import (
    SELECTION_SHARE,
    SELECTORS,
    Array,
    DataMetadata,
    RecordAccess,
    SelectionResult,
    SizedSelector,
    check_one_of,
)
from pasearch.features.trainers import Trainer
from pasearch.planning import GAUSSIAN_NOISE, PURE_NOISE, ReleaseTemplate
from pasearch.runs.keys import Stream
from pasearch.runs.mechanisms import ExponentialMechanism, draw_bernoulli_exp
from pasearch.runs.sums import GaussianSum

SHARE_DENOMINATOR = 1000  # denominator of class shares: they are integers in thousandths


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassShares:
    """Fraction of the records in each class: public, or released before.

    Args:
        thousandths: P_c of each class, nonnegative integers that sum to 1000.
    """

    thousandths: tuple[int, ...]

    def __post_init__(self) -> None:
        given = tuple(self.thousandths)
        if (
            len(given) < 2
            or not all(is_integer(p) and p >= 0 for p in given)
            or sum(given) != SHARE_DENOMINATOR
        ):
            raise UsageError(
                f"thousandths is {given!r}: expected nonnegative integers of two classes or more "
                f"that sum to {SHARE_DENOMINATOR}. `ClassShares.of` rounds shares."
            )
        object.__setattr__(self, "thousandths", tuple(map(int, given)))

    @classmethod
    def of(cls, shares: Sequence[float]) -> ClassShares:
        """Make class shares from fractions or counts, rounded by the largest-remainder method.

        Args:
            shares: Size of each class in any unit, 0 or above and not all 0, such as noisy counts
                clipped at 0.
        """
        values = np.asarray(shares, dtype=np.float64)
        sound = values.ndim == 1 and np.isfinite(values).all() and (values >= 0).all()
        if not (sound and values.sum() > 0):
            raise UsageError(
                f"shares is {list(shares)!r}: expected finite numbers, 0 or above, one above 0. "
                "Clip noisy counts at 0."
            )
        exact = values / values.sum() * SHARE_DENOMINATOR
        down = np.floor(exact)
        left = SHARE_DENOMINATOR - int(down.sum())
        down[np.argsort(down - exact, kind="stable")[:left]] += 1
        return cls(thousandths=tuple(map(int, down)))

    @property
    def sensitivity(self) -> int:
        """Maximum change of a feature's score by one record: 2 (1000 - min P_c)."""
        return 2 * (SHARE_DENOMINATOR - min(self.thousandths))


def score_association(table: npt.NDArray[np.integer], shares: ClassShares) -> int:
    """Compute the association score of a feature with the class: an integer, 0 or above.

    Guarantee: adding or removing one record changes it by at most `shares.sensitivity`.

    Args:
        table: Number of records in each cell, (codes, classes).
        shares: Shares of the classes.
    """
    expected = table.sum(axis=1, keepdims=True) * np.array(shares.thousandths)
    return int(np.abs(SHARE_DENOMINATOR * table - expected).sum())


def count_class_tables(
    codes: npt.NDArray[np.integer], attributes: Attributes
) -> npt.NDArray[np.integer]:
    """Count the records with each code of a column and each class.

    Args:
        codes: Codes of the records, (n, m), the target last; a record with -1 is not counted.
        attributes: Public metadata of the columns.

    Returns:
        Counts, int64 (codes of all columns, classes).

    Raises:
        UsageError: Another number of columns.
    """
    sizes = attributes.sizes
    if codes.shape[1:] != (len(sizes),):
        raise UsageError(f"codes have the shape {codes.shape}: expected (n, {len(sizes)}).")
    classes, tables = sizes[-1], []
    for column, size in zip(codes.T, sizes[:-1], strict=False):
        there = (column >= 0) & (codes[:, -1] >= 0)
        cells = column[there].astype(np.int64) * classes + codes[there, -1]
        tables.append(np.bincount(cells, minlength=size * classes).reshape(size, classes))
    return np.concatenate(tables)


def score_tables(
    tables: npt.NDArray[np.integer], attributes: Attributes, shares: ClassShares
) -> list[int]:
    """Compute the association score of every feature with the class.

    Guarantee: a record that becomes null changes each score by at most `shares.sensitivity`.

    Args:
        tables: Result of `count_class_tables` over all records.
        attributes: Public metadata of the columns.
        shares: Shares of the target's classes, or bins.

    Raises:
        UsageError: Another number of classes.

    Cost: none by itself: scores are private. A selection by them costs the mechanism's `event`.
    """
    classes = attributes.sizes[-1]
    if len(shares.thousandths) != classes:
        raise UsageError(
            f"There are {len(shares.thousandths)} shares: expected {classes} shares, one per class."
        )
    points = []
    of_columns = np.split(tables, attributes.starts[1:-1])
    for table, each in zip(of_columns, attributes.items[:-1], strict=True):
        for values in each.features:
            folded = np.zeros((max(values) + 1, classes), dtype=np.int64)
            np.add.at(folded, list(values), table)
            points.append(score_association(folded, shares))
    return points


@dataclass(frozen=True, slots=True, kw_only=True)
class TopMechanism:
    """Base class of both mechanisms that select k features.

    Guarantee: each selection is epsilon-DP if one record changes each feature's score by at most
    `sensitivity`; only the selected features and their order are released.

    Args:
        epsilon: Privacy cost of one selection, above 0.
        k: Number of selected features, all different, 1 or above.
        sensitivity: Maximum change of a feature's score by one record, an integer above 0, such as
            `ClassShares.sensitivity`.
    """

    name: ClassVar[str]
    epsilon: float
    k: int
    sensitivity: int
    __post_init__ = make_post_init(
        epsilon=check_positive, k=check_positive_integer, sensitivity=check_positive_integer
    )

    @property
    def event(self) -> SelfComposition:
        """Privacy event of all k selections, for any number of features."""
        return SelfComposition(event=PureDP(epsilon=self.epsilon), count=self.k)

    def release(self, points: Sequence[int], stream: Stream) -> tuple[int, ...]:
        """Release k selected features, in the order of selection.

        Args:
            points: Score of each feature, integers: private.
            stream: Random stream of this release alone; the draws also depend on the scores.

        Raises:
            UsageError: Fewer features than k.
            TypeError: Scores that are not integers (their values are private and not printed).

        Cost: `event`, on every partition that the scores were computed from; charge it first.
        """
        if not len(points) >= self.k:
            raise UsageError(f"k is {self.k}: expected at most the {len(points)} features.")
        if not all(map(is_integer, points)):
            raise TypeError("points must be integers: count records.")
        left, picked = list(range(len(points))), []
        for turn in range(self.k):
            place = self._pick([int(points[i]) for i in left], stream.child(self.name, turn))
            picked.append(left.pop(place))
        return tuple(picked)

    def _pick(self, points: list[int], stream: Stream) -> int:
        """Select one score privately, and return its index."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class GumbelTop(TopMechanism):
    """Exponential mechanism k times, without replacement.

    The distribution is that of adding Gumbel noise to each score once and taking the k largest.

    Guarantee: that of `TopMechanism`.
    """

    name: ClassVar[str] = "gumbel top"

    def _pick(self, points: list[int], stream: Stream) -> int:
        return ExponentialMechanism(epsilon=self.epsilon, most=self.sensitivity).pick(
            points, stream
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PermuteAndFlip(TopMechanism):
    """Permute-and-flip k times, without replacement.

    Guarantee: that of `TopMechanism`. For the same scores, the expected difference between the best
    and the selected score is at most that of the exponential mechanism.
    """

    name: ClassVar[str] = "permute and flip"

    def _pick(self, points: list[int], stream: Stream) -> int:
        below = stream.child(self.epsilon.hex(), self.sensitivity, *points).integers().draw_below
        best, share = max(points), Fraction(self.epsilon) / (2 * self.sensitivity)
        waiting = list(range(len(points)))
        while True:
            index = waiting.pop(below(len(waiting)))
            if draw_bernoulli_exp(share * (best - points[index]), below):
                return index


# Names of charges: each is a line of the plan.
SHARES_LINE = "class shares"
PICKS_LINE = "picks"

PICK_MECHANISMS = {"permute-and-flip": PermuteAndFlip, "gumbel": GumbelTop}

CLASS_SHARES_FRACTION = 0.1  # fraction of the selection's epsilon for the class shares


@SELECTORS.register
@dataclass(frozen=True, slots=True, kw_only=True)
class TopSelector(SizedSelector):
    """Private selection of the features most associated with the target.

    Args:
        size: Number of features, 1 or above; None: d^(2/3) of d features.
        pick: Selection mechanism: "permute-and-flip" or "gumbel".
    """

    name: ClassVar[str] = "top"
    description: ClassVar[str] = (
        "the features most associated with the target, each picked privately"
    )
    public_description: ClassVar[str] = "the features most associated with the target"
    share: ClassVar[float | None] = SELECTION_SHARE
    size: int | None = None
    pick: str = "permute-and-flip"

    def __post_init__(self) -> None:
        SizedSelector.__post_init__(self)
        check_one_of("pick", self.pick, PICK_MECHANISMS)

    def describe(self, *, public: bool = False) -> str:
        words = self.public_description if public else f"{self.description}, by {self.pick}"
        return words + self.describe_changes("size")

    def list_releases(
        self, form: DataMetadata, trainer: type[Trainer]
    ) -> tuple[ReleaseTemplate, ...]:
        """Return the charges of the noisy class shares, and of k private selections."""
        count = self.resolve_size(form.features)
        return (
            ReleaseTemplate(name=SHARES_LINE, knob=GAUSSIAN_NOISE, share=CLASS_SHARES_FRACTION),
            ReleaseTemplate(
                name=PICKS_LINE, knob=PURE_NOISE, share=1.0 - CLASS_SHARES_FRACTION,
                composed=lambda pick: SelfComposition(event=pick, count=count),
            ),
        )  # fmt: skip

    def choose(self, reads: RecordAccess, stream: Stream) -> SelectionResult:
        # At most the planned size: an estimated schema has no more features than planned.
        attributes, size = make_attributes(reads.schema), self.resolve_size(len(reads.means))
        if reads.public:
            with reads.open_line(PICKS_LINE) as records:
                tables = _count_class_tables_of(records, attributes)
                counted = np.maximum(_count_classes(records, attributes), 1.0)
            shares = ClassShares.of(counted / counted.sum())
            points = np.asarray(score_tables(tables, attributes, shares), np.float64)
            return SelectionResult.of(
                reads.means, np.argsort(-points, kind="stable")[:size].tolist()
            )
        noise = GaussianSum(noise_multiplier=reads.noise(SHARES_LINE))
        with reads.open_line(SHARES_LINE) as records:
            exact = _count_classes(records, attributes).astype(np.float64)
            noisy = noise.release(exact, stream.child("class shares"))
        shares = ClassShares.of(np.maximum(noisy, 1.0) / np.maximum(noisy, 1.0).sum())
        picks = PICK_MECHANISMS[self.pick](
            epsilon=reads.noise(PICKS_LINE), k=size, sensitivity=shares.sensitivity
        )
        with reads.open_line(PICKS_LINE) as records:
            points = score_tables(_count_class_tables_of(records, attributes), attributes, shares)
            picked = picks.release(points, stream.child("picks"))
        return SelectionResult.of(reads.means, picked)

    def count_selected(self, features: int) -> int:
        return self.resolve_size(features)


def _count_classes(records: Records, attributes: Attributes) -> Array:
    """Count the records of each class, or bin of the target: private."""
    codes = attributes.items[-1].codes(records.y.numpy()[:, None])
    return np.bincount(codes[records.valid.numpy()], minlength=attributes.sizes[-1])


def _count_class_tables_of(records: Records, attributes: Attributes) -> Array:
    """Count the records with each code of a column and each class, part by part: private."""
    every = (count_class_tables(codes, attributes) for codes in attributes.encode_parts(records))
    return reduce(add, every)
