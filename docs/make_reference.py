"""Write the pages of the reference that follow from the code: nothing in them is typed by hand.

python docs/make_reference.py           writes them
python docs/make_reference.py --check   names each that is not as it would be written; exit code 1

`reference.md` has every option of every task, as `pasearch.api.request` says it; `api.md` has the
docstrings of `pasearch.__all__`; the tables between `<!-- computed ... -->` and
`<!-- end of computed -->` in `choosing-epsilon.md` and `privacy-officer.md` come from
`pasearch.accounting`.
"""

from __future__ import annotations

import inspect
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pasearch
from pasearch.accounting.accountants import delta_for
from pasearch.accounting.attack import true_positive_rate
from pasearch.accounting.budget import Budget
from pasearch.accounting.calibration import smallest
from pasearch.accounting.events import Event, Gaussian, Geometric
from pasearch.api.request import (
    GROUPS,
    FeatureRequest,
    Request,
    SearchRequest,
    TrainRequest,
    options_of,
)
from pasearch.cli.options import DATA_HELP, DELTA, EPSILON, flag_of

PAGE = Path(__file__).with_name("reference.md")
TASKS: tuple[tuple[type[Request], str], ...] = (
    (SearchRequest, "search_architecture"),
    (FeatureRequest, "select_features"),
    (TrainRequest, "train"),
)
HEAD = """# Options

Every option has two names: the one of the Python function and the one of the command line. This
page is written from the code
(`python docs/make_reference.py`), as are `pasearch TASK --help` and the functions' signatures.

`data` comes first, in Python and on the command line: {data} In Python it may also be a pandas
frame or a pair `(x, y)` of arrays.

The budget is `budget=Budget(epsilon, delta)` in Python, `--eps` (or `--epsilon`) and `--delta` on
the command line. {epsilon} {delta}

`pasearch plan TASK` takes the same options and only prints the plan.
"""


COLUMNS = "| Python | command line | what it does |\n|---|---|---|\n"


def page() -> str:
    """Return the page."""
    parts = [HEAD.format(data=DATA_HELP, epsilon=EPSILON.words, delta=DELTA.words)]
    for request, function in TASKS:
        parts.append(f"\n## `pasearch {request.task}`, `{function}`\n")
        rows = list(options_of(request))
        for group in GROUPS:
            own = [row for row in rows if row[2].group == group and row[0] != "budget"]
            if own:
                parts.append(f"\n### {group}\n\n{COLUMNS}")
                parts += [_row(name, default, option) for name, default, option in own]
    return "".join(parts)


def _row(name: str, default: Any, option: Any) -> str:
    flag = "-" if option.flag is None else f"`{option.flag or flag_of(name)}`"
    usual = "" if default is None or default is False else f" [default: {default}]"
    words = f"{option.words}{usual}".replace("|", "\\|")  # it would end the cell
    return f"| `{name}` | {flag} | {words} |\n"


API = PAGE.with_name("api.md")
API_HEAD = """# Python

What `import pasearch` offers, from the docstrings. Everything else is internal and may change.
How to use it: [in Python](python.md). This page is written by `python docs/make_reference.py`.

| name | what it is |
|---|---|
"""
SECTION = re.compile(r"^(Args|Attributes|Returns|Raises|Cost|Guarantee|Source|Example):\s*(.*)$")
MANY = 20
"""A function of more arguments has them in the table of options."""


def api() -> str:
    """Return the page of the Python API."""
    names = sorted(pasearch.__all__, key=str.lower)
    things = {name: getattr(pasearch, name) for name in names}
    first = {name: (inspect.getdoc(each) or "").partition("\n")[0] for name, each in things.items()}
    rows = [f"| [`{name}`](#{name.lower()}) | {first[name]} |\n" for name in names]
    parts = [f"\n## `{name}`\n\n{_described(name, each)}" for name, each in things.items()]
    return API_HEAD + "".join(rows) + "".join(parts)


def _described(name: str, thing: Any) -> str:
    arguments = list(inspect.signature(thing).parameters.values())
    long = len(arguments) > MANY
    wants = not (isinstance(thing, type) and issubclass(thing, Exception))
    shown = _call(name, [] if long else arguments)
    text = f"```python\n{shown}\n```\n\n" if wants else ""
    text += "\n".join(_markdown(inspect.getdoc(thing) or "", skip=long)) + "\n"
    if long:
        text += "\nIts arguments: [the options](reference.md).\n"
    return text + "".join(_members(thing))


def _call(name: str, arguments: list[inspect.Parameter]) -> str:
    """Return a signature without its types: they are in the text."""
    given, star = [], False
    for each in arguments:
        if each.kind is each.KEYWORD_ONLY and not star:
            given.append("*")
            star = True
        given.append(each.name if each.default is each.empty else f"{each.name}={each.default!r}")
    line = f"{name}({', '.join(given) if arguments else '...'})"
    return line if len(line) <= 88 else f"{name}(\n    " + ",\n    ".join(given) + ",\n)"


