"""Compares two recordings, case by case and value by value, under a table of renames."""

from __future__ import annotations

import fnmatch
import json
import math
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Place = tuple[str, ...]

NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?", re.IGNORECASE)
MISSING = "(nothing)"


def compare_files(before: Path, after: Path, renames: Path, only: list[str] | None) -> int:
    """Print every difference with its place; return 1 if there is any.

    Args:
        before: A recording of the old code.
        after: One of the new code.
        renames: What is called otherwise now; docs in `renames.toml`.
        only: Names or patterns of cases; None compares all.
    """
    rules = Rules(tomllib.loads(renames.read_text()) if renames.exists() else {})
    (old_machine, old), (new_machine, new) = _read(before), _read(after)
    for name in sorted(set(old_machine) | set(new_machine)):
        if (a := old_machine.get(name)) != (b := new_machine.get(name)):
            print(f"Note: recorded on other machines or libraries: {name} {a} and {b}.")
    names = [
        name
        for name in dict.fromkeys([*old, *new])
        if only is None or any(fnmatch.fnmatch(name, pattern) for pattern in only)
    ]
    different = found = 0
    for name in names:
        lines = list(_case(name, old.get(name), new.get(name), rules))
        found += len(lines)
        different += bool(lines)
        for line in lines:
            print(f"{name}: {line}")
    excused = ", ".join(f"{count} {kind}" for kind, count in sorted(rules.used.items()))
    print(
        f"{len(names)} cases: {found} differences in {different} of them"
        + (f" (excused: {excused})." if excused else "."),
        file=sys.stderr,
    )
    return int(found > 0)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    machine, *cases = map(json.loads, path.read_text().splitlines())
    return machine["machine"], {case.pop("name"): case for case in cases}


def _case(name: str, old: Any, new: Any, rules: Rules) -> Iterator[str]:
    if name in rules.skipped:
        rules.count("skipped cases")
        return
    if old is None or new is None:
        yield "is in one recording only"
        return
    # What was typed is the old form in both: `record --renames` translates it when it runs.
    for case in (old, new):
        case.pop("argv", None)
    yield from differences(_ordered(rules.renamed(old)), _ordered(rules.without_added(new)), rules)


def _ordered(case: dict[str, Any]) -> dict[str, Any]:
    """Return a case whose charges stand in the order of their names, which may have changed."""
    runs = case.get("charges")
    if runs is None:
        return case
    key = "name", "partition"
    return {
        **case,
        "charges": [sorted(run, key=lambda each: [each[k] for k in key]) for run in runs],
    }


