"""Everything that waits for a GPU, in order of what it would be worst not to know, within a time.

    python benchmarks/on_a_gpu.py --seconds 600 --out RESULTS

    tests         pytest -m gpu
    generation    60 and ten networks of Table XI together, against Opacus one by one
    tiles         which tiles the kernels are fastest with
    speed         a step of each row against every peer that is installed
    front ends    images through scattering and whitening, against the processor beside it
    limits        how far from the least time that this GPU allows
    bench         how fast this GPU trains privately

Each writes what it prints to RESULTS/NAME.log, and its results beside it. What is left when the
time is over is not begun, and what is under way is ended; `--only` names some.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]

PYTHON = sys.executable

PARTS: dict[str, list[list[str]]] = {
    "tests": [[PYTHON, "-m", "pytest", "-q", "-m", "gpu", "-n", "8", "tests"]],
    "generation": [
        [PYTHON, "benchmarks/generation/run.py", "--device", "cuda", "--candidates", many,
         "--steps", "2560", "--rounds", "5", "--out", "{out}/generation.jsonl"]
        for many in ("60", "10")
    ],
    "tiles": [[PYTHON, "benchmarks/speed/tiles.py", "--out", "{out}/tiles.jsonl"]],
    "speed": [
        [PYTHON, "benchmarks/speed/run.py", "--device", "cuda", "--out", "{out}/steps.jsonl"]
    ],
    "front ends": [
        [PYTHON, "benchmarks/speed/front_ends.py", "--device", "cuda",
         "--out", "{out}/front_ends.jsonl"]
    ],
    "limits": [
        [PYTHON, "benchmarks/speed/limits.py", "--device", "cuda", "--out", "{out}/limits.jsonl"]
    ],
    "bench": [
        [PYTHON, "benchmarks/bench.py", "--device", "cuda", "--out", "{out}/bench.json"]
    ],
}  # fmt: skip


def main() -> None:
    """Run the parts, and say how each ended."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=3600.0, help="For all of them.")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[*PARTS])
    parser.add_argument("--out", type=Path, required=True, help="The folder of results.")
    given = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        sys.exit("torch finds no CUDA GPU here, and all of this needs one.")
    given.out.mkdir(parents=True, exist_ok=True)
    end, failed = time.monotonic() + given.seconds, False
    for name in given.only:
        with (given.out / f"{name}.log").open("a") as log:
            for command in PARTS[name]:
                start = time.monotonic()
                told = ended(
                    [each.format(out=given.out.resolve()) for each in command], log, end - start
                )
                failed |= told != "done"
                print(f"{name}: {told}, after {time.monotonic() - start:.0f} s", flush=True)
    sys.exit(int(failed))


def ended(command: list[str], log: IO[str], seconds: float) -> str:
    """Run a command within a time; return how it ended. Its processes end with it."""
    if seconds <= 0:
        return "not begun"
    begun = subprocess.Popen(
        command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        code = begun.wait(seconds)
    except subprocess.TimeoutExpired:
        os.killpg(begun.pid, signal.SIGKILL)
        begun.wait()
        return "ended before it was done"
    return "done" if code == 0 else f"failed with exit code {code}"


if __name__ == "__main__":
    main()
