"""Packages that extend this one: imported once, so that what they have registers itself.

A package names its module as an entry point of the group `pasearch.extensions`:

    [project.entry-points."pasearch.extensions"]
    jsonl = "my_package.jsonl"

A script need not be installed: it imports the module before it calls anything here.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from pasearch.errors import UsageError

GROUP = "pasearch.extensions"


@cache
def load_extensions() -> None:
    """Import every installed extension, once.

    Raises:
        UsageError: One of them cannot be imported.
    """
    for point in entry_points(group=GROUP):
        try:
            point.load()
        except Exception as error:
            raise UsageError(
                f"The extension {point.name!r} ({point.value}) cannot be imported: {error!r}. "
                "Repair or uninstall it."
            ) from error
