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
    name: Annotated[str | None, typer.Argument(help="One recipe, as a file to change.")] = None,
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
        "Recipes, for --recipe. `pasearch recipes NAME` shows one as a .toml to change, which "
        "--recipe takes too.\n"
    )
    for name, each in PRESETS.items():
        typer.echo(f"  {name:<{width}}  {each.about} [{each.source}]")
    typer.echo("\nStages go together freely, but:\n")
    for reason in STAGE_CONFLICTS:
        typer.echo(f"  - {reason}")


@app.command()
@add_search_options(("target", "schema", "quotes", "columns", "separator", "regression"))
def check(
    data: Annotated[Path, typer.Argument(help="A table: a .csv or the like, or a .parquet.")],
    given: dict[str, Any],
    propose: Annotated[
        Path | None, typer.Option("--propose", help="Write the proposed schema to a new .toml.")
    ] = None,
) -> None:
    """For the curator: list every problem of a table with its row, and propose a schema to edit.

    The output is private, because it shows values that no budget pays for.
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
        typer.echo(f"Proposed schema: {escape_text(propose)}. Edit it into what is publicly known.")


Eps = Annotated[float, typer.Option("--eps", help="Epsilon of the training.")]
Records = Annotated[int, typer.Option("--n", help="Number of records trained on.")]
Batch = Annotated[int, typer.Option("--batch", help="Expected batch size.")]


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
    steps: Annotated[int, typer.Option("--steps", help="Steps of the training.")],
    dimension: Annotated[int, typer.Option("--dimension", help="Numbers that are trained.")],
    delta: Delta = None,
    vectors: Annotated[int, typer.Option("--vectors", help="Of the codebook.")] = 1000,
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
    typer.echo("Error of a coordinate, over that of the best Gaussian, at equal price:\n")
    for each in found:
        typer.echo(wrap_lines(f"  {each.describe()}"))


@account_app.command("schedule")
def account_schedule(
    kind: Annotated[
        str, typer.Option("--kind", help="uniform, time, exponential, step or polynomial.")
    ],
    sigma: Annotated[float, typer.Option("--sigma", help="Noise multiplier of the first epoch.")],
    n: Records,
    batch: Batch,
    eps: Eps,
    delta: Delta = None,
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
    """Compute how long a noise schedule lasts (--rate), or the decay at which it lasts --epochs."""
    from pasearch.training.schedule_solver import solve_schedule

    found = solve_schedule(
        kind, noise_multiplier=sigma, n=n, batch=batch, epsilon=eps, delta=delta, epochs=epochs,
        rate=rate, period=period, end=end, every=every, batching=batching,
    )  # fmt: skip
    typer.echo(json.dumps(found.to_json(), indent=2) if as_json else wrap_lines(found.describe()))


@app.command()
def pretrain(
    data: Annotated[str, typer.Argument(help="Public images: a name, a .npz or a folder.")],
    out: Annotated[Path, typer.Option("--out", help="A new file for the weights.")],
    module: Annotated[
        str, typer.Option("--module", help="small, or one of torchvision's: resnet18 ...")
    ] = "small",
    epochs: Annotated[int, typer.Option("--epochs", help="How often each image is seen.")] = 10,
    data_root: Annotated[
        Path | None, typer.Option("--data-root", help="torchvision's folder.")
    ] = None,
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    seed: Annotated[int, typer.Option("--seed", help="Of the start and the order.")] = 0,
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
        "it "
        "was not trained on). Use it as front_end = "
        f'{{ weights = "{escape_text(found.path)}", module = '
        f'"{module}" }}.'
    )
    typer.echo(wrap_lines(words))
