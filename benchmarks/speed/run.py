"""How long a private training step takes, ours beside the best peers, row by row.

    python benchmarks/speed/run.py --threads 1                       every row and peer: 12 minutes
    python benchmarks/speed/run.py --threads 2 --row fcn-100 --peer ghost fastdp
    python benchmarks/speed/run.py --check                           all ways do the same step
    python benchmarks/speed/run.py --device cuda                     on a GPU

A peer and ours take turns: in each of 15 rounds the one is timed for about 40 ms, then the other,
and every second round the other way round; a round's ratio is peer / ours, and what is reported is
the median of the ratios with their quartiles. `ours again` is ours against ours. The process is
held to as many cores as it has threads, so that nothing runs beside unseen. One line a row and
peer is added to `--out`; what stands there already, of this kind of processor, is not measured
again. `table.py` prints them.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BLOCK = 0.04
"""Seconds that one way is timed in a round, at least one step."""
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
clock = CLOCKS["wall"]
"""What all times are read from."""


def options() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--row", nargs="+", help="Names as in rows.py. Default: all.")
    parser.add_argument("--peer", nargs="+", help="Names as in peers.py. Default: all.")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall",
        help="cpu counts this process's own time: for a busy machine, and one thread.",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, help="A .jsonl file to add to. Default: none.")
    parser.add_argument("--again", action="store_true", help="Measure what --out holds anew.")
    parser.add_argument("--check", action="store_true", help="Compare the steps, time nothing.")
    return parser.parse_args()


def hold(threads: int, device: str) -> None:
    """Hold this process to so many cores and threads; before torch and jax are imported."""
    if device != "cpu":
        import torch

        if not torch.cuda.is_available():
            sys.exit("torch finds no CUDA GPU here: take --device cpu.")
        return
    cores = sorted(os.sched_getaffinity(0))[-threads:]
    os.sched_setaffinity(0, cores)
    # Threads that wait in a loop take the cores of the next way. `pasearch` sets the same.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = str(threads)
    if threads == 1:
        os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"


def block(step: Callable[[], object], steps: int, device: str, warm: bool) -> float:
    """Return the seconds of one step, as the mean of several calls; a call may be many steps."""
    if warm:
        step()
    synchronize(device)
    start = clock()
    for _ in range(steps):
        step()
    synchronize(device)
    return (clock() - start) / steps / getattr(step, "steps", 1)


def least(step: Callable[[], object], repeats: int, device: str) -> float:
    """Return the least seconds of one step among a few: what others on the machine add is left."""
    return min(block(step, 1, device, warm=False) for _ in range(repeats))


def synchronize(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        import torch

        torch.cuda.synchronize()


def paired(
    peer: Callable[[], object], ours: Callable[[], object], rounds: int, device: str
) -> tuple[list[float], list[float]]:
    """Return the seconds of a step of both, round by round."""
    ways, times = (peer, ours), ([], [])
    counts = []
    for way in ways:
        way()
        seconds = block(way, 1, device, warm=True) * getattr(way, "steps", 1)
        counts.append(max(1, round(BLOCK / seconds)))
    gc.collect()
    gc.disable()
    for number in range(rounds):
        for place in (0, 1) if number % 2 == 0 else (1, 0):
            warm = counts[place] > 1
            times[place].append(block(ways[place], counts[place], device, warm))
    gc.enable()
    return times


def line(peer: list[float], ours: list[float]) -> dict[str, Any]:
    """Return what is reported of the rounds of one pair."""
    low, middle, high = statistics.quantiles([a / b for a, b in zip(peer, ours, strict=True)], n=4)
    return {
        "rounds": len(peer),
        "ratio": round(middle, 3), "low": round(low, 3), "high": round(high, 3),
        "peer_ms": round(1e3 * statistics.median(peer), 4),
        "ours_ms": round(1e3 * statistics.median(ours), 4),
    }  # fmt: skip


def versions() -> dict[str, str]:
    """Return the versions of all that is compared; FastDP has none, and is named by its commit."""
    found = {"python": platform.python_version(), "fastdp": "3d5cc561aa33"}
    for name in ("torch", "numpy", "numba", "opacus", "jax", "jax_privacy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def machine(device: str) -> str:
    """Return the name of what computes."""
    if device == "cuda":
        import torch

        return torch.cuda.get_device_name()
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    named = [each.partition(":")[2].strip() for each in lines if each.startswith("model name")]
    return named[0] if named else platform.processor()


def chosen(asked: list[str] | None, known: Iterable[str], what: str) -> list[str]:
    """Return the names that were asked for, or all."""
    if unknown := sorted(set(asked or ()) - set(known)):
        sys.exit(f"No {what} {', '.join(unknown)}: take some of {', '.join(known)}.")
    return asked or list(known)


def measure(given: argparse.Namespace) -> None:
    """Measure every row and peer that is asked for."""
    import torch
    from peers import DRAWN, PEERS, Absent, Setting, ours, quiet
    from rows import ROWS, SIGMA, usual

    torch.set_num_threads(given.threads)
    quiet()
    done = set()
    if given.out and given.out.exists() and not given.again:
        here = machine(given.device)
        known = map(json.loads, given.out.read_text().splitlines())
        done = {(each["row"], each["peer"], each["threads"], each["device"])
                for each in known if each["machine"] == here}  # fmt: skip
    rows = chosen(given.row, ROWS, "row") if given.row else usual(given.device)
    peers = chosen(given.peer, PEERS, "peer")
    for name in rows:
        row = ROWS[name]
        wanted = [each for each in peers
                  if (name, each, given.threads, given.device) not in done]  # fmt: skip
        if held := [each for each in peers if each not in wanted]:
            print(f"{name:16} {given.out} holds {', '.join(held)} (--again measures anew)")
        if not wanted:
            continue
        setting = Setting(row, row.data(given.device), given.device, SIGMA, whole=False)
        own = ours(setting)[0]
        for peer in wanted:
            found: dict[str, Any] = {
                "row": name, "peer": peer, "threads": given.threads, "device": given.device,
                "clock": given.clock, "drawn": DRAWN.get(peer, "poisson"),
            }  # fmt: skip
            try:
                step = PEERS[peer](setting)[0]
                found |= line(*paired(step, own, given.rounds, given.device))
            except Absent as reason:
                found["skipped"] = str(reason)
            write(found, given)
            step = None
            gc.collect()


def write(found: dict[str, Any], given: argparse.Namespace) -> None:
    """Print one pair, and add it to the results."""
    if "skipped" in found:
        text = f"skipped: {found['skipped']}"
    else:
        text = "{ratio:.2f} ({low:.2f}, {high:.2f})   {peer_ms:.2f} / {ours_ms:.2f} ms".format(
            **found
        )
    print(f"{found['row']:16} {found['peer']:12} {text}", flush=True)
    if given.out:
        command = " ".join(["python", "benchmarks/speed/run.py", *sys.argv[1:]])
        about = {
            "date": date.today().isoformat(), "machine": machine(given.device),
            "load": round(os.getloadavg()[0], 1), "versions": versions(), "command": command,
        }  # fmt: skip
        add_line(given.out, found | about)


def add_line(path: Path, line: dict[str, Any]) -> None:
    """Add a line to a file of results, which is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")


