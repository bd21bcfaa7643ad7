"""Records that memory does not hold: encoded once, into files of a private folder.

The data are read once, a block at a time, by the code that reads any. What a row of a table becomes
is kept small (`data.compact`), the numbers of an array as they are; in the order of the partitions,
so a partition is a stretch of the file, and a pass over it reads that from front to back. Of what a
front end makes only that is kept which is costly to make; the rest is made for each batch again.

    in memory for each record      17 bytes: its place, its class, whether it is null; while the
                                   order is made, 36
    on the disk for each record    what `bytes_of` says; while it is put in order, twice

Guarantee: a training from here sees the numbers that it would see from memory, to the bit; behind
a front end that multiplies matrices (`pca`), to rounding.

Source: docs/rules.md, rules 2, 3 and 4.
"""

from __future__ import annotations

import math
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pasearch.data import mapped
from pasearch.data.arrays import BLOCK, Stored
from pasearch.data.cells import present
from pasearch.data.compact import CompactRows, Room, compact_rows, row_type
from pasearch.data.front_ends import Fitted, FrontEnd, Raw
from pasearch.data.mapped import Field, Mapped, check_disk, write_ordered
from pasearch.data.parquet_files import LargeColumn, LargeTable
from pasearch.data.rows import PlacedRows, Rows
from pasearch.data.schema import Schema
from pasearch.data.tables import AnySchema, TableSchema
from pasearch.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

PREFIX = "records-"
"""How the names of the folders of records begin: what a killed run left is found by it."""

OPEN_COLUMN = 8
"""The most bytes that are kept of a number or category, before it is known which it is."""

Labels = tuple[np.ndarray, np.ndarray]
"""y, and which records are no null records."""

MANY = 2**28
"""From so many numbers on, 1 GiB of float32, the records of an array are kept on disk."""


def is_large(features: object) -> bool:
    """Return whether records are not taken into memory: by their form alone."""
    in_file = isinstance(features, Stored | np.memmap)
    return isinstance(features, LargeTable) or (in_file and math.prod(features.shape) >= MANY)


def bytes_of(schema: AnySchema, kept: np.dtype[Any], *fronts: FrontEnd) -> int:
    """Return how many bytes of disk a record takes, at most: public.

    Args:
        schema: Of the data.
        kept: The type of an array's numbers.
        fronts: Whose output is kept.
    """
    every = {each for front in fronts for each in (front, front.before) if each is not None}
    # Of what is moved nothing is kept, so it does not matter how wide a table turns out to be.
    shape = schema.shape if not schema.undeclared else schema.widest_shape(2)
    behind = sum(4 * kept_of(each, shape) for each in every if not isinstance(each, Raw))
    if not isinstance(schema, TableSchema):
        return kept.itemsize * math.prod(schema.shape) + behind
    declared = tuple(column for column in schema.columns if column.declared)
    pieces = tuple(piece for column in declared for piece in column.pieces)
    found = row_type(pieces).itemsize + OPEN_COLUMN * (len(schema.columns) - len(declared))
    return found + behind


def kept_of(front: FrontEnd, shape: tuple[int, ...]) -> int:
    """Return how many numbers are kept of what a front end makes of a record: all it does not move.

    Args:
        front: Not `raw`.
        shape: Of a record.
    """
    first = shape if front.before is None else front.before.output_shape(shape)
    return math.prod(front.output_shape(shape)) - front.moves * math.prod(first)


def check_room(
    name: str, features: Any, schema: AnySchema, fronts: tuple[FrontEnd, ...], folder: Path | None
) -> None:
    """Refuse to begin where a disk has no room for records.

    Args:
        name: Of the data set.
        features: Of its records.
        schema: Of the data.
        fronts: Through which they may be seen.
        folder: As of `OnDisk`.

    Raises:
        UsageError: It has not; or something of an array is not declared.
    """
    if isinstance(schema, Schema) and schema.undeclared:
        raise UsageError(
            f"Data {name!r} are too large for memory, so their {' and '.join(schema.undeclared)} "
            "cannot be estimated privately: declare `bounds=` and `classes=`, or of numbers that "
            "are predicted the target's bounds."
        )
    raw = bytes_of(schema, features.dtype)
    needed = len(features) * max(2 * raw, bytes_of(schema, features.dtype, *fronts))
    check_disk(
        Path(tempfile.gettempdir()) if folder is None else folder, needed + mapped.HEAP,
        f"Data {name!r}: {len(features):,} records are encoded into files, which",
        "free some, or let the run be in another folder (`out=`)",
    )  # fmt: skip


