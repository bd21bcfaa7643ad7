"""Resolution of a request into the inputs of a plan: device, data set, public data, split.

Only metadata of private data are read here: names, shapes, data types, number of records.

Source: docs/rules.md, rules 1 and 13.
"""

from __future__ import annotations

import math
import os
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from pasearch.accounting import calibration
from pasearch.accounting.budget import Budget
from pasearch.accounting.events import Gaussian
from pasearch.api.request import Request
from pasearch.data.array_file import from_arrays
from pasearch.data.built_in import BUILT_IN_NAMES
from pasearch.data.estimation import find_undeclared_classes
from pasearch.data.partitions import Dataset
from pasearch.data.schema_file import declare_target
from pasearch.data.sources import DECLARATIONS, list_declarations, load_dataset
from pasearch.data.split import DEFAULT_FRACTIONS, Split, make_split
from pasearch.data.tables import AnySchema, TableSchema, declare_text, load_schema
from pasearch.errors import UsageError
from pasearch.planning import ESTIMATE_DELTA, ESTIMATE_SHARE, LEDGER_ESTIMATE_DELTA, PlanTerms


def choose_device(request: Request) -> str:
    """Return the device of the trainings: "cpu" or "cuda".

    Raises:
        UsageError: The request names "cuda", and there is no GPU.
    """
    if request.device == "cpu":
        return "cpu"
    # Importing torch is slow, so torch is asked only on machines that may have a GPU.
    places = ("/proc/driver/nvidia", "/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", "/dev/nvmap")
    if sys.platform not in ("linux", "darwin") or any(map(os.path.exists, places)):
        import torch

        if torch.cuda.is_available():
            return "cuda"
    if request.device == "cuda":
        raise UsageError(
            "Device 'cuda' was requested, but torch finds no CUDA GPU here: use `device='cpu'` or "
            "`device='auto'`."
        )
    return "cpu"


PROPOSED_SCHEMA = "the schema, which was read from the records"
"""Name of the public assumption for a schema that was read from the records and not edited."""


def _is_proposed(dataset: Dataset) -> bool:
    """Check whether the schema was read from private records and not edited afterwards."""
    return getattr(dataset.schema, "proposed", False) and not dataset.public


def resolve_dataset(data: Any, request: Request) -> Dataset:
    """Make the data set of a request; only metadata are read, no value.

    Args:
        data: Name, path, pandas frame, pair (x, y) of arrays, or a data set.
        request: Request with the user's declarations about the data.

    Raises:
        UsageError: Data of another type, or a schema that was read from private records and not
            edited afterwards.
    """
    if isinstance(data, Dataset):
        dataset = replace(data, public=data.public or request.data_is_public)
    elif isinstance(data, (str, Path)):
        dataset = load_declared(str(data), request, DECLARATIONS)
    elif isinstance(data, tuple) and len(data) == 2:
        dataset = from_arrays(*data, **_collect_declarations(request, DECLARATIONS))
    elif hasattr(data, "columns") and hasattr(data, "iloc"):
        dataset = make_dataset_from_frame(data, request)
    else:  # the message names the type only, because the value may contain records
        raise UsageError(
            f"data is a {type(data).__name__}: expected a name, a path, a pandas frame, or a pair "
            "(x, y) of arrays."
        )
    if _is_proposed(dataset) and not request.assume_public_schema:
        raise UsageError(
            "The schema says `proposed = true`: its bounds and categories were read from the "
            "records, so they are as private as these. Edit them into what is publicly known and "
            "delete that line; or let the card show them as assumed public "
            "(`assume_public_schema=True`)."
        )
    return dataset


