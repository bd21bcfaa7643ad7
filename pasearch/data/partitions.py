"""Slots, partitions, and the only door to a private record.

The n slots of a data set are fixed before a value is looked at. A permutation that sees no value
puts each slot into exactly one partition, so that the price of a run is the *maximum* over its
partitions. A private partition opens only under a ledger's receipt:

    with ledger.charged("search", dataset["train"], key="search") as records: ...

A value that cannot be used (not finite, a label outside the declared classes) makes its slot the
null record: features 0, and a mask that gives it gradient 0, loss 0 and score 0.

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
from pasearch.data.disk import DiskRecords, check_disk_space, is_large, iterate_blocks, save_rows
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
    from torch import Tensor

ENCODING_BLOCK_RECORDS = 4096
"""How many records are rescaled at a time: it bounds the memory that float64 takes."""


class UnchargedReadError(RuntimeError):
    """A private record was asked for without a charge: a bug in the program, never the user's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Records:
    """The records of one open partition, ready for a network.

    Args:
        x: Features, float32, (slots, *shape), clamped to the bounds and scaled to [0, 1], then
            behind the front end, if one was asked for. Of records that are too many for one
            tensor, `data.rows.Rows`: their form alone decides.
        y: Classes, int64, (slots,), or numbers to predict, float32, in [0, 1]; 0 where the slot is
            null.
        valid: bool, (slots,); False marks a null record.
        public: Whether the user declared the data public.
    """

    x: torch.Tensor = field(repr=False)
    y: torch.Tensor = field(repr=False)
    valid: torch.Tensor = field(repr=False)
    public: bool

    def __len__(self) -> int:
        """Return the number of slots, null ones included: public."""
        return len(self.y)

    def take(self, places: np.ndarray) -> Records:
        """Return some of the records, by their places here."""
        import torch

        at = torch.from_numpy(places)
        return replace(self, x=self.x[at], y=self.y[at], valid=self.valid[at])

    def parts(self) -> Iterator[Records]:
        """Iterate over parts, in order: of `Rows`, blocks of a size that their form decides."""
        if not isinstance(self.x, Rows):
            yield self
            return
        for start in range(0, len(self), self.x.block):
            part = slice(start, start + self.x.block)
            yield replace(self, x=self.x[part], y=self.y[part], valid=self.valid[part])

    def write(self, folder: Path) -> None:
        """Write them to an empty folder, which `mapped` reads; `Rows` a block at a time."""
        for name in ("x", "y", "valid"):
            values, path = getattr(self, name), folder / f"{name}.npy"
            save_rows(path, values) if isinstance(values, Rows) else np.save(path, values.numpy())

    @classmethod
    def mapped(cls, folder: Path, *, public: bool) -> Records:
        """Return records that were written: their pages are shared, and never written back."""
        import torch

        own = {
            name: torch.from_numpy(np.load(folder / f"{name}.npy", mmap_mode="c"))
            for name in ("x", "y", "valid")
        }
        return cls(**own, public=public)


class Sealed:
    """An array whose form may be seen by anyone, and whose values only by an open partition."""

    __slots__ = ("_held",)

    def __init__(
        self,
        array: np.ndarray
        | StoredArray
        | TextTable
        | TextColumn
        | LargeTable
        | LargeColumn
        | Sealed,
    ):
        self._held: Any = array._held if isinstance(array, Sealed) else array

    @property
    def _array(self) -> Any:
        """The values; of a large file, they are read now."""
        return self._held.read() if isinstance(self._held, StoredArray) else self._held

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape: public."""
        return self._held.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Its number type: public."""
        return self._held.dtype

    def __len__(self) -> int:
        """Return the length of the first axis: public."""
        return len(self._held)

    def __repr__(self) -> str:
        """Show the form, never a value."""
        return f"Sealed({self.dtype}, {self.shape})"


OpenedT = TypeVar("OpenedT")


