"""Open records that lie in private files for a while, so that work elsewhere can read them.

Processes of this machine map the files into their memory, and share it; to a cluster they are sent.

Source: docs/rules.md, rules 10 and 12 (what is charged is opened, and stays in `private/`).
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
"""How the folders begin in which they lie."""


@contextmanager
def create_records_folder(private: Path) -> Iterator[Path]:
    """Yield a folder for files of open records, which is gone behind the block.

    What a run that was killed has left is deleted before.

    Args:
        private: The run's private folder.
    """
    for left in private.glob(f"{FOLDER_PREFIX}*"):
        shutil.rmtree(left)
    with tempfile.TemporaryDirectory(dir=private, prefix=FOLDER_PREFIX) as folder:  # 0700
        yield Path(folder)


@dataclass(frozen=True, slots=True)
class SharedRecords:
    """Records that were opened for trainings, in a private folder.

    Args:
        folder: As `Records.write` leaves it.
        public: Whether they were declared public.
    """

    folder: Path
    public: bool
    kept = False

    @classmethod
    def of(cls, records: Records, folder: Path) -> SharedRecords:
        """Write open records to a new folder in this one."""
        own = Path(tempfile.mkdtemp(dir=folder))  # 0700
        records.write(own)
        return cls(own, records.public is True)

    def load(self) -> dict[str, np.ndarray]:
        """Return them as arrays: mapped, so that processes of one machine share them."""
        records = Records.mapped(self.folder, public=self.public)
        return {name: getattr(records, name).numpy() for name in ("x", "y", "valid")}

    def records(self, arrays: dict[str, np.ndarray]) -> Records:
        """Return what `load` returned as records again, perhaps in another process."""
        import torch

        with warnings.catch_warnings():
            # What lies in a cluster's store may not be written to: no training does.
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            own = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return Records(**own, public=self.public)
