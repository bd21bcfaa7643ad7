"""Whether two versions of the program give the same results: record one, record the other, compare.

Each case of `cases.toml` is one small command with a fixed seed, or a few lines of Python. What is
kept of it: exit code, result.json, a hash of every tensor of the model and of the trials (values,
not the file's bytes), what was printed as JSON, and error messages.

Usage: python benchmarks/same_results/run.py record OUT.jsonl [--only NAME] [--renames FILE]
       python benchmarks/same_results/run.py compare BEFORE.jsonl AFTER.jsonl [--renames FILE]
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

# One thread, no GPU, a width for help texts: what else of a machine could show in a result.
os.environ.update(OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="", COLUMNS="80")

HERE = Path(__file__).parent
RENAMES = HERE / "renames.toml"


def main() -> int:
    """Run one of the two commands; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record", help="run the cases with the code on the path")
    record.add_argument("out", type=Path)
    record.add_argument("--only", action="append", help="a case, or a pattern such as 'arch-*'")
    record.add_argument("--cases", type=Path, default=HERE / "cases.toml")
    record.add_argument("--renames", type=Path, help="the new command line, if it is another")
    record.add_argument("--reverse", action="store_true", help="the last case first")
    record.add_argument(
        "--workers", type=int, choices=range(1, 1025), metavar="N", default=os.cpu_count(),
        help="how many cases are run at a time, each by one thread; default: as many as cores",
    )  # fmt: skip
    compare = commands.add_parser("compare", help="print every difference; 1 if there is any")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)
    compare.add_argument("--renames", type=Path, default=RENAMES)
    compare.add_argument("--only", action="append", help="as of record")
    given = parser.parse_args()
    if given.command == "compare":
        from comparing import compare_files

        return compare_files(given.before, given.after, given.renames, given.only)
    from recording import record_cases

    return record_cases(
        given.cases, given.out, renames=given.renames, only=given.only, reverse=given.reverse,
        workers=given.workers,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
