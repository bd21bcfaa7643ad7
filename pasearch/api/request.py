"""Requests of all tasks: the only definition of each option (type, default, help, group, flag).

    field of a request  ->  argument of a Python function, such as search_share=.2
                        ->  option of the command line, its help, docs/reference.md
                        ->  name of the option in error messages

A request is a frozen value, validated on creation and stored in `private/`, so that a run can be
resumed from another working directory. This module has no slow imports, so that `--help` is fast.

An error message names an option as in Python, `search_share=`; the command line replaces the name
by the flag (`errors.OPTION_REFERENCE`).

Source: docs/rules.md, rules 1 and 13.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from numbers import Integral, Real
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

from pasearch.accounting.budget import Budget
from pasearch.accounting.checks import (
    check_positive,
    check_positive_integer,
    convert_to_plain_list,
)
from pasearch.errors import UsageError
from pasearch.progress import check_progress as check_progress
from pasearch.runs.cluster import Cluster
from pasearch.runs.executors import AutomaticExecutor, Executor, LocalExecutor, ProcessExecutor
from pasearch.search.names import show_strategy

if TYPE_CHECKING:
    import numpy as np

    from pasearch.data.partitions import Dataset
    from pasearch.data.tables import SchemaArgument
    from pasearch.progress import Progress
    from pasearch.runs.journal import Address
    from pasearch.spaces.space import Space

    Data = str | Path | tuple[np.ndarray, np.ndarray] | Dataset

Values = Mapping[str, Any]

DEVICES = ("auto", "cpu", "cuda")

IN_MEMORY_NAME = "arrays"  # name of data that were passed in memory
DEFAULT_EPSILON = 1.0  # default epsilon of a run
MAX_SCORE_EPSILON = 100.0  # maximum epsilon of one score
MAX_LEARNING_RATE = 1e6  # maximum learning rate
MAX_CATEGORIES = 1_000_000  # maximum number of estimated categories of a column

DATA, BUDGET, SEARCH, TRAINING, PUBLIC, RUN = GROUPS = (
    "Data", "Budget", "Search and choice", "Training", "Public information", "The run",
)  # fmt: skip
"""Headings above groups of options in `--help` and docs/reference.md, in this order."""


@dataclass(frozen=True, slots=True)
class Option:
    """Metadata of an option besides its name, type and default.

    Args:
        help: Description in one or two sentences.
        group: Heading, one of `GROUPS`.
        default_text: Description of the default, if it is not a value.
        flag: Flag on the command line; empty: the name with dashes; None: Python only.
        reads: Type on the command line, if it differs from Python.
        of: Strategies or methods that have this option, with the default of each; empty: all.
    """

    help: str
    group: str
    default_text: str = ""
    flag: str | None = ""
    reads: Any = None
    of: Mapping[str, str] = field(default_factory=dict)

    @property
    def help_text(self) -> str:
        """Help, followed by the strategies or methods that have the option, and the default."""
        of = "; ".join(
            show_strategy(name) + (f", default {of}" if of else "") for name, of in self.of.items()
        )
        usual = f" [default: {self.default_text}]" if self.default_text else ""
        return self.help + (f" [only with {of}]" if of else "") + usual


def option(default: Any, help: str, group: str, **more: Any) -> Any:
    """Make the dataclass field of an option; `more` are further fields of `Option`."""
    return field(default=default, metadata={"option": Option(help, group, **more)})


EXECUTORS = ("auto", "local", "process", "ray")

MAX_WORKERS = 100_000  # maximum number of trainings at a time


def make_executor(
    name: str = "auto",
    workers: int | None = None,
    ray_address: str | None = None,
    gpus_per_worker: float | None = None,
) -> Executor:
    """Make an execution backend, which starts processes when its `with` block is entered.

    Args:
        name: Name of the backend, one of `EXECUTORS`.
        workers: Maximum number of trainings at a time; None: as many as fit.
        ray_address: Address of a Ray cluster; None: a new one on this machine.
        gpus_per_worker: GPUs per training on the cluster, may be a fraction; None: no GPU.

    Raises:
        UsageError: Unknown backend, unsuitable settings, or Ray is not installed.
    """
    if name not in EXECUTORS:
        raise UsageError(f"executor is {name!r}: expected one of {', '.join(EXECUTORS)}.")
    if workers is not None:
        workers = check_positive_integer("workers", workers, most=MAX_WORKERS)
    if gpus_per_worker is not None:
        gpus_per_worker = check_positive("gpus_per_worker", gpus_per_worker)
    if name == "ray":
        return Cluster(workers, ray_address, gpus_per_worker or 0.0)
    for option, value in (("ray_address", ray_address), ("gpus_per_worker", gpus_per_worker)):
        if value is not None:
            raise UsageError(
                f"{option} is {value!r}: it requires `executor='ray'`; use that, or leave "
                f"`{option}=` out."
            )
    if name == "local":
        if workers is not None and workers > 1:
            raise UsageError(
                f"workers is {workers}, but `executor='local'` trains one at a time: leave one out."
            )
        return LocalExecutor()
    return ProcessExecutor(workers) if name == "process" else AutomaticExecutor(workers)


def check_executor(name: str, device: str, why_none: Mapping[str, str]) -> None:
    """Refuse an execution backend that would train nothing.

    Args:
        name: Name of the backend, one of `EXECUTORS`.
        device: "cpu" or "cuda".
        why_none: Reasons why backends would train nothing, by name; without those that would train.

    Raises:
        UsageError: The requested backend would train nothing.
    """
    why = why_none.get(name)
    if why is None and name == ProcessExecutor.name and device != "cpu":
        why = "trainings on a GPU run in this process (`device='cpu'` allows processes)"
    if why is not None:
        raise UsageError(
            f"executor is {name!r}, but it cannot train anything of this run: {why}. Leave "
            "`executor=` out."
        )


@dataclass(frozen=True, eq=False)
class Request:
    """Request of any task; only `data` may be positional."""

    task: ClassVar[str] = ""  # name of the command
    among: ClassVar[tuple[str, ...]] = ()  # strategies or methods of the task, except auto

    data: Data = "digits"
    _: KW_ONLY
    budget: Budget | None = option(
        None,
        "Epsilon and delta of the whole run.",
        BUDGET,
        default_text="Budget(epsilon=1.0)",
        flag=None,
    )
    target: str | None = option(
        None, "Column of a table to predict.", DATA, default_text="the last column"
    )
    text: str | None = option(
        None,
        "Column of a table that is read as a text, a sequence of 150 words, by a recurrent network "
        "(space rnn). Its vocabulary is estimated privately unless the schema declares it.",
        DATA,
        default_text="as in the schema",
    )
    schema: SchemaArgument | None = option(
        None,
        "A table's declared columns: a .toml (`pasearch check` proposes one), or in Python a dict "
        "with its keys or a pasearch.Schema.",
        DATA,
        reads=Path,
    )
    quotes: bool = option(
        True,
        "Allow quoted cells in a .csv (within a line); otherwise quotation marks are ordinary "
        "characters.",
        DATA,
        flag="--quotes/--no-quotes",
    )
    columns: str | Path | Sequence[str] | None = option(
        None,
        "Column names of a table without a header, in order: separated by commas, or a .txt file "
        "with one name per line.",
        DATA,
        default_text="names in the first line",
        reads=str,
    )
    separator: str | None = option(
        None,
        "Cell separator of a table: one of , ; | : and similar characters, or tab.",
        DATA,
        default_text="the separator in the header: comma, semicolon, tab or |; else a comma",
    )
    regression: bool = option(False, "Regression: predict a number, not a class.", DATA)
    labels: str | Sequence[Any] | None = option(
        None,
        "Declared classes of a table's target, or all labels of arrays, separated by commas, such "
        "as no,yes. In Python also a list.",
        DATA,
        default_text="from the schema or `classes`; otherwise estimated privately",
        reads=str,
    )
    metric: str | None = option(
        None,
        "Metric for ranking candidates and for the test score. Classes: accuracy, "
        "balanced-accuracy, auc (two classes), log-loss or brier; regression: mae or rmse.",
        DATA,
        default_text="accuracy; for regression mae",
    )
    bounds: tuple[float, float] | None = option(
        None, "Declared lower and upper bound of all features of arrays (.npz).", DATA,
        default_text="estimated privately",
    )  # fmt: skip
    classes: int | str | Sequence[Any] | None = option(
        None,
        "Declared classes of arrays (.npz): their number for labels 0, 1 ..., or all labels "
        "separated by commas, such as --classes=-1,1.",
        DATA,
        default_text="estimated privately",
        reads=str,
    )
    image_side: int | None = option(
        None, "Side length that images of a folder are scaled to, pixels.", DATA, default_text="32"
    )
    grey: bool = option(False, "Convert the images of a folder to one channel.", DATA)
    max_categories: int = option(
        32, "Maximum number of privately estimated categories of an undeclared column.", DATA
    )
    data_root: str = option("data", "Folder with MNIST/raw/ and similar data.", DATA)
    download: bool = option(False, "Let torchvision download image sets that are missing.", DATA)
    split: str | None = option(
        None, "Fractions 'train,validation,test' of the records, or 'paper': the sizes that Bao et "
        "al. print in IV-A. With fractions, if no candidates are compared, the validation records "
        "are trained on.", DATA,
        default_text="0.8,0.1,0.1 (so 0.9,0,0.1 where no candidates are compared), or the data's "
        "own test set; more to estimate an undeclared table from",
    )  # fmt: skip
    search_share: float = option(
        0.0, "Fraction of training records reserved for the search.", SEARCH
    )
    ledger: str | Path | None = option(
        None, "Shared privacy ledger: the run is refused if the total of all runs would exceed "
        "--ledger-budget.", BUDGET, reads=Path,
    )  # fmt: skip
    ledger_budget: tuple[float, float] | None = option(
        None, "Total epsilon and delta of all runs, for a new shared ledger.",
        BUDGET,
    )  # fmt: skip
    data_is_public: bool = option(False, "Declare every record public.", PUBLIC)
    assume_public_schema: bool = option(
        False,
        "Read undeclared schema items from the records without a charge. Not private.",
        PUBLIC,
    )
    force: bool = option(
        False,
        "Run and charge even if public facts (number of records, schema, column types, epsilon) "
        "show that the run will fail.",
        RUN,
    )
    device: str = option("auto", "auto, cpu or cuda.", RUN)
    executor: str = option(
        "auto",
        "Execution backend: this process (local), other processes of this machine (process), or a "
        "Ray cluster (ray); auto uses processes if that is faster. The result is the same.",
        RUN,
    )
    workers: int | None = option(
        None, "Maximum number of trainings at a time.", RUN,
        default_text="as many as the run's threads, or the cluster, allow",
    )  # fmt: skip
    ray_address: str | None = option(
        None, "Address of a running Ray cluster, host:port or auto.", RUN,
        default_text="with executor ray, a new one on this machine for this run",
    )  # fmt: skip
    gpus_per_worker: float | None = option(
        None, "GPUs per trial on a Ray cluster (0.25: four trials per GPU).", RUN,
        default_text="none: on CPUs",
    )  # fmt: skip
    secure_noise: bool = option(
        False,
        "Use AES-256 (a CSPRNG) also for batch sampling and GPU noise. CPU noise always uses it. "
        "Slower.",
        RUN,
    )
    seed: int | None = option(
        None, "Make the noise reproducible. NOT private: for tests and benchmarks.", RUN
    )
    out: str | Path | None = option(
        None, "New folder for the run.", RUN, default_text="runs/<name>-<number>", reads=Path
    )
    progress: Progress | bool | None = option(
        None,
        "Show one line of progress: True, False, or a custom pasearch.progress.Progress.",
        RUN,
        default_text="shown in a notebook and on a terminal",
        flag=None,
    )

    def __post_init__(self) -> None:
        if self.budget is not None and not isinstance(self.budget, Budget):
            raise UsageError(f"budget is {self.budget!r}: expected Budget(epsilon=..., delta=...).")
        for name in ("bounds", "ledger_budget", "labels", "classes"):
            object.__setattr__(self, name, convert_to_plain_list(getattr(self, name)))
        for name in ("labels", "classes"):
            _check_label_types(name, getattr(self, name))
        if not isinstance(self.target, str | None):
            raise UsageError(
                f"target is of type {type(self.target).__name__}: expected the name of a column, "
                "a string."
            )
        if self.image_side is not None:
            from pasearch.data.image_folder import check_image_side

            check_image_side(self.image_side)
        check_progress(self.progress)
        if self.schema is not None and not isinstance(self.schema, (str, Path)):
            from pasearch.data.tables import load_schema

            object.__setattr__(self, "schema", load_schema(self.schema))
        if self.columns is not None or self.separator is not None:
            from pasearch.data.lines import parse_separator
            from pasearch.data.table_format import read_column_names

            # Stored as names instead of a path, because a resume may run in another folder.
            object.__setattr__(self, "columns", read_column_names(self.columns))
            object.__setattr__(self, "separator", parse_separator(self.separator))
        if self.device not in DEVICES:
            raise UsageError(
                f"Device {self.device!r} is not known: expected one of {', '.join(DEVICES)}."
            )
        if self.ledger_budget is not None and self.ledger is None:
            raise UsageError(
                "`ledger_budget=` is the total of a ledger: name its file too, `ledger=`."
            )
        if (
            not check_positive_integer("max_categories", self.max_categories, most=MAX_CATEGORIES)
            >= 2
        ):
            raise UsageError(f"max_categories is {self.max_categories}: expected 2 or more.")
        self.make_executor()
        for each in fields(self):
            if each.type == "bool" and type(value := getattr(self, each.name)) is not bool:
                raise UsageError(f"{each.name} is {value!r}: expected True or False.")
        counted = isinstance(self.seed, Integral) and not isinstance(self.seed, bool)
        if self.seed is not None and not (counted and 0 <= self.seed < 2**64):
            shown = "too large" if counted and self.seed > 0 else repr(self.seed)
            raise UsageError(f"Seed is {shown}: expected an integer, 0 to 2^64 - 1.")

    def make_executor(self) -> Executor:
        """Make the execution backend, which starts processes in its `with` block."""
        return make_executor(self.executor, self.workers, self.ray_address, self.gpus_per_worker)

    @property
    def total(self) -> Budget:
        """Total epsilon and delta of the run; epsilon is 1 by default."""
        return self.budget or Budget(DEFAULT_EPSILON)


def _check_label_types(name: str, labels: Any) -> None:
    """Refuse declared labels that a result could not store, such as bytes and dates."""
    if isinstance(labels, str | Real | None):
        return
    for each in labels if isinstance(labels, Iterable) else (labels,):
        if not isinstance(each, str | Real | None):
            raise UsageError(
                f"`{name}=` contains {each!r} of type {type(each).__name__}: expected strings, "
                "numbers or booleans."
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainRequest(Request):
    """Request to train one network."""

    task: ClassVar[str] = "train"

    recipe: str | Path | Values | Sequence[str | Path | Values] = option(
        "default",
        "Training configuration (hyperparameters): a name from `pasearch recipes`, or a .toml. "
        "Several recipes are trained on disjoint subsets, and one is selected.",
        TRAINING,
        reads=list[str],
    )
    architecture: str | Path | Values | None = option(
        None, "Network to train, a .toml; no search.", TRAINING, reads=Path
    )
    noise: str | None = option(
        None,
        "Distribution of the noise on encoded gradients (recipe encoded-gaussian): gaussian, "
        "student-t:9, laplace, ..., or search for the one of least error at equal privacy cost.",
        TRAINING,
        default_text="the recipe's",
    )
    batch: int | None = option(
        None,
        "Expected batch size.",
        TRAINING,
        default_text="the default network's, or min(2048, n/4)",
    )
    steps: int | None = option(
        None, "Steps of one training.", TRAINING, default_text="the default network's, or 5 sqrt(n)"
    )
    learning_rate: float | None = option(
        None, "Learning rate.", TRAINING, default_text="tuned to the noise"
    )
    variants: bool | None = option(
        None,
        "Post-training selection: choose among checkpoints, weight averages, decision thresholds, "
        "pruned and quantised weights with the exponential mechanism on 10 % of the records.",
        TRAINING,
        default_text="thresholds, for two declared classes by balanced-accuracy",
        flag="--variants/--no-variants",
    )
    validate_on: str | Path | None = option(
        None,
        "Public data of the same kind for a recipe's validation queries, which then cost nothing.",
        PUBLIC,
        reads=str,
    )
    cache: str | Path | None = option(
        None,
        "Private folder for transformed images, reused by other runs on the same data.",
        RUN,
        reads=Path,
    )
    storage: str | Path | Address | None = option(
        None,
        "Shared store of finished trials for several machines: postgresql://user@host/database, "
        "or a .log file. Everyone who can read it sees their scores.",
        RUN,
        default_text="a file in the run's own folder",
        reads=str,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.storage is not None:
            from pasearch.runs.journal import parse_address

            # Parsed, because an address hides its password and does not depend on the folder.
            object.__setattr__(self, "storage", parse_address(self.storage))
        for name in ("batch", "steps"):
            if getattr(self, name) is not None:
                check_positive_integer(name, getattr(self, name))
        if self.learning_rate is not None:
            check_positive("learning_rate", self.learning_rate)
            if not self.learning_rate <= MAX_LEARNING_RATE:
                raise UsageError(
                    f"learning_rate is {self.learning_rate!r}: expected at most "
                    f"{MAX_LEARNING_RATE:g}."
                )

    @property
    def recipes(self) -> list[Any]:
        """The recipes as a list, also if there is only one."""
        return list(self.recipe) if isinstance(self.recipe, (list, tuple)) else [self.recipe]


@dataclass(frozen=True, kw_only=True, eq=False)
class ChoiceRequest(Request):
    """Request to choose among candidates: networks or feature sets."""

    candidates: float | None = option(
        None, "Mean number of trainings, or number of candidates per generation.", SEARCH,
        of={"rs": "10", "mgrs": "40", "paas": "10", "stw": "10", "portions": "4",
            "ahead": "4", "insured": "4", "subsets": "8"},
    )  # fmt: skip
    generations: int | None = option(
        None, "Number of generations.", SEARCH,
        of={"mgrs": "3", "paas": "6", "stw": "6", "pafs": "3", "cfs-ga": "10"},
    )  # fmt: skip
    law: str | None = option(
        None,
        "Distribution of the number of trials: geometric, logarithmic, poisson or binomial.",
        SEARCH,
        default_text="geometric",
        of={"rs": "", "mgrs": "", "subsets": ""},
    )
    search_on: str | Path | None = option(
        None, "Public data of the same kind to search on; the search then costs nothing.", PUBLIC,
        reads=str,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class SearchRequest(TrainRequest, ChoiceRequest):
    """Request of an architecture search."""

    task: ClassVar[str] = "arch"
    among: ClassVar[tuple[str, ...]] = (
        "fixed", "rs", "mgrs", "paas", "portions", "ahead", "insured", "grid",
        "stw",
    )  # fmt: skip

    strategy: str = option(
        "auto",
        "Search strategy: auto, fixed, rs, mgrs, paas, paas-paper (epsilon .02 per score, as in "
        "the paper), portions, successive-halving, protected-halving, grid, or stw (public data "
        "only).",
        SEARCH,
    )
    space: str | Path | Values | Space | type = option(
        "auto",
        "Search space: auto (the portfolio), images, tables, fcn, cnn, rnn, fcn-paper, "
        "cnn-paper, fcn-deep, fcn-rwt, cnn-rwt, a .toml, or module:CLASS of your own nn.Module.",
        SEARCH,
        reads=str,
    )
    returns: str | None = option(
        None, "Return the best candidate of all generations, or of the last one (paper).",
        SEARCH, default_text="best", of={"paas": "", "stw": ""},
    )  # fmt: skip
    rungs: int | None = option(
        None, "Number of successive-halving rounds.", SEARCH,
        default_text="1", of={"ahead": "", "insured": ""},
    )  # fmt: skip
    crossover: bool = option(
        False,
        "Measure the best model at each epsilon instead of forecasting it. Private records use a "
        "part of the budget (strategy grid); public records are free.",
        SEARCH,
    )
    eps_grid: str | None = option(
        None,
        "Epsilons at which to train every model, for a crossover report measured on your records: "
        "low:high:logN, or numbers separated by commas.",
        SEARCH, default_text="five values using 30 % of the budget (in mu^2)", of={"grid": ""},
    )  # fmt: skip
    repeats: int | None = option(
        None, "Number of trainings of each model at each epsilon of the grid, 2 or more.", SEARCH,
        default_text="2", of={"grid": ""},
    )  # fmt: skip
    max_candidates: int | None = option(
        None, "Truncate the random number of trials at this value (accounted for).", SEARCH,
        default_text="no limit", of={"rs": "", "mgrs": ""},
    )  # fmt: skip
    score_epsilon: float | None = option(
        None, "Epsilon per candidate evaluation.", BUDGET,
        default_text="largest that fits the budget", flag="--score-eps",
    )  # fmt: skip

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("generations", "max_candidates"):
            if getattr(self, name) is not None:
                check_positive_integer(name, getattr(self, name))
        for name in ("candidates", "score_epsilon"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        if self.score_epsilon is not None and not self.score_epsilon <= MAX_SCORE_EPSILON:
            raise UsageError(
                f"score_epsilon is {self.score_epsilon!r}: expected at most "
                f"{MAX_SCORE_EPSILON:g}; above, the noise of a score is negligible."
            )


GENETIC_METHODS = {"pafs": "", "cfs-ga": ""}  # methods with the options of genetic algorithms


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureRequest(ChoiceRequest):
    """Request of a feature selection."""

    task: ClassVar[str] = "features"
    among: ClassVar[tuple[str, ...]] = (
        "all", "random", "cfs-greedy", "cfs-ga", "top", "pca", "pafs", "one-hot", "subsets",
        "max-pool",
    )  # fmt: skip

    method: str = option(
        "auto",
        "Feature selection method: auto, all, random, cfs-greedy, cfs-ga, top, pca, pafs, "
        "one-hot, subsets or max-pool.",
        SEARCH,
    )
    k: int | None = option(
        None, "Number of features.", SEARCH, default_text="depends on the method"
    )
    merits: str | None = option(
        None, "Merits from noisy contingency tables, or from noisy entropies (paper).", SEARCH,
        default_text="tables", of={"cfs-greedy": "", "cfs-ga": ""},
    )  # fmt: skip
    until_no_gain: bool | None = option(
        None, "Stop at the first feature that does not raise the merit.", SEARCH, default_text="no",
        of={"cfs-greedy": ""},
    )  # fmt: skip
    population: int | None = option(
        None, "Number of feature sets per generation.", SEARCH, of={"pafs": "20", "cfs-ga": "5000"}
    )
    alpha: float | None = option(
        None, "Fraction of the fittest that become parents.", SEARCH,
        of={"pafs": "0.3", "cfs-ga": "0.03"},
    )  # fmt: skip
    p_co: float | None = option(
        None, "Probability of a crossover.", SEARCH, default_text="0.8", of=GENETIC_METHODS
    )
    p_mu: float | None = option(
        None,
        "Probability of a mutation; with p_co at most 1.",
        SEARCH,
        default_text="0.2",
        of=GENETIC_METHODS,
    )
    pick: str | None = option(
        None,
        "Private selection mechanism: permute-and-flip or gumbel.",
        SEARCH,
        default_text="permute-and-flip",
        of={"top": ""},
    )
    pool: int | None = option(
        None, "Side of the pooled square, pixels.", SEARCH, default_text="2", of={"max-pool": ""}
    )
    trainer: str = option(
        "auto", "Training method: auto, dpsgd, or objective (also: logistic).", TRAINING,
        flag="--model",
    )  # fmt: skip
    selection_share: float | None = option(
        None, "Fraction of epsilon for the selection.", BUDGET, default_text="0.4, pafs 0.6"
    )


P = ParamSpec("P")
AnyRequest = TypeVar("AnyRequest", bound=Request)
Answer = TypeVar("Answer")


def list_options(request: type[Request]) -> Iterator[tuple[str, Any, Option]]:
    """Yield (name, default, option) for each option of a task, task-specific options first.

    `Option.of` is limited to the strategies or methods of the task.
    """
    homes = [vars(kind).get("__annotations__", {}) for kind in request.__mro__]
    home = {each.name: [each.name in own for own in homes].index(True) for each in fields(request)}
    for each in sorted(fields(request), key=lambda each: home[each.name]):
        if (option := each.metadata.get("option")) is not None:
            of = {name: usual for name, usual in option.of.items() if name in request.among}
            yield each.name, each.default, replace(option, of=of)


DATA_OPTIONS = tuple(name for name, _, each in list_options(SearchRequest) if each.group == DATA)
"""Options that describe the data, which every command with data accepts."""


def accept_request_fields(
    request: Callable[P, AnyRequest],
) -> Callable[[Callable[[AnyRequest], Answer]], Callable[P, Answer]]:
    """Decorate a function of a request, so that it accepts the request's fields as arguments.

    The decorated function has the signature of the request class, and its docstring lists the
    options.
    """
    kind: Any = request

    def decorated(function: Callable[[AnyRequest], Answer]) -> Callable[P, Answer]:
        @functools.wraps(function)
        def call(*args: P.args, **given: P.kwargs) -> Answer:
            _check_options(kind, function.__name__, len(args), set(given))
            return function(request(*args, **given))

        arguments = list(inspect.signature(request).parameters.values())
        returned = inspect.signature(function).return_annotation
        documented: Any = call
        documented.__signature__ = inspect.Signature(arguments, return_annotation=returned)
        documented.__doc__ = _add_arguments(inspect.cleandoc(function.__doc__ or ""), kind)
        return call

    return decorated


ARGUMENTS_WIDTH = 92  # line width of a docstring's arguments

ARGUMENTS_TEMPLATE = """\
Args:
    data: A built-in name, a path, a pandas frame, (x, y) arrays, or a data set. [default: 'digits']
{options}