def check(given: argparse.Namespace) -> None:
    """Compare what one step over all of 64 records does to the network's outputs, with no noise.

    Raises:
        SystemExit: A way does something else than ours.
    """
    import torch
    from peers import PEERS, Absent, Setting, ours, quiet
    from rows import ROWS

    torch.set_num_threads(given.threads)
    quiet()
    wrong = []
    for name in chosen(given.row, ROWS, "row"):
        row = ROWS[name]
        setting = Setting(row, row.data("cpu", 64), "cpu", 1e-9, whole=True)
        before = row.network()(setting.data.x)
        expected = None
        for peer in [None, *chosen(given.peer, PEERS, "peer")]:
            if peer in ("sgd", "captured"):
                continue
            try:
                step, network = (PEERS[peer] if peer else ours)(setting)
            except Absent as reason:
                print(f"{name:16} {peer:12} skipped: {reason}")
                continue
            step()
            moved = (network()(setting.data.x) - before).detach()
            if expected is None:
                expected = moved
                continue
            apart = float((moved - expected).abs().max() / expected.abs().max())
            print(f"{name:16} {peer:12} {apart:.1e}")
            wrong += [f"{name} {peer}"] if not apart < 1e-3 else []
    if wrong:
        sys.exit(f"These steps differ from ours: {', '.join(wrong)}")


if __name__ == "__main__":
    asked = options()
    clock = CLOCKS[asked.clock]
    hold(asked.threads, asked.device)
    (check if asked.check else measure)(asked)
