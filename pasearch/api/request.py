"""What may be asked of every run, whatever it looks for: data, a budget, a ledger, a device.

A request is plain values, checked when it is made and kept in `private/`, so that a run can be
resumed from another working directory. Of the data it names only the form is looked at here.

Source: docs/rules.md, rules 1 and 13.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar

from pasearch.accounting.budget import Budget
from pasearch.accounting.checks import whole
from pasearch.data.images import BUILT_IN, image_side
from pasearch.data.partitions import Dataset
from pasearch.data.sources import BELONGS, from_arrays, load_dataset, useful
from pasearch.data.tables import MOST_NAMES
from pasearch.errors import UsageError
from pasearch.files import read_json

if TYPE_CHECKING:
    import numpy as np

    from pasearch.data.partitions import AnySchema

    Data = str | Path | tuple[np.ndarray, np.ndarray] | Dataset

DEVICES = ("auto", "cpu", "cuda")

MEMORY = "arrays"
"""What data is called that was handed over in memory."""

SOURCES = ("data", "search_on", "energy_on")
"""What of a request names data: a file, or built-in ones."""

PLACES = ("data_root", "schema", "cache", "ledger")
"""What else of it names files."""


class Options(TypedDict, total=False):
    """What may be said about any run beside data and budget; see `Request`."""

    split: str | None
    search_share: float
    ledger: str | Path | None
    ledger_budget: tuple[float, float] | None
    data_is_public: bool
    bounds: tuple[float, float] | None
    classes: int | None
    regression: bool
    schema: str | Path | None
    quotes: bool
    image_side: int | None
    grey: bool
    max_categories: int
    assume_public_schema: bool
    data_root: str
    download: bool
    device: str
    secure_noise: bool
    seed: int | None


@dataclass(frozen=True, kw_only=True)
class Request:
    """What every run is asked for.

    Args:
        data: A built-in name, a path, or "arrays" for records in memory.
        epsilon: Of the whole run.
        delta: Of the whole run; None takes the largest power of ten below 1/n.
        split: None for the data's own test set, or shares .8, .1, .1; "paper"; or three shares
            "train,validation,test".
        search_share: Share of the training slots that only the search or the choice reads; 0 lets
            it read what the released model is trained on.
        ledger: A file that adds up all runs on these data, and refuses one that is too much.
        ledger_budget: (epsilon, delta) of all runs together, for a ledger that is not there yet.
        data_is_public: The user declares every record public.
        bounds: Declared (low, high) of the features, for .npz files and arrays.
        classes: Declared number of classes, for .npz files and arrays.
        regression: A number is to be predicted, not a class; for .npz files, arrays and tables.
        target: The column to predict, for tables; None takes the last one.
        schema: Path of the declared schema of a table, TOML.
        quotes: False takes the quotation marks of a .csv as ordinary characters.
        image_side: Pixels that the images of a folder are scaled to.
        grey: Images of a folder get one channel.
        max_categories: The most categories that an undeclared column is bought with.
        assume_public_schema: What is not declared is read from the records for nothing.
        data_root: Folder of the image data sets.
        download: Let torchvision download what is missing.
        device: "auto", "cpu" or "cuda".
        secure_noise: Everything random comes from AES-256: batches, candidates and coins too, and
            on a GPU the noise, which on a CPU does so anyway.
        seed: Makes the noise reproducible, and the run not private: tests and benchmarks only.
    """

    data: str
    epsilon: float
    delta: float | None = None
    split: str | None = None
    search_share: float = 0.0
    ledger: str | Path | None = None
    ledger_budget: tuple[float, float] | None = None
    data_is_public: bool = False
    bounds: tuple[float, float] | None = None
    classes: int | None = None
    regression: bool = False
    target: str | None = None
    schema: str | Path | None = None
    quotes: bool = True
    image_side: int | None = None
    grey: bool = False
    max_categories: int = 32
    assume_public_schema: bool = False
    data_root: str = "data"
    download: bool = False
    device: str = "auto"
    secure_noise: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        """Check what no other part checks."""
        Budget(self.epsilon, self.delta)
        if self.image_side is not None:
            image_side(self.image_side)
        if self.device not in DEVICES:
            raise UsageError(
                f"Device {self.device!r} is not known: expected one of {', '.join(DEVICES)}."
            )
        if self.ledger_budget is not None and self.ledger is None:
            raise UsageError("--ledger-budget is the total of a ledger: name its file, --ledger.")
        if not whole("max_categories", self.max_categories, most=MOST_NAMES) >= 2:
            raise UsageError(f"max_categories is {self.max_categories}: expected 2 or more.")
        for name in (
            "data_is_public", "regression", "quotes", "grey", "assume_public_schema",
            "secure_noise",
        ):  # fmt: skip
            if type(value := getattr(self, name)) is not bool:
                raise UsageError(f"{name} is {value!r}: expected True or False.")
        counted = isinstance(self.seed, Integral) and not isinstance(self.seed, bool)
        if self.seed is not None and not (counted and 0 <= self.seed < 2**64):
            shown = "too large" if counted and self.seed > 0 else repr(self.seed)
            raise UsageError(f"Seed is {shown}: expected a whole number, 0 to 2^64 - 1.")

    @property
    def budget(self) -> Budget:
        """Epsilon and delta of the whole run, as asked for."""
        return Budget(self.epsilon, self.delta)


Asked = TypeVar("Asked", bound=Request)


def check_options(budget: object, options: Mapping[str, object], known: Iterable[str]) -> None:
    """Refuse a budget that is none, and options that nothing knows.

    Raises:
        UsageError: One of these.
    """
    if not isinstance(budget, Budget):
        raise UsageError(f"budget is {budget!r}: expected Budget(epsilon=..., delta=...).")
    if unknown := sorted(set(options) - set(known)):
        hint = " Epsilon and delta are the budget's: budget=Budget(epsilon, delta)."
        raise UsageError(
            f"{', '.join(unknown)}: no such option: expected one of {', '.join(sorted(known))}."
            + (hint if {"epsilon", "eps", "delta"} & set(unknown) else "")
        )


def name_of(data: object) -> str:
    """Return what a request calls its data."""
    return str(data) if isinstance(data, (str, Path)) else MEMORY


def anywhere(request: Asked) -> Asked:
    """Return the request as a resume from another working directory needs it."""
    given = {name: getattr(request, name, None) for name in (*SOURCES, *PLACES)}
    named = {name for name in SOURCES if given[name] in (MEMORY, *BUILT_IN)}
    paths = {
        name: str(Path(path).absolute())
        for name, path in given.items()
        if path is not None and name not in named
    }
    return replace(request, **paths)


def plain_json(value: Any) -> Any:
    """Return a number of numpy's or a path as JSON can hold it."""
    return value.item() if hasattr(value, "item") else os.fspath(value)


