"""A backbone trained on public data, for `front_end = { weights = ..., module = ... }`.

Ordinary training, without privacy: every record it reads was declared public by being named here.

    SGD with Nesterov momentum, one cycle of the learning rate (Smith and Topin 2018),
    label smoothing .1; images are shifted by up to an eighth, and mirrored if they have colours

Source: docs/spaces.md, "Public backbones".
"""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasearch.accounting.checks import whole
from pasearch.errors import UsageError
from pasearch.files import write_new

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from pasearch.data.partitions import Records

HELD_OUT = 0.1
"""The share of records that the accuracy is measured on, where the data has no test set."""
BATCH, MOST_RATE, MOST_EPOCHS = 128, 0.1, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Pretrained:
    """What a pretraining left.

    Args:
        path: The file of weights.
        module: Of which they are.
        accuracy: On public records that it was not trained on, exact.
        sha256: Of the file.
    """

    path: Path
    module: str
    accuracy: float
    sha256: str


def pretrain(
    data: str,
    *,
    out: str | Path,
    module: str = "small",
    epochs: int = 10,
    data_root: str | Path | None = None,
    device: str = "auto",
    seed: int = 0,
    on_epoch: Callable[[int, float], None] | None = None,
) -> Pretrained:
    """Train a backbone on public images, and write its weights.

    Args:
        data: Images with classes, as of `arch`. They are taken as public: nothing protects them.
        out: A new file.
        module: One of `data.backbones.MODULES`.
        epochs: How often each image is seen, 1 to 1,000.
        data_root: torchvision's folder, for data sets with a name.
        device: "auto", "cpu" or "cuda".
        seed: Of the start, the order and the augmentation.
        on_epoch: Called with the number of finished epochs and the mean loss of the last.

    Raises:
        UsageError: Data that are no images with classes, another module, a file that exists.

    Cost: none is charged: the records are public because you say so.
    """
    import torch

    from pasearch.api.request import TrainRequest
    from pasearch.api.resolve import device_of
    from pasearch.data.backbones import MODULES, PublicBackbone, built, known_module
    from pasearch.data.sources import load_dataset

    path = Path(out)
    known_module(module)
    _check(path, epochs)
    own_device = device_of(TrainRequest(data=data, device=device))  # pyright: ignore[reportArgumentType]
    dataset = load_dataset(data, data_root=data_root, public=True)
    if dataset.schema.regression or dataset.schema.to_json()["kind"] == "table":
        raise UsageError("A backbone is trained on images with classes: name such data.")
    PublicBackbone(module, 0, "").output_shape(tuple(dataset.schema.shape))
    dataset, held = _with_schema(dataset)
    records = dataset.all_records(None)
    training = _Training(records=records, held=held, shape=tuple(dataset.schema.shape),
                         device=own_device)  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = built(module)
        head = torch.nn.Linear(MODULES[module][1], dataset.schema.outputs)
        model = torch.nn.Sequential(network, head).to(own_device)
        training.run(model, epochs, seed, on_epoch)
    accuracy = training.accuracy(model)
    sha256 = _written(network, path)
    return Pretrained(path=path, module=module, accuracy=accuracy, sha256=sha256)


def _written(network: nn.Module, path: Path) -> str:
    """Write weights where nothing is, all of them or none, and return the file's hash."""
    import torch

    buffer = io.BytesIO()
    torch.save({name: value.cpu() for name, value in network.state_dict().items()}, buffer)
    write_new(path, buffer.getvalue())
    return hashlib.sha256(buffer.getvalue()).hexdigest()


def _check(path: Path, epochs: int) -> None:
    """Refuse a file that cannot be new, and epochs that cannot be, before any work."""
    if os.path.lexists(path):
        raise UsageError(f"{path} exists: name a new file for the weights.")
    if not path.absolute().parent.is_dir():
        raise UsageError(f"The folder of {path} is not there: name one that is.")
    if not whole("epochs", epochs) <= MOST_EPOCHS:
        raise UsageError(f"epochs is {epochs:,}: expected 1 to {MOST_EPOCHS:,}.")


def _with_schema(dataset: Any) -> tuple[Any, int]:
    """Return the data with a schema read from its public records, and how many are held out."""
    from pasearch.api.resolve import assume_public

    complete, _ = assume_public(dataset, 1000)
    return complete, complete.official_test or max(1, round(HELD_OUT * complete.n))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Training:
    """Public records, the last of which are held out.

    Args:
        records: All of them.
        held: How many are held out.
        shape: Of a record.
        device: "cpu" or "cuda".
    """

    records: Records
    held: int
    shape: tuple[int, ...]
    device: str

    def run(
        self,
        model: nn.Module,
        epochs: int,
        seed: int,
        on_epoch: Callable[[int, float], None] | None,
    ) -> None:
        """Train a network in place, and leave it in evaluation mode."""
        import numpy as np
        import torch
        from torch.nn import functional

        from pasearch.data.backbones import prepared
        from pasearch.training.augmentation import Augmentation

        generator = np.random.default_rng(seed)
        colours = len(self.shape) == 3 and self.shape[0] == 3
        views = Augmentation(views=1, shift=min(self.shape[-2:]) // 8, flip=colours)
        kept = torch.nonzero(self.records.valid[: len(self.records) - self.held]).flatten().numpy()
        optimizer = torch.optim.SGD(
            model.parameters(), lr=MOST_RATE, momentum=0.9, nesterov=True, weight_decay=5e-4
        )
        steps = max(1, len(kept) // BATCH)
        cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, MOST_RATE, epochs * steps)
        model.train()
        for epoch in range(1, epochs + 1):
            order, total = generator.permutation(kept), 0.0
            for step in range(steps):
                chosen = torch.from_numpy(order[step * BATCH : (step + 1) * BATCH])
                x = prepared(views.apply(self.records.x[chosen], generator), self.shape)
                y = self.records.y[chosen].to(self.device)
                loss = functional.cross_entropy(model(x.to(self.device)), y, label_smoothing=0.1)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                cycle.step()
                total += loss.item()
            if on_epoch is not None:
                on_epoch(epoch, total / steps)
        model.eval()

    def accuracy(self, model: nn.Module) -> float:
        """Return the share of the held-out records that are told right."""
        import torch

        from pasearch.data.backbones import prepared

        start, right = len(self.records) - self.held, 0
        with torch.no_grad():
            for part in torch.arange(start, len(self.records)).split(500):
                found = model(prepared(self.records.x[part], self.shape).to(self.device))
                right += int((found.argmax(1).cpu() == self.records.y[part]).sum())
        return right / self.held