def make_dataset_from_frame(frame: Any, request: Request) -> Dataset:
    """Convert a pandas frame to a data set; only names and types of columns are read.

    Types other than strings are listed as assumed public, because pandas may have inferred them
    from values (`data.frames`).
    """
    from pasearch.data.frames import (
        TYPES_DESCRIPTION,
        describe_undeclared_dates,
        extract_cells,
        find_target_failures,
        find_text_failures,
        get_column_names,
        infer_kind,
    )
    from pasearch.data.tables import make_undeclared_schema

    names = get_column_names(frame)
    declared = None if request.schema is None else load_schema(request.schema)
    for name, times in Counter(names).items():
        if times > 1:
            raise UsageError(f"The frame has {times} columns {name!r}: rename them.")
    for name, dtype in zip(names, frame.dtypes, strict=True):
        if getattr(dtype, "kind", "O") == "c":
            raise UsageError(
                f"The frame's column {name!r} is of type {dtype}: expected numbers or strings. "
                "Convert it to two columns, or leave it out."
            )
    if len(names) < 2:
        raise UsageError("The frame has fewer than two columns: expected features and a target.")
    if not len(frame):
        raise UsageError("The frame has no rows: expected at least one record.")
    schema = make_undeclared_schema(names, names[-1]) if declared is None else declared
    schema = schema.for_header(names, where="The frame", target=request.target)
    task = {"regression": request.regression, "labels": request.labels}
    schema = replace(schema, target=declare_target(schema.target, **task))
    schema = declare_text(schema, request.text)
    typed = any(infer_kind(dtype) is not None for dtype in frame.dtypes)
    cells = extract_cells(frame)
    places = {name: place for place, name in enumerate(names)}
    columns = [places[column.name] for column in schema.columns]
    dtypes = list(frame.dtypes.iloc[columns])
    return Dataset(
        name="frame" if declared is None else declared.name,
        schema=schema,
        features=cells[:, columns],
        labels=cells[:, places[schema.target.name]],
        public=request.data_is_public,
        official_test=schema.official_test,
        assumed=(TYPES_DESCRIPTION,) if typed and not request.data_is_public else (),
        type_failures=(
            *find_target_failures(schema.target, frame.dtypes.iloc[places[schema.target.name]]),
            *find_text_failures(schema.columns, dtypes),
        ),
        notes=describe_undeclared_dates(schema.columns, dtypes),
    )


def load_declared(source: str, request: Request, declared: tuple[str, ...]) -> Dataset:
    """Load a data set by path or built-in name, with the request's declarations in `declared`."""
    return load_dataset(source, **_collect_declarations(request, declared))


def _collect_declarations(request: Request, declared: tuple[str, ...]) -> dict[str, Any]:
    """Return the request's declarations about data, as arguments of `load_dataset`."""
    said = {name: getattr(request, name) for name in (*declared, "data_root", "download")}
    return {**said, "public": request.data_is_public}


def assume_public(dataset: Dataset, most: int) -> tuple[Dataset, tuple[str, ...]]:
    """Read everything undeclared from the records, without a charge.

    Args:
        dataset: Data set with a possibly incomplete schema.
        most: Maximum number of categories of a column.

    Returns:
        The data set with a complete schema, and the names of the items that were read.
    """
    from pasearch.data.estimation import read_public_schema

    names = dataset.schema.undeclared
    proposed = (PROPOSED_SCHEMA,) if _is_proposed(dataset) else ()
    if not names:
        return dataset, proposed
    found = dataset.completed(lambda schema, x, y: read_public_schema(schema, x, y, most))
    return found, (*proposed, *names)


def load_public_data(
    option: str, source: str, request: Request, dataset: Dataset
) -> tuple[Dataset, Dataset, tuple[str, ...]]:
    """Load public data, and complete the schema of the private data from them.

    Args:
        option: Name of the option with the public data.
        source: Path or name of the public data.
        request: Request with the user's declarations about data.
        dataset: Private data set.

    Returns:
        The public data set; the private data set with a complete schema; and a description of what
        was taken from the public data, to be listed as assumed public.

    Raises:
        UsageError: Another schema, or data that may be the private data themselves.
    """
    public = load_declared(source, replace(request, data_is_public=True), list_declarations(source))
    itself = source in BUILT_IN_NAMES and source == dataset.name and not dataset.public
    if itself or (source not in BUILT_IN_NAMES and public.n == dataset.n):
        # Only the number of records is compared: comparing values would reveal private ones.
        raise UsageError(
            f"`{option}={source}`: it has as many records as the private data, {public.n:,}, so "
            "it may be the private data themselves. Name public data of the same kind; if these "
            "are, leave one record out."
        )
    public, _ = assume_public(public, request.max_categories)
    assumed: tuple[str, ...] = ()
    if dataset.schema.undeclared:
        assumed = (f"everything undeclared, from the public data {public.name}",)
        dataset = replace(dataset, schema=dataset.schema.completed_by(public.schema))
    check_same_schema(public, dataset.schema, option)
    return public, dataset, assumed


