"""The output of expensive feature extractors, computed once and stored in a private folder.

The name of a file is a hash of the records, the schema and the feature extractor, so a file is
never used for other inputs. The folder is as private as the records because it holds them,
transformed.
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
"""Name of the subfolder of the user's folder: only the user may enter it."""

EncodeFunction = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


def transform_records(
    dataset: Any, front: FittedFrontEnd, encode: EncodeFunction
) -> tuple[np.ndarray, np.ndarray]:
    """Transform all records, float32 (n, ...), and find the usable ones, bool (n,).

    Args:
        dataset: `partitions.Dataset` of the records.
        front: Feature extractor that maps each record alone, so that nothing is released.
        encode: Function from record positions to (features in [0, 1], usable); the features are the
            output of `front.first_stage`, if it has one.
    """
    if dataset.cache is None or not front.front_end.costly:
        return _compute_records(dataset, front, encode, lambda shape: np.empty(shape, np.float32))
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
            made = _compute_records(
                dataset, front, encode, lambda shape: _create_array_file(part, shape)
            )
            np.save(mask, made[1])
            mask.chmod(0o600)
            made[0].flush()
            os.replace(mask, usable)
            os.replace(part, path)
    shape = (dataset.n, *front.front_end.output_shape(dataset.schema.shape))
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
        # Mapped first, so that shape and type are checked before it is read.
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        found = None
    if path.is_symlink() or found is None or (found.shape, found.dtype) != (shape, dtype):
        raise UsageError(f"{path} is damaged: delete it, and it will be computed again.")
    return found if memory_mapped else np.array(found)


def _create_array_file(path: Path, shape: tuple[int, ...]) -> Any:
    made = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    path.chmod(0o600)
    return made


def _compute_records(
    dataset: Any,
    front: FittedFrontEnd,
    encode: EncodeFunction,
    make: Callable[[tuple[int, ...]], Any],
) -> tuple[Any, np.ndarray]:
    import torch

    from pasearch.data.mapping import (
        PIECES_PER_CALL,
        choose_piece_size,
        copy_to_device,
        map_records,
    )

    shape = front.front_end.output_shape(dataset.schema.shape)
    features, usable = make((dataset.n, *shape)), np.zeros(dataset.n, bool)
    make, start = copy_to_device(front.last_module, front.used_device), 0
    many = PIECES_PER_CALL * choose_piece_size(dataset.schema.shape)
    with status_message.show_status(lambda: f"front end: {start:,} of {dataset.n:,} records"):
        for start in range(0, dataset.n, many):
            slots = np.arange(start, min(start + many, dataset.n))
            x, usable[slots] = encode(slots)
            features[slots] = map_records(make, torch.from_numpy(x), front.used_device)
    return features, usable
