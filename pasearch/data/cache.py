"""What a costly front end makes of the records, computed once and kept in a private folder.

A file's name is a hash of the records, the schema and the front end, so it is never used for other
inputs. The folder is as private as the records: it holds them, transformed.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from pasearch import status_message
from pasearch.data.front_ends import FittedFrontEnd
from pasearch.data.tables import AnySchema
from pasearch.errors import UsageError

CACHE_FOLDER = "transformed-records"
"""A folder of its own within the user's: only the user may enter it."""

EncodeFunction = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]


class CachedDataset(Protocol):
    """What is asked of a data set, of which `partitions.Dataset` is one."""

    schema: AnySchema
    cache: Path | None

    @property
    def n(self) -> int:
        """The number of slots."""
        ...

    def fingerprint(self) -> str:
        """Return a hash of every value."""
        ...


def transform_records(
    dataset: CachedDataset, front: FittedFrontEnd, encode: EncodeFunction
) -> tuple[np.ndarray, np.ndarray]:
    """Return all records behind a front end, float32 (n, ...), and which are usable, (n,).

    Args:
        dataset: Whose records.
        front: A front end that works record by record: this releases nothing.
        encode: Slots to (features in [0, 1], usable); behind `front.first_stage`, if it has one.
    """
    if dataset.cache is None or not front.front_end.costly:
        return _compute_records(dataset, front, encode, lambda shape: np.empty(shape, np.float32))
    folder = dataset.cache / CACHE_FOLDER
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.is_symlink():
            raise UsageError(f"{folder} is a link, which a cache does not follow: remove it.")
        folder.chmod(0o700)
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be used as a cache ({error.strerror}): name another folder."
        ) from None
    import torch  # another version may round otherwise

    schema = json.dumps(dataset.schema.to_json(), sort_keys=True)
    key = "\n".join((dataset.fingerprint(), schema, front.digest, torch.__version__))
    path = folder / f"{hashlib.sha256(key.encode()).hexdigest()}.npy"
    usable = path.with_suffix(".usable.npy")
    if not (path.exists() and usable.exists()):
        # A folder of its own: nothing that lies there already is followed or written through.
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
    """Return what a file of the cache holds.

    Raises:
        UsageError: It was damaged, or is of another form than it was made with.
    """
    try:
        # Mapped first, so that its form is known before it is read.
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        found = None
    if path.is_symlink() or found is None or (found.shape, found.dtype) != (shape, dtype):
        raise UsageError(f"{path} is damaged: delete it, and it is made again.")
    return found if memory_mapped else np.array(found)


def _create_array_file(path: Path, shape: tuple[int, ...]) -> Any:
    made = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    path.chmod(0o600)
    return made


def _compute_records(
    dataset: CachedDataset,
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
