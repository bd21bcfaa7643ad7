"""`pasearch pretrain`: a backbone from public images, for a front end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from pasearch.cli.app import Json, Quiet, app
from pasearch.cli.options import wrapped
from pasearch.cli.paths import check_new_file
from pasearch.shown import shown


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
    """Train a backbone on public images, without privacy: by naming them you say they are public.

    Use it in a network's file: front_end = { weights = "backbone.pt", module = "small" }.
    """
    check_new_file(out, "out")
    from pasearch.api.pretrain import pretrain as trained

    def told(epoch: int, loss: float) -> None:
        typer.echo(f"Epoch {epoch} of {epochs}: mean loss {loss:.3f}", err=True)

    found = trained(
        data, out=out, module=module, epochs=epochs, data_root=data_root, device=device, seed=seed,
        on_epoch=None if quiet or as_json else told,
    )  # fmt: skip
    if as_json:
        values = {"path": str(found.path), "module": module, "accuracy": found.accuracy}
        typer.echo(json.dumps({**values, "sha256": found.sha256}, indent=2))
        return
    words = (
        f"Backbone: {shown(found.path)} (accuracy {found.accuracy:.3f} on public images that it "
        f'was not trained on). Use it as front_end = {{ weights = "{shown(found.path)}", module = '
        f'"{module}" }}.'
    )
    typer.echo(wrapped(words))
