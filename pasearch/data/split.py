"""Sizes of the partitions, and random assignment of records to them, both independent of values.

Source: docs/rules.md, rules 3 and 4; Bao et al., section IV-A (the paper's splits). Proof:
docs/guarantees/composition-and-partitions.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pasearch.accounting.checks import check_positive_integer
from pasearch.errors import UsageError

PARTITIONS = ("search", "train", "validation", "test")  # names of the partitions


def name_subset(partition: str, number: int) -> str:
    """Return the name of a disjoint subset of a partition; `number` is its index, from 0."""
    return f"{partition} {number + 1}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """Sizes of the partitions, in records (null records included); public constants.

    Args:
        search: Records for a search whose winner is retrained on `train`; 0 if there are none.
        train: Records for the returned model, 1 or more.
        validation: Records for the scores of candidates; 0 if nothing is compared.
        test: Records for the test accuracy; 0 if no model is trained.
        fixed_tail: Number of records at the end of the data set (such as an official test set) that
            form test, or validation and test; 0: all partitions are drawn from all records.
        portions: Number of disjoint subsets of equal size into which the partition for candidates
            is split. The subsets replace that partition. A remainder is unused.
        unused: Records in no partition: they are never read.
    """

    search: int = 0
    train: int
    validation: int = 0
    test: int
    fixed_tail: int = 0
    portions: int = 1
    unused: int = 0

    def __post_init__(self) -> None:
        sizes = {name: getattr(self, name) for name in (*PARTITIONS, "unused")}
        if not all(size >= 0 for size in sizes.values()) or not self.train:
            raise UsageError(f"A split has sizes {sizes}: expected at least 1 training record.")
        if self.fixed_tail and self.unused:
            raise UsageError(
                "A split cannot have both a fixed tail and unused records: set one of them to 0."
            )
        if self.fixed_tail not in (0, self.test, self.validation + self.test):
            raise UsageError(
                f"A split's fixed tail is {self.fixed_tail}: expected 0, test, or validation and "
                f"test, {self.validation + self.test} records."
            )
        if not check_positive_integer("portions", self.portions) <= (self.search or self.train):
            raise UsageError(
                f"{self.search or self.train:,} records cannot be split into {self.portions} "
                "disjoint subsets: use fewer candidates or more records."
            )

    @property
    def n(self) -> int:
        """Number of all records."""
        return self.search + self.train + self.validation + self.test + self.unused

    @property
    def trial_partition(self) -> str:
        """Partition that candidates are trained on: `search` if it is not empty."""
        return "search" if self.search else "train"

    @property
    def trial_size(self) -> int:
        """Number of records that one candidate is trained on."""
        return (self.search or self.train) // self.portions

    def sizes(self) -> dict[str, int]:
        """Return the size of each non-empty partition, or of its disjoint subsets, by name."""
        found = {name: getattr(self, name) for name in PARTITIONS if getattr(self, name)}
        if self.portions == 1:
            return found
        cut, own = self.trial_partition, range(self.portions)
        portions = {name_subset(cut, number): self.trial_size for number in own}
        del found[cut]
        return {**portions, **found}

    def draw_positions(self, generator: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw the record positions of each partition at random, independently of values."""
        head = self.n - self.fixed_tail
        order = generator.permutation(head)
        if self.fixed_tail:  # avoids a copy of a large permutation
            order = np.concatenate([order, head + generator.permutation(self.fixed_tail)])
        ends = np.cumsum([getattr(self, name) for name in PARTITIONS])
        parts = np.split(order, ends)[:-1]  # the last part is unused
        found: dict[str, np.ndarray] = dict(zip(PARTITIONS, parts, strict=True))
        if self.portions > 1:
            # The subsets replace the partition, so that no record is in two partitions.
            whole, size = found.pop(self.trial_partition), self.trial_size
            for number in range(self.portions):
                part = whole[number * size : (number + 1) * size]
                found[name_subset(self.trial_partition, number)] = part
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class PaperSplit:
    """Partition sizes that Bao et al. report for one data set.

    Args:
        name: Name of the data set in the paper.
        records: Numbers of records of the known versions of the data set, which identify it.
        train: Number of training records.
        validation: Number of validation records; 0 if the paper reports none.
        test: Number of test records.
    """

    name: str
    records: tuple[int, ...]
    train: int
    validation: int = 0
    test: int


