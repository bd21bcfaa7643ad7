"""Finish a run that was interrupted, whatever its task; what it has paid for is not paid again.

Source: docs/rules.md, rules 11 and 12.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasearch.api import features, search
from pasearch.api.lifecycle import carry_out, read_request, reopen_run
from pasearch.api.request import FeatureRequest, SearchRequest
from pasearch.api.trials import move_store
from pasearch.results import Result

if TYPE_CHECKING:
    from pasearch.progress import Progress

REQUESTS = {SearchRequest.task: SearchRequest, FeatureRequest.task: FeatureRequest}
"""The request of each task; the training of one network is a search among one."""


def resume(
    path: str | Path,
    *,
    data: Any = None,
    storage: str | Path | None = None,
    ray_address: str | None = None,
    progress: Progress | bool | None = None,
) -> Result:
    """Finish a run that was interrupted; what it has paid for is not paid for again.

    Args:
        path: The run's folder.
        data: The same records again, if they were in memory.
        storage: Where its trials are, if that has another address now or needs its password again.
        ray_address: Of the Ray cluster that trains, if that is another one now; local begins one.
        progress: As of `search_architecture`: None shows a line in a notebook and on a terminal.

    Returns:
        SearchResult or FeatureResult: As the run would have returned it.

    Raises:
        UsageError: No run there, or a finished one.
        BudgetError: Data, plan, code, versions or device differ from the run that began.

    Cost: what the run's plan has left; its price stays what it was.
    """
    with reopen_run(path) as folder:
        request = read_request(folder.private, REQUESTS, data)
        if storage is not None:
            request = move_store(folder, request, storage)
        if ray_address is not None:
            request = replace(request, ray_address=ray_address)
        task: Any = features if isinstance(request, FeatureRequest) else search
        return carry_out(task.prepare_run(request), folder, resumed=True, progress=progress)