class _Folder:
    """A folder that nobody else can enter; it is deleted with this object.

    Args:
        where: Where it is made; None: where temporary files are.
    """

    def __init__(self, where: Path | None):
        if where is not None:
            where.mkdir(mode=0o700, parents=True, exist_ok=True)
            for left in where.glob(f"{PREFIX}*"):  # of a run that was killed
                if left.name not in _OWN:
                    shutil.rmtree(left, ignore_errors=True)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=where))
        _OWN.add(self.path.name)
        weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


_OWN: set[str] = set()
"""The folders of this process, by their names, which are random: those of no other are spared."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class OnDisk:
    """The records of a data set, in files of a folder that is deleted with this object.

    Args:
        schema: Complete.
        features: Cells of a table, or numbers.
        labels: What is predicted.
        slots: Of each partition; without any, all slots are one, "".
        folder: Where the folder is made, private; None: where temporary files are.
    """

    schema: AnySchema
    features: LargeTable | Stored | np.ndarray
    labels: LargeColumn | np.ndarray
    slots: Mapping[str, np.ndarray]
    folder: Path | None
    _own: _Folder = field(init=False)
    _file: Mapped | None = field(default=None, init=False)
    _labels: Labels = field(init=False)
    _made: dict[tuple[str, str], Mapped] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._own = _Folder(self.folder)

    def rows(self, name: str, front: Fitted | None) -> Rows:
        """Return the features of a partition, behind a front end."""
        start, count = self._span(name)
        if front is None or isinstance(front.front_end, Raw):
            file = self._encoded().part(start, count)
            if isinstance(self.schema, TableSchema):
                return compact_rows(self.schema.pieces, count, lambda f: Field(file, f), file)
            return ArrayRows(schema=self.schema, file=file, valid=self.labelled(name)[1])
        base, last = self.rows(name, front.before), front.last
        many, key = kept_of(front.front_end, self.schema.shape), (name, front.digest)
        if many and key not in self._made:
            self._made[key] = self._kept_apart(base, front, many)
        shift = scale = None
        if front.front_end.moves:
            shift, scale = (getattr(last, each).numpy() for each in ("shift", "scale"))
            if isinstance(base, CompactRows):  # it does that by itself, quicker
                base, shift, scale = base.moved(shift, scale), None, None
        return BehindRows(
            form=(count, *front.front_end.output_shape(self.schema.shape)),
            base=base if front.front_end.moves else None, made=self._made.get(key), shift=shift,
            scale=scale, valid=self.labelled(name)[1],
        )  # fmt: skip

    def labelled(self, name: str) -> Labels:
        """Return y of a partition, 0 in null records, and which records are none."""
        self._encoded()
        start, count = self._span(name)
        y, valid = self._labels
        return y[start : start + count], valid[start : start + count]

    def _span(self, name: str) -> tuple[int, int]:
        start = 0
        for each, slots in self.slots.items():
            if each == name:
                return start, len(slots)
            start += len(slots)
        assert not name
        return 0, len(self.features)

    def _encoded(self) -> Mapped:
        """Return the file of all records: it is written the first time it is asked for."""
        if self._file is None:
            n, order = len(self.features), self._order()
            y = np.empty(n, np.float32 if self.schema.regression else np.int64)
            valid = np.empty(n, bool)
            blocks = (self._rows if isinstance(self.schema, TableSchema) else self._numbers)(
                y, valid
            )
            self._file = self._written("encoded", blocks, order)
            self._labels = (y, valid) if order is None else (y[order], valid[order])
        return self._file

    def _order(self) -> np.ndarray | None:
        """Return all slots, those of the partitions first; None: as they are."""
        if not self.slots:
            return None
        known = np.concatenate([*self.slots.values()])
        if len(known) == len(self.features):
            return known
        rest = np.ones(len(self.features), bool)
        rest[known] = False
        return np.concatenate([known, np.flatnonzero(rest)])

    def _numbers(self, y: np.ndarray, valid: np.ndarray) -> Iterator[np.ndarray]:
        """Go through the records of an array, by slot; y and valid are written to."""
        assert isinstance(self.schema, Schema)
        assert isinstance(self.labels, np.ndarray)
        start = 0
        for block in numbers_of(self.features):
            part = slice(start, start + len(block))
            start = part.stop
            own, there = self.schema.encode_labels(self.labels[part])
            there &= self.schema.encode(block, out=np.empty(block.shape, np.float32))
            y[part], valid[part] = np.where(there, own, 0), there
            kept = np.empty(len(block), [("x", block.dtype, block.shape[1:])])
            kept["x"] = block
            yield kept

    def _rows(self, y: np.ndarray, valid: np.ndarray) -> Iterator[np.ndarray]:
        """Go through what is kept of the rows of a table, by slot; y and valid are written to."""
        assert isinstance(self.schema, TableSchema)
        assert isinstance(self.features, LargeTable)
        start, pieces = 0, self.schema.pieces
        for cells, labels in self.features.blocks(self.schema.target.name):
            part = slice(start, start + len(labels))
            own, there = self.schema.encode_labels(labels)
            there &= present(cells)
            y[part], valid[part] = np.where(there, own, 0), there
            room, whole = Room(pieces, len(labels)), slice(0, len(labels))
            encoded = (
                each
                for place, column in enumerate(self.schema.columns)
                for each in column.encoded(cells[:, place])
            )
            for place, each in enumerate(encoded):
                room.put(place, whole, each, there)
            yield room.kept
            start = part.stop

    def _kept_apart(self, base: Rows, front: Fitted, many: int) -> Mapped:
        """Write what is kept of what a front end makes, so many numbers a record."""
        from pasearch.data.mapping import AT_ONCE, copied, piece_of, through

        rows = AT_ONCE * piece_of(self.schema.shape)

        def blocks() -> Iterator[np.ndarray]:
            there = copied(front.last, front.place)
            make: Callable[[Tensor], Tensor] = getattr(there, "products", there)
            for start in range(0, len(base), rows):
                made = through(make, base[start : start + rows], front.place)
                flat = np.ascontiguousarray(made.reshape(len(made), -1))
                yield flat.view([("made", np.float32, (many,))])[:, 0]

        return self._written(f"made-{len(self._made)}", blocks(), None)

    def _written(self, name: str, blocks: Iterator[np.ndarray], order: np.ndarray | None) -> Mapped:
        return replace(write_ordered(self._own.path / name, blocks, order), owner=self._own)


def numbers_of(features: Any) -> Iterator[np.ndarray]:
    """Go through the records of an array, some at a time."""
    if isinstance(features, Stored):
        yield from features.blocks()
        return
    step = max(1, BLOCK // max(1, features[:1].nbytes))
    for start in range(0, len(features), step):
        yield np.array(features[start : start + step])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ArrayRows(PlacedRows):
    """Records of an array, clamped and scaled where they are asked for.

    Args:
        schema: Complete.
        file: Their numbers, in the data's own units.
        valid: (records,) False marks a null record, which is 0.
    """

    schema: Schema
    file: Mapped
    valid: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self.file), *self.schema.shape

    def write(self, rows: slice | np.ndarray, out: np.ndarray) -> None:
        self.schema.encode(self.file.rows["x"][rows], out=out)
        out[~self.valid[rows]] = 0.0

    def let_go(self) -> None:
        self.file.let_go()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BehindRows(PlacedRows):
    """Records behind a front end.

    Args:
        form: How many records, and the shape of one.
        base: The features that are only moved; None: there are none.
        made: What is kept of the others, which follow them; None: there are none.
        shift: What is taken from the features of the base; None: they are moved already.
        scale: What they are multiplied by then.
        valid: (records,) False marks a null record, which is 0.
    """

    form: tuple[int, ...]
    base: Rows | None
    made: Mapped | None
    shift: np.ndarray | None
    scale: np.ndarray | None
    valid: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        return self.form

    def write(self, rows: slice | np.ndarray, out: np.ndarray) -> None:
        main = 0
        if self.base is not None:
            # Where something is kept beside them, they are features in a row.
            main = math.prod(self.base.shape[1:])
            features = out if self.made is None else out[:, :main]
            self.base.write(rows, features)
            if self.shift is not None:
                features -= self.shift
                features *= self.scale
        if self.made is not None:
            out.reshape(len(out), -1)[:, main:] = self.made.rows["made"][rows]
        out[~self.valid[rows]] = 0.0

    def let_go(self) -> None:
        for each in (self.base, self.made):
            if each is not None:
                each.let_go()
