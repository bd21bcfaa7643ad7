"""The least time of a step by what this machine can do, and how far from it a step is, row by row.

    python benchmarks/speed/limits.py --threads 1

The limit is that of `benchmarks/bench.py`: operations over the rate of large float32 products, plus
the noise's random bytes over AES's rate, or the bytes moved over that of a copy if that takes
longer. The time of torch's own float32 normal numbers is printed for comparison, and is in no
limit. Steps are timed as in `run.py`; the table shows the median of the rounds.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from datetime import date
from pathlib import Path

from run import BLOCK, add_line, block, hold, machine

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))


def main() -> None:
    """Measure, print the tables, and add a line a row to the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--row", nargs="+", help="Names as in rows.py. Default: all.")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help="A .jsonl file to add to. Default: none.")
    given = parser.parse_args()
    hold(given.threads, given.device)
    import torch
    from bench import measured
    from peers import Setting, ours
    from rows import ROWS, SIGMA, usual

    from pasearch.spaces.cost import measure_step_work

    torch.set_num_threads(given.threads)
    rates = measured(given.device, 4.0)
    print(
        f"{date.today()}, {machine(given.device)}, {given.threads} thread(s), load "
        f"{os.getloadavg()[0]:.1f}: products {rates.operations / 1e9:.0f} GFLOP/s, copies "
        f"{rates.bytes / 1e9:.1f} GB/s, AES {rates.random / 1e9:.1f} GB/s, torch.randn "
        f"{1e9 / rates.normals:.1f} ns a number.\n"
    )
    print("| work, batch | products | memory | random bits | limit, ms | ours, ms | ours / limit |")
    print("|---|---|---|---|---|---|---|")
    for name in given.row or usual(given.device):
        row = ROWS[name]
        work = measure_step_work(row.architecture, row.shape, row.classes)
        least, parts = rates.least(work, row.batch), rates.parts(work, row.batch)
        step = ours(Setting(row, row.data(given.device), given.device, SIGMA, whole=False))[0]
        steps = max(1, round(BLOCK / block(step, 1, given.device, warm=True)))
        times = [block(step, steps, given.device, warm=True) for _ in range(given.rounds)]
        own = statistics.median(times)
        shown = [1e3 * parts[part] for part in ("products", "memory", "random")]
        print(
            f"| {row.title} | {' | '.join(f'{each:.3g}' for each in shown)} | {1e3 * least:.3g} "
            f"| {1e3 * own:.3g} | {own / least:.2g} |",
            flush=True,
        )
        if given.out:
            found = {
                "row": name, "threads": given.threads, "device": given.device,
                "limit_ms": 1e3 * least, "parts_ms": {k: 1e3 * v for k, v in parts.items()},
                "ours_ms": 1e3 * own, "rounds": given.rounds, "rates": rates.to_json(),
                "date": date.today().isoformat(), "machine": machine(given.device),
                "load": round(os.getloadavg()[0], 1), "torch": torch.__version__,
                "command": " ".join(["python", "benchmarks/speed/limits.py", *sys.argv[1:]]),
            }  # fmt: skip
            add_line(given.out, found)


if __name__ == "__main__":
    main()
