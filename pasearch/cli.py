"""The command line: `pasearch arch`, `features`, `train`, `plan`, `check`, `account`, `verify`...

Thin: it turns options into calls of `api`, and errors into exit codes (0 done, 2 bad usage or
input, 3 budget, 130 interrupted). Everything heavy is imported inside the commands, so that
`--help` is quick.
"""

from __future__ import annotations

import functools
import inspect
import io
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from pasearch.errors import PasearchError, UsageError
from pasearch.shown import shown, shown_lines

if TYPE_CHECKING:
    from pasearch.api.features import Prepared as PreparedFeatures
    from pasearch.api.search import Prepared
    from pasearch.results import Result

INTERRUPTED = 130

app = typer.Typer(
    name="pasearch",
    help="Privacy-aware AutoML: search under one (epsilon, delta) that pays for the search too.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
plan_app = typer.Typer(
    help="Print a plan: what would be released, and its price.", no_args_is_help=True
)
account_app = typer.Typer(help="A calculator of prices; it reads no data.", no_args_is_help=True)
app.add_typer(plan_app, name="plan")
app.add_typer(account_app, name="account")

Data = Annotated[
    str,
    typer.Argument(
        help="digits, mnist, fashion-mnist, cifar10, svhn, a .csv, a .npz with arrays x and y, or "
        "a folder of images."
    ),
]
Eps = Annotated[float | None, typer.Option("--eps", help="Epsilon of the whole run.")]
Delta = Annotated[
    float | None,
    typer.Option("--delta", help="Delta of the whole run. [default: power of ten below 1/n]"),
]
Strategy = Annotated[
    str,
    typer.Option("--strategy", help="auto, fixed, rs, mgrs, paas, portions, or stw (public)."),
]
Space = Annotated[
    str,
    typer.Option(
        "--space",
        help="auto (the portfolio), images, tables, fcn, cnn, fcn-paper, cnn-paper, fcn-rwt, "
        "cnn-rwt, or a .toml.",
    ),
]
RecipeOption = Annotated[
    list[str],
    typer.Option(
        "--recipe",
        help="How networks are trained: see `pasearch recipes`, or a .toml. Several: one is chosen "
        "among them, each trained on records of its own.",
        show_default="default",
    ),
]
ArchitectureOption = Annotated[
    Path | None,
    typer.Option("--architecture", help="The one network to train, a .toml: no search."),
]
EnergyOn = Annotated[
    str | None,
    typer.Option("--energy-on", help="Public data that the recipe looks at while it trains, free."),
]
NoiseOption = Annotated[
    str | None,
    typer.Option(
        "--noise",
        help="Law of the noise on encoded gradients (--recipe encoded-gaussian): gaussian, "
        "student-t:9, laplace, ..., or search.",
    ),
]
Candidates = Annotated[
    float | None,
    typer.Option("--candidates", help="Mean number of trainings (rs, mgrs), or population (paas)."),
]
Generations = Annotated[
    int | None, typer.Option("--generations", help="Generations of mgrs and paas.")
]
Law = Annotated[
    str | None,
    typer.Option("--law", help="Law of the number of trainings: geometric, logarithmic, poisson."),
]
MaxCandidates = Annotated[
    int | None,
    typer.Option("--max-candidates", help="Redraw the number of trainings above this (priced)."),
]
Preset = Annotated[
    str | None, typer.Option("--preset", help="paas-paper: paas with epsilon .02 a score.")
]
ScoreEps = Annotated[
    float | None,
    typer.Option("--score-eps", help="Epsilon of one score. [default: the most that fits]"),
]
Batch = Annotated[
    int | None, typer.Option("--batch", help="Expected batch size. [default: min(2048, n/4)]")
]
Steps = Annotated[
    int | None, typer.Option("--steps", help="Steps of one training. [default: 5 sqrt(n)]")
]
LearningRate = Annotated[
    float | None,
    typer.Option("--learning-rate", help="Learning rate. [default: tuned to the noise]"),
]
SplitOption = Annotated[
    str | None,
    typer.Option("--split", help="train,validation,test shares, or 'paper'. [default: .8,.1,.1]"),
]
SearchShare = Annotated[
    float,
    typer.Option("--search-share", help="Share of training slots that only a search reads."),
]
Public = Annotated[bool, typer.Option("--data-is-public", help="You declare every record public.")]
Bounds = Annotated[
    tuple[float, float] | None,
    typer.Option("--bounds", help="Declared LOW HIGH of the features (.npz)."),
]
Classes = Annotated[
    int | None, typer.Option("--classes", help="Declared number of classes (.npz).")
]
DataRoot = Annotated[str, typer.Option("--data-root", help="Folder with MNIST/raw/ and the like.")]
Download = Annotated[bool, typer.Option("--download", help="Download the images if missing.")]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
Regression = Annotated[bool, typer.Option("--regression", help="Predict a number, not a class.")]
Target = Annotated[
    str | None, typer.Option("--target", help="Column to predict (.csv). [default: the last]")
]
SchemaOption = Annotated[
    Path | None, typer.Option("--schema", help="Declared columns of a .csv: a .toml.")
]
Quotes = Annotated[
    bool,
    typer.Option(
        "--quotes/--no-quotes",
        help="Whether quotation marks may enclose a cell of a .csv, within its line, or are "
        "ordinary characters.",
    ),
]
MaxCategories = Annotated[
    int, typer.Option("--max-categories", help="Most categories bought for an undeclared column.")
]
AssumePublic = Annotated[
    bool,
    typer.Option("--assume-public-schema", help="Read what is undeclared for nothing: a leak."),
]
ImageSide = Annotated[
    int | None, typer.Option("--image-side", help="Pixels (folder of images). [default: 32]")
]
Grey = Annotated[bool, typer.Option("--grey", help="One channel (folder of images).")]
SearchOn = Annotated[
    str | None, typer.Option("--search-on", help="Public data of the same kind to search on, free.")
]
LedgerOption = Annotated[
    Path | None, typer.Option("--ledger", help="File that adds up all runs on these data.")
]
LedgerBudget = Annotated[
    tuple[float, float] | None,
    typer.Option("--ledger-budget", help="EPSILON DELTA of all runs together, for a new ledger."),
]
Cache = Annotated[
    Path | None,
    typer.Option("--cache", help="Private folder that keeps transformed images for other runs."),
]
SecureNoise = Annotated[
    bool,
    typer.Option(
        "--secure-noise",
        help="Draw everything random from AES-256: batches too, and on a GPU the noise. Slower.",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", help="Reproducible noise: NOT private; for tests and benchmarks."),
]
Out = Annotated[
    Path | None, typer.Option("--out", help="New folder. [default: runs/<name>-<number>]")
]
Resume = Annotated[
    Path | None, typer.Option("--resume", help="Finish an interrupted run; no other option.")
]
Sign = Annotated[
    Path | None,
    typer.Option("--sign", help="Sign the result with this private key (see `pasearch key`)."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON only.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print the last line only.")]


def main() -> None:
    """Run the command line."""
    try:
        code = app(standalone_mode=False)
        if code == INTERRUPTED:
            typer.echo("Interrupted; no run was under way.", err=True)
    except PasearchError as error:
        prefix = "" if error.exit_code == INTERRUPTED else "Error: "
        typer.echo(f"{prefix}{_with_option_names(str(error))}", err=True)
        code = error.exit_code
    except OSError as error:
        # Its path is not shown: in private/ even a file's name may tell the number of trainings.
        typer.echo(
            f"Error: the system refused a file operation ({error.strerror}). If the run had begun, "
            "nothing is lost: make room, and finish it with --resume.",
            err=True,
        )
        code = 1
    except Exception as error:
        if not type(error).__module__.startswith(("click", "typer")):
            raise
        code = _click_error(error)
    sys.exit(code if isinstance(code, int) else 0)


OPTION_NAMES = {
    "epsilon": "--eps", "delta": "--delta", "candidates": "--candidates", "steps": "--steps",
    "max_candidates": "--max-candidates", "score_epsilon": "--score-eps", "batch": "--batch",
    "learning_rate": "--learning-rate", "generations": "--generations", "sigma": "--sigma",
    "n": "--n", "law": "--law", "k": "--k", "trainer": "--model", "method": "--method",
    "merits": "--merits", "population": "--population", "pick": "--pick", "pool": "--pool",
    "selection_share": "--selection-share", "alpha": "--alpha", "p_co": "--p-co", "p_mu": "--p-mu",
    "until_no_gain": "--until-no-gain",
}  # fmt: skip
"""What the API's arguments are called on the command line."""


def _with_option_names(message: str) -> str:
    """Let a message that begins with an argument's name say the option instead."""
    name, is_, rest = message.partition(" is ")
    name = " + ".join(OPTION_NAMES.get(each, each) for each in name.split(" + "))
    return f"{name}{is_}{rest}"


def _click_error(error: Any) -> int:
    """Report an unknown option, or a number that is none, as click would; return the exit code."""
    if getattr(error, "option_name", None) in SEARCH_OPTIONS and "train" in error.ctx.command_path:
        typer.echo(
            f"Error: {error.option_name} belongs to a search, and `pasearch train` trains one "
            "network by one recipe (--architecture, --recipe) without any. To search, take "
            "`pasearch arch`, which has it.",
            err=True,
        )
        return UsageError.exit_code
    if callable(getattr(error, "show", None)):
        text = io.StringIO()
        error.show(file=text)
        typer.echo(shown_lines(text.getvalue().rstrip("\n")), err=True)
        return int(error.exit_code)
    return INTERRUPTED


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from pasearch import __version__

        typer.echo(f"pasearch {__version__}")
        raise typer.Exit


def _asked(
    data: Data = "digits",
    eps: Eps = None,
    delta: Delta = None,
    strategy: Strategy = "auto",
    space: Space = "auto",
    recipe: RecipeOption = ["default"],  # noqa: B006 - typer copies it
    architecture: ArchitectureOption = None,
    energy_on: EnergyOn = None,
    noise: NoiseOption = None,
    candidates: Candidates = None,
    generations: Generations = None,
    law: Law = None,
    max_candidates: MaxCandidates = None,
    preset: Preset = None,
    score_eps: ScoreEps = None,
    batch: Batch = None,
    steps: Steps = None,
    learning_rate: LearningRate = None,
    split: SplitOption = None,
    search_share: SearchShare = 0.0,
    search_on: SearchOn = None,
    ledger: LedgerOption = None,
    ledger_budget: LedgerBudget = None,
    data_is_public: Public = False,
    target: Target = None,
    schema: SchemaOption = None,
    quotes: Quotes = True,
    regression: Regression = False,
    max_categories: MaxCategories = 32,
    assume_public_schema: AssumePublic = False,
    bounds: Bounds = None,
    classes: Classes = None,
    image_side: ImageSide = None,
    grey: Grey = False,
    cache: Cache = None,
    data_root: DataRoot = "data",
    download: Download = False,
    device: Device = "auto",
    secure_noise: SecureNoise = False,
    seed: Seed = None,
) -> None:
    """What may be said about an architecture search, to `arch` and to `plan arch` alike."""


def _asked_features(
    data: Data = "digits",
    eps: Annotated[float, typer.Option("--eps", help="Epsilon of the whole run.")] = 1.0,
    delta: Delta = None,
    target: Target = None,
    method: Annotated[
        str,
        typer.Option(
            "--method",
            help="auto, all, random, cfs-greedy, cfs-ga, top, pca, pafs, one-hot, subsets or "
            "max-pool.",
        ),
    ] = "auto",
    k: Annotated[
        int | None, typer.Option("--k", help="How many features. [default: the method's own]")
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            "--model", help="auto, dpsgd, or objective (also: logistic): how it is trained."
        ),
    ] = "auto",
    merits: Annotated[
        str | None,
        typer.Option(
            "--merits", help="Of cfs: from noisy tables, or entropies (the paper). [tables]"
        ),
    ] = None,
    until_no_gain: Annotated[
        bool | None,
        typer.Option(
            "--until-no-gain",
            help="Of cfs-greedy: stop at the first feature that does not raise the merit.",
        ),
    ] = None,
    population: Annotated[
        int | None,
        typer.Option(
            "--population", help="Of pafs and cfs-ga: sets a generation. [pafs 20, cfs-ga 5000]"
        ),
    ] = None,
    generations: Annotated[
        int | None,
        typer.Option("--generations", help="Of pafs and cfs-ga. [pafs 3, cfs-ga 10]"),
    ] = None,
    alpha: Annotated[
        float | None,
        typer.Option(
            "--alpha", help="Of pafs and cfs-ga: share of parents. [pafs 0.3, cfs-ga 0.03]"
        ),
    ] = None,
    p_co: Annotated[
        float | None,
        typer.Option("--p-co", help="Of pafs and cfs-ga: probability of a crossover. [0.8]"),
    ] = None,
    p_mu: Annotated[
        float | None,
        typer.Option("--p-mu", help="Of pafs and cfs-ga: probability of a mutation. [0.2]"),
    ] = None,
    pick: Annotated[
        str | None,
        typer.Option("--pick", help="Of top: permute-and-flip or gumbel. [permute-and-flip]"),
    ] = None,
    law: Annotated[
        str | None,
        typer.Option("--law", help="Of subsets: geometric, logarithmic, poisson. [geometric]"),
    ] = None,
    candidates: Annotated[
        float | None,
        typer.Option("--candidates", help="Of subsets: mean number of trainings. [8]"),
    ] = None,
    pool: Annotated[
        int | None, typer.Option("--pool", help="Of max-pool: side, pixels. [2]")
    ] = None,
    selection_share: Annotated[
        float | None,
        typer.Option("--selection-share", help="Share of epsilon that the choice takes."),
    ] = None,
    split: SplitOption = None,
    search_share: SearchShare = 0.0,
    search_on: SearchOn = None,
    ledger: LedgerOption = None,
    ledger_budget: LedgerBudget = None,
    data_is_public: Public = False,
    schema: SchemaOption = None,
    quotes: Quotes = True,
    private_schema: Annotated[
        bool,
        typer.Option("--private-schema", help="Buy what is undeclared (the default, said aloud)."),
    ] = False,
    assume_public_schema: AssumePublic = False,
    regression: Regression = False,
    max_categories: MaxCategories = 32,
    bounds: Bounds = None,
    classes: Classes = None,
    image_side: ImageSide = None,
    grey: Grey = False,
    data_root: DataRoot = "data",
    download: Download = False,
    device: Device = "auto",
    secure_noise: SecureNoise = False,
    seed: Seed = None,
) -> None:
    """What may be said about a feature selection, to `features` and `plan features` alike."""


SEARCHED = frozenset(
    {
        "strategy", "space", "candidates", "generations", "law", "max_candidates", "preset",
        "score_eps", "search_on",
    }
)  # fmt: skip
"""Options of a search, which training one network lacks."""

SEARCH_OPTIONS = frozenset(f"--{name.replace('_', '-')}" for name in SEARCHED)


def _asks(
    command: Callable[..., None],
    *,
    of: Callable[..., None] = _asked,
    without: frozenset[str] = frozenset(),
) -> Callable[..., None]:
    """Give a command, whose first argument is `asked`, the options of `of` in its place."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    every = list(inspect.signature(of, eval_str=True).parameters.values())
    shared = [each for each in every if each.name not in without]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        asked = {each.name: given.pop(each.name, each.default) for each in every}
        command(asked, **given)

    # Every option has a default but typer's context, which must then come first.
    own.sort(key=lambda each: each.default is not inspect.Parameter.empty)
    place = sum(each.default is inspect.Parameter.empty for each in own)
    merged = [*own[:place], *shared, *own[place:]]
    run.__signature__ = inspect.Signature(merged)  # type: ignore[attr-defined]
    hints = get_type_hints(of, include_extras=True)
    run.__annotations__ = {**hints, **get_type_hints(command, include_extras=True)}
    return run


@app.command()
@_asks
def arch(
    asked: dict[str, Any],
    context: typer.Context,
    out: Out = None,
    sign: Sign = None,
    resume: Resume = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Search for the best architecture and train it, under one budget that pays for everything."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signed = _signing(sign)
    if resume is not None:
        _check_alone(context)
        _resume(resume, signed, as_json=as_json, quiet=quiet)
        return
    prepared = _prepared(asked, show=not (as_json or quiet))
    if dry_run:
        _show_plan(prepared, as_json=as_json, quiet=quiet, alone=True)
        return
    from pasearch.api.request import device_of

    device_of(prepared.request)
    _check_out(out)
    _show_plan(prepared, as_json=as_json, quiet=quiet, alone=False)
    _search(prepared, out, signed, as_json=as_json, quiet=quiet)


def train(
    asked: dict[str, Any],
    out: Out = None,
    sign: Sign = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train one network by one recipe, without a search, under one budget.

    Of several recipes (--recipe A --recipe B) one is chosen, by disjoint portions of the records.
    Without --architecture it is the first of the portfolio. An interrupted run is finished with
    `pasearch arch --resume FOLDER`.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signed = _signing(sign)
    several = len(asked["recipe"]) > 1
    prepared = _prepared(
        {**asked, "strategy": "auto" if several else "fixed"}, show=not (as_json or quiet)
    )
    _show_plan(prepared, as_json=as_json, quiet=quiet, alone=dry_run)
    if not dry_run:
        from pasearch.api.request import device_of

        device_of(prepared.request)
        _check_out(out)
        _search(prepared, out, signed, as_json=as_json, quiet=quiet)


app.command("train")(_asks(train, without=SEARCHED))


def features(
    asked: dict[str, Any],
    context: typer.Context,
    out: Out = None,
    sign: Sign = None,
    resume: Resume = None,
    dry_run: DryRun = False,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Choose features and train a model on them, under one budget that pays for both."""
    from pasearch.api.features import resume_selection, run
    from pasearch.progress import Bar

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signed = _signing(sign)
    if resume is not None:
        _check_alone(context)
        _show_result(signed(resume_selection(resume)), as_json=as_json, quiet=quiet)
        return
    prepared = _prepared_features(asked)
    if not dry_run:
        _check_out(out)
    _show_plan(prepared, as_json=as_json, quiet=quiet, alone=dry_run)
    if not dry_run:
        with Bar(prepared.trainings, show=not (quiet or as_json)) as bar:
            result = run(prepared, out=out, progress=bar)
        _show_result(signed(result), as_json=as_json, quiet=quiet)


app.command("features")(_asks(features, of=_asked_features))


def plan_features(asked: dict[str, Any], as_json: Json = False) -> None:
    """Print the plan of a feature selection: nothing is written."""
    _show_plan(_prepared_features(asked), as_json=as_json, alone=True)


plan_app.command("features")(_asks(plan_features, of=_asked_features))


@app.command()
def recipes(
    name: Annotated[str | None, typer.Argument(help="One recipe, as a file to change.")] = None,
    as_json: Json = False,
) -> None:
    """List the recipes, what of them goes together, and why the rest does not; or show one."""
    from pasearch.training.presets import PRESETS, preset_json, preset_toml
    from pasearch.training.recipe import CONFLICTS

    if name is not None:
        typer.echo(json.dumps(preset_json(name), indent=2) if as_json else preset_toml(name))
        return
    if as_json:
        table = {
            name: {"about": each.about, "source": each.source} for name, each in PRESETS.items()
        }
        typer.echo(json.dumps({"recipes": table, "refused": list(CONFLICTS)}, indent=2))
        return
    width = max(map(len, PRESETS))
    typer.echo(
        "Recipes, for --recipe. `pasearch recipes NAME` shows one as a .toml to change, which "
        "--recipe takes too.\n"
    )
    for name, each in PRESETS.items():
        typer.echo(f"  {name:<{width}}  {each.about} [{each.source}]")
    typer.echo("\nStages go together freely, but:\n")
    for reason in CONFLICTS:
        typer.echo(f"  - {reason}")


@plan_app.command("arch")
@_asks
def plan_arch(asked: dict[str, Any], as_json: Json = False) -> None:
    """Print the plan of an architecture search: nothing is written.

    No private record is read, unless --assume-public-schema says that some of it is public.
    """
    _show_plan(_prepared(asked, show=not as_json), as_json=as_json, alone=True)


@account_app.command("price")
def account_price(
    eps: Annotated[float | None, typer.Option("--eps", help="Epsilon of the whole.")] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="Delta of the whole.")] = None,
    sigma: Annotated[float | None, typer.Option("--sigma", help="Noise multiplier.")] = None,
    steps: Annotated[int | None, typer.Option("--steps", help="Steps of one training.")] = None,
    batch: Annotated[int | None, typer.Option("--batch", help="Expected batch size.")] = None,
    n: Annotated[int | None, typer.Option("--n", help="Number of records trained on.")] = None,
    candidates: Annotated[
        float | None, typer.Option("--candidates", help="Trainings: mean, or number if composed.")
    ] = None,
    law: Annotated[
        str | None,
        typer.Option("--law", help="composed, geometric, logarithmic, poisson. [one training]"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Solve for the one number left out, of a DP-SGD training or of a search over many.

    Leave out exactly one of --eps --delta --sigma --steps --batch --n --candidates; --candidates
    needs --law. With --candidates and no --law, every law is priced.
    """
    from pasearch.accounting.calculator import solve

    answers = solve(
        epsilon=eps, delta=delta, sigma=sigma, steps=steps, batch=batch, n=n,
        candidates=candidates, law=law,
    )  # fmt: skip
    if as_json:
        typer.echo(json.dumps([answer.to_json() for answer in answers], indent=2))
    else:
        for answer in answers:
            typer.echo(answer.describe())


@account_app.command("noise")
def account_noise(
    eps: Annotated[float, typer.Option("--eps", help="Epsilon of the training.")],
    n: Annotated[int, typer.Option("--n", help="Number of records trained on.")],
    batch: Annotated[int, typer.Option("--batch", help="Expected batch size.")],
    steps: Annotated[int, typer.Option("--steps", help="Steps of the training.")],
    dimension: Annotated[int, typer.Option("--dimension", help="Numbers that are trained.")],
    delta: Annotated[
        float | None, typer.Option("--delta", help="Its delta. [default: power of ten below 1/n]")
    ] = None,
    vectors: Annotated[int, typer.Option("--vectors", help="Of the codebook.")] = 1000,
    as_json: Json = False,
) -> None:
    """Rank laws of the noise on encoded gradients by their error, at equal price."""
    from pasearch.accounting.budget import Budget
    from pasearch.training.encoded.gradients import Encoded
    from pasearch.training.encoded.noise_search import ranking
    from pasearch.training.recipe import Recipe

    recipe = Recipe(expected_batch_size=batch, steps=steps)
    found = ranking(
        dimension=dimension, sampling_probability=recipe.sampling_probability(n),
        steps=recipe.steps, budget=Budget(eps, delta).resolve(n),
        bounding=Encoded(vectors=vectors),
    )  # fmt: skip
    if as_json:
        typer.echo(json.dumps([each.to_json() for each in found], indent=2))
        return
    typer.echo("Error of a coordinate, over that of the best Gaussian, at equal price:\n")
    for each in found:
        typer.echo(f"  {each.describe()}")


@account_app.command("schedule")
def account_schedule(
    kind: Annotated[
        str, typer.Option("--kind", help="uniform, time, exponential, step or polynomial.")
    ],
    sigma: Annotated[float, typer.Option("--sigma", help="Noise multiplier of the first epoch.")],
    n: Annotated[int, typer.Option("--n", help="Number of records trained on.")],
    batch: Annotated[int, typer.Option("--batch", help="(Expected) batch size.")],
    eps: Annotated[float, typer.Option("--eps", help="Epsilon of the training.")],
    delta: Annotated[
        float | None, typer.Option("--delta", help="Its delta. [default: power of ten below 1/n]")
    ] = None,
    epochs: Annotated[
        int | None, typer.Option("--epochs", help="Solve the decay that lasts so long.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", help="The decay (polynomial: its power).")
    ] = None,
    period: Annotated[
        int | None, typer.Option("--period", help="Of step and polynomial, in epochs.")
    ] = None,
    end: Annotated[
        float | None, typer.Option("--end", help="Of polynomial: the last noise / the first.")
    ] = None,
    every: Annotated[int, typer.Option("--every", help="Epochs between changes.")] = 1,
    batching: Annotated[
        str, typer.Option("--batching", help="poisson, or reshuffled (charged by the epoch).")
    ] = "poisson",
    as_json: Json = False,
) -> None:
    """How long a schedule lasts (--rate), or how steep it may be to last --epochs."""
    from pasearch.training.length import answer

    found = answer(
        kind, noise_multiplier=sigma, n=n, batch=batch, epsilon=eps, delta=delta, epochs=epochs,
        rate=rate, period=period, end=end, every=every, batching=batching,
    )  # fmt: skip
    typer.echo(json.dumps(found.to_json(), indent=2) if as_json else found.describe())


@app.command()
def check(
    data: Annotated[Path, typer.Argument(help="A .csv with a header.")],
    target: Target = None,
    schema: SchemaOption = None,
    quotes: Quotes = True,
    propose: Annotated[
        Path | None, typer.Option("--propose", help="Write the proposed schema to a new .toml.")
    ] = None,
) -> None:
    """For the curator: every problem with its row, and a schema to edit into public knowledge.

    What it prints is private: it shows values, and no budget pays for it.
    """
    from pasearch.data.check import check_table
    from pasearch.data.tables import TableSchema
    from pasearch.files import write_new

    declared = None if schema is None else TableSchema.from_toml(schema)
    if propose is not None and os.path.lexists(propose):
        raise UsageError(f"{propose} exists: name a new file for the proposed schema.")
    if propose is not None and not propose.absolute().parent.is_dir():
        raise UsageError(f"The folder of {propose} is not there: name one that is.")
    report = check_table(data, target, declared, quotes=quotes)
    typer.echo(shown_lines(report.text()))
    if propose is not None:
        write_new(propose, report.toml())
        typer.echo(f"Proposed schema: {shown(propose)}. Edit it into what is publicly known.")


@app.command()
def verify(
    path: Annotated[Path, typer.Argument(help="A run's folder, or its release/.")],
    public_key: Annotated[
        Path | None,
        typer.Option("--public-key", help="The signer's public key: its signature is demanded."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check all that can be of a finished run: price, plan, result.json, card, report, model.

    Whoever makes all of them anew from other numbers passes, unless the result is signed and you
    give the signer's public key.
    """
    from pasearch.results import release_of
    from pasearch.verification.signing import signed_words
    from pasearch.verification.verify import verify as check_all

    price, problems = check_all(path, public_key)
    if as_json:
        typer.echo(
            json.dumps({"epsilon": price.epsilon, "delta": price.delta,
                        "accountant": price.accountant, "problems": problems}, indent=2)
        )  # fmt: skip
    elif not problems:
        typer.echo(
            f"Verified: epsilon {price.epsilon:.4f} at delta {price.delta:g} ({price.accountant}), "
            "recomputed from the events; result.json, card, report and model agree with it.\n"
            + signed_words(release_of(path), trusted=public_key is not None)
        )
    if problems:
        raise UsageError(f"{path} does not verify:", *problems)


@app.command()
def key(
    path: Annotated[Path, typer.Argument(help="A new file, for the private key.")],
) -> None:
    """Make a pair of keys to sign results with: PATH, which stays with you, and PATH.pub."""
    from pasearch.verification.signing import new_key

    public = new_key(path)
    typer.echo(f"Private key: {path} (keep it). Public key: {public} (give it to your readers).")


@app.command()
def sign(
    path: Annotated[Path, typer.Argument(help="A run's folder, or its release/.")],
    key: Annotated[Path, typer.Option("--key", help="Your private key (ed25519, PEM).")],
) -> None:
    """Sign a finished run that verifies: release/result.sig."""
    from pasearch.verification.signing import private_key
    from pasearch.verification.signing import sign as write
    from pasearch.verification.verify import verify as check_all

    signer = private_key(key)
    if problems := [each for each in check_all(path)[1] if not each.startswith("result.sig")]:
        raise UsageError(f"{path} does not verify, so it is not signed:", *problems)
    typer.echo(f"Signed: {write(path, signer)}")


class _OneLine(logging.Formatter):
    """What is said of work that takes seconds, in one line each."""

    def format(self, record: logging.LogRecord) -> str:
        return shown(super().format(record))


@contextmanager
def _told(*, show: bool) -> Iterator[None]:
    """Show on stderr what the package says of work that takes seconds, each sentence once."""
    handler, seen = logging.StreamHandler(sys.stderr), set[str]()

    def is_new(record: logging.LogRecord) -> bool:
        before = len(seen)
        seen.add(record.getMessage())
        return len(seen) > before

    handler.addFilter(is_new)
    handler.setFormatter(_OneLine())
    logger = logging.getLogger("pasearch")
    level = logger.level
    if show:
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def _prepared(options: dict[str, Any], *, show: bool) -> Prepared:
    """Make the plan that a command's options ask for; say what takes long, if it is to be shown."""
    from pasearch.accounting.budget import Budget
    from pasearch.api.search import Options, prepare

    if options["eps"] is None:
        raise UsageError("--eps is missing: give the epsilon of the whole run, such as --eps 2.")
    renamed = {**options, "score_epsilon": options["score_eps"]}
    settings = {name: renamed[name] for name in Options.__annotations__ if name in renamed}
    budget = Budget(options["eps"], options["delta"])
    with _told(show=show):
        return prepare(options["data"], budget=budget, **settings)  # type: ignore[typeddict-item]


def _prepared_features(options: dict[str, Any]) -> PreparedFeatures:
    """Make the plan that a command's options ask for."""
    from pasearch.accounting.budget import Budget
    from pasearch.api.features import Options, prepare

    if options["private_schema"] and options["assume_public_schema"]:
        raise UsageError(
            "--private-schema buys what is undeclared, --assume-public-schema reads it for "
            "nothing: leave one of them out."
        )
    renamed = {
        **options,
        "trainer": {"logistic": "objective"}.get(options["model"], options["model"]),
    }
    settings = {name: renamed[name] for name in Options.__annotations__ if name in renamed}
    budget = Budget(options["eps"], options["delta"])
    return prepare(options["data"], options["target"], budget=budget, **settings)  # type: ignore[typeddict-item]


def _check_alone(context: typer.Context) -> None:
    """Refuse options beside --resume: the run keeps those it began with."""
    given = [
        name
        for name in context.params
        if getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    ]
    if others := sorted(set(given) - {"resume", "sign", "as_json", "quiet"}):
        names = ", ".join(name.replace("_", "-") for name in others)
        raise UsageError(
            f"--resume takes none of the other options (here: {names}): a run keeps those that it "
            "began with, and so its price. Leave them out."
        )


def _check_out(out: Path | None) -> None:
    """Refuse an --out that exists before anything is printed."""
    if out is not None and (out.exists() or out.is_symlink()):
        found = (out / "private").is_dir()
        resume = f", or finish the run that is there with --resume {out}" if found else ""
        raise UsageError(f"{out} exists: a run needs a folder of its own. Name a new one{resume}.")


def _show_plan(
    prepared: Prepared | PreparedFeatures, *, as_json: bool = False, quiet: bool = False,
    alone: bool,
) -> None:  # fmt: skip
    """Print a plan: whole, or as JSON, or its price alone; these two only if no run follows."""
    from pasearch.features.plan import FeaturePlan
    from pasearch.report.plan import feature_plan_text, plan_text
    from pasearch.training.presets import said

    plan = prepared.plan
    if as_json and alone:
        planned = plan.to_json()
        if not isinstance(plan, FeaturePlan):
            planned["recipe"] = said(planned["recipe"])
        typer.echo(json.dumps(planned, indent=2))
    elif quiet and alone:
        price = plan.price
        typer.echo(
            f"Price: epsilon {price.epsilon:.4f} at delta {price.delta:g} ({price.accountant})."
        )
    elif not (as_json or quiet):
        shown = feature_plan_text(plan) if isinstance(plan, FeaturePlan) else plan_text(plan)
        typer.echo(shown + "\n")
        if prepared.request.seed is not None:
            typer.echo("Warning: --seed makes the noise reproducible: this run is not private.")


def _signing(path: Path | None) -> Callable[[Result], Result]:
    """Return what signs a result, if a key was named; it is read now, before anything runs."""
    if path is None:
        return lambda result: result
    from pasearch.verification.signing import private_key, sign

    key = private_key(path)

    def signed(result: Result) -> Result:
        sign(result.path, key)
        return result

    return signed


def _search(
    prepared: Prepared,
    out: Path | None,
    signed: Callable[[Result], Result],
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    from pasearch.api.search import run
    from pasearch.progress import Bar

    with Bar(prepared.trainings, show=not (quiet or as_json)) as bar:
        result = run(prepared, out=out, progress=bar)
    _show_result(signed(result), as_json=as_json, quiet=quiet)


def _resume(path: Path, signed: Callable[[Result], Result], *, as_json: bool, quiet: bool) -> None:
    from pasearch.api.search import resume_search

    _show_result(signed(resume_search(path)), as_json=as_json, quiet=quiet)


def _features_words(document: dict[str, Any]) -> str:
    """Return what was chosen, in a line or two."""
    best, method = document["best"], document["strategy"]["name"]
    chosen = best["features"]
    if best["directions"] is not None:
        return f"Features: {best['directions']} directions in all {best['of']} features ({method})"
    if len(chosen) == best["of"]:
        return f"Features: all {best['of']} ({method})"
    shown = ", ".join(chosen[:8]) + (", ..." if len(chosen) > 8 else "")
    return f"Features: {len(chosen)} of {best['of']} ({method}): {shown}"


def _best_words(document: dict[str, Any]) -> str:
    """Return the released network, and how long it was trained where only the run could tell."""
    from pasearch.results import FEATURES

    if document["task"] == FEATURES:
        return _features_words(document)
    from pasearch.report.stages import TRAINING, setting_words, steps_words
    from pasearch.spaces.space import Candidate

    best, recipe = document["best"], document["recipe"]
    name = "Network" if document["task"] == TRAINING else "Best"
    total, trained = best["parameters"], best["trainable_parameters"]
    details = [f"{total:,} parameters, {'all' if total == trained else f'{trained:,}'} trained"]
    details += [f"{setting} {value}" for setting, value in setting_words(best["settings"])]
    if "steps_made" in recipe:
        details.append(f"{steps_words(recipe)} steps")
    return f"{name}: {Candidate.from_json(best).describe_network()} ({'; '.join(details)})"


def _show_result(result: Result, *, as_json: bool, quiet: bool) -> None:
    from pasearch.results import standard_error, useless

    document = result.document
    if as_json:
        typer.echo(json.dumps({**document, "path": str(result.path)}, indent=2))
        return
    if not quiet:
        score = document["score"]
        typer.echo(shown(_best_words(document)))
        noise = score["noise"]["standard_deviation"]
        unit = " of the width of the target's bounds" if "scale" in score else ""
        exact = f"; exactly {score['exact']:.3f} (public data)" if "exact" in score else ""
        typer.echo(
            f"Test {score['metric']}: {score['test']:.3f}{unit} on {score['of']:,} records "
            f"(standard error about {standard_error(score):.3f}, of which noise {noise:.3f})"
            f"{exact}"
        )
        for line in useless(document):
            typer.echo(shown(line))
    price = document["price"]
    note = ""
    if document["reproducible"]:
        note = " (NOT PRIVATE: --seed makes the noise reproducible)"
    if document["dataset"]["declared_public"]:
        note = " (NOT PRIVATE: the data was declared public)"
    typer.echo(
        f"Price: epsilon {price['epsilon']:.4f}, delta {price['delta']:g}{note}. Report, model "
        f"and privacy card: {shown(result.path)}/release"
    )
