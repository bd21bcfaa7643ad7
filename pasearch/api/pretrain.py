"""Training of a backbone on public data, for `front_end = { weights = ..., module = ... }`.

Training is without privacy: by passing data to `pretrain`, the caller declares them public.

    SGD with Nesterov momentum, one cycle of the learning rate (Smith and Topin 2018), label
    smoothing .1; images are shifted by up to an eighth, and mirrored if they have colours

Source: docs/howto-public-data.md, "Public backbones".
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from pasearch.accounting.checks import check_positive_integer
from pasearch.api.request import TrainRequest
from pasearch.api.resolve import assume_public, choose_device
from pasearch.data.backbones import (
    MODULES,
    PublicBackbone,
    build_backbone_module,
    check_module_name,
    prepare_images,
)
from pasearch.data.sources import load_dataset
from pasearch.errors import UsageError
from pasearch.files import write_new_file
from pasearch.training.augmentation import Augmentation

HELD_OUT_FRACTION = 0.1  # fraction of the records to test on, if the data has no test set
BATCH_SIZE = 128  # records per step
MAX_LEARNING_RATE = 0.1  # highest learning rate of the cycle
MAX_EPOCHS = 1000  # maximum number of epochs


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretrained:
    """A trained backbone.

    Args:
        path: File of weights.
        module: Name of the module that the weights are for.
        accuracy: Exact accuracy on public records that were not used for training.
        sha256: SHA-256 of the file, hexadecimal.
    """

    path: Path
    module: str
    accuracy: float
    sha256: str


def pretrain(
    data: str, *, out: str | Path, module: str = "small", epochs: int = 10,
    data_root: str | Path | None = None, device: str = "auto", seed: int = 0,
    on_epoch: Callable[[int, float], None] | None = None,
) -> Pretrained:  # fmt: skip
    """Train a backbone on public images, and write its weights to a file.

    Args:
        data: Name or path of images with classes. They must be public: training adds no noise.
        out: Path of the new file with the weights.
        module: Name of the network, a key of `data.backbones.MODULES`.
        epochs: Number of passes over the images, 1 to 1,000.
        data_root: Folder of torchvision's data sets, for built-in names.
        device: "auto", "cpu" or "cuda".
        seed: Seed of the initial weights, of the order of records and of the augmentation.
        on_epoch: Callback with (finished epochs, mean loss of the last one).

    Raises:
        UsageError: Data without images or classes, an unknown module, or an existing file.

    Cost: none: the caller declares the images public.

    Example:
        >>> import numpy as np
        >>> from pasearch import pretrain
        >>> images = np.zeros((64, 16, 16), np.uint8)
        >>> np.savez("images.npz", x=images, y=np.arange(64) % 2)
        >>> pretrain("images.npz", out="backbone.pt", epochs=1).module
        'small'
    """
    path = Path(out)
    check_module_name(module)
    if os.path.lexists(path):
        raise UsageError(f"{path} exists: name a new file for the weights.")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"The folder of {path} does not exist: name a file in an existing folder.")
    if not check_positive_integer("epochs", epochs) <= MAX_EPOCHS:
        raise UsageError(f"epochs is {epochs:,}: expected 1 to {MAX_EPOCHS:,}.")
    where = choose_device(TrainRequest(data=data, device=device))  # pyright: ignore[reportArgumentType]
    dataset = load_dataset(data, data_root=data_root, public=True)
    if dataset.schema.regression or dataset.schema.to_json()["kind"] == "table":
        raise UsageError("A backbone is trained on images with classes: name such data.")
    shape = tuple(dataset.schema.shape)
    PublicBackbone(module, 0, "").output_shape(shape)
    dataset, _ = assume_public(dataset, 1000)
    records = dataset.all_records(None)
    held_out = dataset.official_test or max(1, round(HELD_OUT_FRACTION * dataset.n))
    first_held = len(records) - held_out

    generator = np.random.default_rng(seed)
    has_colours = len(shape) == 3 and shape[0] == 3
    views = Augmentation(views=1, shift=min(shape[-2:]) // 8, flip=has_colours)
    trained_on = torch.nonzero(records.valid[:first_held]).flatten().numpy()
    steps = max(1, len(trained_on) // BATCH_SIZE)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = build_backbone_module(module)
        head = nn.Linear(MODULES[module][1], dataset.schema.outputs)
        model = nn.Sequential(network, head).to(where).train()
        optimizer = torch.optim.SGD(
            model.parameters(), lr=MAX_LEARNING_RATE, momentum=0.9, nesterov=True, weight_decay=5e-4
        )
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, MAX_LEARNING_RATE, epochs * steps)
        for epoch in range(1, epochs + 1):
            order, total = generator.permutation(trained_on), 0.0
            for step in range(steps):
                chosen = torch.from_numpy(order[step * BATCH_SIZE : (step + 1) * BATCH_SIZE])
                x = prepare_images(views.apply(records.x[chosen], generator), shape).to(where)
                y = records.y[chosen].to(where)
                loss = functional.cross_entropy(model(x), y, label_smoothing=0.1)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                cycle.step()
                total += loss.item()
            if on_epoch is not None:
                on_epoch(epoch, total / steps)

    model.eval()
    correct = 0
    with torch.no_grad():
        for part in torch.arange(first_held, len(records)).split(500):
            found = model(prepare_images(records.x[part], shape).to(where)).argmax(1).cpu()
            correct += int((found == records.y[part]).sum())
    buffer = io.BytesIO()
    torch.save({name: value.cpu() for name, value in network.state_dict().items()}, buffer)
    write_new_file(path, buffer.getvalue())
    return Pretrained(
        path=path, module=module, accuracy=correct / (len(records) - first_held),
        sha256=hashlib.sha256(buffer.getvalue()).hexdigest(),
    )  # fmt: skip
