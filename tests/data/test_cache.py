"""The cache of costly front ends: private, used for the same records only, and no other result."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pasearch.data import cache, mapping, rows
from pasearch.data.front_ends import FittedFrontEnd, FrontEnd, Shape, prepare_front_end
from pasearch.data.front_ends.parsing import parse_front_end
from pasearch.data.partitions import Dataset, Records
from pasearch.data.rows import ComputedRows
from pasearch.data.schema import Schema
from pasearch.data.split import Split
from pasearch.data.threads import use_threads
from pasearch.errors import UsageError
from pasearch.runs.keys import Keys
from pasearch.runs.ledger import Receipt

N = 30
SCHEMA = Schema(shape=(4, 5), low=0.0, high=1.0, classes=2)


class Counting(nn.Module):
    """Twice the record, and how many records were asked for."""

    def __init__(self, factor: float):
        super().__init__()
        self.register_buffer("factor", torch.tensor(factor))
        self.asked = 0

    def __deepcopy__(self, memo: object) -> Counting:
        """Return itself: who is copied counts on."""
        return self

    def forward(self, x: Tensor) -> Tensor:
        self.asked += len(x)
        return x.flatten(1) * self.factor


@dataclass(frozen=True, slots=True)
class Costly(FrontEnd):
    """A front end that is worth a file."""

    name: ClassVar[str] = "costly"
    costly: ClassVar[bool] = True
    factor: float = 2.0

    def output_shape(self, shape: Shape) -> Shape:
        return (int(np.prod(shape)),)

    def module(self, shape: Shape) -> nn.Module:
        return Counting(self.factor)

    def describe(self) -> str:
        return f"times {self.factor:g}, at a cost"


@pytest.fixture(autouse=True)
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pieces of one record, by one thread, so that records that are asked for can be counted."""
    monkeypatch.setattr(mapping, "PIECE_SIZES", (1, 1))
    with use_threads(1):
        yield


def pixels(seed: int = 0) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(seed)).random((N, 4, 5))


def dataset(folder: Path | None, x: np.ndarray | None = None, schema: Schema = SCHEMA) -> Dataset:
    x = pixels() if x is None else x
    y = np.arange(N) % 2
    place = folder.parent if folder else None
    made = Dataset(name="d", schema=schema, features=x, labels=y, cache=place)
    made.partition(Split(train=20, test=10), Keys.from_seed(1).stream("split").generator())
    return made


def opened(made: Dataset, front: FittedFrontEnd, name: str = "train") -> Records:
    return made[name].with_front_end(front).open(Receipt(name))


def asked(made: Dataset, front: FrontEnd = Costly()) -> int:
    """Of how many records a fresh use computes the front end."""
    fitted = prepare_front_end(front, (4, 5))
    opened(made, fitted)
    return fitted.module.asked  # type: ignore[return-value]