def differences(old: Any, new: Any, rules: Rules, place: Place = ()) -> Iterator[str]:
    """Yield a line for each value that differs; numbers must be equal to the last bit."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key in dict.fromkeys([*old, *new]):
            here = (*place, key)
            if key not in new or key not in old:
                side = old if key in old else new
                word = "is gone" if key in old else "is new"
                yield f"{_shown(here)} {word}: {_short(side[key])}"
            else:
                yield from differences(old[key], new[key], rules, here)
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{_shown(place)} has {len(old)} entries before, {len(new)} after"
        for number, (a, b) in enumerate(zip(old, new, strict=False)):
            yield from differences(a, b, rules, (*place, str(number)))
    elif not _same(old, new) and not rules.excuses(place, old, new):
        yield f"{_shown(place)}: {_short(old)} before, {_short(new)} after"


def _same(old: Any, new: Any) -> bool:
    if type(old) is not type(new):
        return False
    if isinstance(old, float) and math.isnan(old):
        return math.isnan(new)
    return bool(old == new) and str(old) == str(new)  # 0.0 and -0.0 are two


class Rules:
    """What may differ: the tables of `renames.toml`."""

    def __init__(self, table: dict[str, Any]):
        known = {
            "keys", "values", "words", "moves", "gone", "added", "texts", "commands", "options",
            "arguments", "cases",
        }  # fmt: skip
        if unknown := sorted(set(table) - known):
            raise SystemExit(f"renames: {', '.join(unknown)} is none of {', '.join(sorted(known))}")
        self.table = table
        self.used: dict[str, int] = {}
        self.skipped = {name for name, own in table.get("cases", {}).items() if "skip" in own}

    def count(self, kind: str) -> None:
        """Add one to what was excused for this reason."""
        self.used[kind] = self.used.get(kind, 0) + 1

    def renamed(self, case: dict[str, Any]) -> Any:
        """Return an old case in the new names."""
        for each in self.table.get("gone", []):
            for place in list(_places(case, each["at"])):
                _take(case, place)
                self.count("gone")
        case = self._named(case, ())
        for each in self.table.get("moves", []):
            _move(case, tuple(each["old"].split(".")), tuple(each["new"].split(".")))
        return case

    def without_added(self, case: dict[str, Any]) -> dict[str, Any]:
        """Return a new case without the fields that there were not before."""
        for each in self.table.get("added", []):
            for place in list(_places(case, each["at"])):
                if "value" not in each or _same(_get(case, place), each["value"]):
                    _take(case, place)
                    self.count("added")
        return case

    def excuses(self, place: Place, old: Any, new: Any) -> bool:
        """Return whether two sentences for people have the same numbers, and may differ else."""
        if not (isinstance(old, str) and isinstance(new, str)):
            return False
        for each in self.table.get("words", []):
            if matches(each["at"], place):
                told = [[n.replace(",", "") for n in NUMBER.findall(text)] for text in (old, new)]
                if each.get("numbers", True) and told[0] != told[1]:
                    return False
                self.count("words")
                return True
        return False

    def _named(self, value: Any, place: Place) -> Any:
        if isinstance(value, dict):
            found: dict[str, Any] = {}
            for key, each in value.items():
                name = self._of("keys", place, key)
                if name in found:
                    raise SystemExit(f"renames: two fields become {_shown((*place, name))}")
                found[name] = self._named(each, (*place, key))
            return found
        if isinstance(value, list):
            return [self._named(each, (*place, str(n))) for n, each in enumerate(value)]
        return self._of("values", place, value)

    def _of(self, kind: str, place: Place, name: Any) -> Any:
        """Return the new name; `at` is where the key's object or the value stands, in old names."""
        for each in self.table.get(kind, []):
            if _same(each["old"], name) and matches(each.get("at", "**"), place):
                return each["new"]
        return name


def matches(pattern: str, place: Place) -> bool:
    """Return whether a dotted pattern names the place: `*` is one step, `**` any number.

    >>> matches("result.**.name", ("result", "0", "strategy", "name"))
    True
    """
    return _matches(tuple(pattern.split(".")), place)


def _matches(pattern: Place, place: Place) -> bool:
    if not pattern:
        return not place
    if pattern[0] == "**":
        return any(_matches(pattern[1:], place[cut:]) for cut in range(len(place) + 1))
    if not place:
        return False
    return fnmatch.fnmatchcase(place[0], pattern[0]) and _matches(pattern[1:], place[1:])


def _places(value: Any, pattern: str, place: Place = ()) -> Iterator[Place]:
    if place and matches(pattern, place):
        yield place
        return
    items = value.items() if isinstance(value, dict) else ()
    if isinstance(value, list):
        items = [(str(number), each) for number, each in enumerate(value)]
    for key, each in items:
        yield from _places(each, pattern, (*place, key))


def _get(value: Any, place: Place) -> Any:
    for step in place:
        value = value[int(step)] if isinstance(value, list) else value[step]
    return value


def _take(value: Any, place: Place) -> Any:
    """Remove what stands there, and return it; an entry of a list becomes null."""
    parent = _get(value, place[:-1])
    if isinstance(parent, list):
        found, parent[int(place[-1])] = parent[int(place[-1])], None
        return found
    return parent.pop(place[-1])


def _move(value: Any, old: Place, new: Place) -> None:
    """Move fields: `old` and `new` share their leading steps up to the first `*`s, as `new` says.

    `result.*.score.noise` to `result.*.noise`: each `*` of the new place is that of the old one.
    """
    for place in list(_places(value, ".".join(old))):
        stars = [step for step, pattern in zip(place, old, strict=True) if pattern == "*"]
        target = tuple(stars.pop(0) if step == "*" else step for step in new)
        found = _take(value, place)
        parent = value
        for step in target[:-1]:
            parent = parent[int(step)] if isinstance(parent, list) else parent.setdefault(step, {})
        parent[target[-1]] = found


def _shown(place: Place) -> str:
    return ".".join(place)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 200 else text[:200] + "..."