def _members(thing: Any) -> Iterator[str]:
    """Yield a class's public methods and properties that say something of themselves."""
    if not isinstance(thing, type) or issubclass(thing, Exception):
        return
    own = {}
    for kind in reversed(thing.__mro__):
        if kind.__module__.startswith("pasearch"):
            own |= {key: each for key, each in vars(kind).items() if not key.startswith("_")}
    said = {key: inspect.getdoc(each) for key, each in own.items() if _is_member(each)}
    rows = [
        f"| `.{key}` | {' '.join(text.split(chr(10) * 2)[0].split())} |\n"
        for key, text in sorted(said.items())
        if text
    ]
    if rows:
        yield "\n| it has | |\n|---|---|\n"
        yield from rows


def _is_member(thing: object) -> bool:
    return isinstance(thing, property) or inspect.isfunction(thing)


def _markdown(doc: str, *, skip: bool) -> Iterator[str]:
    """Yield the lines of a docstring as Markdown, without its arguments if they are many."""
    section = ""
    for line in doc.split("\n"):
        found = SECTION.match(line)
        if found:
            section = found[1]
            if not (skip and section == "Args"):
                yield f"**{section}.** {found[2]}".rstrip()
                if not found[2]:
                    yield ""
        elif line and not line.startswith(" "):
            section = ""
            yield line
        elif not (skip and section == "Args"):
            yield _item(line, section)


def _item(line: str, section: str) -> str:
    """Return a line below a section: an argument as an item of a list."""
    text = line.removeprefix("    ")
    entry = re.match(r"^([\w*, ]+): (.*)$", text)
    if section in ("Args", "Attributes", "Raises") and entry:
        return f"- `{entry[1]}`: {entry[2]}"
    return f"    {text.strip()}" if section in ("Args", "Attributes", "Raises") and text else text


EPSILONS, DELTA_OF_TABLES = (0.1, 0.5, 1.0, 2.0, 3.0, 8.0), 1e-5
ROWS_OF_ONE = (1, 2, 3, 5, 10)
MARKS = re.compile(r"(<!-- computed[^>]*-->\n).*?(<!-- end of computed -->)", re.DOTALL)


def trained(epsilon: float) -> Event:
    """Return what a training of all records releases at epsilon: one sum with Gaussian noise."""
    budget = Budget(epsilon, DELTA_OF_TABLES)
    noise = smallest(lambda each: Gaussian(noise_multiplier=each), budget, 0.05, 1000.0)
    return Gaussian(noise_multiplier=noise)


def attacks() -> str:
    """Return what epsilon means: how often the best attacker is right."""
    rows = [
        "| epsilon | trained on: at 1 % false alarms | at 10 % "
        "| tested on: at 1 % false alarms | at 10 % |",
        "|---|---|---|---|---|",
    ]
    for epsilon in EPSILONS:
        events = (trained(epsilon), Geometric(epsilon=epsilon))
        rates = [true_positive_rate(event, wrong) for event in events for wrong in (0.01, 0.1)]
        rows.append(f"| {epsilon:g} | " + " | ".join(_of_hundred(rate) for rate in rates) + " |")
    return "\n".join(rows) + "\n"


def _of_hundred(rate: float) -> str:
    return f"{min(100.0, -(-rate * 1000 // 1) / 10):.1f}"


def groups() -> str:
    """Return the price of a person with k rows, of a training at epsilon 1."""
    event = trained(1.0)
    rows = [
        "| rows of the person | epsilon, at the same delta of 1e-05 "
        "| simple rule: epsilon | and delta |",
        "|---|---|---|---|",
    ]
    for count in ROWS_OF_ONE:
        simple = count * DELTA_OF_TABLES * math.exp(count - 1)
        rows.append(
            f"| {count} | {group_epsilon(event, count):.2f} | {count:g} | {min(1.0, simple):.2g} |"
        )
    return "\n".join(rows) + "\n"


def group_epsilon(event: Event, count: int) -> float:
    """Return epsilon of `count` records together at the tables' delta, from the whole curve.

    If one record costs (e, d), k of them cost (k e, d (1 + exp(e) + ... + exp((k-1) e))).
    """

    def delta(epsilon: float) -> float:
        growth = sum(math.exp(place * epsilon) for place in range(count))
        return delta_for(event, epsilon) * growth

    low, high = 0.0, 64.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if delta(middle) <= DELTA_OF_TABLES else (middle, high)
    return count * high


def computed(page: str) -> str:
    """Return a page's text with its tables as they are computed."""
    text = PAGE.with_name(page).read_text(encoding="utf-8")
    made = {"choosing-epsilon.md": attacks, "privacy-officer.md": groups}[page]()
    changed, times = MARKS.subn(lambda match: match[1] + made + match[2], text)
    if times != 1:
        raise ValueError(f"{page} has {times} places for a computed table, not 1")
    return changed


def pages() -> dict[Path, str]:
    """Return every page that is written here, and what stands in it."""
    with_tables = ("choosing-epsilon.md", "privacy-officer.md")
    return {PAGE: page(), API: api()} | {PAGE.with_name(p): computed(p) for p in with_tables}


def stale() -> list[str]:
    """Return the names of the pages that are not as they would be written."""
    return [
        path.name
        for path, text in pages().items()
        if not path.is_file() or path.read_text(encoding="utf-8") != text
    ]


if __name__ == "__main__":
    if "--check" in sys.argv:
        found = stale()
        sys.exit(f"run docs/make_reference.py: {', '.join(found)}" if found else 0)
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")