class _PartitionView(ABC, Generic[OpenedT]):
    """A named part of the slots; a kind of it says what is shown once it is charged.

    Args:
        name: One of `PARTITIONS`, or a portion's.
        dataset: The data set it belongs to.
        slots: The slots' numbers, (size,).
        front: The front end through which its records are seen; None shows them raw.
    """

    __slots__ = ("_dataset", "_front", "_name", "_slots")

    def __init__(
        self, name: str, dataset: Dataset, slots: np.ndarray, front: FittedFrontEnd | None = None
    ):
        self._name, self._dataset, self._slots, self._front = name, dataset, slots, front

    @property
    def name(self) -> str:
        """The partition's name, fixed: what is charged is what is opened."""
        return self._name

    def __len__(self) -> int:
        """Return the number of slots: public."""
        return len(self._slots)

    def __repr__(self) -> str:
        """Show the form, never a value."""
        return f"{type(self).__name__}({self.name!r}, {len(self)} records)"

    @abstractmethod
    def _read_records(self) -> OpenedT: ...

    def open(self, receipt: Receipt) -> OpenedT:
        """Return the records.

        Guarantee: only while a ledger's charge for a partition of this name is open.

        Raises:
            UnchargedReadError: No charge, another partition's, or one that is closed.
        """
        issued = isinstance(receipt, Receipt) and receipt.partition == self.name
        if not (issued and receipt.active is True):
            raise UnchargedReadError(
                f"Partition {self.name!r} was read without an open charge for it: "
                "wrap the read in `with ledger.charged(...)`."
            )
        return self._read_records()

    def public_records(self) -> OpenedT:
        """Return the records without a charge; only of data that the user declared public.

        Raises:
            UnchargedReadError: Private data.
        """
        _check_public(self._dataset)
        return self._read_records()


class Partition(_PartitionView[Records]):
    """One part of the slots, ready for a network. Its size is public, its records are not."""

    __slots__ = ()

    def _read_records(self) -> Records:
        return self._dataset._records(self._name, self._slots, self._front)

    def with_front_end(self, front: FittedFrontEnd | None) -> Partition:
        """Return the same partition, whose records are seen through a front end."""
        return Partition(self._name, self._dataset, self._slots, front)

    def with_files(self, folder: Path) -> PartitionFiles:
        """Return the same partition, whose records are written to a private folder, once."""
        return PartitionFiles(self, folder)

    def cells(self) -> PartitionCells:
        """Return the same partition, whose records are opened as they are: to estimate a schema."""
        return PartitionCells(self._name, self._dataset, self._slots)

    def labels(self) -> PartitionLabels:
        """Return the same partition, of which only the labels are opened, as they are."""
        return PartitionLabels(self._name, self._dataset, self._slots)


class PartitionFiles(_PartitionView[Path]):
    """One part of the slots as a folder of files, which other processes map into their memory.

    The files are as private as the records, and lie where whoever asks for them says.
    """

    __slots__ = ("_folder",)

    def __init__(self, part: Partition, folder: Path):
        super().__init__(part._name, part._dataset, part._slots, part._front)
        self._folder = folder

    def _read_records(self) -> Path:
        return self._dataset._write_files(self._name, self._slots, self._front, self._folder)


class PartitionCells(_PartitionView[tuple[TableCells, ColumnCells]]):
    """One part of the slots before a schema says what its values mean: features and labels."""

    __slots__ = ()

    def _read_records(self) -> tuple[TableCells, ColumnCells]:
        arrays = self._dataset.features, self._dataset.labels
        features, labels = (Sealed(each)._array[self._slots] for each in arrays)
        return features, labels


class PartitionLabels(_PartitionView[ColumnCells]):
    """One part of the slots, of which only the labels are read: to estimate the class list."""

    __slots__ = ()

    def _read_records(self) -> ColumnCells:
        return Sealed(self._dataset.labels)._array[self._slots]


def _cell_text(cell: object) -> str:
    """Return a cell as text: a whole number too long for decimal digits as hexadecimal ones."""
    try:
        return repr(cell)
    except Exception:  # noqa: BLE001 - whatever a cell raises would tell of it
        return hex(cell) if isinstance(cell, int) else type(cell).__name__


def _check_public(dataset: Dataset) -> None:
    """Refuse to show records of private data without a charge."""
    if dataset.public is not True:
        raise UnchargedReadError(f"Data {dataset.name!r} is private: open a charged partition.")