def files(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "private" / "cache" / cache.CACHE_FOLDER


class TestPlace:
    """Where records go through a front end."""

    @pytest.fixture
    def moved(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """What is moved, and where to; "cuda" stands for a device that is there."""
        found: list[str] = []

        def noted(name: str, right: Callable[..., Any]) -> Callable[..., Any]:
            def to(self: Any, place: Any, *more: Any, **named: Any) -> Any:
                if isinstance(place, str):  # by name: ours
                    found.append(f"{name} to {place}")
                    place = "cpu"
                return right(self, place, *more, **named)

            return to

        monkeypatch.setattr(Counting, "to", noted("module", Counting.to))
        monkeypatch.setattr(Tensor, "to", noted("records", Tensor.to))
        return found

    @pytest.mark.unit
    def test_a_costly_one_computes_where_it_is_told_to(self, moved: list[str]):
        opened(dataset(None), prepare_front_end(Costly(), (4, 5), "cuda"))
        assert moved == ["module to cuda", *N * ["records to cuda"]]

    @pytest.mark.unit
    def test_what_a_device_has_rounded_is_not_taken_for_anothers(self):
        """A resumed release is computed as it was."""
        here, there = (
            prepare_front_end(Costly(), (4, 5), place).digest for place in ("cpu", "cuda")
        )
        assert here != there

    @pytest.mark.unit
    def test_products_are_of_full_precision(self, monkeypatch: pytest.MonkeyPatch):
        seen: list[bool] = []
        entered = mapping.full_precision

        @contextmanager
        def noted() -> Iterator[None]:
            with entered():
                seen.append(True)
                yield
                seen.append(False)

        def forward(self: Counting, x: Tensor) -> Tensor:
            assert seen[-1]
            return x.flatten(1)

        monkeypatch.setattr(mapping, "full_precision", noted)
        monkeypatch.setattr(Counting, "forward", forward)
        opened(dataset(None), prepare_front_end(Costly(), (4, 5)))
        assert seen == 2 * [True, False]

    @pytest.mark.gpu
    @pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
    @pytest.mark.parametrize("name", ["scattering", "whitened", "whitened:2"])
    def test_a_gpu_maps_images_as_a_processor_does(self, name: str):
        images = np.random.Generator(np.random.PCG64(3)).random((80, 28, 28))
        schema = Schema(shape=(28, 28), low=0.0, high=1.0, classes=2)
        found = []
        for place in ("cpu", "cuda", "cuda"):
            made = Dataset(name="d", schema=schema, features=images, labels=np.arange(80) % 2)
            found.append(
                made.all_records(prepare_front_end(parse_front_end(name), (28, 28), place)).x
            )
        torch.testing.assert_close(found[0], found[1], atol=2e-3, rtol=0.0)
        assert torch.equal(found[1], found[2])


class TestPrivate:
    @pytest.mark.unit
    def test_the_folder_and_the_records_are_the_owners_alone(self, folder: Path):
        before = os.umask(0o022)
        try:
            asked(dataset(folder))
        finally:
            os.umask(before)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert [stat.S_IMODE(each.stat().st_mode) for each in folder.iterdir()] == [0o600] * 2

    @pytest.mark.unit
    def test_names_tell_nothing_and_nothing_else_is_left(self, folder: Path):
        asked(dataset(folder))
        names = files(folder)
        assert [len(name) for name in names] == [64 + len(".npy"), 64 + len(".usable.npy")]
        assert len({name[:64] for name in names}) == 1

    @pytest.mark.contract
    def test_nothing_is_computed_or_written_without_a_charge(self, folder: Path):
        fitted, made = prepare_front_end(Costly(), (4, 5)), dataset(folder)
        behind = made["train"].with_front_end(fitted)
        with pytest.raises(RuntimeError, match="without an open charge"):
            behind.open(None)  # type: ignore[arg-type]
        assert fitted.module.asked == 0
        assert not folder.exists()


class TestHit:
    @pytest.mark.unit
    def test_another_run_on_the_same_data_computes_nothing(self, folder: Path):
        assert asked(dataset(folder)) == N
        before = files(folder)
        assert asked(dataset(folder)) == 0
        assert files(folder) == before

    @pytest.mark.contract
    @pytest.mark.parametrize("null", [(), (3,), (0, 11, 29)], ids=str)
    def test_first_use_later_use_and_no_cache_are_equal(self, folder: Path, null: tuple):
        x = pixels()
        x[list(null), 2] = np.nan
        plain, first, later = (
            [opened(dataset(place, x.copy()), prepare_front_end(Costly(), (4, 5)), name)
             for name in ("train", "test")]
            for place in (None, folder, folder)
        )  # fmt: skip
        for a, b, c in zip(plain, first, later, strict=True):
            for name in ("x", "y", "valid"):
                assert getattr(a, name).equal(getattr(b, name))
                assert getattr(a, name).equal(getattr(c, name))
            assert not a.x[~a.valid].any()
        assert sum(int((~part.valid).sum()) for part in later) == len(null)
        slots = dataset(None)["train"]._slots
        kept = plain[0].valid.numpy()
        assert np.allclose(plain[0].x.numpy()[kept], 2 * x.reshape(N, 20)[slots][kept], atol=1e-6)

    @pytest.mark.unit
    @pytest.mark.parametrize("chunk", [1, 7, N, 1000])
    def test_chunks_change_nothing(self, folder: Path, chunk: int, monkeypatch: pytest.MonkeyPatch):
        expected = opened(dataset(None), prepare_front_end(Costly(), (4, 5))).x
        monkeypatch.setattr(mapping, "PIECES_PER_CALL", chunk)
        assert opened(dataset(folder), prepare_front_end(Costly(), (4, 5))).x.equal(expected)

    @pytest.mark.unit
    def test_what_is_read_may_be_written_to(self, folder: Path):
        expected = opened(dataset(folder), prepare_front_end(Costly(), (4, 5))).x.clone()
        opened(dataset(folder), prepare_front_end(Costly(), (4, 5))).x.fill_(7)
        assert opened(dataset(folder), prepare_front_end(Costly(), (4, 5))).x.equal(expected)


class TestShared:
    @pytest.mark.unit
    def test_many_records_are_looked_at_where_they_lie_and_equal_a_copy(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ):
        x = pixels()
        x[::7] = np.nan
        front, here = prepare_front_end(Costly(), SCHEMA.shape), dataset(folder, x)
        copied = opened(here, front)
        monkeypatch.setattr(rows, "MAX_TENSOR_NUMBERS", 0)
        there = dataset(folder, x)
        shared = opened(there, front)
        assert isinstance(shared.x, ComputedRows)
        ((kept, _),) = there._mapped_features.values()
        opened(there, front, "test")
        assert next(iter(there._mapped_features.values()))[0] is kept
        assert isinstance(kept, np.memmap)
        assert torch.equal(shared.x[:], copied.x)
        places = torch.tensor([0, 3, 19])
        assert torch.equal(shared.x.index_select(0, places), copied.x[places])
        assert shared.x.to("cpu") is shared.x
        assert torch.equal(shared.valid, copied.valid)
        assert 0 < shared.valid.sum() < len(shared)
        shared.write(folder)
        mapped = Records.map_files(folder, public=False)
        assert torch.equal(mapped.x, copied.x)


class TestMiss:
    CHANGES: tuple[tuple[str, Callable[[Path], Dataset]], ...] = (
        ("one value", lambda folder: dataset(folder, np.where(pixels() == pixels()[3, 1, 1],
                                                              0.5, pixels()))),
        ("order", lambda folder: dataset(folder, pixels()[::-1])),
        ("number type", lambda folder: dataset(folder, pixels().astype(np.float32))),
        ("bounds", lambda folder: dataset(folder, schema=Schema(shape=(4, 5), low=0.0, high=2.0,
                                                                classes=2))),
        ("classes", lambda folder: dataset(folder, schema=Schema(shape=(4, 5), low=0.0, high=1.0,
                                                                 classes=3))),
    )  # fmt: skip

    @pytest.mark.contract
    @pytest.mark.parametrize(("what", "change"), CHANGES, ids=[name for name, _ in CHANGES])
    def test_other_data_or_another_schema(
        self, folder: Path, what: str, change: Callable[[Path | None], Dataset]
    ):
        asked(dataset(folder))
        assert asked(change(folder)) == N
        assert len(files(folder)) == 4
        # Both are kept, and neither is taken for the other.
        for made, plain in ((dataset, dataset), (change, change)):
            found = opened(made(folder), prepare_front_end(Costly(), (4, 5))).x
            assert found.equal(opened(plain(None), prepare_front_end(Costly(), (4, 5))).x)

    @pytest.mark.contract
    @pytest.mark.parametrize("text", ["raw", "max_pool:2", "standardise", "pca:3"])
    def test_what_is_cheap_has_no_file(self, folder: Path, text: str):
        front = parse_front_end(text)
        fitted = FittedFrontEnd(front, front.module((4, 5)))
        opened(dataset(folder), fitted)
        assert not folder.exists()


class TestCrash:
    @pytest.mark.contract
    @pytest.mark.parametrize("after", [0, 7, 21])
    def test_half_a_file_is_never_used(
        self, folder: Path, after: int, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(mapping, "PIECES_PER_CALL", 7)
        fitted = prepare_front_end(Costly(), (4, 5))

        def stop(module: nn.Module, _: object) -> None:
            if module.asked >= after:  # type: ignore[operator]
                raise KeyboardInterrupt

        fitted.module.register_forward_pre_hook(stop)
        with pytest.raises(KeyboardInterrupt):
            opened(dataset(folder), fitted)
        assert files(folder) == []
        found = opened(dataset(folder), prepare_front_end(Costly(), (4, 5)))
        assert found.x.equal(opened(dataset(None), prepare_front_end(Costly(), (4, 5))).x)

    @pytest.mark.contract
    def test_a_crash_between_the_two_files_computes_again(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ):
        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr("pasearch.data.cache.os.replace", stop)
            with pytest.raises(KeyboardInterrupt):
                asked(dataset(folder))
        assert not [name for name in files(folder) if name.endswith(".part")]
        assert asked(dataset(folder)) == N
        assert asked(dataset(folder)) == 0


class TestDamage:
    @pytest.mark.unit
    @pytest.mark.parametrize("suffix", [".npy", ".usable.npy"])
    @pytest.mark.parametrize(
        "damage",
        [
            lambda content: b"",
            lambda content: b"garbage",
            lambda content: content[:-40],
            lambda content: content.replace(b"NUMPY", b"NUMPI"),
            lambda content: content[:128].replace(b"(30", b"(31") + content[128:] + bytes(80),
            lambda content: (
                content[:128].replace(b"<f4", b"<i4").replace(b"|b1", b"|i1") + content[128:]
            ),
        ],
        ids=["empty", "no array", "cut short", "no head", "more records", "another type"],
    )
    def test_a_damaged_file_is_told(self, folder: Path, suffix: str, damage: Callable):
        asked(dataset(folder))
        (path,) = (each for each in folder.iterdir()
                   if each.name[64:] == suffix)  # fmt: skip
        path.write_bytes(damage(path.read_bytes()))
        with pytest.raises(UsageError, match=r"is damaged: delete it") as caught:
            asked(dataset(folder))
        assert str(path) in str(caught.value)
        path.unlink()
        assert asked(dataset(folder)) == N

    @pytest.mark.unit
    def test_no_link_is_followed(self, folder: Path, tmp_path: Path):
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir(mode=0o755)
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.symlink_to(elsewhere)
        with pytest.raises(UsageError, match="is a link"):
            asked(dataset(folder))
        assert not list(elsewhere.iterdir())
        assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o755

    @pytest.mark.unit
    def test_a_link_in_its_place_is_replaced_not_written_through(
        self, folder: Path, tmp_path: Path
    ):
        asked(dataset(folder))
        (mine := tmp_path / "mine").write_text("kept")
        for path in folder.iterdir():
            path.unlink()
            path.symlink_to(mine if path.name.endswith(".usable.npy") else "nowhere")
        assert asked(dataset(folder)) == N
        assert mine.read_text() == "kept"
