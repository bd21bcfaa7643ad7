"""Commands that need no run: `check`, `recipes`, `spaces`, `account` and `pretrain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from pasearch.cli.app import Json, Quiet, account_app, app
from pasearch.cli.options import Delta, add_search_options, format_flags, wrap_lines
from pasearch.cli.paths import check_new_file
from pasearch.terminal_escaping import escape_lines, escape_text


@app.command()
def recipes(
    name: Annotated[
        str | None, typer.Argument(help="Name of a recipe to print as a .toml file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the recipes (training configurations) and their rules, or show one recipe."""
    from pasearch.training.presets import PRESETS, preset_to_json, preset_to_toml
    from pasearch.training.recipe import STAGE_CONFLICTS

    if name is not None:
        typer.echo(json.dumps(preset_to_json(name), indent=2) if as_json else preset_to_toml(name))
        return
    if as_json:
        table = {
            name: {"about": each.about, "source": each.source} for name, each in PRESETS.items()
        }
        typer.echo(json.dumps({"recipes": table, "refused": list(STAGE_CONFLICTS)}, indent=2))
        return
    width = max(map(len, PRESETS))
    typer.echo(
        "Recipes (training configurations) for --recipe. `pasearch recipes NAME` prints one as a "
        ".toml file to edit, which --recipe also accepts.\n"
    )
    for name, each in PRESETS.items():
        typer.echo(f"  {name:<{width}}  {each.about} [{each.source}]")
    typer.echo("\nAll stages can be combined, with these exceptions:\n")
    for reason in STAGE_CONFLICTS:
        typer.echo(f"  - {reason}")