PAPER_SPLITS = (
    # All records; UCI's adult.data.
    PaperSplit(name="Adult", records=(48_842, 32_561), train=22_750, test=9_750),
    PaperSplit(name="Breast Cancer", records=(286,), train=191, test=95),
    # UCI's file; the copy on Kaggle, which lacks two records.
    PaperSplit(name="SMS Spam", records=(5_574, 5_572), train=4_700, test=836),
    # Images: the paper uses 52,000 of these.
    PaperSplit(
        name="SVHN", records=(99_289,), train=42_000, validation=5_000, test=5_000
    ),
    PaperSplit(name="Medical Cost", records=(1_338,), train=1_000, test=300),
    PaperSplit(
        name="Purchase-100", records=(197_324, 197_000), train=157_750,
        validation=5_000, test=5_000,
    ),
)  # fmt: skip
"""Splits of section IV-A, except MNIST, Fashion-MNIST and CIFAR-10, which halve their official test
set into validation and test."""


DEFAULT_FRACTIONS = (0.8, 0.1, 0.1)
"""Default fractions of train, validation and test."""

VALIDATION_FRACTION = 0.1
"""Fraction of the training records used for scores if the test set is official."""


def make_split(
    n: int,
    *,
    shares: tuple[float, float, float] | None = None,
    search_share: float = 0.0,
    scored: bool = True,
    official_test: int = 0,
    paper: bool = False,
    portions: int = 1,
) -> Split:
    """Choose the sizes of the partitions of n records.

    Args:
        n: Number of records.
        shares: Fractions of train, validation and test, which sum to 1. None: the official test set
            if there is one, with `VALIDATION_FRACTION` of the other records for validation;
            otherwise `DEFAULT_FRACTIONS`.
        search_share: Fraction of the training records that is reserved for the search, in [0, 1).
        scored: Whether scores are needed; if False, the validation records are added to train.
        official_test: Number of records at the end that are the official test set.
        paper: Whether to use the sizes of Bao et al., IV-A; other records are unused. If scores are
            needed and the paper reports no validation set, `VALIDATION_FRACTION` of its training
            records form one. An official test set of other data is halved into validation and test,
            as in the paper for images (60,000 / 5,000 / 5,000).
        portions: Number of disjoint subsets of the candidates' records.

    Raises:
        UsageError: Fractions that do not sum to 1, an unknown paper split without official test
            set, or an empty partition.
    """
    known = (each for each in PAPER_SPLITS if n in each.records)
    printed = next(known, None) if paper else None
    unused = 0
    if printed is not None:
        train, validation, tail = printed.train, printed.validation, 0
        unused = n - train - validation - printed.test
        if scored and not validation:
            validation = round(train * VALIDATION_FRACTION)
            train -= validation
    else:
        train, validation, tail = _divide_records(n, shares, official_test, paper)
    test = n - train - validation - unused
    if not (scored or paper):
        train, validation = train + validation, 0
    if not 0.0 <= search_share < 1.0:
        raise UsageError(f"`search_share={search_share}`: expected a fraction in [0, 1).")
    search = round(train * search_share)
    train -= search
    if not (train > 0 and test > 0 and (validation > 0 or not scored)):
        raise UsageError(f"{n} records are too few to split into train, validation and test.")
    if search_share and not search > 0:
        raise UsageError(f"`search_share={search_share}` is less than one record: increase it.")
    return Split(
        search=search, train=train, validation=validation, test=test, fixed_tail=tail,
        portions=portions, unused=unused,
    )  # fmt: skip


def _divide_records(
    n: int, shares: tuple[float, float, float] | None, official_test: int, paper: bool
) -> tuple[int, int, int]:
    """Return the sizes of train (search included), validation and fixed tail."""
    if paper:
        if not official_test:
            known = ", ".join(
                f"{each.name} ({' or '.join(f'{own:,}' for own in each.records)})"
                for each in PAPER_SPLITS
            )
            raise UsageError(
                f"`split=paper`: the paper reports no split of {n:,} records: expected {known} "
                "records, or images with an official test set. Give fractions instead, such as "
                "`split=0.8,0.1,0.1`."
            )
        return n - official_test, official_test // 2, official_test
    if shares is None and official_test:
        validation = round((n - official_test) * VALIDATION_FRACTION)
        return n - official_test - validation, validation, official_test
    shares = DEFAULT_FRACTIONS if shares is None else shares
    if not all(0.0 < share < 1.0 for share in shares) or not abs(sum(shares) - 1.0) < 1e-9:
        raise UsageError(
            f"`split={','.join(map(str, shares))}`: expected three fractions above 0 "
            "(train, validation, test) that sum to 1."
        )
    return round(n * shares[0]), round(n * shares[1]), 0


def choose_estimation_partition(split: Split) -> str:
    """Return the partition on which an undeclared schema is estimated."""
    return "validation" if split.validation else "test"
