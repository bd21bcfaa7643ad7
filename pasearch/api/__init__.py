"""The Python API: what may be asked, how it becomes a plan, and how a plan is run."""
