"""Which instructions sums of floats are computed with here: their last bits differ with them.

The same keys on another processor would meet another sum, so a run is bound to this, and the nodes
of a cluster must agree in it.

Source: docs/rules.md, rule 11.
"""

from __future__ import annotations

import importlib
import os

SETTINGS = ("ATEN_", "MKL_", "ONEDNN_", "DNNL_")
"""How the variables begin that choose them."""


def processor() -> list[str]:
    """Return which instructions torch computes with, how it was built, and what was set."""
    torch = importlib.import_module("torch")  # heavy: only who asks has it
    chosen = (name for name in os.environ if name.startswith(SETTINGS))
    return [
        torch.backends.cpu.get_cpu_capability(),
        torch.__config__.show(),
        *(f"{name}={os.environ[name]}" for name in sorted(chosen)),
    ]
