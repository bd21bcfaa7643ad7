"""Write docs/reference.md: every option of every task, as `pasearch.api.request` says it.

python docs/make_reference.py           writes the page
python docs/make_reference.py --check   exits 1 if the page is not what would be written
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

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
    return f"| `{name}` | {flag} | {option.words}{usual} |\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit(PAGE.read_text(encoding="utf-8") != page())
    PAGE.write_text(page(), encoding="utf-8")