def read_request(private: Path, form: type[Asked], command: str) -> Asked:
    """Return what a run was asked for.

    Args:
        private: Of the run's folder.
        form: What this command's requests are.
        command: "arch" or "features".

    Raises:
        UsageError: It never began, or was begun by another command.
    """
    try:
        values = _stored(private / "request.json")
        if (other := values.pop("command")) != command:
            raise UsageError(
                f"{private.parent} was begun by another command: finish it with "
                f"`pasearch {other} --resume {private.parent}`."
            )
        for name in ("bounds", "ledger_budget"):
            values[name] = None if values[name] is None else tuple(values[name])
        return form(**values)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        # Keys are made before any read.
        told = (
            f"{private.parent} stopped before it had begun ({type(error).__name__}): nothing was "
            "read."
        )
        if (private / "keys").exists():
            told = f"{private.parent} has a request that cannot be read ({type(error).__name__})."
        raise UsageError(f"{told} Start a new run.") from None


def _stored(path: Path) -> Any:
    """Return what a run's private file holds; a ValueError says that it cannot be read."""
    try:
        return read_json(path, follow=False)
    except UsageError as error:
        raise ValueError(str(error)) from None


def device_of(request: Request) -> str:
    """Return "cpu" or "cuda".

    Raises:
        UsageError: A GPU is demanded and there is none.
    """
    if request.device == "cpu":
        return "cpu"
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if request.device == "cuda":
        raise UsageError(
            "Device 'cuda' was demanded, but torch finds no CUDA GPU here: "
            "take --device cpu, or --device auto."
        )
    return "cpu"


