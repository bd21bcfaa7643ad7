"""Stores of trials: what one costs beside SQLite, and four processes of which one is killed.

    add      seconds to store one finished trial; the stores take turns in every round, and a ratio
             is of one round, to the run's own SQLite file
    kill     four processes add the same trials to one study, each beginning elsewhere; at a random
             instant one is killed with -9. Then: how many trials are lost, how many are doubled

PostgreSQL is started here, from the system's packages, and syncs as it does by default.

Usage: python benchmarks/scale/postgres.py --rounds 7 --kills 20 --out FILE.jsonl
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from postgres_server import server  # noqa: E402

from pasearch.runs.journal import Journal, parse_address  # noqa: E402
from pasearch.runs.keys import Keys  # noqa: E402

SEAL = Keys.from_seed(1).stream("journal")
TRIALS, PROCESSES = 40, 4
WORKER = """
import sys, time
from pasearch.runs import journal as stores
from pasearch.errors import UsageError
from pasearch.runs.journal import Journal
from pasearch.runs.keys import Keys
me, trials, study, storage = (*map(int, sys.argv[1:3]), *sys.stdin.readline().strip().split("|"))
if "://" not in storage:
    stores.HOLD_SECONDS = 3  # after which the lock of the one that was killed is taken from it
journal = Journal(stores.address_of(storage), study, new=False)
journal.sealed_by(Keys.from_seed(1).stream("journal"))
print("ready", flush=True)
sys.stdin.readline()
for step in range(trials):
    number = (step + me * trials // 4) % trials
    if journal.get(number) is None:
        try:
            journal.add(number, {"layers": [{"units": number}]}, number, {"by": me})
        except UsageError as error:
            assert "stored already" in str(error)
        else:
            print(number, flush=True)
        time.sleep(0.01)
"""


def added(journal: Journal, count: int) -> float:
    """Return the seconds that storing one trial takes, in a store that is then closed."""
    journal.sealed_by(SEAL)
    begun = time.perf_counter()
    for number in range(count):
        journal.add(number, {"layers": [{"units": number, "kind": "relu"}] * 3}, number, {})
    seconds = (time.perf_counter() - begun) / count
    journal.close()
    return seconds


def costs(folder: Path, url: str, rounds: int, count: int) -> dict[str, list[float]]:
    """Return the seconds of each store, a round each."""
    found: dict[str, list[float]] = {"SQLite": [], "journal file": [], "PostgreSQL": []}
    for turn in range(rounds):
        stores: dict[str, Any] = {
            "SQLite": folder / f"{turn}.sqlite",
            "journal file": parse_address(str(folder / "trials.log")),
            "PostgreSQL": parse_address(url),
        }
        for name, place in stores.items():
            found[name].append(added(Journal(place, f"cost {turn}"), count))
    return found


def killed(storage: str, study: str, random_: random.Random) -> tuple[int, int, int]:
    """Return how many trials are lost and doubled, and how many were stored at the kill."""
    Journal(parse_address(storage) or "", study).close()
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(me), str(TRIALS)], cwd=ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )
        for me in range(PROCESSES)
    ]  # fmt: skip
    for each in workers:
        assert each.stdin is not None
        each.stdin.write(f"{study}|{storage}\n")
        each.stdin.flush()
    for each in workers:
        assert each.stdout is not None
        assert each.stdout.readline().strip() == "ready"
    for each in workers:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    time.sleep(random_.uniform(0.0, 0.4))
    workers[0].send_signal(signal.SIGKILL)
    before = Journal(parse_address(storage) or "", study, new=False)
    at_kill = len(before.all())
    before.close()
    told = [int(line) for each in workers for line in each.communicate()[0].split()]
    assert all(each.returncode == 0 for each in workers[1:])
    journal = Journal(parse_address(storage) or "", study, new=False)
    journal.sealed_by(SEAL)
    stored = [each.user_attrs["record"]["number"] for each in journal._study.trials]
    journal.close()
    assert set(told) <= set(stored)
    lost = TRIALS - len(set(stored))
    return lost, len(stored) - len(set(stored)) + len(told) - len(set(told)), at_kill


def main() -> None:
    """Measure both, and write a line for each store."""
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--rounds", type=int, default=7)
    asked.add_argument("--count", type=int, default=50)
    asked.add_argument("--kills", type=int, default=20)
    asked.add_argument("--out", type=Path)
    given = asked.parse_args()
    lines, random_ = [], random.Random(1)
    with server(durable=True) as made, tempfile.TemporaryDirectory(dir=".") as name:
        folder = Path(name).resolve()
        found = costs(folder, made.url(), given.rounds, given.count)
        for store, seconds in found.items():
            ratios = [a / b for a, b in zip(seconds, found["SQLite"], strict=True)]
            low, middle, high = statistics.quantiles(ratios, n=4)
            lines.append({"what": "add", "store": store, "times SQLite": round(middle, 3),
                          "quartiles": [round(low, 3), round(high, 3)], "rounds": given.rounds,
                          "trials": given.count})  # fmt: skip
        for store, storage in (
            ("PostgreSQL", made.url()),
            ("journal file", str(folder / "kills.log")),
        ):
            each = [killed(storage, f"kill {turn}", random_) for turn in range(given.kills)]
            lost, doubled, at_kill = (list(column) for column in zip(*each, strict=True))
            lines.append({"what": "kill", "store": store, "kills": given.kills, "lost": sum(lost),
                          "doubled": sum(doubled), "stored at the kill": at_kill})  # fmt: skip
    for line in lines:
        line["date"] = date.today().isoformat()
        print(json.dumps(line))
    if given.out is not None:
        given.out.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