Raises:
    UsageError: Invalid data or settings; nothing was written.
    BudgetError: The budget is too small; the message names the smallest that fits. Nothing was
        written.

"""


def _add_arguments(text: str, request: type[Request]) -> str:
    """Insert the request's options and errors into a docstring, before `Returns:` or `Cost:`."""
    options = "\n".join(
        fill(
            f"{name}: {option.help_text}"
            + (
                "" if option.default_text or any(option.of.values()) else f" [default: {default!r}]"
            ),
            ARGUMENTS_WIDTH,
            initial_indent=" " * 4,
            subsequent_indent=" " * 8,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for name, default, option in list_options(request)
    )
    place = min((text.find(part) for part in ("Returns:", "Cost:") if part in text), default=None)
    if place is None:
        return text
    return text[:place] + ARGUMENTS_TEMPLATE.format(options=options) + text[place:]


def _check_options(request: type[Request], name: str, positional: int, given: set[str]) -> None:
    """Refuse several positional arguments, and names that are no fields of the request."""
    known = {each.name for each in fields(request)}
    if positional > 1:
        raise UsageError(
            f"{name} accepts only data as a positional argument: use {name}(data, budget=..., "
            "target=...)."
        )
    if unknown := sorted(given - known):
        hint = " Pass epsilon and delta as budget=Budget(epsilon, delta)."
        raise UsageError(
            f"{', '.join(unknown)}: unknown option; expected one of {', '.join(sorted(known))}."
            + (hint if {"epsilon", "eps", "delta"} & set(unknown) else "")
        )
