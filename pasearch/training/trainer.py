"""Training of one network with a recipe (training configuration), on a CPU or a GPU.

Source: docs/rules.md, rules 7, 8, 11 and 14. Proof: docs/guarantees/dp-sgd.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from torch import nn

from pasearch.data.mapping import full_precision
from pasearch.runs.keys import Stream
from pasearch.spaces.modules import PerRecord
from pasearch.training.screening import ValidationQuery
from pasearch.training.training_loop import Training

if TYPE_CHECKING:
    from pasearch.data.partitions import Records
    from pasearch.gpu.dense_steps import TrainingGroup
    from pasearch.training.recipe import Recipe


def train(
    network: nn.Module,
    records: Records,
    recipe: Recipe,
    streams: Mapping[str, Stream],
    *,
    device: str = "cpu",
    on_step: Callable[[int], None] | None = None,
    looks: Callable[[int], bool] | None = None,
    query: ValidationQuery | None = None,
) -> None:
    """Train a network in place.

    Guarantee: with noise, the final weights cost `recipe.event(len(records.y))` on the partition,
    in addition to what the validation queries have released.

    Args:
        network: Network accepted by `per_example.validate`.
        records: Records of the partition; the caller has charged the privacy cost.
        recipe: Training configuration with a learning rate.
        streams: Random streams "batch", "noise" and "dropout", used for nothing else.
        device: Device, "cpu" or "cuda". The network stays on this device.
        on_step: Callback with the number of finished steps. It is called after each step on a CPU,
            and after each round of steps on a GPU.
        looks: Function from a number of finished steps to bool: whether `on_step` must be called
            then, because it evaluates the network. None: after every step.
        query: Validation query, for screening (a loss) or a validation-driven schedule (an
            accuracy). None: neither is used.

    Raises:
        UsageError: Per-example gradients of the network are not supported, private data would be
            used without noise, or the recipe has no learning rate.

    Cost: charged by the caller before `records` was opened.
    """
    with full_precision():
        for _ in run_rounds(
            network, records, recipe, streams, device=device, on_step=on_step, looks=looks,
            query=query,
        ):  # fmt: skip
            pass


def run_rounds(
    network: nn.Module,
    records: Records,
    recipe: Recipe,
    streams: Mapping[str, Stream],
    *,
    device: str = "cpu",
    on_step: Callable[[int], None] | None = None,
    looks: Callable[[int], bool] | None = None,
    query: ValidationQuery | None = None,
    splits: bool = True,
    together: TrainingGroup | None = None,
) -> Iterator[int]:
    """Train as `train` does, as an iterator over rounds of steps.

    A GPU computes a round while the caller has control. Arguments, errors and cost are those of
    `train` and `start_training`.

    Yields:
        Number of finished steps at the beginning of each round.
    """
    training = start_training(
        network, records, recipe, streams, device=device, query=query, splits=splits,
        together=together,
    )  # fmt: skip
    finished = 0
    try:
        while finished < recipe.steps:
            most = min(training.max_round_steps, recipe.steps - finished)
            if on_step is not None:
                ends = range(1, most)
                most = next((k for k in ends if looks is None or looks(finished + k)), most)
            training.begin_steps(most)
            yield finished
            if not (made := training.end_round()):
                break
            finished += made
            if on_step is not None:
                on_step(finished)
    except BaseException:
        training.undo_round()
        raise
    training.finish()


def start_training(
    network: nn.Module,
    records: Records,
    recipe: Recipe,
    streams: Mapping[str, Stream],
    *,
    device: str = "cpu",
    query: ValidationQuery | None = None,
    splits: bool = True,
    together: TrainingGroup | None = None,
) -> Training:
    """Start a training, which makes single steps, or rounds of steps on a GPU if the recipe can.

    Arguments, errors and cost are those of `train`, with two further arguments: `splits`, whether
    a step that runs out of memory is repeated with fewer rows at once instead of raising the error;
    and `together`, a group of trainings that share kernel calls on a GPU (None: no sharing).
    """
    alone = any(isinstance(each, PerRecord) for each in network.modules())
    if device != "cpu" and not alone:
        from pasearch.gpu.gpu_training import GpuTraining
        from pasearch.gpu.rounds import can_use_rounds

        if can_use_rounds(recipe):
            return GpuTraining(
                network, records, recipe, streams, device=device, splits=splits, together=together
            )
    return Training(network, records, recipe, streams, device=device, query=query, splits=splits)
