"""Where the time of our step goes: by function of the library, and by kernel of torch.

    python benchmarks/speed/stages.py --row fcn-100

First the library's own functions, with all that they call, in microseconds a step (measured by
cProfile, which slows small steps: read the shares). Then torch's kernels: how many a step, and the
time in each, of our step beside plain SGD's.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from run import hold

SHOWN = 24
"""Lines of each table."""


def functions(step: Callable[[], object], steps: int) -> None:
    """Print the functions that a step spends its time in, by their cumulative time."""
    start = time.process_time()
    for _ in range(steps):
        step()
    plain = (time.process_time() - start) / steps
    profile = cProfile.Profile(time.process_time)  # which a busy machine leaves as it is
    profile.enable()
    for _ in range(steps):
        step()
    profile.disable()
    found: dict[Any, Any] = pstats.Stats(profile).stats  # pyright: ignore[reportAttributeAccessIssue]
    whole = max(cumulative for _, _, _, cumulative, _ in found.values())
    print(
        f"A step takes {1e6 * plain:,.0f} us, under the profiler {1e6 * whole / steps:,.0f} us.\n"
    )
    print("| function | calls a step | us a step, with all it calls | its own us | share |")
    print("|---|---|---|---|---|")
    own = [(place, each) for place, each in found.items() if "pasearch" in place[0]]
    for (file, _, name), (_, calls, alone, cumulative, _) in sorted(
        own, key=lambda pair: -pair[1][3]
    )[:SHOWN]:
        print(
            f"| {Path(file).stem}.{name} | {calls / steps:.3g} | {1e6 * cumulative / steps:,.0f} "
            f"| {1e6 * alone / steps:,.0f} | {cumulative / whole:.0%} |"
        )


def kernels(ways: dict[str, Callable[[], object]], steps: int) -> None:
    """Print the kernels of each way: how many, and their own time."""
    from torch.profiler import ProfilerActivity, profile

    found = {}
    for name, step in ways.items():
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            for _ in range(steps):
                step()
        found[name] = {
            each.key: (each.count / steps, each.self_cpu_time_total / steps)
            for each in profiled.key_averages() if each.key.startswith("aten::")
        }  # fmt: skip
    for name, by_kernel in found.items():
        many, spent = (sum(each[place] for each in by_kernel.values()) for place in (0, 1))
        print(f"\n{name}: {many:.0f} calls of torch a step, {spent:,.0f} us in them\n")
        print("| kernel | calls a step | us a step |\n|---|---|---|")
        for kernel, (calls, own) in sorted(by_kernel.items(), key=lambda pair: -pair[1][1])[:SHOWN]:
            print(f"| {kernel.removeprefix('aten::')} | {calls:.3g} | {own:,.0f} |")


def main() -> None:
    """Profile one row."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--row", default="fcn-100", help="A name as in rows.py.")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--steps", type=int, default=50)
    given = parser.parse_args()
    hold(given.threads, given.device)
    import torch
    from peers import Setting, ours, quiet, sgd
    from rows import ROWS, SIGMA

    torch.set_num_threads(given.threads)
    quiet()
    row = ROWS[given.row]
    setting = Setting(row, row.data(given.device), given.device, SIGMA, whole=False)
    ways = {"ours": ours(setting)[0], "plain SGD": sgd(setting)[0]}
    for step in ways.values():
        step()
    functions(ways["ours"], given.steps)
    kernels(ways, given.steps)


if __name__ == "__main__":
    main()