def dataset_of(data: Any, request: Request) -> Dataset:
    """Return the data that a request names, or was given: its form is looked at, no value.

    Raises:
        UsageError: Neither a name, a path, a pair (x, y) of arrays nor a data set.
    """
    if isinstance(data, Dataset):
        return replace(data, public=data.public or request.data_is_public)
    if isinstance(data, (str, Path)):
        return load(str(data), request, tuple(BELONGS))
    if isinstance(data, tuple) and len(data) == 2:
        return from_arrays(*data, **_said(request, tuple(BELONGS)))
    # Its type only: to show it would be to print records.
    raise UsageError(
        f"data is a {type(data).__name__}: expected a name, a path, or a pair (x, y) of "
        "arrays. Save a table as .csv first, or take an estimator, which fits frames."
    )


def load(source: str, request: Request, declared: tuple[str, ...]) -> Dataset:
    """Return the data set at a path or of a built-in name, under some of the declarations."""
    return load_dataset(source, **_said(request, declared))


def _said(request: Request, declared: tuple[str, ...]) -> dict[str, Any]:
    """Return what the user says about data, as `Declared` takes it."""
    said = {name: getattr(request, name) for name in (*declared, "data_root", "download")}
    return {**said, "public": request.data_is_public}


def assume_public(dataset: Dataset, most: int) -> tuple[Dataset, tuple[str, ...]]:
    """Return the data set with everything undeclared read from its records, and its names."""
    from pasearch.data.purchase import read_free

    names = dataset.schema.undeclared
    if not names:
        return dataset, ()
    return dataset.completed(lambda schema, x, y: read_free(schema, x, y, most)), names


def public_data(
    option: str, source: str, request: Request, dataset: Dataset
) -> tuple[Dataset, Dataset, tuple[str, ...]]:
    """Return public data, the private data with its schema completed by them, and what that is.

    Args:
        option: That names them.
        source: Where they are.
        request: What the user says about data.
        dataset: The private ones.

    Raises:
        UsageError: Data of another form, or that may be the private ones themselves.
    """
    public = load(source, replace(request, data_is_public=True), useful(source))
    _check_elsewhere(option, source, public, dataset)
    public, _ = assume_public(public, request.max_categories)
    assumed: tuple[str, ...] = ()
    if dataset.schema.undeclared:
        assumed = (f"everything undeclared, from the public data {public.name}",)
        dataset = replace(dataset, schema=dataset.schema.completed_by(public.schema))
    check_same_form(public, dataset.schema, option)
    return public, dataset, assumed


def _check_elsewhere(option: str, source: str, public: Dataset, private: Dataset) -> None:
    """Refuse public data that may be the private ones: by the number of records alone."""
    itself = source in BUILT_IN and source == private.name and not private.public
    if itself or (source not in BUILT_IN and public.n == private.n):
        # Whether the records are equal, no answer may tell.
        raise UsageError(
            f"{option} {source}: it has as many records as the private data, {public.n:,}, so "
            "it is taken for the private data themselves, which are not public. Name public data "
            "of the same kind; if these are, leave one record out."
        )


def check_same_form(public: Dataset, schema: AnySchema, option: str) -> None:
    """Refuse public data of another form than the private data's.

    Raises:
        UsageError: Other features, another order of them, or another number of classes.
    """
    own = public.schema
    same = own.shape == schema.shape and own.outputs == schema.outputs
    labels = [getattr(getattr(e, "target", None), "categories", None) for e in (own, schema)]
    same = same and (None in labels or labels[0] == labels[1])
    if not (same and own.regression == schema.regression and own.names == schema.names):
        raise UsageError(
            f"{option}: {public.name!r} has {own.describe()}, the private data "
            f"{schema.describe()}: expected the same features in the same order, and the same "
            "classes."
        )


def shares_of(split: str | None) -> Any:
    """Return the shares of train, validation and test that `--split` names; None without any.

    Raises:
        UsageError: Not three numbers.
    """
    if split in (None, "paper"):
        return None
    try:
        shares = tuple(float(share) for share in str(split).split(","))
    except ValueError:
        shares = ()
    if len(shares) != 3:
        raise UsageError(
            f"--split is {split!r}: expected 'paper', or three shares 'train,validation,test' such "
            "as 0.8,0.1,0.1."
        )
    return shares
