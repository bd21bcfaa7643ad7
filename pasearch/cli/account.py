"""`pasearch account`: a calculator of prices, which reads no data."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from pasearch.cli.app import Json, account_app
from pasearch.cli.options import wrapped


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
            typer.echo(wrapped(answer.describe()))


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
    from pasearch.training.encoded.bound import Encoded
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
        typer.echo(wrapped(f"  {each.describe()}"))


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
    typer.echo(json.dumps(found.to_json(), indent=2) if as_json else wrapped(found.describe()))