@app.command()
def spaces(
    name: Annotated[
        str | None, typer.Argument(help="Name of a space to print as a .toml file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the search spaces with their networks and ranges, or show one space."""
    from pasearch.spaces.listing import format_space_toml, list_spaces

    if name is not None:
        values = list_spaces(name)[name]
        typer.echo(json.dumps(values, indent=2) if as_json else format_space_toml(values))
        return
    table = list_spaces()
    if as_json:
        typer.echo(json.dumps({"spaces": table}, indent=2))
        return
    width = max(map(len, table))
    typer.echo(
        "Search spaces for --space. `pasearch spaces NAME` prints one as a .toml file to edit, "
        "which --space also accepts.\n"
    )
    for each, values in table.items():
        typer.echo(f"  {each:<{width}}  {values['about']} [{values['source']}]")
        typer.echo(f"  {'':<{width}}    {values['ranges']}")


@app.command()
@add_search_options(("target", "text", "schema", "quotes", "columns", "separator", "regression"))
def check(
    data: Annotated[Path, typer.Argument(help="Table: .csv, .tsv, .data or .parquet.")],
    given: dict[str, Any],
    propose: Annotated[
        Path | None, typer.Option("--propose", help="New .toml file for the proposed schema.")
    ] = None,
) -> None:
    """For the curator: list every problem of a table with its row, and propose a schema to edit.

    The output is private, because it shows values of records without a charge.
    """
    check_new_file(propose, "propose")
    from pasearch.curator.check import check_table
    from pasearch.data.tables import TableSchema
    from pasearch.files import write_new_file

    target, schema = given.pop("target", None), given.pop("schema", None)
    declared = None if schema is None else TableSchema.from_toml(schema)
    report = check_table(data, target, declared, **given)
    typer.echo(wrap_lines(format_flags(escape_lines(report.text()))))
    if propose is not None:
        write_new_file(propose, report.toml())
        typer.echo(f"Proposed schema: {escape_text(propose)}. Edit it to publicly known values.")


Eps = Annotated[float, typer.Option("--eps", help="Epsilon of the training.")]
Records = Annotated[int, typer.Option("--n", help="Number of training records.")]
Batch = Annotated[int, typer.Option("--batch", help="Expected batch size.")]


@account_app.command("price")
def account_price(
    eps: Annotated[float | None, typer.Option("--eps", help="Total epsilon.")] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="Total delta.")] = None,
    sigma: Annotated[float | None, typer.Option("--sigma", help="Noise multiplier.")] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", help="Number of steps of one training.")
    ] = None,
    batch: Annotated[int | None, typer.Option("--batch", help="Expected batch size.")] = None,
    n: Annotated[int | None, typer.Option("--n", help="Number of training records.")] = None,
    candidates: Annotated[
        float | None,
        typer.Option("--candidates", help="Number of trainings (its mean, for a random number)."),
    ] = None,
    law: Annotated[
        str | None,
        typer.Option(
            "--law",
            help="Distribution of the number of trainings: composed (fixed number), geometric, "
            "logarithmic or poisson. [default: one training]",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Compute the one number that is left out, for a DP-SGD training or for a search of many.

    Leave out exactly one of --eps --delta --sigma --steps --batch --n --candidates. --candidates
    needs --law. Without --law all distributions of the number of trainings are compared.
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
            typer.echo(wrap_lines(answer.describe()))


@account_app.command("noise")
def account_noise(
    eps: Eps,
    n: Records,
    batch: Batch,
    steps: Annotated[int, typer.Option("--steps", help="Number of steps of the training.")],
    dimension: Annotated[int, typer.Option("--dimension", help="Number of trained parameters.")],
    delta: Delta = None,
    vectors: Annotated[int, typer.Option("--vectors", help="Number of codebook vectors.")] = 1000,
    as_json: Json = False,
) -> None:
    """Rank noise distributions for encoded gradients by their error, at equal privacy cost."""
    from pasearch.accounting.budget import Budget
    from pasearch.training.encoded.gradients import EncodedClipping
    from pasearch.training.encoded.noise_search import rank_densities
    from pasearch.training.recipe import Recipe

    recipe = Recipe(expected_batch_size=batch, steps=steps)
    found = rank_densities(
        dimension=dimension, sampling_probability=recipe.sampling_probability(n),
        steps=recipe.steps, budget=Budget(eps, delta).resolve(n),
        bounding=EncodedClipping(vectors=vectors),
    )  # fmt: skip
    if as_json:
        typer.echo(json.dumps([each.to_json() for each in found], indent=2))
        return
    typer.echo("Error per coordinate relative to the best Gaussian, at equal privacy cost:\n")
    for each in found:
        typer.echo(wrap_lines(f"  {each.describe()}"))


@account_app.command("schedule")
def account_schedule(
    kind: Annotated[
        str,
        typer.Option("--kind", help="Schedule: uniform, time, exponential, step or polynomial."),
    ],
    sigma: Annotated[float, typer.Option("--sigma", help="Noise multiplier of the first epoch.")],
    n: Records,
    batch: Batch,
    eps: Eps,
    delta: Delta = None,
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", help="Number of epochs for which to compute the decay."),
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", help="Decay rate (polynomial: its power).")
    ] = None,
    period: Annotated[
        int | None, typer.Option("--period", help="Period in epochs (step, polynomial).")
    ] = None,
    end: Annotated[
        float | None, typer.Option("--end", help="Final noise divided by the first (polynomial).")
    ] = None,
    every: Annotated[
        int, typer.Option("--every", help="Epochs between two changes of the noise.")
    ] = 1,
    batching: Annotated[
        str,
        typer.Option(
            "--batching", help="Batch sampling: poisson, or reshuffled (charged per epoch)."
        ),
    ] = "poisson",
    as_json: Json = False,
) -> None:
    """Compute how long a noise schedule lasts (--rate), or the decay at which it lasts --epochs."""
    from pasearch.training.schedule_solver import solve_schedule

    found = solve_schedule(
        kind, noise_multiplier=sigma, n=n, batch=batch, epsilon=eps, delta=delta, epochs=epochs,
        rate=rate, period=period, end=end, every=every, batching=batching,
    )  # fmt: skip
    typer.echo(json.dumps(found.to_json(), indent=2) if as_json else wrap_lines(found.describe()))


@app.command()
def pretrain(
    data: Annotated[str, typer.Argument(help="Public images: name of a data set, .npz or folder.")],
    out: Annotated[Path, typer.Option("--out", help="New file for the weights.")],
    module: Annotated[
        str, typer.Option("--module", help="Network: small, or one of torchvision: resnet18, ...")
    ] = "small",
    epochs: Annotated[int, typer.Option("--epochs", help="Number of epochs.")] = 10,
    data_root: Annotated[
        Path | None, typer.Option("--data-root", help="Folder of torchvision's data sets.")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="Device: auto, cpu or cuda.")] = "auto",
    seed: Annotated[
        int, typer.Option("--seed", help="Seed of initial weights and batch order.")
    ] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Train a backbone on public images without privacy. You declare these images public.

    Use it in a network file: front_end = { weights = "backbone.pt", module = "small" }.
    """
    check_new_file(out, "out")
    from pasearch.api.pretrain import pretrain as trained

    def print_epoch(epoch: int, loss: float) -> None:
        typer.echo(f"Epoch {epoch} of {epochs}: mean loss {loss:.3f}", err=True)

    found = trained(
        data, out=out, module=module, epochs=epochs, data_root=data_root, device=device, seed=seed,
        on_epoch=None if quiet or as_json else print_epoch,
    )  # fmt: skip
    if as_json:
        values = {"path": str(found.path), "module": module, "accuracy": found.accuracy}
        typer.echo(json.dumps({**values, "sha256": found.sha256}, indent=2))
        return
    words = (
        f"Backbone: {escape_text(found.path)} (accuracy {found.accuracy:.3f} on public images that "
        "it was not trained on). Use it as front_end = "
        f'{{ weights = "{escape_text(found.path)}", module = "{module}" }}.'
    )
    typer.echo(wrap_lines(words))