def check_same_schema(public: Dataset, schema: AnySchema, option: str) -> None:
    """Refuse public data whose features or classes differ from those of the private data.

    Args:
        public: Public data set.
        schema: Schema of the private data.
        option: Name of the option with the public data.

    Raises:
        UsageError: Other features, another order of features, or other classes.
    """
    own = public.schema
    same = own.shape == schema.shape and own.outputs == schema.outputs
    labels = [getattr(getattr(e, "target", None), "categories", None) for e in (own, schema)]
    same = same and (None in labels or labels[0] == labels[1])
    same = same and getattr(own, "labels", None) == getattr(schema, "labels", None)
    if not (same and own.regression == schema.regression and own.names == schema.names):
        raise UsageError(
            f"`{option}=`: {public.name!r} has {own.describe()}, the private data "
            f"{schema.describe()}: expected the same features in the same order, and the same "
            "classes."
        )


def parse_split_shares(split: str | None) -> Any:
    """Parse the option `split` into fractions (train, validation, test); None without fractions.

    Raises:
        UsageError: The text is neither "paper" nor three numbers.
    """
    if split in (None, "paper"):
        return None
    try:
        shares = tuple(float(share) for share in str(split).split(","))
    except ValueError:
        shares = ()
    if len(shares) != 3:
        raise UsageError(
            f"`split={split!r}`: expected 'paper', or fractions 'train,validation,test' such as "
            "'0.8,0.1,0.1'."
        )
    return shares


def make_request_split(request: Request, dataset: Dataset, *, scored: bool, **more: Any) -> Split:
    """Make the split of a request: the sizes of its partitions.

    Args:
        request: Request, which may name fractions.
        dataset: Data set to split.
        scored: Whether candidates or variants are scored, which requires validation records.
        more: Further arguments of `data.split.make_split`.
    """
    paper, official_test = request.split == "paper", dataset.official_test
    shares = parse_split_shares(request.split)
    if shares is None and not (paper or official_test):
        shares = _choose_shares_for_estimation(request, dataset, scored=scored)
    return make_split(
        dataset.n, shares=shares, official_test=official_test, paper=paper, scored=scored, **more
    )


def _choose_shares_for_estimation(
    request: Request, dataset: Dataset, *, scored: bool
) -> tuple[float, float, float] | None:
    """Return fractions with enough records to estimate a table's columns; None for the default.

    They depend on public numbers only: n, the budget, the number of undeclared items. If even
    `MAX_ESTIMATION_SHARE` is not enough, more records would not help, so training gets them.
    """
    items = len(dataset.schema.undeclared) - (find_undeclared_classes(dataset.schema) is not None)
    if not (isinstance(dataset.schema, TableSchema) and items):
        return None
    total = request.total.resolve(dataset.n)
    part = Budget(ESTIMATE_SHARE * total.epsilon, total.delta)
    once = calibration.calibrate_min(
        lambda sigma: Gaussian(noise_multiplier=sigma), part, 0.02, 1e7
    )
    wanted = ESTIMATION_RECORDS * once * math.sqrt(items) / dataset.n
    train, validation, test = DEFAULT_FRACTIONS
    if not (validation if scored else test) < wanted <= MAX_ESTIMATION_SHARE:
        return None
    if scored:
        return train + validation - wanted, wanted, test
    return train + test - wanted, validation, wanted


MAX_ESTIMATION_SHARE = 0.3  # largest fraction of the records for the estimation
ESTIMATION_RECORDS = 40.0
"""Number of records for the estimation of a table's columns, in standard deviations of its noise.

Measured on four tables of 7,000 to 17,000 records at epsilon .5 (one or two seeds): with a fifth of
the records instead of a tenth, areas under the ROC curve of .56 to .80 become .77 to .89."""


def make_plan_terms(
    request: Request, dataset: Dataset, split: Split, assumed: tuple[str, ...]
) -> PlanTerms:
    """Make the public inputs of a run's plan.

    Args:
        request: Request of the user.
        dataset: Data set of the run.
        split: Sizes of its partitions.
        assumed: Names of items that were read without a charge, to be listed as assumed public.
    """
    return PlanTerms(
        name=dataset.name, schema=dataset.schema, public=dataset.public, budget=request.total,
        split=split, most=request.max_categories, assumed_public=(*dataset.assumed, *assumed),
        leak_share=ESTIMATE_DELTA if request.ledger is None else LEDGER_ESTIMATE_DELTA,
        metric=request.metric, notes=dataset.notes, type_failures=dataset.type_failures,
    )  # fmt: skip
