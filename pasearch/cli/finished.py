"""Commands for a finished run: `verify`, `report`, `predict`, `export`, `key` and `sign`."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pasearch.cli.app import Imports, Json, Run, app
from pasearch.cli.options import wrap_lines
from pasearch.cli.paths import check_new_file
from pasearch.errors import UsageError
from pasearch.terminal_escaping import escape_lines, escape_text, format_epsilon

if TYPE_CHECKING:
    import numpy as np

    from pasearch.data.cells import TableCells
    from pasearch.data.column import Column
    from pasearch.data.tables import TableSchema
    from pasearch.results import Result


@app.command()
def verify(
    path: Run,
    public_key: Annotated[
        Path | None,
        typer.Option("--public-key", help="Public key of the signer; requires its signature."),
    ] = None,
    as_json: Json = False,
    imported: Imports = None,
) -> None:
    """Check a finished run: privacy cost, plan, result.json, card, report and model.

    A forger who creates all these files from other numbers passes, unless the result is signed and
    you give the signer's public key.
    """
    from pasearch.results import find_release
    from pasearch.verification.signing import describe_signature
    from pasearch.verification.verify import verify as check_all

    price, problems = check_all(path, public_key)
    if as_json:
        typer.echo(
            json.dumps({"epsilon": price.epsilon, "delta": price.delta,
                        "accountant": price.accountant, "problems": problems}, indent=2)
        )  # fmt: skip
    elif not problems:
        message = (
            f"Verified: epsilon {format_epsilon(price.epsilon)} at delta {price.delta:g} "
            f"({price.accountant}), recomputed from all privacy events; result.json, card, report "
            "and model are consistent with it.\n"
        )
        typer.echo(
            wrap_lines(
                message + describe_signature(find_release(path), trusted=public_key is not None)
            )
        )
    if problems:
        raise UsageError(f"{path} failed verification:", *problems)


@app.command()
def key(path: Annotated[Path, typer.Argument(help="New file for the private key.")]) -> None:
    """Create a key pair for signing results: PATH (keep it secret) and PATH.pub."""
    from pasearch.verification.signing import create_key_pair

    public = create_key_pair(path)
    typer.echo(
        wrap_lines(
            f"Private key: {path} (keep it secret). Public key: {public} (give it to your readers)."
        )
    )


@app.command()
def sign(
    path: Run,
    key: Annotated[Path, typer.Option("--key", help="Your private key (ed25519, PEM).")],
    imported: Imports = None,
) -> None:
    """Verify a finished run and sign it: release/result.sig."""
    from pasearch.verification.signing import read_private_key
    from pasearch.verification.signing import sign as write
    from pasearch.verification.verify import verify as check_all

    signer = read_private_key(key)
    if problems := [each for each in check_all(path)[1] if not each.startswith("result.sig")]:
        raise UsageError(f"{path} failed verification, so it was not signed:", *problems)
    typer.echo(f"Signed: {write(path, signer)}")


Card = Annotated[
    bool, typer.Option("--verbose", help="Print the privacy card too: all accesses to the data.")
]


@app.command()
def report(
    path: Run, as_json: Json = False, verbose: Card = False, imported: Imports = None
) -> None:
    """Show the result of a finished run, its privacy cost and the path of its report."""
    from pasearch.cli.tasks import show_result
    from pasearch.results import find_release, load_result

    result = load_result(path)
    show_result(result, as_json=as_json, quiet=False)
    if as_json:
        return
    if verbose:
        typer.echo("\n" + wrap_lines(escape_lines(result.card)))
    typer.echo(f"Report: {find_release(path) / 'report.html'}")


@app.command()
def predict(
    path: Run,
    data: Annotated[
        Path,
        typer.Argument(
            help="New records: a table with the data's columns, a .npz with x, an image, or a "
            "folder of images."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="New .csv file. [default: print the predictions]")
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Add the probability of each class.")
    ] = False,
    imported: Imports = None,
) -> None:
    """Predict new records with a finished run's model; predictions are as private as records."""
    check_new_file(out, "out")
    from pasearch.data.sources import (
        count_header_rows,
        find_readable,
        list_record_names,
        load_new_records,
    )
    from pasearch.data.tables import TableSchema
    from pasearch.files import write_new_file
    from pasearch.report.score import describe_miscalibration
    from pasearch.results import FeatureResult, load_result

    result = load_result(path)
    records = load_new_records(str(data), result.schema)
    text = _format_csv(result, records, list_record_names(str(data)), probabilities=probabilities)
    if isinstance(result.schema, TableSchema):
        used = result.columns if isinstance(result, FeatureResult) else None
        for line in describe_unread_cells(
            result.schema, records, used, count_header_rows(data, result.schema)
        ):
            typer.echo(escape_text(line), err=True)
    elif lost := int((~find_readable(records)).sum()):
        typer.echo(
            f"Nothing is predicted for {lost:,} of {len(records):,} images, which cannot be read: "
            "they are damaged, too large, or of another format than their suffix.",
            err=True,
        )
    if probabilities and (warning := describe_miscalibration(result.document, result.schema)):
        typer.echo(wrap_lines(escape_lines(warning)), err=True)
    if out is None:
        typer.echo(text, nl=False)
        return
    write_new_file(out, text)
    typer.echo(f"Predictions: {escape_text(out)}. They are as private as the records.")


