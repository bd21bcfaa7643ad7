"""Records of an open partition in temporary private files, so that other processes train on them.

Processes of the same machine memory-map the files and so share the memory. Machines of a cluster
receive copies.

Source: docs/rules.md, rules 10 and 12 (open records were charged, and stay in `private/`).
"""

from __future__ import annotations

import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pasearch.data.partitions import Records

FOLDER_PREFIX = "records-"
"""Prefix of the names of the temporary folders."""


@contextmanager
def create_records_folder(private: Path) -> Iterator[Path]:
    """Create a temporary folder for files of records, and delete it at the end of the block.

    Folders of an interrupted run are deleted first.

    Args:
        private: Private folder of the run.
    """
    for left in private.glob(f"{FOLDER_PREFIX}*"):
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory(dir=private, prefix=FOLDER_PREFIX) as folder:  # 0700
        yield Path(folder)


@dataclass(frozen=True, slots=True)
class SharedRecords:
    """Records of an open partition in files of a private folder.

    Args:
        folder: Folder written by `Records.write`.
        public: Whether the records were declared public.
    """

    folder: Path
    public: bool
    kept = False

    @classmethod
    def of(cls, records: Records, folder: Path) -> SharedRecords:
        """Write the records of an open partition to a new subfolder."""
        own = Path(tempfile.mkdtemp(dir=folder))  # 0700
        records.write(own)
        return cls(own, records.public is True)

    def load(self) -> dict[str, np.ndarray]:
        """Return the records as memory-mapped arrays, which processes of one machine share."""
        records = Records.map_files(self.folder, public=self.public)
        return {name: getattr(records, name).numpy() for name in ("x", "y", "valid")}

    def records(self, arrays: dict[str, np.ndarray]) -> Records:
        """Convert the arrays of `load` to records, perhaps in another process."""
        import torch

        with warnings.catch_warnings():
            # Arrays in a cluster's store are read-only; training never writes to them.
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            own = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return Records(**own, public=self.public)
