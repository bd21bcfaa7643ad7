"""Records that do not fit into memory: encoded once into memory-mapped files of a private folder.

The data are read once, in blocks. Rows of a table are packed (`data.rows`); arrays keep their type.
The records of a partition are stored next to each other, so a pass over it reads sequentially. Only
the expensive part of a feature extractor's output is stored; the rest is computed for each batch.

    memory per record      17 bytes: its position, its class, whether it is null; 36 while sorting
    disk per record        `compute_record_bytes`; twice while sorting

Pages that were read count as memory of this process until they are released. The pages that a
training reads reveal its batches, which are secret. Therefore the disk must be as trusted as the
memory.

Guarantee: a training on these records computes the same numbers as on records in memory, bit for
    bit. For a feature extractor that multiplies matrices (`pca`), they are equal up to rounding.

Source: docs/rules.md, rules 2, 3 and 4.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pasearch.data.arrays import BLOCK_BYTES, StoredArray
from pasearch.data.front_ends import FittedFrontEnd, FrontEnd, Raw
from pasearch.data.parquet_files import LargeColumn, LargeTable
from pasearch.data.rows import CompactRows, ComputedRows, Rows, make_packed_type, pack_table
from pasearch.data.schema import Schema
from pasearch.data.tables import AnySchema, TableSchema
from pasearch.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

# Prefix of the folders of records; leftover folders of an interrupted run are found by it.
FOLDER_PREFIX = "records-"
# Minimum size of an array that stays on disk, numbers: 1 GiB of float32.
MIN_DISK_NUMBERS = 2**28
# Size of a bucket of rows that is sorted in memory, bytes: 64 MiB.
BUCKET_BYTES = 2**26
# Maximum number of buckets: files that are written at the same time.
MAX_BUCKETS = 256

Labels = tuple[np.ndarray, np.ndarray]
"""Targets y, and a mask of the records that are not null."""


def stays_on_disk(features: object) -> bool:
    """Whether records stay on disk: it depends on the type and shape of `features` only."""
    in_file = isinstance(features, StoredArray | np.memmap)
    return isinstance(features, LargeTable) or (
        in_file and math.prod(features.shape) >= MIN_DISK_NUMBERS
    )


def compute_record_bytes(
    schema: AnySchema, kept: np.dtype[Any], *fronts: FrontEnd, max_categories: int
) -> int:
    """Compute the maximum disk space per record, bytes; it depends on public facts only.

    Args:
        schema: Schema of the data.
        kept: Element type of the features of array data.
        fronts: Feature extractors whose output is stored.
        max_categories: Maximum number of categories estimated for a column, 2 or more.
    """
    every = {each for front in fronts for each in (front, front.first_stage) if each is not None}
    shape = schema.shape if not schema.undeclared else schema.max_shape(max_categories)
    behind = sum(
        4 * count_stored_numbers(each, shape) for each in every if not isinstance(each, Raw)
    )
    if not isinstance(schema, TableSchema):
        return kept.itemsize * math.prod(schema.shape) + behind
    # An undeclared column may be a number.
    numbers = sum(
        1 if piece.kind is None else piece.number_features
        for column in schema.columns
        for piece in (column.pieces if column.is_declared else (column,))
    )
    return make_packed_type(math.prod(shape), numbers).itemsize + behind


def count_stored_numbers(front: FrontEnd, shape: tuple[int, ...]) -> int:
    """Return the number of values per record of a feature extractor's output that are stored.

    All are stored except shifted features, which are computed for each batch.

    Args:
        front: Feature extractor other than `raw`.
        shape: Shape of a record.
    """
    first = shape if front.first_stage is None else front.first_stage.output_shape(shape)
    return math.prod(front.output_shape(shape)) - front.shifts_features * math.prod(first)


def check_disk_space(
    name: str, features: Any, schema: AnySchema, fronts: tuple[FrontEnd, ...],
    folder: Path | None, max_categories: int,
) -> None:  # fmt: skip
    """Raise UsageError if the disk has no space for the records.

    Args:
        name: Name of the data set.
        features: Features of its records.
        schema: Schema of the data.
        fronts: Feature extractors that may be used.
        folder: Private folder of the files; None for the folder of temporary files.
        max_categories: Maximum number of categories estimated for a column, 2 or more.

    Raises:
        UsageError: The disk is too small, or the schema of an array is not fully declared.
    """
    if isinstance(schema, Schema) and schema.undeclared:
        raise UsageError(
            f"Data {name!r} do not fit into memory, so their {' and '.join(schema.undeclared)} "
            "cannot be estimated privately: declare `bounds=` and `classes=`, or the target's "
            "bounds for a regression."
        )
    raw, whole = (
        compute_record_bytes(schema, features.dtype, *each, max_categories=max_categories)
        for each in ((), fronts)
    )
    needed = len(features) * max(2 * raw, whole)
    check_free_bytes(
        Path(tempfile.gettempdir()) if folder is None else folder, needed + BUCKET_BYTES,
        f"Data {name!r}: {len(features):,} encoded records",
        "free some space, or choose another folder for the run (`out=`)",
    )  # fmt: skip


_OWN_FOLDERS: set[str] = set()
"""Random names of the folders that this process created; others are left over from other runs."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False, weakref_slot=True)
class DiskRecords:
    """Records of a data set in files of a new folder, which is deleted with this object.

    Args:
        schema: Complete schema.
        features: Cells of a table, or an array.
        labels: Labels or regression targets.
        slots: Record positions of each partition; if empty, all records are the partition "".
        folder: Private folder in which the new folder is created; None for the folder of temporary
            files.
    """

    schema: AnySchema
    features: LargeTable | StoredArray | np.ndarray
    labels: LargeColumn | np.ndarray
    slots: Mapping[str, np.ndarray]
    folder: Path | None
    _own: Path = field(init=False)
    _file: np.memmap | None = field(default=None, init=False)
    _labels: Labels = field(init=False)
    _made: dict[tuple[str, str], np.memmap] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.folder is not None:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for left in self.folder.glob(f"{FOLDER_PREFIX}*"):  # of an interrupted run
                if left.name not in _OWN_FOLDERS:
                    shutil.rmtree(left, ignore_errors=True)
        self._own = Path(tempfile.mkdtemp(prefix=FOLDER_PREFIX, dir=self.folder))  # 0700
        _OWN_FOLDERS.add(self._own.name)
        # Records that are still in use keep their mapping.
        weakref.finalize(self, shutil.rmtree, self._own, ignore_errors=True)

    def rows(self, name: str, front: FittedFrontEnd | None) -> Rows:
        """Return the features of a partition, after a feature extractor."""
        start, count = self._find_span(name)
        if front is None or isinstance(front.front_end, Raw):
            kept = self._encode_records()[start : start + count]
            if isinstance(self.schema, TableSchema):
                return CompactRows.of(self.schema, kept)
            return self._make_scaled_rows(kept, self.read_labels(name)[1])
        base, last = self.rows(name, front.first_stage), front.last_module
        many, key = count_stored_numbers(front.front_end, self.schema.shape), (name, front.digest)
        if many and key not in self._made:
            self._made[key] = self._store_output(base, front, many)
        shift = scale = None
        if front.front_end.shifts_features:
            shift, scale = (getattr(last, each).numpy() for each in ("shift", "scale"))
        made, valid = self._made.get(key), self.read_labels(name)[1]
        main = math.prod(base.shape[1:]) if shift is not None else 0

        def fill(rows: slice | np.ndarray, out: np.ndarray) -> None:
            if shift is not None:
                # Shifted features come first, stored ones after them.
                features = out if made is None else out[:, :main]
                base.write(rows, features)
                features -= shift
                features *= scale
            if made is not None:
                out.reshape(len(out), -1)[:, main:] = made["x"][rows]
            out[~valid[rows]] = 0.0

        return ComputedRows(
            form=(count, *front.front_end.output_shape(self.schema.shape)), fill=fill,
            mapped=base.mapped if made is None else (*base.mapped, made),
        )  # fmt: skip

    def _make_scaled_rows(self, kept: np.ndarray, valid: np.ndarray) -> ComputedRows:
        """Make rows that clamp and scale the numbers of a mapped array when they are read."""
        schema = self.schema
        assert isinstance(schema, Schema)

        def fill(rows: slice | np.ndarray, out: np.ndarray) -> None:
            schema.encode(np.asarray(kept["x"][rows]), out=out)
            out[~valid[rows]] = 0.0

        return ComputedRows(form=(len(kept), *schema.shape), fill=fill, mapped=(kept,))

    def read_labels(self, name: str) -> Labels:
        """Return the targets of a partition, 0 for null records, and a mask of other records."""
        self._encode_records()
        start, count = self._find_span(name)
        y, valid = self._labels
        return y[start : start + count], valid[start : start + count]

    def _find_span(self, name: str) -> tuple[int, int]:
        """Return the first index of a partition in the file, and its number of records."""
        start = 0
        for each, slots in self.slots.items():
            if each == name:
                return start, len(slots)
            start += len(slots)
        assert not name
        return 0, len(self.features)

    def _encode_records(self) -> np.memmap:
        """Write the file of encoded records and the labels on the first call; return the file."""
        if self._file is None:
            n, order = len(self.features), None
            if self.slots:  # records of the partitions come first, then unused ones
                order = np.concatenate([*self.slots.values()])
                if len(order) < n:
                    unused = np.ones(n, bool)
                    unused[order] = False
                    order = np.concatenate([order, np.flatnonzero(unused)])
            y = np.empty(n, np.float32 if self.schema.regression else np.int64)
            valid = np.empty(n, bool)
            is_table = isinstance(self.schema, TableSchema)
            blocks = (self._encode_table if is_table else self._encode_array)(y, valid)
            self._file = write_in_order(self._own / "encoded", blocks, order)
            self._labels = (y, valid) if order is None else (y[order], valid[order])
        return self._file

    def _encode_array(self, y: np.ndarray, valid: np.ndarray) -> Iterator[np.ndarray]:
        """Iterate over blocks of an array's records, and write their labels to y and valid."""
        assert isinstance(self.schema, Schema)
        assert isinstance(self.labels, np.ndarray)
        start = 0
        for block in iterate_blocks(self.features):
            part = slice(start, start + len(block))
            start = part.stop
            own, there = self.schema.encode_labels(self.labels[part])
            there &= self.schema.encode(block, out=np.empty(block.shape, np.float32))
            y[part], valid[part] = np.where(there, own, 0), there
            kept = np.empty(len(block), [("x", block.dtype, block.shape[1:])])
            kept["x"] = block
            yield kept

    def _encode_table(self, y: np.ndarray, valid: np.ndarray) -> Iterator[np.ndarray]:
        """Iterate over blocks of a table's packed rows, and write their labels to y and valid."""
        assert isinstance(self.schema, TableSchema)
        assert isinstance(self.features, LargeTable)
        start = 0
        for cells, labels in self.features.blocks(self.schema.target.name):
            part = slice(start, start + len(labels))
            start = part.stop
            own, there = self.schema.encode_labels(labels)
            kept = pack_table(self.schema, cells.__getitem__, there)
            y[part], valid[part] = np.where(there, own, 0), there
            yield kept

    def _store_output(self, base: Rows, front: FittedFrontEnd, many: int) -> np.memmap:
        """Write the stored part of a feature extractor's output, `many` numbers per record."""
        from pasearch.data.mapping import (
            PIECES_PER_CALL,
            choose_piece_size,
            copy_to_device,
            map_records,
        )

        rows = PIECES_PER_CALL * choose_piece_size(self.schema.shape)

        def blocks() -> Iterator[np.ndarray]:
            there = copy_to_device(front.last_module, front.used_device)
            make: Callable[[Tensor], Tensor] = getattr(there, "products", there)
            for start in range(0, len(base), rows):
                made = map_records(make, base[start : start + rows], front.used_device)
                flat = np.ascontiguousarray(made.reshape(len(made), -1))
                yield flat.view([("x", np.float32, (many,))])[:, 0]

        return write_in_order(self._own / f"made-{len(self._made)}", blocks(), None)


