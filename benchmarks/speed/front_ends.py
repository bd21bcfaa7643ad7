"""How long images take through their front ends, beside what others have.

    scattering   ours / Kymatio's, the same coefficients
    patches      ours in machine code / the same by torch's convolutions, as on a GPU
    whitened     what a run maps images by: both, and their product with the directions
    made ready   the directions of `whitened`, once a run, on one core: in seconds, by themselves

A peer and ours take turns, as in run.py: a round's ratio is the peer's time over ours. On a GPU the
peer is the processor beside it, by all its cores.

Usage: python benchmarks/speed/front_ends.py --threads 2
       python benchmarks/speed/front_ends.py --device cuda
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

from run import add_line, hold, line, machine, paired

SHAPES = {"28 x 28": (28, 28), "3 x 32 x 32": (3, 32, 32)}
IMAGES = 512
"""Four pieces."""

Way = Callable[[], object]


def kymatio(shape: tuple[int, ...], x: Any) -> Way | None:
    """Return Kymatio's scattering of images; None where it is not installed."""
    try:
        from kymatio.scattering2d.frontend.torch_frontend import ScatteringTorch2D
    except ImportError as reason:
        print(f"Kymatio is left out: {reason}.")
        return None
    theirs = ScatteringTorch2D(2, shape[-2:], 8)
    return lambda: theirs(x)


def on_a_processor(shape: tuple[int, ...]) -> dict[str, tuple[Way | None, Way]]:
    """Return pairs of a peer and ours, by name."""
    import torch

    from pasearch.data.mapping import copy_to_device, map_records
    from pasearch.data.whitening import WhitenedImage, count_synthetic_images, learn_directions

    start = time.perf_counter()
    module = WhitenedImage(shape, views=1)
    module.load_state_dict(learn_directions(shape))
    images = count_synthetic_images(len(module.directions))
    print(f"prepared: {time.perf_counter() - start:.1f} s, of {images:,} synthetic images")
    wide, x = copy_to_device(module, "cpu"), torch.rand(IMAGES, *shape)
    channels = x.reshape(IMAGES, -1, *shape[-2:])
    parts = channels.split(15)  # 16 MB each: what their own chunks are

    def by_torch() -> object:
        return torch.cat([module.patches._compute_resemblances(part) for part in parts])

    def before() -> object:
        scattered = module.transform(x).flatten(1)
        return torch.cat([scattered, by_torch()], dim=1) @ module.directions.float()  # type: ignore[list-item]

    return {
        "scattering": (kymatio(shape, x), lambda: module.transform(x)),
        "patches": (by_torch, lambda: module.patches(channels)),
        "whitened": (before, lambda: map_records(wide, x)),
    }


def on_a_gpu(shape: tuple[int, ...]) -> dict[str, tuple[Way | None, Way]]:
    """Return pairs of a processor and a GPU, by name: images come from memory and go back."""
    import torch

    from pasearch.data.front_ends.parsing import parse_front_end
    from pasearch.data.mapping import copy_to_device, map_records

    found: dict[str, tuple[Way | None, Way]] = {}
    x = torch.rand(IMAGES, *shape)
    for name in ("scattering", "whitened"):
        made = parse_front_end(name).build_ready_module(shape)
        here, there = copy_to_device(made, "cpu"), copy_to_device(made, "cuda")
        found[name] = (
            lambda own=here: map_records(own, x),
            lambda own=there: map_records(own, x, "cuda"),
        )
    return found


def main() -> None:
    """Measure, print a table, and add a line for each pair to the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2, help="On a processor.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    results = Path(__file__).parent / "results" / "front_ends.jsonl"
    parser.add_argument("--out", type=Path, default=results)
    given = parser.parse_args()
    hold(given.threads, given.device)
    import torch

    from pasearch.data.mapping import full_precision

    if given.device == "cpu":
        torch.set_num_threads(given.threads)
    threads = torch.get_num_threads()
    print(f"{machine(given.device)}, {threads} threads of the processor; {IMAGES} images")
    print(
        "| images | what | ours, ms an image | peer / ours: median (quartiles) |\n|---|---|---|---|"
    )
    for name, shape in SHAPES.items():
        with torch.no_grad(), full_precision():
            pairs = on_a_gpu(shape) if given.device == "cuda" else on_a_processor(shape)
            for what, (peer, ours) in pairs.items():
                if peer is None:
                    continue
                found = line(*paired(peer, ours, given.rounds, given.device))
                each = found["ours_ms"] / IMAGES
                print(
                    f"| {name} | {what} | {each:.3g} "
                    f"| {found['ratio']} ({found['low']}, {found['high']}) |"
                )
                add_line(given.out, {
                    "date": date.today().isoformat(), "machine": machine(given.device),
                    "device": given.device, "threads": threads, "torch": torch.__version__,
                    "images": name, "what": what, "at once": IMAGES, **found,
                })  # fmt: skip


if __name__ == "__main__":
    main()