@dataclass(slots=True, kw_only=True, eq=False)
class Dataset:
    """Features and classes behind a door that opens only under a charge.

    Guarantee: no public attribute shows a record; `features` and `labels` keep their form only.

    Args:
        name: What the plan and the card call it.
        schema: The declared form.
        features: Numbers, (n, *schema.shape), in the data's own units, or a table's cells,
            (n, columns); sealed when taken.
        labels: What is to be predicted, (n,); sealed when taken.
        public: True when the user declared the data public.
        official_test: How many of the last records are the data set's own test set.
        cache: A private folder for what costly front ends make; None keeps it in memory.
        assumed: What its form takes as public, and may have been read from the records.
        workspace: A private folder for records that memory does not hold; None: where temporary
            files are.
        notes: What the plan says of the source, such as files that were skipped: public.
        type_failures: Reasons why the type of the target's column makes every run fail.

    Raises:
        UsageError: Arrays whose form does not fit the schema.
    """

    name: str
    schema: AnySchema
    features: Sealed | StoredArray | TableCells | LargeTable
    labels: Sealed | StoredArray | ColumnCells | LargeColumn
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
        self.features, self.labels = Sealed(self.features), Sealed(self.labels)
        self.schema.check_arrays(self.name, self.features, self.labels)
        if type(self.public) is not bool:
            raise UsageError(
                f"Data {self.name!r}: public is {self.public!r}: expected True or False."
            )
        if len(self.features) != len(self.labels):
            raise UsageError(
                f"Data {self.name!r}: x has {len(self.features)} records and y has "
                f"{len(self.labels)}: expected as many of one as of the other."
            )

    @property
    def n(self) -> int:
        """The number of slots: public."""
        return len(self.labels)

    def partition(self, split: Split, generator: np.random.Generator) -> None:
        """Put every slot into one partition.

        Raises:
            UsageError: The split is of another number of slots.
        """
        if split.n != self.n:
            raise UsageError(f"The split is of {split.n} records, the data has {self.n}.")
        slots = split.draw_positions(generator)
        self._clear_caches()
        self._partitions = {name: Partition(name, self, places) for name, places in slots.items()}

    def adopt_schema(self, schema: AnySchema) -> None:
        """Take a completed schema; what was made of the records under another one is forgotten."""
        self.schema = schema
        self._mapped_features.clear()
        self._clear_caches()

    def _clear_caches(self) -> None:
        """Forget what was made of the partitions' records."""
        for each in (self._packed, self._files, self._disk):
            each.clear()

    def all_records(self, front: FittedFrontEnd | None) -> Records:
        """Return every record; only of data that the user declared public.

        Raises:
            UnchargedReadError: Private data.
        """
        _check_public(self)
        return self._records("", np.arange(self.n), front)

    def completed(self, complete: Callable[[AnySchema, Any, Any], AnySchema]) -> Dataset:
        """Return the data set with the schema that `complete` reads from all its records.

        Only for what the user assumes public: no theorem covers it, and the card lists it.
        """
        features, labels = (Sealed(each)._array for each in (self.features, self.labels))
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
        """Return a hash of every value; it stays in `private/` (it tells equal data apart)."""
        arrays = [Sealed(each) for each in (self.features, self.labels)]
        digest = hashlib.sha256(repr([(each.shape, each.dtype.str) for each in arrays]).encode())
        for sealed in arrays:
            if is_large(each := sealed._held) and not isinstance(each, LargeTable):
                for block in iterate_blocks(each):
                    digest.update(np.ascontiguousarray(block).data)
                continue
            each = sealed._array
            if isinstance(each, TextTable | TextColumn | LargeTable | LargeColumn):
                each.feed(digest)
            elif each.dtype.kind == "O":
                for cell in each.ravel():
                    digest.update(_cell_text(cell).encode("utf-8", "surrogatepass") + b"\0")
            else:
                digest.update(np.ascontiguousarray(each).data)
        return digest.hexdigest()

    def _encode_once(self, slots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return features, float32 (slots, *shape), in [0, 1], and which records are usable."""
        features = Sealed(self.features)._array
        x = np.zeros((len(slots), *self.schema.shape), np.float32)
        usable = np.ones(len(slots), bool)
        for part in _iterate_slices(len(slots)):
            usable[part] = self.schema.encode(features[slots[part]], out=x[part])
        x[~usable] = 0.0
        return x, usable

    def _features(
        self, slots: np.ndarray, front: FittedFrontEnd | None
    ) -> tuple[Tensor, np.ndarray]:
        """Return what a network is given, and which records are usable."""
        import torch

        x, usable = self._apply_front_end(front, slots)
        return torch.from_numpy(x), usable

    def _apply_front_end(
        self, front: FittedFrontEnd | None, slots: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return records behind a front end, float32, and which are usable."""
        if front is None or isinstance(front.front_end, Raw):
            return self._encode_once(slots)
        x, usable = self._map_all_records(front)
        return x[slots], usable[slots]

    def _map_all_records(self, front: FittedFrontEnd) -> tuple[np.ndarray, np.ndarray]:
        """Return every record behind a front end, and which are usable: mapped once."""
        digest = front.digest
        if digest not in self._mapped_features:
            self._mapped_features[digest] = transform_records(
                self, front, partial(self._apply_front_end, front.first_stage)
            )
        return self._mapped_features[digest]

    def _records(self, name: str, slots: np.ndarray, front: FittedFrontEnd | None) -> Records:
        import torch

        if (disk := self._on_disk(name)) is not None:
            x, (y, valid) = disk.rows(name, front), disk.read_labels(name)
            return Records(
                x=cast(Any, x), y=torch.from_numpy(y), valid=torch.from_numpy(valid),
                public=self.public,
            )  # fmt: skip
        is_raw = front is None or isinstance(front.front_end, Raw)
        is_many = len(slots) * math.prod(self.schema.shape) > rows.MAX_TENSOR_NUMBERS
        if name and is_raw and is_many and isinstance(self.schema, TableSchema):
            if name not in self._packed:
                self._packed[name] = self._pack_records(self.schema, slots)
            return self._packed[name]
        y, labelled = self.schema.encode_labels(Sealed(self.labels)._array[slots])
        if name and front is not None and self._shares(front, len(slots)):
            kept, usable = self._map_all_records(front)
            valid = usable[slots] & labelled
            x: Any = select_rows(kept, slots, valid)
        else:
            x, usable = self._features(slots, front)
            valid = usable & labelled
            x[torch.from_numpy(~valid)] = 0.0
        y[~valid] = 0
        return Records(
            x=x, y=torch.from_numpy(y), valid=torch.from_numpy(valid), public=self.public
        )

    def _pack_records(self, schema: TableSchema, slots: np.ndarray) -> Records:
        """Encode records of a table that are too many for one tensor."""
        import torch

        y, valid = schema.encode_labels(Sealed(self.labels)._array[slots])
        features = Sealed(self.features)._array
        kept = pack_table(schema, lambda part: features[slots[part]], valid)
        y[~valid] = 0
        return Records(
            x=cast(Any, CompactRows.of(schema, kept)), y=torch.from_numpy(y),
            valid=torch.from_numpy(valid), public=self.public,
        )  # fmt: skip

    def _shares(self, front: FittedFrontEnd, slots: int) -> bool:
        """Return whether partitions look at one file of what a front end made: by form alone."""
        shape = front.front_end.output_shape(self.schema.shape)
        kept = self.cache is not None and front.front_end.costly
        return kept and slots * math.prod(shape) > rows.MAX_TENSOR_NUMBERS

    def _write_files(
        self, name: str, slots: np.ndarray, front: FittedFrontEnd | None, folder: Path
    ) -> Path:
        """Return the folder with a partition's records: written the first time it is asked for."""
        key = name, "" if front is None else front.digest, folder
        if key not in self._files:
            own = Path(tempfile.mkdtemp(dir=folder))  # 0700
            self._records(name, slots, front).write(own)
            self._files[key] = own
        return self._files[key]

    def _on_disk(self, name: str) -> DiskRecords | None:
        """Return where the records of a partition, or of all, are kept; None: in memory."""
        if not is_large(features := Sealed(self.features)._held):
            return None
        labels = Sealed(self.labels)._array
        key = bool(name)
        if key not in self._disk:
            parts = {each.name: each._slots for each in self} if name else {}
            self._disk[key] = DiskRecords(
                schema=self.schema, features=features, labels=labels, slots=parts,
                folder=self.workspace,
            )  # fmt: skip
        return self._disk[key]

    def check_room(self, *fronts: FrontEnd, max_categories: int) -> None:
        """Refuse to begin where the disk has no room for what will be kept of the records.

        Args:
            fronts: All through which records may be seen.
            max_categories: Most categories estimated for a column, 2 or more.

        Raises:
            UsageError: It has less than the records will take, at most; a number from n and the
                schema alone.
        """
        if is_large(features := Sealed(self.features)._held):
            check_disk_space(
                self.name, features, self.schema, fronts, self.workspace, max_categories
            )


def _iterate_slices(length: int) -> Iterator[slice]:
    return (
        slice(start, start + ENCODING_BLOCK_RECORDS)
        for start in range(0, length, ENCODING_BLOCK_RECORDS)
    )