@app.command()
def export(
    path: Run,
    out: Annotated[Path, typer.Argument(help="New .onnx file.")],
    encoded: Annotated[
        bool,
        typer.Option(
            "--encoded", help="For a table: one input with the encoded row, not one per column."
        ),
    ] = False,
    imported: Imports = None,
) -> None:
    """Export a finished run's model to ONNX, for other programs.

    For arrays the input is x, records in the data's own units; for a table there is one input per
    column. This needs `pip install 'pasearch[onnx]'`. It has no privacy cost, because the model is
    already released.
    """
    check_new_file(out)
    from pasearch.results import load_result

    typer.echo(f"Model: {load_result(path).to_onnx(out, encoded=encoded)}")


def _format_csv(
    result: Result, records: Any, names: list[str] | None, *, probabilities: bool
) -> str:
    """Format predictions as CSV, with one line per record, empty for an unreadable record.

    Args:
        result: Result of the run.
        records: New records.
        names: Names of the records for the first column; None omits this column.
        probabilities: Whether to add a column for each class.
    """
    from pasearch.data.sources import find_readable

    header, columns = ["prediction"], [result.predict(records)]
    if probabilities:
        header += [f"probability of {name}" for name in result.classes_]
        columns += list(result.predict_proba(records).T)
    rows: list[list[Any]] = [[each.item() for each in row] for row in zip(*columns, strict=True)]
    empty, known = [""] * len(header), find_readable(records).tolist()
    rows = [row if is_known else empty for row, is_known in zip(rows, known, strict=True)]
    if names is not None:
        header = ["file", *header]
        rows = [[name, *row] for name, row in zip(names, rows, strict=True)]
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    return text.getvalue()


# --- warnings about new records
# A prediction does not stop at a wrong value: an unparseable cell is encoded as missing, and a
# number outside the bounds as the nearest bound. These warnings list such cells. A row that cannot
# be split into cells gets no prediction. Rows have the same numbers as in `pasearch check`.

MAX_LISTED_ROWS = 5  # maximum number of rows that one warning names


def describe_unread_cells(
    schema: TableSchema, cells: TableCells, used: Collection[str] | None = None, above: int = 0
) -> list[str]:
    """Describe the cells that the model could not interpret, in lines of text.

    Args:
        schema: Schema with which the model was trained.
        cells: New records, (rows, columns).
        used: Names of the columns that the model uses; None: all.
        above: Number of rows of the file before the first record: 1 for a header.

    Returns:
        A line on all records, then one line per column and reason; empty if all cells are known.
    """
    import numpy as np

    from pasearch.data.sources import find_readable

    def list_row_numbers(which: np.ndarray) -> str:
        """List the numbers of the first rows of a mask; the first row of the file has number 1."""
        places = np.flatnonzero(which) + 1 + above
        word = "row" if len(places) == 1 else "rows"
        more = len(places) - MAX_LISTED_ROWS
        return f"{word} {', '.join(f'{place:,}' for place in places[:MAX_LISTED_ROWS])}" + (
            f" and {more:,} more" if more > 0 else ""
        )

    known = find_readable(cells)
    concerned, lines = np.zeros(len(cells), bool), list[str]()
    for place, column in enumerate(schema.columns):
        if used is not None and column.name not in used:
            continue
        for which, why in _find_unread_cells(column, cells[:, place]):
            if (which := which & known).any():
                concerned |= which
                lines.append(f"  column {column.name!r}: {why} ({list_row_numbers(which)})")
    lost = [] if known.all() else [
        f"Nothing is predicted for {(~known).sum():,} of {len(cells):,} rows, which cannot be read "
        f"({list_row_numbers(~known)}): they have more or fewer cells than the header, an open "
        "quotation mark, or are not UTF-8. A row ends with its line, within quotation marks too."
    ]  # fmt: skip
    if not lines:
        return lost
    return [
        *lost,
        f"{concerned.sum():,} of {len(cells):,} rows have cells that the model did not "
        "understand, and were predicted as well as can be without them:",
        *lines,
    ]


def _find_unread_cells(column: Column, cells: Any) -> Iterator[tuple[np.ndarray, str]]:
    """Yield pairs (mask of cells, reason why they cannot be interpreted); masks are (rows,)."""
    import numpy as np

    from pasearch.data.cells import convert_to_numbers
    from pasearch.data.schema import require_known

    if column.kind == "category":
        codes, known = column.encode_categories(cells), len(column.categories or ())
        yield codes == known, "no known category"
        yield codes > known, "missing"
    elif column.kind in ("number", "date"):
        dated = column.kind == "date"
        values = (
            column.parse_days(cells) if dated else convert_to_numbers(cells, column.cell_format)
        )
        low, high = column.day_bounds if dated else require_known(column.bounds)
        known = np.isfinite(values)
        yield ~known, f"missing, or no {column.kind}"
        ends = (column.lower, column.upper) if dated else (f"{low:g}", f"{high:g}")
        why = f"beyond {ends[0]} to {ends[1]}, taken as the nearest"
        yield known & (np.clip(values, low, high) != values), why
