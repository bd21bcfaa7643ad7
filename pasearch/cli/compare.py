"""`pasearch compare`: choose a model without privacy or with privacy in mind, on public data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from pasearch.cli.app import Json, Quiet, app
from pasearch.cli.options import DATA_HELP, with_flags, wrapped
from pasearch.cli.paths import check_new_file
from pasearch.shown import shown

Data = Annotated[str, typer.Argument(help=f"Public data: {DATA_HELP}")]
SpaceName = Annotated[
    str,
    typer.Option(
        "--space",
        help="What candidates are drawn from: auto (the portfolio), images, tables, fcn, cnn, "
        "fcn-paper, cnn-paper, fcn-rwt, cnn-rwt, or a .toml.",
    ),
]
Candidates = Annotated[
    int, typer.Option("--candidates", help="Candidates that both workflows choose among.")
]
Epsilon = Annotated[
    float, typer.Option("--eps", "--epsilon", help="Epsilon of every training with privacy.")
]
Delta = Annotated[
    float | None, typer.Option("--delta", help="Likewise. [default: power of ten below 1/n]")
]
Repeats = Annotated[
    int,
    typer.Option("--repeats", help="Trainings of each winner with privacy, and as many without."),
]
Public = Annotated[bool, typer.Option("--data-is-public", help="You declare the records public.")]
SchemaFile = Annotated[Path | None, typer.Option("--schema", help="A table's declared columns.")]
Target = Annotated[
    str | None, typer.Option("--target", help="Column to predict. [default: the last one]")
]
Regression = Annotated[bool, typer.Option("--regression", help="A number is predicted.")]
Metric = Annotated[
    str | None,
    typer.Option(
        "--metric", help="By what models are scored, as of `arch`. [default: accuracy; or mae]"
    ),
]
Bounds = Annotated[
    tuple[float, float] | None,
    typer.Option("--bounds", help="Lowest and highest value of all features of arrays (.npz)."),
]
Labels = Annotated[
    str | None, typer.Option("--labels", help="Declared classes, with commas between: no,yes.")
]
Classes = Annotated[
    str | None,
    typer.Option(
        "--classes", help="Of arrays (.npz): their number if labels are 0, 1 ..., or all labels."
    ),
]
Root = Annotated[
    str | None, typer.Option("--data-root", help="Folder with MNIST/raw/. [default: data]")
]
Steps = Annotated[
    int | None, typer.Option("--steps", help="Steps of one training. [default: 5 sqrt(n)]")
]
Batch = Annotated[
    int | None,
    typer.Option("--batch", help="Expected batch size. [default: min(2048, n/4)]"),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")]
Workers = Annotated[
    int | None, typer.Option("--workers", help="Trainings at a time. [default: one a core]")
]
Seed = Annotated[int, typer.Option("--seed", help="Of split, candidates and noise.")]
Force = Annotated[
    bool, typer.Option("--force", help="Compare at an epsilon at which models only guess, too.")
]
Out = Annotated[Path | None, typer.Option("--out", help="A new .json file for the comparison.")]


@app.command()
def compare(
    data: Data,
    space: SpaceName = "fcn-paper",
    candidates: Candidates = 10,
    eps: Epsilon = 2.0,
    delta: Delta = None,
    repeats: Repeats = 5,
    data_is_public: Public = False,
    schema: SchemaFile = None,
    target: Target = None,
    regression: Regression = False,
    metric: Metric = None,
    bounds: Bounds = None,
    labels: Labels = None,
    classes: Classes = None,
    data_root: Root = None,
    steps: Steps = None,
    batch: Batch = None,
    device: Device = "auto",
    workers: Workers = None,
    seed: Seed = 0,
    force: Force = False,
    out: Out = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare a model chosen without privacy with one chosen with privacy in mind.

    On public data only, so nothing is charged. The same candidates are trained without privacy and
    with it; each workflow takes its best, and both are then tested with privacy and without.
    """
    check_new_file(out, "out")
    from pasearch.api.compare import compare_workflows

    given: dict[str, Any] = {
        "schema": schema, "target": target, "regression": regression or None, "metric": metric,
        "bounds": bounds, "labels": labels, "classes": classes, "data_root": data_root,
        "steps": steps, "batch": batch, "force": force or None,
    }  # fmt: skip
    given = {name: value for name, value in given.items() if value is not None}
    found = compare_workflows(
        data, space=space, epsilon=eps, delta=delta, candidates=candidates, repeats=repeats,
        seed=seed, workers=workers, data_is_public=data_is_public, device=device,
        on_training=None if quiet or as_json else _told, **given,
    )  # fmt: skip
    text = json.dumps(found.to_json(), indent=2)
    if out is not None:
        from pasearch.files import write_new

        write_new(out, text + "\n")
    if as_json:
        typer.echo(text)
        return
    typer.echo(wrapped(with_flags(shown(found.sentence()) if quiet else found.table())))
    if out is not None and not quiet:
        typer.echo(f"Written: {shown(out)}")


def _told(done: int, every: int) -> None:
    if done % max(1, every // 20) == 0:
        typer.echo(f"Trained {done:,} of {every:,}", err=True)