def iterate_blocks(features: Any) -> Iterator[np.ndarray]:
    """Iterate over the records of an array in blocks."""
    if isinstance(features, StoredArray):
        yield from features.blocks()
        return
    step = max(1, BLOCK_BYTES // max(1, features[:1].nbytes))
    for start in range(0, len(features), step):
        yield np.array(features[start : start + step])


def write_in_order(path: Path, blocks: Iterator[np.ndarray], order: np.ndarray | None) -> np.memmap:
    """Write rows to a file in a given order, and return the file memory-mapped.

    The file is divided into ranges. Each row is first written to the bucket of its range; then each
    bucket is sorted.

    Args:
        path: Path of a new file in a new folder, which temporarily contains the buckets too.
        blocks: Rows in the order of their positions, in blocks of one type; at least one block.
        order: Positions of the rows in the order of the file, (rows,), each once; None: the order
            of `blocks`.

    Cost: rows are written twice and read once, if they are sorted. Memory: a block, a bucket, and 8
        bytes per row.
    """
    first = next(blocks)
    blocks, dtype = chain([first], blocks), first.dtype
    if order is None:
        with path.open("xb") as file:
            path.chmod(0o600)
            for block in blocks:
                block.tofile(file)
        return np.memmap(path, dtype, mode="r")
    rows = len(order)
    stretch = max(1, BUCKET_BYTES // dtype.itemsize, -(-rows // MAX_BUCKETS))
    bucket_of = np.empty(rows, np.uint16)
    for bucket, start in enumerate(range(0, rows, stretch)):
        bucket_of[order[start : start + stretch]] = bucket
    buckets = [path.with_suffix(f".{bucket}") for bucket in range(-(-rows // stretch))]
    with ExitStack() as stack:
        files = [stack.enter_context(bucket.open("xb", buffering=0)) for bucket in buckets]
        start = 0
        for block in blocks:
            own = bucket_of[start : start + len(block)]
            start += len(block)
            by_bucket = np.argsort(own, kind="stable")
            ends = np.cumsum(np.bincount(own, minlength=len(buckets)))[:-1]
            for file, places in zip(files, np.split(by_bucket, ends), strict=True):
                if len(places):
                    block[places].tofile(file)
    with path.open("xb") as file:
        path.chmod(0o600)
        for bucket, start in zip(buckets, range(0, rows, stretch), strict=True):
            slots = order[start : start + stretch]
            found = np.fromfile(bucket, dtype)
            # A bucket has its rows in the order of their positions.
            ordered = np.empty_like(found)
            ordered[np.argsort(slots)] = found
            ordered.tofile(file)
            bucket.unlink()
    return np.memmap(path, dtype, mode="r")


def save_rows(path: Path, rows: Rows) -> None:
    """Write rows as a .npy file, in blocks.

    Raises:
        UsageError: The disk has no space for them.
    """
    check_free_bytes(path, 4 * math.prod(rows.shape), "Records for parallel trainings",
               "free some space, or train in one process (`executor='local'`)")  # fmt: skip
    step = max(1, BUCKET_BYTES // (4 * math.prod(rows.shape[1:])))
    with path.open("xb") as file:
        form = {"descr": "<f4", "fortran_order": False, "shape": rows.shape}
        np.lib.format.write_array_header_1_0(file, form)
        for start in range(0, len(rows), step):
            rows[start : start + step].numpy().tofile(file)


def check_free_bytes(folder: Path, needed: int, what: str, advice: str) -> None:
    """Raise UsageError if files would fill the disk.

    Args:
        folder: Folder of the files; it need not exist yet.
        needed: Number of bytes, computed from public numbers only.
        what: Description of the files, for the message.
        advice: Suggestion for the user, for the message.

    Raises:
        UsageError: The disk has fewer free bytes.
    """
    there = next(each for each in (folder, *folder.absolute().parents) if each.is_dir())
    free = shutil.disk_usage(there).free
    if needed > free:
        raise UsageError(
            f"{what} would take {needed / 1e9:,.1f} GB on the disk of {folder}, which has "
            f"{free / 1e9:,.1f} GB free: {advice}."
        )
