"""What may be asked of every task, each option once: its type, default, help, group and flag.

    field of a request  ->  argument of a Python function, such as search_share=.2
                        ->  option of the command line, its help, docs/reference.md
                        ->  what errors call it

A request is a frozen value, checked when it is made and kept in `private/`, so that a run can be
resumed from another working directory. This file imports nothing heavy: helps are made from it.

An error names an option as Python has it, `search_share=`; the command line shows its flag
(`errors.FIELD`).

Source: docs/rules.md, rules 1 and 13.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from numbers import Integral
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

from pasearch.accounting.budget import Budget
from pasearch.accounting.checks import check_positive, check_positive_integer
from pasearch.errors import UsageError
from pasearch.progress import check_progress as check_progress
from pasearch.runs.cluster import Cluster
from pasearch.runs.executors import AutomaticExecutor, Executor, LocalExecutor, ProcessExecutor
from pasearch.search.names import show_strategy

if TYPE_CHECKING:
    import numpy as np

    from pasearch.data.partitions import Dataset
    from pasearch.data.schema_argument import SchemaArgument
    from pasearch.progress import Progress
    from pasearch.runs.journal import Address
    from pasearch.spaces.space import Space

    Data = str | Path | tuple[np.ndarray, np.ndarray] | Dataset

Values = Mapping[str, Any]

DEVICES = ("auto", "cpu", "cuda")

IN_MEMORY_NAME = "arrays"
"""What data is called that was handed over in memory."""

DEFAULT_EPSILON = 1.0
"""Epsilon of a run that was given none."""

MAX_SCORE_EPSILON = 100.0
"""The largest epsilon of one score."""

MAX_LEARNING_RATE = 1e6
"""The largest learning rate."""

MAX_CATEGORIES = 1_000_000
"""The most categories that a column may be allowed."""

DATA, BUDGET, SEARCH, TRAINING, PUBLIC, RUN = GROUPS = (
    "Data",
    "Budget",
    "Search and choice",
    "Training",
    "What is public",
    "The run",
)
"""Under which headings helps and the reference show options, in this order."""


@dataclass(frozen=True, slots=True)
class Option:
    """What an option says of itself, beside its name, type and default.

    Args:
        help: What it does: a sentence for a colleague from another field.
        group: One of `GROUPS`.
        default_text: What is taken if it is not given, where that is no value of its own.
        flag: On the command line; its name with dashes if empty; None where only Python has it.
        reads: Its type on the command line, where that is another than in Python.
        of: Strategies or methods that take it, each with its own default; empty where all do.
    """

    help: str
    group: str
    default_text: str = ""
    flag: str | None = ""
    reads: Any = None
    of: Mapping[str, str] = field(default_factory=dict)

    @property
    def help_text(self) -> str:
        """The help, with what is taken otherwise, and the strategies or methods that take it."""
        of = "; ".join(
            show_strategy(name) + (f", default {of}" if of else "") for name, of in self.of.items()
        )
        usual = f" [default: {self.default_text}]" if self.default_text else ""
        return self.help + (f" [only with {of}]" if of else "") + usual


def option(default: Any, help: str, group: str, **more: Any) -> Any:
    """Return a field of a request: an option with its default; `more` as of `Option`."""
    return field(default=default, metadata={"option": Option(help, group, **more)})


EXECUTORS = ("auto", "local", "process", "ray")

MAX_WORKERS = 100_000
"""The most trainings at a time."""


def make_executor(
    name: str = "auto",
    workers: int | None = None,
    ray_address: str | None = None,
    gpus_per_worker: float | None = None,
) -> Executor:
    """Return who trains; nothing is begun or connected before its `with` block.

    Args:
        name: One of `EXECUTORS`.
        workers: How many trainings at a time, at most; None: as many as there is room for.
        ray_address: Of a Ray cluster; None begins one on this machine.
        gpus_per_worker: Of a training on the cluster, a part of one or several; None: no GPU.

    Raises:
        UsageError: No such executor, settings that it has no use for, or Ray is not installed.
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
                f"{option} is {value!r}, and only a Ray cluster has a use for it: take "
                f"`executor='ray'`, or leave `{option}=` out."
            )
    if name == "local":
        if workers is not None and workers > 1:
            raise UsageError(
                f"workers is {workers}, and `executor='local'` trains one by one: leave one out."
            )
        return LocalExecutor()
    return ProcessExecutor(workers) if name == "process" else AutomaticExecutor(workers)


