"""Partitions of a data set, and the only access to private records.

The n record positions of a data set are fixed before any value is read. A random permutation that
does not depend on values assigns each position to exactly one partition. Therefore the privacy cost
of a run is the *maximum* over its partitions (parallel composition). A private partition can only
be read under a charge of the ledger:

    with ledger.charged("search", dataset["train"], key="search") as records: ...

A record with an unusable value (not finite, or a label outside the declared classes) is treated as
the null record (zero-out adjacency): its features are 0, and a mask sets its gradient, loss and
score to 0.

Source: docs/rules.md, rules 2, 3, 4 and 13. Proof: docs/guarantees/composition-and-partitions.md.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np

from pasearch.data import rows
from pasearch.data.arrays import StoredArray
from pasearch.data.cache import transform_records
from pasearch.data.cells import ColumnCells, TableCells
from pasearch.data.disk import (
    DiskRecords,
    check_disk_space,
    iterate_blocks,
    save_rows,
    stays_on_disk,
)
from pasearch.data.front_ends import FittedFrontEnd, FrontEnd, Raw
from pasearch.data.parquet_files import LargeColumn, LargeTable
from pasearch.data.rows import CompactRows, Rows, pack_table, select_rows
from pasearch.data.split import Split
from pasearch.data.tables import AnySchema, TableSchema
from pasearch.data.text_columns import TextColumn, TextTable
from pasearch.errors import UsageError
from pasearch.runs.ledger import Receipt

if TYPE_CHECKING:
    import torch

ENCODING_BLOCK_RECORDS = 4096
"""Number of records encoded at a time: it limits the memory for float64 values."""


class UnchargedReadError(RuntimeError):
    """Error if private records are read without a charge: a bug, never a mistake of the user."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """Records of one open partition, encoded for a network.

    Args:
        x: Features, float32, (records, *shape), clamped to the bounds, scaled to [0, 1], and passed
            through the feature extractor, if any. A tensor, or `data.rows.Rows` if they are too
            many for one tensor.
        y: Classes, int64, (records,), or regression targets, float32, in [0, 1]; 0 in null records.
        valid: Mask, bool, (records,); False marks a null record.
        public: Whether the user declared the data public.
    """

    x: torch.Tensor = field(repr=False)
    y: torch.Tensor = field(repr=False)
    valid: torch.Tensor = field(repr=False)
    public: bool

    def __len__(self) -> int:
        """Return the number of records, null records included: public."""
        return len(self.y)

    def take(self, indices: np.ndarray) -> Records:
        """Return the records at the given indices, int, (some,)."""
        import torch

        at = torch.from_numpy(indices)
        return replace(self, x=self.x[at], y=self.y[at], valid=self.valid[at])

    def parts(self) -> Iterator[Records]:
        """Iterate over blocks in order; block sizes depend on public metadata only."""
        if not isinstance(self.x, Rows):
            yield self
            return
        for start in range(0, len(self), self.x.block):
            part = slice(start, start + self.x.block)
            yield replace(self, x=self.x[part], y=self.y[part], valid=self.valid[part])

    def write(self, folder: Path) -> None:
        """Write the records to files in an empty folder, which `map_files` reads."""
        for name in ("x", "y", "valid"):
            values, path = getattr(self, name), folder / f"{name}.npy"
            save_rows(path, values) if isinstance(values, Rows) else np.save(path, values.numpy())

    @classmethod
    def map_files(cls, folder: Path, *, public: bool) -> Records:
        """Return records that `write` wrote, memory-mapped.

        Processes share the pages in memory; changes are never written to the files.
        """
        import torch

        own = {
            name: torch.from_numpy(np.load(folder / f"{name}.npy", mmap_mode="c"))
            for name in ("x", "y", "valid")
        }
        return cls(**own, public=public)


AnyTable = TextTable | TextColumn | LargeTable | LargeColumn


class SealedArray:
    """Array with public metadata, whose values only an open partition can read."""

    __slots__ = ("_held",)

    def __init__(self, array: np.ndarray | StoredArray | AnyTable | SealedArray):
        self._held: Any = array._held if isinstance(array, SealedArray) else array

    @property
    def _array(self) -> Any:
        """Values of the array, read from the file on first access if it is large."""
        return self._held.read() if isinstance(self._held, StoredArray) else self._held

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array: public."""
        return self._held.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Element type: public."""
        return self._held.dtype

    def __len__(self) -> int:
        """Return the length of the first axis: public."""
        return len(self._held)

    def __repr__(self) -> str:
        """Show the metadata, never a value."""
        return f"SealedArray({self.dtype}, {self.shape})"


OpenedT = TypeVar("OpenedT")


class _PartitionView(ABC, Generic[OpenedT]):
    """Named subset of the record positions; subclasses define what is read from it after a charge.

    Args:
        name: One of `PARTITIONS`, or the name of a disjoint subset.
        dataset: Data set that the partition belongs to.
        indices: Positions of the records, int, (size,).
        front: Fitted feature extractor applied to the records; None: raw features.
    """

    __slots__ = ("_dataset", "_front", "_name", "_slots")

    def __init__(
        self, name: str, dataset: Dataset, indices: np.ndarray, front: FittedFrontEnd | None = None
    ):
        self._name, self._dataset, self._slots, self._front = name, dataset, indices, front

    @property
    def name(self) -> str:
        """Name of the partition; the charge for a read is checked against it."""
        return self._name

    def __len__(self) -> int:
        """Return the number of records, null records included: public."""
        return len(self._slots)

    def __repr__(self) -> str:
        """Show the metadata, never a value."""
        return f"{type(self).__name__}({self.name!r}, {len(self)} records)"

    @abstractmethod
    def _read_records(self) -> OpenedT: ...

    def open(self, receipt: Receipt) -> OpenedT:
        """Return the records, if the receipt proves an open charge for this partition.

        Args:
            receipt: Receipt of the ledger for the charge.

        Raises:
            UnchargedReadError: The receipt is no receipt, is of another partition, or is closed.
        """
        issued = isinstance(receipt, Receipt) and receipt.partition == self.name
        if not (issued and receipt.active is True):
            raise UnchargedReadError(
                f"Partition {self.name!r} was read without an open charge for it: "
                "wrap the read in `with ledger.charged(...)`."
            )
        return self._read_records()

    def public_records(self) -> OpenedT:
        """Return the records without a charge, if the user declared the data public.

        Raises:
            UnchargedReadError: Private data.
        """
        _check_public(self._dataset)
        return self._read_records()


class Partition(_PartitionView[Records]):
    """Partition with encoded records; its size is public, its records are not."""

    __slots__ = ()

    def _read_records(self) -> Records:
        return self._dataset._records(self._name, self._slots, self._front)

    def with_front_end(self, front: FittedFrontEnd | None) -> Partition:
        """Return the same partition with another feature extractor."""
        return Partition(self._name, self._dataset, self._slots, front)

    def with_files(self, folder: Path) -> PartitionFiles:
        """Return the same partition, which `open` writes to files in a private folder once."""
        return PartitionFiles(self, folder)

    def cells(self) -> PartitionCells:
        """Return the same partition with unencoded features and labels, for schema estimation."""
        return PartitionCells(self._name, self._dataset, self._slots)

    def labels(self) -> PartitionLabels:
        """Return the same partition with unencoded labels only."""
        return PartitionLabels(self._name, self._dataset, self._slots)


class PartitionFiles(_PartitionView[Path]):
    """Partition whose records are written to a folder of files, which other processes memory-map.

    The files are as private as the records; the caller chooses their location.
    """

    __slots__ = ("_folder",)

    def __init__(self, part: Partition, folder: Path):
        super().__init__(part._name, part._dataset, part._slots, part._front)
        self._folder = folder

    def _read_records(self) -> Path:
        files = self._dataset._files
        key = self._name, "" if self._front is None else self._front.digest, self._folder
        if key not in files:
            own = Path(tempfile.mkdtemp(dir=self._folder))  # 0700
            self._dataset._records(self._name, self._slots, self._front).write(own)
            files[key] = own
        return files[key]


class PartitionCells(_PartitionView[tuple[TableCells, ColumnCells]]):
    """Partition with unencoded features and labels, before the schema is complete."""

    __slots__ = ()

    def _read_records(self) -> tuple[TableCells, ColumnCells]:
        arrays = self._dataset.features, self._dataset.labels
        features, labels = (SealedArray(each)._array[self._slots] for each in arrays)
        return features, labels


class PartitionLabels(_PartitionView[ColumnCells]):
    """Partition with unencoded labels only, to estimate the class list."""

    __slots__ = ()

    def _read_records(self) -> ColumnCells:
        return SealedArray(self._dataset.labels)._array[self._slots]


def _check_public(dataset: Dataset) -> None:
    if dataset.public is not True:
        raise UnchargedReadError(f"Data {dataset.name!r} is private: open a charged partition.")


@dataclass(slots=True, kw_only=True, eq=False)
class Dataset:
    """Data set whose private features and labels can be read only under a charge.

    Guarantee: no public attribute contains a record; `features` and `labels` expose metadata only.

    Args:
        name: Name in the plan and the privacy card.
        schema: Declared schema.
        features: Numbers, (n, *schema.shape), in the original units, or cells, (n, columns).
        labels: Labels or regression targets, (n,); both are sealed on construction.
        public: Whether the user declared the data public.
        official_test: Number of records at the end that are the official test set.
        cache: Private folder for outputs of expensive feature extractors; None: memory.
        assumed: Facts assumed public that may have been read from the records.
        workspace: Private folder for records that exceed memory; None: a temporary folder.
        notes: Public remarks on the source for the plan, such as skipped files.
        type_failures: Reasons why the dtypes of columns make every run fail.

    Raises:
        UsageError: Arrays that do not fit the schema.
    """

    name: str
    schema: AnySchema
    features: SealedArray | StoredArray | TableCells | LargeTable
    labels: SealedArray | StoredArray | ColumnCells | LargeColumn
    public: bool = False
    official_test: int = 0
    cache: Path | None = None
    assumed: tuple[str, ...] = ()
    workspace: Path | None = None
    notes: tuple[str, ...] = ()
    type_failures: tuple[str, ...] = ()
    _partitions: dict[str, Partition] = field(default_factory=dict, init=False, repr=False)
    _mapped_features: dict[str, tuple[np.ndarray, np.ndarray]] = field(
        default_factory=dict, init=False, repr=False
    )
    _packed: dict[str, Records] = field(default_factory=dict, init=False, repr=False)
    _files: dict[tuple[str, str, Path], Path] = field(default_factory=dict, init=False, repr=False)
    _disk: dict[bool, DiskRecords] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.features, self.labels = SealedArray(self.features), SealedArray(self.labels)
        self.schema.check_arrays(self.name, self.features, self.labels)
        if type(self.public) is not bool:
            raise UsageError(
                f"Data {self.name!r}: public is {self.public!r}: expected True or False."
            )
        if len(self.features) != len(self.labels):
            raise UsageError(
                f"Data {self.name!r}: x has {len(self.features)} records and y has "
                f"{len(self.labels)}: expected equal numbers."
            )

    @property
    def n(self) -> int:
        """Number of records, null records included: public."""
        return len(self.labels)

    def partition(self, split: Split, generator: np.random.Generator) -> None:
        """Assign every record position to one partition at random.

        Args:
            split: Sizes of the partitions.
            generator: Random generator of the assignment.

        Raises:
            UsageError: A split of another number of records.
        """
        if split.n != self.n:
            raise UsageError(f"The split has {split.n} records, but the data has {self.n}.")
        drawn = split.draw_positions(generator)
        self._clear_caches()
        self._partitions = {name: Partition(name, self, places) for name, places in drawn.items()}

    def adopt_schema(self, schema: AnySchema) -> None:
        """Set a completed schema and discard records encoded under the previous one."""
        self.schema = schema
        self._mapped_features.clear()
        self._clear_caches()

    def _clear_caches(self) -> None:
        for each in (self._packed, self._files, self._disk):
            each.clear()

    def all_records(self, front: FittedFrontEnd | None) -> Records:
        """Return all records, if the user declared the data public.

        Raises:
            UnchargedReadError: Private data.
        """
        _check_public(self)
        return self._records("", np.arange(self.n), front)

    def completed(self, complete: Callable[[AnySchema, Any, Any], AnySchema]) -> Dataset:
        """Return the data set with a schema that is completed from all its records.

        Only for a schema that the user assumes public: no theorem covers this read, and the privacy
        card lists it.

        Args:
            complete: Function (schema, features, labels) that returns the complete schema.
        """
        features, labels = (SealedArray(each)._array for each in (self.features, self.labels))
        return replace(self, schema=complete(self.schema, features, labels))

    def __getitem__(self, name: str) -> Partition:
        """Return a partition by name.

        Raises:
            KeyError: The data set has no such partition, or is not partitioned yet.
        """
        if name not in self._partitions:
            known = ", ".join(self._partitions) or "none: call `partition` first"
            raise KeyError(f"{name!r} is no partition of data {self.name!r}; it has {known}.")
        return self._partitions[name]

    def __iter__(self) -> Iterator[Partition]:
        return iter(self._partitions.values())

    def fingerprint(self) -> str:
        """Return a hash of all values, which a run stores in `private/` only.

        It must not be released, because it shows whether two data sets are equal.
        """
        arrays = [SealedArray(each) for each in (self.features, self.labels)]
        digest = hashlib.sha256(repr([(each.shape, each.dtype.str) for each in arrays]).encode())
        for sealed in arrays:
            if stays_on_disk(each := sealed._held) and not isinstance(each, LargeTable):
                for block in iterate_blocks(each):
                    digest.update(np.ascontiguousarray(block).data)
                continue
            each = sealed._array
            if isinstance(each, AnyTable):
                each.update_digest(digest)
            elif each.dtype.kind == "O":
                for cell in each.ravel():
                    try:
                        text = repr(cell)
                    except Exception:  # noqa: BLE001 - any exception would reveal the cell
                        # Decimal digits of very long integers are refused.
                        text = hex(cell) if isinstance(cell, int) else type(cell).__name__
                    digest.update(text.encode("utf-8", "surrogatepass") + b"\0")
            else:
                digest.update(np.ascontiguousarray(each).data)
        return digest.hexdigest()

    def _encode_features(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return features in [0, 1], float32, (records, *shape), and a mask of usable records."""
        features = SealedArray(self.features)._array
        x = np.zeros((len(indices), *self.schema.shape), np.float32)
        usable = np.ones(len(indices), bool)
        for start in range(0, len(indices), ENCODING_BLOCK_RECORDS):
            part = slice(start, start + ENCODING_BLOCK_RECORDS)
            usable[part] = self.schema.encode(features[indices[part]], out=x[part])
        x[~usable] = 0.0
        return x, usable

    def _apply_front_end(
        self, front: FittedFrontEnd | None, indices: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return features after a feature extractor, float32, and whether each record is usable."""
        if front is None or isinstance(front.front_end, Raw):
            return self._encode_features(indices)
        x, usable = self._map_all_records(front)
        return x[indices], usable[indices]

    def _map_all_records(self, front: FittedFrontEnd) -> tuple[np.ndarray, np.ndarray]:
        """Return the features of all records after a feature extractor; they are computed once."""
        digest = front.digest
        if digest not in self._mapped_features:
            before = partial(self._apply_front_end, front.first_stage)
            self._mapped_features[digest] = transform_records(self, front, before)
        return self._mapped_features[digest]

    def _records(self, name: str, indices: np.ndarray, front: FittedFrontEnd | None) -> Records:
        """Read records without a check of the charge; partition name "" means all records."""
        import torch

        if (disk := self._get_disk_records(name)) is not None:
            x, (y, valid) = disk.rows(name, front), disk.read_labels(name)
            return Records(
                x=cast(Any, x), y=torch.from_numpy(y), valid=torch.from_numpy(valid),
                public=self.public,
            )  # fmt: skip
        is_raw = front is None or isinstance(front.front_end, Raw)
        is_many = len(indices) * math.prod(self.schema.shape) > rows.MAX_TENSOR_NUMBERS
        if name and is_raw and is_many and isinstance(self.schema, TableSchema):
            if name not in self._packed:
                y, valid = self.schema.encode_labels(SealedArray(self.labels)._array[indices])
                features = SealedArray(self.features)._array
                kept = pack_table(self.schema, lambda part: features[indices[part]], valid)
                y[~valid] = 0
                self._packed[name] = Records(
                    x=cast(Any, CompactRows.of(self.schema, kept)), y=torch.from_numpy(y),
                    valid=torch.from_numpy(valid), public=self.public,
                )  # fmt: skip
            return self._packed[name]
        y, labelled = self.schema.encode_labels(SealedArray(self.labels)._array[indices])
        # Partitions share one large file of extracted features; public metadata decides.
        shape = () if front is None else front.front_end.output_shape(self.schema.shape)
        is_many = len(indices) * math.prod(shape) > rows.MAX_TENSOR_NUMBERS
        is_cached = self.cache is not None and front is not None and front.front_end.costly
        if name and front is not None and is_cached and is_many:
            kept, usable = self._map_all_records(front)
            valid = usable[indices] & labelled
            x: Any = select_rows(kept, indices, valid)
        else:
            x, usable = self._apply_front_end(front, indices)
            x = torch.from_numpy(x)
            valid = usable & labelled
            x[torch.from_numpy(~valid)] = 0.0
        y[~valid] = 0
        return Records(
            x=x, y=torch.from_numpy(y), valid=torch.from_numpy(valid), public=self.public
        )

    def _get_disk_records(self, name: str) -> DiskRecords | None:
        """Return the records on disk; None if records of this data set are held in memory."""
        if not stays_on_disk(features := SealedArray(self.features)._held):
            return None
        labels = SealedArray(self.labels)._array
        key = bool(name)
        if key not in self._disk:
            parts = {each.name: each._slots for each in self} if name else {}
            self._disk[key] = DiskRecords(
                schema=self.schema, features=features, labels=labels, slots=parts,
                folder=self.workspace,
            )  # fmt: skip
        return self._disk[key]

    def check_disk_space(self, *fronts: FrontEnd, max_categories: int) -> None:
        """Raise UsageError if the disk space is insufficient for records that exceed memory.

        Args:
            fronts: All feature extractors that may be applied.
            max_categories: Maximum number of estimated categories per column, 2 or more.

        Raises:
            UsageError: Less space than the maximum need, which follows from n and the schema.
        """
        if stays_on_disk(features := SealedArray(self.features)._held):
            folder = self.workspace
            check_disk_space(self.name, features, self.schema, fronts, folder, max_categories)
