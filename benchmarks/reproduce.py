"""Print, or run again, what the registry holds about one item of the five papers.

`registry.toml` has one [[row]] per table, figure, theorem, algorithm and stated number;
`registry.py` computes our figures from the result files.

Usage: python benchmarks/reproduce.py --list
       python benchmarks/reproduce.py "Bao, Table III" [--run [--full] [--data-root DIR] ...]
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

from registry import Row, describe, read_registry

ROOT = Path(__file__).resolve().parent.parent
PLACEHOLDERS = {"DATA": "data_root", "TABLES": "tables", "CIFAR": "cifar"}
"""Paths in a command that the reader's own replace, and the options that give them."""


def find_row(rows: list[Row], wanted: str) -> Row:
    """Return the row that is named, with or without its paper.

    Raises:
        LookupError: No item, or several, have this name. The message lists near names.
    """

    def plain(text: str) -> str:
        return " ".join(re.findall(r"[a-z0-9]+", text.lower().replace("figure", "fig")))

    found = [row for row in rows if plain(wanted) in (plain(row.key), plain(row.item))]
    if len(found) == 1:
        return found[0]
    near = [row.key for row in found]
    if not found:
        names = {plain(row.item): row.key for row in rows} | {
            plain(row.key): row.key for row in rows
        }
        near = [names[each] for each in difflib.get_close_matches(plain(wanted), names, 5, 0.5)]
    kind = "Several items are" if found else "No item is"
    raise LookupError(f"{kind} named {wanted!r}. Near: {'; '.join(near) or 'none; see --list'}")


def print_row(row: Row) -> None:
    """Print everything that the registry holds about an item."""
    entries = {
        "shows": row.shows, "our reading": row.reading, "the paper": row.theirs,
        "ours: median (least to most)": describe(row.ours, "\n"), "seeds": row.seeds,
        "share of the paper's steps": row.steps, "sound cost": describe(row.sound),
        "claimed cost": describe(row.claimed), "verdict": row.verdict, "reason": row.why,
        "command": row.command, "longer": row.full and f"add {row.full}",
        "results": ", ".join(f"{spec['file']} {spec.get('where', '')}" for spec in row.ours),
        "tests": ", ".join(row.tests), "proof": row.proof, "pictures": ", ".join(row.pictures),
    }  # fmt: skip
    print(row.key)
    for name, text in entries.items():
        print(f"  {name}: {text or '-'}".replace("\n", "\n    "))


def print_list(rows: list[Row]) -> None:
    """Print a line per item: paper, item, verdict, share of the paper's steps, seeds."""
    table = [("paper", "item", "verdict", "share", "seeds")]
    table += [(row.paper, row.item, row.verdict, row.steps, row.seeds) for row in rows]
    widths = [max(map(len, column)) + 2 for column in zip(*table, strict=True)]
    for line in table:
        cells = (text.ljust(width) for text, width in zip(line, widths, strict=True))
        print("".join(cells).rstrip())


def make_command(row: Row, options: argparse.Namespace) -> list[str]:
    """Return the command of a row with the reader's paths in it.

    Raises:
        ValueError: The row has no command, or no longer version, or a path is not given.
    """
    if not row.command or (options.full and not row.full):
        raise ValueError(f"{row.key} has no {'longer ' * bool(row.command)}command")
    words = shlex.split(f"{row.command} {row.full if options.full else ''}")
    for place, word in enumerate(words):
        name, _, rest = word.partition("/")
        if option := PLACEHOLDERS.get(name):
            if getattr(options, option) is None:
                raise ValueError(f"{row.key}: give --{option.replace('_', '-')} PATH")
            words[place] = str(Path(getattr(options, option)) / rest)
    programs = {"python": [sys.executable], "pasearch": [sys.executable, "-m", "pasearch"]}
    return [*programs.get(words[0], [words[0]]), *words[1:]]


def main() -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("item", nargs="?", help='an item, such as "Bao, Table III"')
    parser.add_argument("--list", action="store_true", help="print a line per item")
    parser.add_argument("--run", action="store_true", help="run the command of the item")
    parser.add_argument("--full", action="store_true", help="with --run: at the paper's size")
    for option in PLACEHOLDERS.values():
        parser.add_argument(f"--{option.replace('_', '-')}", help="with --run: a path of data")
    options = parser.parse_args()
    _, rows = read_registry()
    try:
        if options.list:
            print_list(rows)
        elif options.item is None:
            raise LookupError("Name an item, or use --list.")
        elif options.run:
            command = make_command(find_row(rows, options.item), options)
            return subprocess.run(command, check=False, cwd=ROOT).returncode
        else:
            print_row(find_row(rows, options.item))
    except BrokenPipeError:  # the reader of a pipe, such as head, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (LookupError, ValueError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