def check_executor(name: str, device: str, why_none: Mapping[str, str]) -> None:
    """Refuse an executor that would have nothing to do, rather than leave it idle.

    Args:
        name: One of `EXECUTORS`.
        device: "cpu" or "cuda".
        why_none: Why no training would be handed over, by executor; empty where some would.

    Raises:
        UsageError: It was asked for, and would train nothing.
    """
    why = why_none.get(name)
    if why is None and name == ProcessExecutor.name and device != "cpu":
        why = "on a GPU trainings are made one after another (`device='cpu'` makes them there)"
    if why is not None:
        raise UsageError(
            f"executor is {name!r}, and nothing of this run can be trained by it: {why}. Leave "
            "`executor=` out."
        )


@dataclass(frozen=True, eq=False)
class Request:
    """What every task is asked for; `data` alone may be given by place."""

    task: ClassVar[str] = ""
    among: ClassVar[tuple[str, ...]] = ()
    """The strategies or methods that the task can take, but for auto."""

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
        None, "The column of a table to predict.", DATA, default_text="the last one"
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
        "Whether quotation marks may enclose a cell of a .csv, within its line, or are ordinary "
        "characters.",
        DATA,
        flag="--quotes/--no-quotes",
    )
    columns: str | Path | Sequence[str] | None = option(
        None,
        "Names of the columns of a table without a header, in order: with commas between, or a "
        ".txt with one on a line.",
        DATA,
        default_text="the first line has them",
        reads=str,
    )
    separator: str | None = option(
        None,
        "What stands between two cells of a table: one of , ; | : and the like, or tab.",
        DATA,
        default_text="comma, semicolon, tab or |: which the header has; a comma if there is none",
    )
    regression: bool = option(False, "Predict a number, not a class.", DATA)
    labels: str | Sequence[Any] | None = option(
        None,
        "Declared classes of a table's target, or all labels of arrays: with commas between, such "
        "as no,yes. In Python also a list.",
        DATA,
        default_text="those of the schema or of `classes`; without one estimated privately",
        reads=str,
    )
    metric: str | None = option(
        None,
        "By what candidates are compared and the test is reported: accuracy, balanced-accuracy, "
        "auc (two classes), log-loss or brier of classes; mae or rmse of a number.",
        DATA,
        default_text="accuracy; of a number mae",
    )
    bounds: tuple[float, float] | None = option(
        None, "Declared lowest and highest value of all features of arrays (.npz).", DATA,
        default_text="estimated privately",
    )  # fmt: skip
    classes: int | str | Sequence[Any] | None = option(
        None,
        "Declared classes of arrays (.npz): their number, if labels are 0, 1 ..., or all labels "
        "with commas between, such as --classes=-1,1.",
        DATA,
        default_text="estimated privately",
        reads=str,
    )
    image_side: int | None = option(
        None, "Pixels that the images of a folder are scaled to.", DATA, default_text="32"
    )
    grey: bool = option(False, "Give the images of a folder one channel.", DATA)
    max_categories: int = option(
        32, "The most categories that are estimated privately for an undeclared column.", DATA
    )
    data_root: str = option("data", "The folder with MNIST/raw/ and the like.", DATA)
    download: bool = option(False, "Let torchvision download image sets that are missing.", DATA)
    split: str | None = option(
        None, "Fractions 'train,validation,test' of the records, or 'paper': the sizes that Bao et "
        "al. print in IV-A. With fractions, if no candidates are compared, the validation records "
        "are trained on.", DATA,
        default_text="0.8,0.1,0.1 (so 0.9,0,0.1 where no candidates are compared), or the data's "
        "own test set; more to estimate an undeclared table from",
    )  # fmt: skip
    search_share: float = option(
        0.0, "Share of the training records that only the search or the choice reads.", SEARCH
    )
    ledger: str | Path | None = option(
        None, "A file that adds up all runs on these data, and refuses one too many.", BUDGET,
        reads=Path,
    )  # fmt: skip
    ledger_budget: tuple[float, float] | None = option(
        None, "Epsilon and delta of all its runs together, for a ledger that is not there yet.",
        BUDGET,
    )  # fmt: skip
    data_is_public: bool = option(False, "You declare every record public.", PUBLIC)
    assume_public_schema: bool = option(
        False,
        "Read what the schema leaves undeclared from the records, uncharged. Not private.",
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
        "Who trains: this process (local), others of this machine (process), or a Ray cluster "
        "(ray); auto takes processes where that is faster. The result is the same.",
        RUN,
    )
    workers: int | None = option(
        None, "How many trainings at a time, at most.", RUN,
        default_text="as many as the run's threads, or the cluster, have room for",
    )  # fmt: skip
    ray_address: str | None = option(
        None, "Of a Ray cluster that runs, host:port or auto.", RUN,
        default_text="with executor ray, one on this machine that ends with the run",
    )  # fmt: skip
    gpus_per_worker: float | None = option(
        None, "Of each training on a Ray cluster: .25 lets four share one GPU.", RUN,
        default_text="none: on CPUs",
    )  # fmt: skip
    secure_noise: bool = option(
        False,
        "Draw everything random from AES-256: batches too, and on a GPU the noise. Slower.",
        RUN,
    )
    seed: int | None = option(
        None, "Make the noise reproducible. NOT private: for tests and benchmarks.", RUN
    )
    out: str | Path | None = option(
        None, "A new folder for the run.", RUN, default_text="runs/<name>-<number>", reads=Path
    )
    progress: Progress | bool | None = option(
        None,
        "Whether one line tells how far the run is: True, False, or a pasearch.progress.Progress "
        "of your own.",
        RUN,
        default_text="shown in a notebook and on a terminal",
        flag=None,
    )

    def __post_init__(self) -> None:
        if self.budget is not None and not isinstance(self.budget, Budget):
            raise UsageError(f"budget is {self.budget!r}: expected Budget(epsilon=..., delta=...).")
        if self.image_side is not None:
            from pasearch.data.image_folder import check_image_side

            check_image_side(self.image_side)
        check_progress(self.progress)
        if self.schema is not None and not isinstance(self.schema, (str, Path)):
            from pasearch.data.schema_argument import load_schema

            object.__setattr__(self, "schema", load_schema(self.schema))
        if self.columns is not None or self.separator is not None:
            from pasearch.data.lines import parse_separator
            from pasearch.data.table_format import read_column_names

            # As names: a resume may come from another working directory.
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
            raise UsageError(f"Seed is {shown}: expected a whole number, 0 to 2^64 - 1.")

    def make_executor(self) -> Executor:
        """Return who trains; nothing is begun before its `with` block."""
        return make_executor(self.executor, self.workers, self.ray_address, self.gpus_per_worker)

    @property
    def total(self) -> Budget:
        """Epsilon and delta of the whole run: epsilon is 1 where none was given."""
        return self.budget or Budget(DEFAULT_EPSILON)


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainRequest(Request):
    """What the training of one network is asked for, beside what every task is."""

    task: ClassVar[str] = "train"

    recipe: str | Path | Values | Sequence[str | Path | Values] = option(
        "default",
        "How networks are trained: a name that `pasearch recipes` lists, or a .toml. Of several, "
        "one is chosen; each trains on records of its own.",
        TRAINING,
        reads=list[str],
    )
    architecture: str | Path | Values | None = option(
        None, "The one network to train, a .toml: nothing is searched.", TRAINING, reads=Path
    )
    noise: str | None = option(
        None,
        "Law of the noise on encoded gradients (recipe encoded-gaussian): gaussian, student-t:9, "
        "laplace, ..., or search for the one of least error at equal price.",
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
        "Compare averages, earlier weights, thresholds, pruned and rounded weights of the one "
        "training by a private pick on a tenth of the records.",
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
        "A private folder that keeps transformed images for other runs on the same data.",
        RUN,
        reads=Path,
    )
    storage: str | Path | Address | None = option(
        None,
        "Where finished trials are kept, if several machines shall reach them: "
        "postgresql://user@host/database, or a .log file. Whoever can read it sees their scores.",
        RUN,
        default_text="a file in the run's own folder",
        reads=str,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.storage is not None:
            from pasearch.runs.journal import parse_address

            # As an address: its password is not shown, and a resume may come from elsewhere.
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
        """The recipes, as a list: one, if nothing is to be chosen."""
        return list(self.recipe) if isinstance(self.recipe, (list, tuple)) else [self.recipe]


@dataclass(frozen=True, kw_only=True, eq=False)
class ChoiceRequest(Request):
    """What a choice among candidates is asked for, of networks or of features."""

    candidates: float | None = option(
        None, "Mean number of trainings, or how many candidates a generation has.", SEARCH,
        of={"rs": "10", "mgrs": "40", "paas": "10", "stw": "10", "portions": "4",
            "ahead": "4", "insured": "4", "subsets": "8"},
    )  # fmt: skip
    generations: int | None = option(
        None, "Number of generations.", SEARCH,
        of={"mgrs": "3", "paas": "6", "stw": "6", "pafs": "3", "cfs-ga": "10"},
    )  # fmt: skip
    law: str | None = option(
        None, "Law of the number of trainings: geometric, logarithmic, poisson or binomial.",
        SEARCH, default_text="geometric", of={"rs": "", "mgrs": "", "subsets": ""},
    )  # fmt: skip
    search_on: str | Path | None = option(
        None, "Public data of the same kind to search on; the search then costs nothing.", PUBLIC,
        reads=str,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class SearchRequest(TrainRequest, ChoiceRequest):
    """What an architecture search is asked for."""

    task: ClassVar[str] = "arch"
    among: ClassVar[tuple[str, ...]] = (
        "fixed", "rs", "mgrs", "paas", "portions", "ahead", "insured", "grid",
        "stw",
    )  # fmt: skip

    strategy: str = option(
        "auto",
        "Who is tried: auto, fixed, rs, mgrs, paas, paas-paper (the paper's epsilon .02 a score), "
        "portions, successive-halving, protected-halving, grid, or stw (public data only).",
        SEARCH,
    )
    space: str | Path | Values | Space = option(
        "auto",
        "What candidates are drawn from: auto (the portfolio), images, tables, fcn, cnn, "
        "fcn-paper, cnn-paper, fcn-rwt, cnn-rwt, or a .toml.",
        SEARCH,
        reads=str,
    )
    returns: str | None = option(
        None, "Which is returned: the best of all generations, or of the last, as in the paper.",
        SEARCH, default_text="best", of={"paas": "", "stw": ""},
    )  # fmt: skip
    rungs: int | None = option(
        None, "How often candidates are looked at, each time at half of those before.", SEARCH,
        default_text="1", of={"ahead": "", "insured": ""},
    )  # fmt: skip
    crossover: bool = option(
        False,
        "Measure which model is the best at which epsilon, instead of forecasting it. Of private "
        "records a part of the budget pays (strategy grid), of public ones nothing does.",
        SEARCH,
    )
    eps_grid: str | None = option(
        None,
        "At which epsilons every model is trained, for a crossover report measured on your own "
        "records: low:high:logN, or numbers with commas.",
        SEARCH, default_text="five, with three tenths of the squared budget", of={"grid": ""},
    )  # fmt: skip
    repeats: int | None = option(
        None, "How often every model is trained at each epsilon of the grid, 2 or more.", SEARCH,
        default_text="2", of={"grid": ""},
    )  # fmt: skip
    max_candidates: int | None = option(
        None, "Redraw the number of trainings above this; priced.", SEARCH,
        default_text="no limit", of={"rs": "", "mgrs": ""},
    )  # fmt: skip
    score_epsilon: float | None = option(
        None, "Epsilon of one candidate's score.", BUDGET, default_text="the most that fits",
        flag="--score-eps",
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
                f"{MAX_SCORE_EPSILON:g}: above, a score has no noise that anybody could measure."
            )


GENETIC_METHODS = {"pafs": "", "cfs-ga": ""}


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureRequest(ChoiceRequest):
    """What a choice of features is asked for."""

    task: ClassVar[str] = "features"
    among: ClassVar[tuple[str, ...]] = (
        "all", "random", "cfs-greedy", "cfs-ga", "top", "pca", "pafs", "one-hot", "subsets",
        "max-pool",
    )  # fmt: skip

    method: str = option(
        "auto",
        "How features are chosen: auto, all, random, cfs-greedy, cfs-ga, top, pca, pafs, one-hot, "
        "subsets or max-pool.",
        SEARCH,
    )
    k: int | None = option(None, "How many features.", SEARCH, default_text="the method's own")
    merits: str | None = option(
        None, "Merits from noisy tables, or from noisy entropies as the paper has them.", SEARCH,
        default_text="tables", of={"cfs-greedy": "", "cfs-ga": ""},
    )  # fmt: skip
    until_no_gain: bool | None = option(
        None, "Stop at the first feature that does not raise the merit.", SEARCH, default_text="no",
        of={"cfs-greedy": ""},
    )  # fmt: skip
    population: int | None = option(
        None, "Sets of features a generation.", SEARCH, of={"pafs": "20", "cfs-ga": "5000"}
    )
    alpha: float | None = option(
        None, "Share of the fittest that become parents.", SEARCH,
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
        None, "permute-and-flip or gumbel.", SEARCH, default_text="permute-and-flip", of={"top": ""}
    )
    pool: int | None = option(
        None,
        "Side of the square of pixels that is pooled.",
        SEARCH,
        default_text="2",
        of={"max-pool": ""},
    )
    trainer: str = option(
        "auto", "How the model is trained: auto, dpsgd, or objective (also: logistic).", TRAINING,
        flag="--model",
    )  # fmt: skip
    selection_share: float | None = option(
        None, "Share of epsilon that the choice takes.", BUDGET, default_text="0.4, pafs 0.6"
    )


P = ParamSpec("P")
AnyRequest = TypeVar("AnyRequest", bound=Request)
Answer = TypeVar("Answer")


def list_options(request: type[Request]) -> Iterator[tuple[str, Any, Option]]:
    """Go through (name, default, option) of what a task may be asked, its own options first.

    Of strategies and methods, an option has those that the task knows.
    """
    homes = [vars(kind).get("__annotations__", {}) for kind in request.__mro__]
    home = {each.name: [each.name in own for own in homes].index(True) for each in fields(request)}
    for each in sorted(fields(request), key=lambda each: home[each.name]):
        if (option := each.metadata.get("option")) is not None:
            of = {name: usual for name, usual in option.of.items() if name in request.among}
            yield each.name, each.default, replace(option, of=of)


DATA_OPTIONS = tuple(name for name, _, each in list_options(SearchRequest) if each.group == DATA)
"""Options that describe the data: those of every command that reads or plans with data."""


def accept_request_fields(
    request: Callable[P, AnyRequest],
) -> Callable[[Callable[[AnyRequest], Answer]], Callable[P, Answer]]:
    """Let a function of a request take the request's fields as its arguments."""
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


ARGUMENTS_WIDTH = 92
"""Of a line of a docstring's arguments."""

ARGUMENTS_TEMPLATE = """\
Args:
    data: A built-in name, a path, a pandas frame, (x, y) arrays, or a data set. [default: 'digits']
{options}

Raises:
    UsageError: Data or settings of bad form; nothing was written.
    BudgetError: The budget is too small, and the message names the smallest that would do; nothing
        was written.

"""


def _add_arguments(text: str, request: type[Request]) -> str:
    """Return a docstring with the request's options and errors, before what is returned."""
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


def _check_options(request: type[Request], name: str, places: int, given: set[str]) -> None:
    """Refuse more than data by place, and options that the task does not have."""
    known = {each.name for each in fields(request)}
    if places > 1:
        raise UsageError(
            f"{name} takes data by place and all else by name: write {name}(data, budget=..., "
            "target=...)."
        )
    if unknown := sorted(given - known):
        hint = " Epsilon and delta are the budget's: budget=Budget(epsilon, delta)."
        raise UsageError(
            f"{', '.join(unknown)}: no such option: expected one of {', '.join(sorted(known))}."
            + (hint if {"epsilon", "eps", "delta"} & set(unknown) else "")
        )
