"""Base class of data sources: each reads one kind of file or named data set.

    @SOURCES.register
    class JsonLines(Source):
        name, kind, suffixes = "jsonl", "a .jsonl", (".jsonl",)
        expected = "the path of a .jsonl file"
        uses = ("schema", "target")
        def load(self, data, declared): ...

Whether a source raises an error may depend only on its *metadata*: names, shapes, dtypes, and the
number of records. A record with unreadable values becomes the null record, at its position.

Source: docs/rules.md, rules 3 and 13. Guide to a new source: docs/extending.md.
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
from pasearch.data.tables import AnySchema, TableSchema, declare_text
from pasearch.errors import UsageError
from pasearch.registry import Registry, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class DataDeclaration:
    """Declarations about data in addition to its path; each source uses some of them.

    Args:
        public: Whether every record is public.
        bounds: Bounds (low, high) of the features of arrays.
        classes: Number of classes of arrays with labels 0, 1 ...; or all labels: a list, or a
            comma-separated string.
        regression: Whether a number is predicted, not a class.
        labels: All classes of a table's target, or all labels of arrays: a list, or a
            comma-separated string.
        target: Name of a table's column to predict; None: the last one.
        text: Name of a table's column that is read as a sequence of words; None: as in the schema.
        schema: Schema of a table: path of a schema file, dictionary with its keys, or schema.
        quotes: Whether quotation marks enclose the cells of a table.
        columns: Names of the columns of a table without a header: a list, a comma-separated string,
            or the path of a .txt file with one name per line.
        separator: Separator of the cells of a table; None: detected in the header.
        image_side: Side, in pixels, to which the images of a folder are scaled.
        grey: Whether images of a folder are converted to one channel.
        data_root: Folder of the built-in image data sets.
        download: Whether torchvision may download missing data sets.
    """

    public: bool = False
    bounds: tuple[float, float] | None = None
    classes: int | str | Sequence[Any] | None = None
    regression: bool = False
    labels: str | Sequence[Any] | None = None
    target: str | None = None
    text: str | None = None
    schema: Any = None
    quotes: bool = True
    columns: str | Path | Sequence[str] | None = None
    separator: str | None = None
    image_side: int | None = None
    grey: bool = False
    data_root: str | Path = "data"
    download: bool = False


class Source(Stage):
    """Base class of data sources: reads one kind of data, selected by its name or path."""

    kind: ClassVar[str]
    """Noun phrase for the kind of data, for error messages, such as "a Parquet file"."""
    expected: ClassVar[str]
    """Description of the accepted names or paths, for help and error messages."""
    uses: ClassVar[tuple[str, ...]] = ()
    """Names of the `DataDeclaration` fields that apply, in addition to `public`."""
    suffixes: ClassVar[tuple[str, ...]] = ()
    """Suffixes of the file names, in lower case."""
    is_path: ClassVar[bool] = True
    """Whether the data is a path, which a resumed run must resolve from any directory."""

    def describe(self) -> str:
        return self.kind

    def takes(self, data: str) -> bool:
        """Whether the source accepts a name or path; no file is opened."""
        return Path(data).suffix.lower() in self.suffixes

    @abstractmethod
    def load(self, data: str, declared: DataDeclaration) -> Dataset:
        """Load the data set, not yet partitioned.

        Guarantee: each record is read from its own part of the source, and the order does not
            depend on values. No value raises an error, is shown, or affects another record.

        Raises:
            UsageError: The source does not exist, or is malformed.
        """

    def new_records(self, data: str, schema: AnySchema) -> Any:
        """Load records for a trained model, as `encode_new` of its schema accepts them.

        A record that cannot be read has no value in any column, as in training.

        Args:
            data: Path of the new records.
            schema: Schema of the data that the model was trained on.

        Raises:
            UsageError: No such records, records of another kind, or a missing column.
        """
        raise UsageError(
            f"{data}: new records cannot be loaded from {self.kind}: expected a file of the type "
            "that the model was trained on: a table, a .npz, or images."
        )

    def record_names(self, data: str) -> list[str] | None:
        """Return the names of the new records, in order; None if they have none."""
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
    """Create the data set of a table.

    Args:
        schema: Schema, in the order of the columns.
        features: Cells, (rows, columns); all None in a null record.
        labels: Cells of the target, (rows,).
        declared: Declarations of the user.

    Raises:
        UsageError: A declared task or label that contradicts the schema.
    """
    target = declare_target(schema.target, regression=declared.regression, labels=declared.labels)
    schema = declare_text(replace(schema, target=target), declared.text)
    return Dataset(
        name=schema.name,
        schema=schema,
        features=features,
        labels=labels,
        public=declared.public,
        official_test=schema.official_test,
    )
