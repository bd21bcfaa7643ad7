"""Parsing of the strings and tables that name front ends, including public backbones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pasearch.data.front_ends import FRONT_ENDS, FrontEnd
from pasearch.errors import UsageError, suggest_name


def resolve_front_end_text(given: object, folder: Path | None = None) -> object:
    """Convert a user's table of a public backbone to a front end's string.

    Only for input of the user, because the file of weights that the table names is opened.

    Args:
        given: Table of a public backbone; any other value is returned unchanged.
        folder: Folder of relative paths, that of the file with the table; None: current directory.
    """
    if not isinstance(given, Mapping):
        return given
    from pasearch.data.backbones import parse_backbone_table  # loads torch

    return parse_backbone_table(given, folder).text


def parse_front_end(text: object) -> FrontEnd:
    """Parse the string of a front end, such as "raw", "pca:60" or "max_pool:2".

    Raises:
        UsageError: There is no such front end, or it does not accept the number.

    >>> parse_front_end("pca:60").output_shape((8, 8))
    (60,)
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
        f"accept an integer, with the minimum {', '.join(takes)}."
        + suggest_name(name, FRONT_ENDS.kinds())
    )
