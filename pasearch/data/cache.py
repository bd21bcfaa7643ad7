"""Cache of expensive feature extractors: their output is stored in a private folder.

The name of a file is a hash of the records, the schema and the feature extractor, so a file is
never used for other inputs. The folder is as private as the records, because it contains the
transformed records.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pasearch import status_message
from pasearch.data.front_ends import FittedFrontEnd
from pasearch.errors import UsageError

CACHE_FOLDER = "transformed-records"
"""Name of the subfolder of the user's cache folder; only the user may enter it (mode 0700)."""

EncodeFunction = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Function from record positions to features and a mask of usable records."""


def transform_records(
    dataset: Any, front: FittedFrontEnd, encode: EncodeFunction
) -> tuple[np.ndarray, np.ndarray]:
    """Return all records after a feature extractor, and whether each is usable.

    The result is read from the cache, or computed and stored there. Without a cache folder, or for
    a cheap feature extractor, it is computed in memory.

    Args:
        dataset: `partitions.Dataset` of the records.
        front: Feature extractor that transforms each record alone, so that nothing is released.
        encode: Function from record positions to features in [0, 1] and a mask of usable records.
            If `front` has a first stage, the features are the output of this stage.

    Returns:
        Features, float32 (n, ...), and mask, bool (n,).
    """
    shape = (dataset.n, *front.front_end.output_shape(dataset.schema.shape))
    if dataset.cache is None or not front.front_end.costly:
        features = np.empty(shape, np.float32)
        return features, _compute_records(dataset, front, encode, out=features)
    folder = dataset.cache / CACHE_FOLDER
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.is_symlink():
            raise UsageError(f"{folder} is a link, which the cache does not follow: remove it.")
        folder.chmod(0o700)
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be used as a cache ({error.strerror}): choose another folder."
        ) from None
    import torch  # its version is part of the key: another may round differently

    schema = json.dumps(dataset.schema.to_json(), sort_keys=True)
    key = "\n".join((dataset.fingerprint(), schema, front.digest, torch.__version__))
    path = folder / f"{hashlib.sha256(key.encode()).hexdigest()}.npy"
    usable = path.with_suffix(".usable.npy")
    if not (path.exists() and usable.exists()):
        # A new folder, so that no existing file or link is followed or overwritten.
        with tempfile.TemporaryDirectory(dir=folder, prefix=".part-") as own:
            part, mask = Path(own) / "part.npy", Path(own) / "usable.npy"
            made = np.lib.format.open_memmap(part, mode="w+", dtype=np.float32, shape=shape)
            part.chmod(0o600)
            np.save(mask, _compute_records(dataset, front, encode, out=made))
            mask.chmod(0o600)
            made.flush()
            os.replace(mask, usable)
            os.replace(part, path)
    features = _load_cached_array(path, shape, np.dtype(np.float32), memory_mapped=True)
    return features, _load_cached_array(usable, shape[:1], np.dtype(bool), memory_mapped=False)


def _load_cached_array(
    path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], *, memory_mapped: bool
) -> np.ndarray:
    """Load an array of the cache.

    Raises:
        UsageError: The file is damaged, or has another shape or type than it was written with.
    """
    try:
        # Memory-mapped first, so that shape and type are checked before the numbers are read.
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        found = None
    if path.is_symlink() or found is None or (found.shape, found.dtype) != (shape, dtype):
        raise UsageError(f"{path} is damaged: delete it, and it will be computed again.")
    return found if memory_mapped else np.array(found)


def _compute_records(
    dataset: Any, front: FittedFrontEnd, encode: EncodeFunction, *, out: np.ndarray
) -> np.ndarray:
    """Write all records after a feature extractor to `out`, and return the mask of usable ones."""
    import torch

    from pasearch.data.mapping import (
        PIECES_PER_CALL,
        choose_piece_size,
        copy_to_device,
        map_records,
    )

    usable = np.zeros(dataset.n, bool)
    make, start = copy_to_device(front.last_module, front.used_device), 0
    many = PIECES_PER_CALL * choose_piece_size(dataset.schema.shape)
    with status_message.show_status(lambda: f"front end: {start:,} of {dataset.n:,} records"):
        for start in range(0, dataset.n, many):
            slots = np.arange(start, min(start + many, dataset.n))
            x, usable[slots] = encode(slots)
            out[slots] = map_records(make, torch.from_numpy(x), front.used_device)
    return usable
