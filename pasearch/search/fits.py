"""Where the fits of front ends are kept: one for all candidates of a run.

Source: docs/rules.md, rule 8 (what candidates share is released once).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pasearch.data.front_ends import FrontEnd
from pasearch.runs.folder import RunFolder
from pasearch.search.weights import save_weights

if TYPE_CHECKING:
    from pasearch.search.plan import Plan
    from pasearch.search.proxy import Proxy


def place_fits(plan: Plan, proxy: Proxy, folder: RunFolder, device: str) -> None:
    """Fit the front ends of a plan to public data, and put them where the search looks first.

    On the device that the proxy's candidates were trained on, so that no record is mapped twice.

    Cost: none.
    """
    for front_end in plan.space.front_ends():
        if front_end.fitted and not fit_path(folder, front_end).exists():
            save_weights(proxy.fit(front_end, device).module, fit_path(folder, front_end), folder)


def fit_path(folder: RunFolder, front_end: FrontEnd) -> Path:
    """Return where the fit of a front end is kept."""
    return folder.private / "front_ends" / f"{front_end.text.replace(':', '-')}.pt"
