"""The tables of the README, from the lines that `run.py` added to the results.

python benchmarks/speed/table.py                          prints
python benchmarks/speed/table.py --into benchmarks/speed/README.md
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
BEGIN, END = "<!-- speed: written by benchmarks/speed/table.py -->", "<!-- end of speed -->"
COLUMNS = {
    "sgd": "plain SGD", "captured": "plain SGD, captured", "hand": "hand-written",
    "hooks": "Opacus hooks", "ghost": "Opacus ghost",
    "fastdp": "FastDP", "jax": "jax vmap", "jax-privacy": "jax_privacy",
    "ours again": "ours again",
}  # fmt: skip
CLOCKS = {"wall": "times on the clock", "cpu": "times of the processor"}
TIMES = {"dense": 2.0, "cnn": 1.5, "lstm": 5.0}
"""How many times faster than ghost clipping and FastDP a step shall be, by kind of network."""
TO_SGD_ON_GPU = 1.2
TO_SGD = {"fcn-2048": 1.1, "fcn-100": 1.8, "cnn-1024": 1.6, "scattering-2048": 1.1}
"""How many times plain SGD's time a step shall take at most: on a GPU, and by row elsewhere."""

Line = dict[str, Any]


def latest(path: Path) -> dict[tuple[str, int], dict[tuple[str, str], Line]]:
    """Return the last line of each (row, peer), by (device, threads)."""
    found: dict[tuple[str, int], dict[tuple[str, str], Line]] = {}
    for each in map(json.loads, path.read_text().splitlines()):
        group = found.setdefault((each["device"], each["threads"]), {})
        group[each["row"], each["peer"]] = each
    return found


def of_rows(lines: dict[tuple[str, str], Line]) -> Iterator[tuple[str, str, dict[str, Line]]]:
    """Yield each row's name, title, and its lines by peer."""
    from rows import ROWS

    for name, row in ROWS.items():
        by_peer = {peer: line for (of, peer), line in lines.items() if of == name}
        if any("ratio" in line for line in by_peer.values()):
            yield name, row.title, by_peer


def ratios(lines: dict[tuple[str, str], Line]) -> Iterator[str]:
    """Yield the table of every peer's time over ours."""
    captured = any("ratio" in line for (_, peer), line in lines.items() if peer == "captured")
    shown = {peer: title for peer, title in COLUMNS.items() if captured or peer != "captured"}
    yield f"| work, batch | ours, ms | {' | '.join(shown.values())} |"
    yield "|---|---" + "|---" * len(shown) + "|"
    for _, title, by_peer in of_rows(lines):
        measured = [line for line in by_peer.values() if "ratio" in line]
        own = sorted(line["ours_ms"] for line in measured)[len(measured) // 2]
        cells = (_cell(by_peer.get(peer)) for peer in shown)
        yield f"| {title} | {_short(own)} | {' | '.join(cells)} |"


def goals(lines: dict[tuple[str, str], Line]) -> Iterator[str]:
    """Yield the table of what is reached and what is not."""
    from rows import ROWS

    columns = ("fastest private peer", "its time / ours", "ghost, FastDP: the lesser",
               "ours / plain SGD")  # fmt: skip
    yield f"| work, batch | {' | '.join(columns)} |"
    yield "|---" * (1 + len(columns)) + "|"
    for name, title, by_peer in of_rows(lines):
        others = ("sgd", "captured", "ours again")
        private = {peer: line["ratio"] for peer, line in by_peer.items()
                   if "ratio" in line and peer not in others}  # fmt: skip
        if not private:
            continue
        best = min(private, key=lambda peer: private[peer])
        bulk = [private[peer] for peer in ("ghost", "fastdp") if peer in private]
        goal, sgd = TIMES[ROWS[name].kind], by_peer.get("sgd", {}).get("ratio")
        most = TO_SGD_ON_GPU if by_peer[best]["device"] == "cuda" else TO_SGD.get(name)
        yield (
            f"| {title} | {COLUMNS[best]} | {_reached(private[best], 1.0)} "
            f"| {_reached(min(bulk), goal) if bulk else '-'} "
            f"| {_below(1.0 / sgd, most) if sgd else '-'} |"
        )


def _cell(line: Line | None) -> str:
    if line is None or "ratio" not in line:
        return "-"
    return "{} ({}, {})".format(*(_short(line[name]) for name in ("ratio", "low", "high")))


def _short(value: float) -> str:
    return f"{value:.3g}" if value < 100 else f"{value:.0f}"


def _reached(value: float, goal: float) -> str:
    return f"{_short(value)} (at least {goal:g}: {'reached' if value >= goal else 'missed'})"


def _below(value: float, goal: float | None) -> str:
    if goal is None:
        return _short(value)
    return f"{_short(value)} (at most {goal:g}: {'reached' if value <= goal else 'missed'})"


def text(path: Path) -> str:
    """Return all tables."""
    parts = []
    for (device, threads), lines in sorted(latest(path).items()):
        some = next(iter(lines.values()))
        named = ", ".join(f"{name} {number}" for name, number in some["versions"].items())
        days = sorted({line["date"] for line in lines.values()})
        loads = [line["load"] for line in lines.values()]
        clocks = " and ".join(
            sorted({CLOCKS[line.get("clock", "wall")] for line in lines.values()})
        )
        where = some["machine"] if device == "cuda" else f"{threads} thread{'s' * (threads > 1)}"
        parts += [
            f"### {where}\n",
            f"{' to '.join(dict.fromkeys((days[0], days[-1])))}; {some['machine']}; load of the "
            f"machine {min(loads)} to {max(loads)}; {clocks}; {named}.\n",
            *ratios(lines), "", *goals(lines), "",
        ]  # fmt: skip
    return "\n".join(parts)


def main() -> None:
    """Print the tables, or write them between the markers of a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, nargs="?", default=HERE / "results/steps.jsonl")
    parser.add_argument("--into", type=Path, help="A file with the markers. Default: print.")
    given = parser.parse_args()
    if not given.results.exists():
        parser.error(f"{given.results} is not there: measure with run.py --out {given.results}.")
    made = text(given.results)
    if given.into is None:
        print(made)
        return
    before, _, rest = given.into.read_text().partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        parser.error(f"{given.into} lacks the lines {BEGIN!r} and {END!r}.")
    given.into.write_text(f"{before}{BEGIN}\n{made}{END}{after}")


if __name__ == "__main__":
    main()
