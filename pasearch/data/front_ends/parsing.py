"""Parsing of the texts and tables that name front ends, those of public backbones included."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pasearch.data.front_ends import FRONT_ENDS, FrontEnd
from pasearch.errors import UsageError, suggest_name


def resolve_front_end_text(given: object, folder: Path | None = None) -> object:
    """Return what a user gives as a front end by its text: a table names a public backbone.

    Only for what a user says: a table opens a file. The path of its weights begins at `folder`,
    where the table stands in a file.
    """
    if not isinstance(given, Mapping):
        return given
    from pasearch.data.backbones import parse_backbone_table  # loads torch

    return parse_backbone_table(given, folder).text


def parse_front_end(text: object) -> FrontEnd:
    """Return the front end that `text` names, such as "raw", "pca:60" or "max_pool:2".

    Raises:
        UsageError: No such front end, or a number that it cannot take.
    """
    if isinstance(text, FrontEnd):
        return text
    if isinstance(text, str) and text.startswith("backbone"):
        from pasearch.data.backbones import parse_backbone_text  # loads torch

        backbone = parse_backbone_text(text)
        if backbone is not None:
            return backbone
    name, colon, number = text.partition(":") if isinstance(text, str) else ("", "", "")
    kind = FRONT_ENDS.find(name)
    if kind is not None and not colon:
        return kind()
    digits = number.isascii() and number.isdigit() and len(number) < 10
    if kind is not None and digits and int(number) >= kind.least and kind.field_names():
        return kind(int(number))  # pyright: ignore[reportCallIssue]
    takes = [f"{n}:{each.least}" for n, each in FRONT_ENDS.kinds().items() if each.field_names()]
    raise UsageError(
        f"Front end {text!r} is not known: expected one of {', '.join(FRONT_ENDS.kinds())}; some "
        f"may name a whole number, at least that of {', '.join(takes)}."
        + suggest_name(name, FRONT_ENDS.kinds())
    )
