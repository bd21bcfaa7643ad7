"""Resume an interrupted run of any task; finished releases are not charged again.

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
"""Request class of each task; the training of one network is stored as a search request."""


def resume(
    path: str | Path, *, data: Any = None, storage: str | Path | None = None,
    ray_address: str | None = None, progress: Progress | bool | None = None,
) -> Result:  # fmt: skip
    """Finish an interrupted run; finished releases are not charged again.

    Args:
        path: Folder of the run.
        data: The records of the run, if it was started with records in memory.
        storage: Address of the shared store of trials, if it has moved or needs a password.
        ray_address: Address of the Ray cluster, if it has changed; "local" starts one.
        progress: Whether to show progress, or a Progress object; None: in notebooks and terminals.

    Returns:
        SearchResult or FeatureResult: Result of the run.

    Raises:
        UsageError: No run in the folder, a finished one, or another environment (versions, device).
        BudgetError: Data, plan or code differ from the start of the run.

    Cost: the remaining lines of the run's plan; its total is unchanged.

    Example:
        >>> from pasearch import resume
        >>> resume("runs/digits-1")  # doctest: +SKIP
    """
    with reopen_run(path) as folder:
        request = read_request(folder.private, REQUESTS, data)
        if storage is not None:
            request = move_store(folder, request, storage)
        if ray_address is not None:
            request = replace(request, ray_address=ray_address)
        task: Any = features if isinstance(request, FeatureRequest) else search
        return carry_out(task.prepare_run(request), folder, resumed=True, progress=progress)
