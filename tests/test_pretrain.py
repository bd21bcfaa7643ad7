"""A backbone from public images: from the command to a front end."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from pasearch import pretrain
from pasearch.api import pretrain as pretraining
from pasearch.cli.app import app
from pasearch.data.front_ends.parsing import parse_front_end, resolve_front_end_text
from pasearch.errors import UsageError


@pytest.fixture
def stripes(tmp_path: Path) -> Path:
    """400 images of two classes: stripes that lie, and stripes that stand."""
    generator = np.random.default_rng(0)
    y = generator.integers(0, 2, 400)
    x = generator.random((400, 16, 16)) * 60
    rows = 190 * (np.arange(16) % 4 < 2)
    x += np.where(y[:, None, None] == 0, rows[:, None], rows[None, :])
    path = tmp_path / "stripes.npz"
    np.savez(path, x=x.astype(np.uint8), y=y, classes=2)
    return path


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretraining, "BATCH_SIZE", 40)


@pytest.mark.contract
def test_learns_and_leaves_a_front_end(stripes: Path, tmp_path: Path):
    losses: list[float] = []
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    found = pretrain(
        str(stripes), out=tmp_path / "b.pt", epochs=8, device="cpu",
        on_epoch=lambda _, loss: losses.append(loss),
    )  # fmt: skip
    assert torch.random.get_rng_state().equal(before)
    assert len(losses) == 8
    assert losses[-1] < losses[0]
    assert found.accuracy > 0.8
    assert parse_front_end(
        resolve_front_end_text({"weights": str(found.path), "module": "small"})
    ).text.endswith(found.sha256)
    again = pretrain(str(stripes), out=tmp_path / "c.pt", epochs=8, device="cpu")
    assert again.sha256 == found.sha256
    assert not [each for each in tmp_path.iterdir() if each.name.endswith(".part")]


@pytest.mark.unit
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"module": "vgg"}, "Backbone 'vgg' is not known"),
        ({"epochs": 0}, "epochs"),
        ({"epochs": 1001}, "expected 1 to 1,000"),
        ({"out": "no/such/folder/b.pt"}, "folder of"),
        ({"data": "nowhere.npz"}, "nowhere.npz"),
        ({"device": "tpu"}, "tpu"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_is_written(
    stripes: Path, tmp_path: Path, change: dict, words: str
):
    given = {"data": str(stripes), "out": tmp_path / "b.pt", "epochs": 1, **change}
    with pytest.raises(UsageError, match=words):
        pretrain(given.pop("data"), **given)
    assert not (tmp_path / "b.pt").exists()


@pytest.mark.unit
def test_records_that_are_no_images_with_classes_are_refused(tmp_path: Path):
    x, y = np.random.default_rng(0).random((50, 7)), np.arange(50) % 2
    np.savez(tmp_path / "rows.npz", x=x, y=y, classes=2, bounds=(0.0, 1.0))
    with pytest.raises(UsageError, match="A backbone needs images"):
        pretrain(str(tmp_path / "rows.npz"), out=tmp_path / "b.pt")
    (tmp_path / "t.csv").write_text("a,b\n" + "1,yes\n2,no\n" * 30)
    with pytest.raises(UsageError, match="trained on images with classes"):
        pretrain(str(tmp_path / "t.csv"), out=tmp_path / "b.pt")


@pytest.mark.unit
def test_a_file_that_is_there_is_kept(stripes: Path, tmp_path: Path):
    (tmp_path / "b.pt").write_text("mine")
    with pytest.raises(UsageError, match="exists: name a new file"):
        pretrain(str(stripes), out=tmp_path / "b.pt")
    assert (tmp_path / "b.pt").read_text() == "mine"


@pytest.mark.unit
def test_no_link_is_followed_and_what_appears_meanwhile_is_kept(stripes: Path, tmp_path: Path):
    (tmp_path / "victim").write_text("precious")
    (tmp_path / ".b.pt.part").symlink_to(tmp_path / "victim")
    found = pretrain(str(stripes), out=tmp_path / "b.pt", epochs=1, device="cpu")
    assert (tmp_path / "victim").read_text() == "precious"
    assert not found.path.is_symlink()
    assert found.path.stat().st_mode & 0o777 == 0o600

    def meanwhile(*_: object) -> None:
        (tmp_path / "c.pt").symlink_to(tmp_path / "victim")

    with pytest.raises(UsageError, match="exists: name a new file"):
        pretrain(str(stripes), out=tmp_path / "c.pt", epochs=1, device="cpu", on_epoch=meanwhile)
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.contract
def test_the_command_says_how_to_use_it(stripes: Path, tmp_path: Path):
    out = tmp_path / "b.pt"
    run = CliRunner().invoke(app, ["pretrain", str(stripes), "--out", str(out), "--epochs", "1"])
    assert run.exit_code == 0, run.output
    assert f'front_end = {{ weights = "{out}", module = "small" }}' in run.output
    again = ["pretrain", str(stripes), "--out", str(tmp_path / "c.pt"), "--epochs", "1", "--json"]
    told = json.loads(CliRunner().invoke(app, again).stdout)
    assert set(told) == {"path", "module", "accuracy", "sha256"}
