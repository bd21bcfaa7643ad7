"""Which instructions sums of floats are computed with here: their last bits differ with them.

The same keys on another processor would meet another sum, so a run is bound to this, and the nodes
of a cluster must agree in it.

MKL, whose products torch takes, has two ways: the fastest kernel for the shape and the place of
each matrix, or (`MKL_CBWR`) one whose roundings do not depend on the place. On processors of Intel
the fastest ones are such, at the numbers of rows that we ask for; on others they are not.

Source: docs/rules.md, rule 11. Proof: docs/guarantees/dp-sgd.md ("The number of rows").
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path

SETTINGS = ("ATEN_", "MKL_", "ONEDNN_", "DNNL_")
"""How the variables begin that choose them."""


WAY, ALIKE = "MKL_CBWR", "AUTO"
"""What tells MKL its way, and which one rounds alike wherever a matrix lies."""


def round_alike() -> None:
    """Let MKL round a record's products alike wherever it stands in its batch.

    It is told once: before the first product of a process. What its user has set stays.
    """
    if not _is_of_intel():
        os.environ.setdefault(WAY, ALIKE)


def _is_of_intel() -> bool:
    told = os.environ.get("PROCESSOR_IDENTIFIER", "")  # of Windows
    try:
        told += Path("/proc/cpuinfo").read_text(errors="replace")[:4096]
    except OSError:
        pass  # another system
    return "GenuineIntel" in told


def processor() -> list[str]:
    """Return which instructions torch computes with, how it was built, and what was set."""
    torch = importlib.import_module("torch")  # heavy: only who asks has it
    chosen = (name for name in os.environ if name.startswith(SETTINGS))
    return [
        torch.backends.cpu.get_cpu_capability(),
        torch.__config__.show(),
        *(f"{name}={os.environ[name]}" for name in sorted(chosen)),
    ]
