"""What a source of data is: one class in one file, which takes some of the names and paths.

    @SOURCES.register
    class JsonLines(Source):
        name, kind, suffixes = "jsonl", "a .jsonl", (".jsonl",)
        expected = "the path of a .jsonl file"
        uses = ("schema", "target")
        def load(self, data, declared): ...

Only the *form* of a source (names, shapes, number types, how many records) may raise an error;
values never do, and a record that cannot be read is the null record in its slot.

Source: docs/rules.md, rules 3 and 13. How to write one: docs/extending.md.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from pasearch.data.cells import ColumnCells, TableCells
from pasearch.data.parquet_files import LargeColumn, LargeTable
from pasearch.data.partitions import Dataset
from pasearch.data.schema_file import declare_target
from pasearch.data.tables import AnySchema, TableSchema
from pasearch.errors import UsageError
from pasearch.registry import Registry, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class DataDeclaration:
    """What the user says about data beside where it is; a source says of which it has a use.

    Args:
        public: Every record is public.
        bounds: (low, high) of the features of arrays.
        classes: Number of classes of arrays, whose labels are 0, 1 ...; or the labels: a list, or
            a text with commas between.
        regression: A number is to be predicted, not a class.
        labels: Classes of a table's target, as of `declare_target`, or all labels of arrays: a
            list, or a text with commas between.
        target: Name of a table's column to predict; None takes the last one.
        schema: Of a table, as of `load_schema`.
        quotes: False takes the quotation marks of a table as ordinary characters.
        columns: The names of the columns of a table without a header, as of `read_column_names`.
        separator: What stands between two cells of a table; None: its header tells.
        image_side: Pixels that the images of a folder are scaled to.
        grey: Images of a folder get one channel.
        data_root: Folder of the built-in sets of images.
        download: Let torchvision download what is missing.
    """

    public: bool = False
    bounds: tuple[float, float] | None = None
    classes: int | str | Sequence[Any] | None = None
    regression: bool = False
    labels: str | Sequence[Any] | None = None
    target: str | None = None
    schema: Any = None
    quotes: bool = True
    columns: str | Path | Sequence[str] | None = None
    separator: str | None = None
    image_side: int | None = None
    grey: bool = False
    data_root: str | Path = "data"
    download: bool = False


class Source(Stage):
    """A kind of data that a run can be given by a name or a path."""

    kind: ClassVar[str]
    """What it is, after "for": errors name it where a declaration is for other data."""
    expected: ClassVar[str]
    """What its names or paths are: help and errors list it."""
    uses: ClassVar[tuple[str, ...]] = ()
    """The fields of `DataDeclaration` that it has a use for, beside `public`."""
    suffixes: ClassVar[tuple[str, ...]] = ()
    """How the names of its files end, in lower case."""
    is_path: ClassVar[bool] = True
    """Whether what it takes is a path, which a resumed run finds from anywhere."""

    def describe(self) -> str:
        return self.kind

    def takes(self, data: str) -> bool:
        """Return whether it reads what is called so; no file is opened for that."""
        return Path(data).suffix.lower() in self.suffixes

    @abstractmethod
    def load(self, data: str, declared: DataDeclaration) -> Dataset:
        """Return the data set, not yet partitioned.

        Guarantee: each record is read from its own part of the source alone, in an order that does
        not depend on values; no value raises, is shown, or changes what is done with another.

        Raises:
            UsageError: The source is not there, or of bad form.
        """

    def new_records(self, data: str, schema: AnySchema) -> Any:
        """Return records for a trained model, as `encode_new` of its schema takes them.

        A record that cannot be read has no value in any column, as in training.

        Args:
            data: What it takes.
            schema: Of the data that the model was trained on.

        Raises:
            UsageError: No such records, records of another kind, or a column is not there.
        """
        raise UsageError(
            f"{data}: new records are not read from {self.kind}. Name a file of them, as the model "
            "was trained on: a table, a .npz, or images."
        )

    def record_names(self, data: str) -> list[str] | None:
        """Return what each of the new records is called, in their order; None if nothing is."""
        return None


SOURCES = Registry(
    "data source", Source, "pasearch.data.built_in", "pasearch.data.array_file",
    "pasearch.data.csv_file", "pasearch.data.parquet_file", "pasearch.data.image_folder",
)  # fmt: skip


def make_table_dataset(
    schema: TableSchema,
    features: TableCells | LargeTable,
    labels: ColumnCells | LargeColumn,
    declared: DataDeclaration,
) -> Dataset:
    """Return the data set of a table.

    Args:
        schema: In the order of the columns.
        features: (rows, columns); None everywhere in a null record.
        labels: (rows,).
        declared: What the user says.

    Raises:
        UsageError: As of `declare_target`.
    """
    target = declare_target(schema.target, regression=declared.regression, labels=declared.labels)
    schema = replace(schema, target=target)
    return Dataset(
        name=schema.name,
        schema=schema,
        features=features,
        labels=labels,
        public=declared.public,
        official_test=schema.official_test,
    )
