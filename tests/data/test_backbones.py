"""Public backbones: what a table says, that records are mapped alone, and runs with them."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pasearch import (
    Budget,
    load_result,
    plan_architecture_search,
    resume,
    search_architecture,
    train,
)
from pasearch.data import backbones, whitening
from pasearch.data.backbones import (
    MODULES,
    Backbone,
    CentredBackbone,
    PublicBackbone,
    build_backbone_module,
)
from pasearch.data.front_ends import FrontEnd, prepare_front_end
from pasearch.data.front_ends.parsing import parse_front_end, resolve_front_end_text
from pasearch.data.means import ROW_NORM
from pasearch.errors import UsageError
from pasearch.report.plan import plan_text
from pasearch.spaces.candidate import Candidate, read_candidate
from pasearch.spaces.parsing import make_space
from pasearch.verification.verify import verify

SHAPE = (16, 16)


@pytest.fixture(autouse=True)
def few_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Directions are learned from 120 images instead of 3,000: in a moment."""
    monkeypatch.setattr(whitening, "MAX_SYNTHETIC_IMAGES", 120)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights of a small backbone, with statistics that a training would have left."""
    torch.manual_seed(3)
    network = build_backbone_module("small").train()
    with torch.no_grad():
        for _ in range(3):
            network(torch.rand(40, 3, *SHAPE))
    path = tmp_path_factory.mktemp("weights") / "backbone.pt"
    torch.save(network.state_dict(), path)
    return path


@pytest.fixture
def table(weights: Path) -> dict[str, Any]:
    return {"weights": str(weights), "module": "small"}


@pytest.fixture
def images_file(tmp_path: Path) -> Path:
    """240 images of two classes: bright above or bright below."""
    generator = np.random.default_rng(0)
    y = generator.integers(0, 2, 240)
    x = generator.random((240, *SHAPE)) * 0.5
    x[y == 1, :8] += 0.5
    x[y == 0, 8:] += 0.5
    path = tmp_path / "images.npz"
    np.savez(path, x=(255 * x).astype(np.uint8), y=y, classes=2)
    return path


def named(table: dict[str, Any]) -> FrontEnd:
    return parse_front_end(resolve_front_end_text(table))


def images(n: int, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> Tensor:
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed))


class TestTable:
    @pytest.mark.unit
    def test_is_the_file_and_how_it_is_used(self, table: dict[str, Any]):
        found = named(table)
        assert isinstance(found, CentredBackbone)
        assert named({**table, "centred": False}) == found.first_stage
        assert named({**table, "side": 32}).text.startswith("backbone_centred:small:32:")
        assert parse_front_end(found.text) == found
        network = read_candidate({"front_end": table, "layers": []})
        assert Candidate.from_json(network.to_json()).front_end == found

    @pytest.mark.unit
    def test_in_a_file_is_seen_from_that_file(
        self, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.chdir(tmp_path)
        text = f'layers = []\nfront_end = {{ weights = "{weights.name}", module = "small" }}\n'
        beside = weights.with_name("network.toml")
        beside.write_text(text)
        assert isinstance(read_candidate(beside).front_end, CentredBackbone)
        (tmp_path / "network.toml").write_text(text)
        with pytest.raises(UsageError, match="backbone"):
            read_candidate(tmp_path / "network.toml")

    @pytest.mark.unit
    def test_is_a_value_of_a_gene_too(self, table: dict[str, Any]):
        choices = {"front_end": ["raw", table], "layers": [0, 1]}
        found = make_space({"family": "fcn", "choices": choices, "default": {"front_end": table}})
        assert found.candidate(found.default_genotype()).front_end == named(table)
        entries = [{"front_end": table, "layers": []}, {"layers": []}]
        portfolio = make_space({"family": "portfolio", "entries": entries})
        assert portfolio.candidate((0,)).front_end == named(table)
        assert make_space(json.loads(json.dumps(found.to_json()))) == found

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"module": "resnet9000"}, "Backbone 'resnet9000' is not known: expected one of small"),
            ({"module": "resnet18"}, "does not hold the weights of resnet18"),
            ({"module": ["small"]}, "is not known"),
            ({"weights": 3}, "expected a path in `weights`"),
            ({"weights": "nowhere.pt"}, "nowhere.pt"),
            ({"centred": "yes"}, "true or false in `centred`"),
            ({"side": 8}, "expected 16 to 512 pixels"),
            ({"side": True}, "side"),
            ({"frozen": True}, "expected weights"),
        ],
    )
    def test_that_is_none_is_refused(self, table: dict[str, Any], change: dict, words: str):
        with pytest.raises(UsageError, match=words):
            named({**table, **change})

    @pytest.mark.unit
    def test_texts_that_name_none_are_refused(self):
        for text in [
            "backbone",
            "backbone:small:0:abc",
            f"backbone:small:7:{'a' * 64}",
            f"backbone:vgg:0:{'a' * 64}",
            f"backbones:s:0:{'a' * 64}",
        ]:
            with pytest.raises(UsageError, match="is not known"):
                parse_front_end(text)


class TestFile:
    @pytest.mark.unit
    def test_that_runs_code_is_refused_and_runs_none(self, tmp_path: Path):
        class Evil:
            def __reduce__(self) -> tuple:
                return os.mkdir, (str(tmp_path / "was here"),)

        evil = (pickle.dumps(Evil()), pickle.dumps({"first.0.0.weight": Evil()}))
        for content in (*evil, b"", b"x"):
            (tmp_path / "evil.pt").write_bytes(content)
            with pytest.raises(UsageError, match="does not hold the weights"):
                named({"weights": str(tmp_path / "evil.pt"), "module": "small"})
        assert not (tmp_path / "was here").exists()

    @pytest.mark.unit
    def test_with_a_number_that_is_none_is_refused(self, weights: Path, tmp_path: Path):
        state = torch.load(weights, weights_only=True)
        state["third.1.0.weight"][0, 0, 0, 0] = torch.nan
        torch.save(state, tmp_path / "nan.pt")
        with pytest.raises(UsageError, match="not finite"):
            named({"weights": str(tmp_path / "nan.pt"), "module": "small"})

    @pytest.mark.unit
    def test_that_unpacks_to_more_than_itself_is_refused(self, weights: Path, tmp_path: Path):
        with (
            zipfile.ZipFile(weights) as archive,
            zipfile.ZipFile(tmp_path / "packed.pt", "w", zipfile.ZIP_DEFLATED) as packed,
        ):
            for member in archive.namelist():
                packed.writestr(member, archive.read(member))
        with pytest.raises(UsageError, match="does not hold the weights"):
            named({"weights": str(tmp_path / "packed.pt"), "module": "small"})

    @pytest.mark.unit
    def test_that_was_changed_since_is_refused(self, weights: Path, tmp_path: Path):
        path = tmp_path / "b.pt"
        path.write_bytes(weights.read_bytes())
        found = named({"weights": str(path), "module": "small", "centred": False})
        path.write_bytes(weights.read_bytes() + b"\0")
        with pytest.raises(UsageError, match=r"changed since|not known here") as seen:
            prepare_front_end(found, SHAPE)
        assert "give" in str(seen.value)

    @pytest.mark.unit
    @pytest.mark.parametrize("name", [name for name in MODULES if name != "small"])
    def test_torchvisions_own_is_taken_with_its_head(self, name: str, tmp_path: Path):
        import torchvision

        whole = torchvision.models.get_model(name, weights=None)
        torch.save(whole.state_dict(), tmp_path / "whole.pt")
        found = named({"weights": str(tmp_path / "whole.pt"), "module": name, "side": 32})
        assert isinstance(found, PublicBackbone)
        module = Backbone(SHAPE, name, 32)
        assert module.compute_features(images(2)).shape == (2, MODULES[name][1])


class TestMap:
    @pytest.mark.contract
    @pytest.mark.parametrize("shape", [SHAPE, (1, 20, 18), (3, 17, 24)])
    @pytest.mark.parametrize("side", [0, 24])
    def test_each_record_alone_in_training_mode_too_at_a_public_norm(
        self, table: dict[str, Any], shape: tuple, side: int
    ):
        front = named({**table, "centred": False, "side": side})
        module = prepare_front_end(front, shape).module.train()
        before = {name: value.clone() for name, value in module.state_dict().items()}
        x = images(5, shape)
        together = module(x)
        assert together.shape[1:] == front.output_shape(shape)
        for i in range(5):
            assert torch.allclose(module(x[i : i + 1])[0], together[i], atol=1e-4)
        x[::2] = 1.0
        assert torch.allclose(module(x)[1], together[1], atol=1e-4)
        assert (together.norm(dim=1) <= ROW_NORM * (1 + 1e-5)).all()
        assert list(module.parameters()) == []
        assert all(value.equal(before[name]) for name, value in module.state_dict().items())

    @pytest.mark.unit
    def test_a_record_that_overflows_is_0_and_the_others_are_as_ever(self, table: dict[str, Any]):
        module = prepare_front_end(named({**table, "centred": False}), SHAPE).module
        x = images(3)
        usual = module(x)
        with torch.no_grad():
            module.compute_features = lambda x: torch.where(  # type: ignore[method-assign]
                torch.tensor([[False], [True], [False]]),
                torch.inf,
                Backbone.compute_features(module, x),
            )
        found = module(x)
        assert not found[1].any()
        assert torch.allclose(found[::2], usual[::2], atol=1e-5)

    @pytest.mark.unit
    def test_directions_that_are_no_numbers_are_refused_before_anything_is_charged(self):
        module = Backbone(SHAPE, "small", 0)
        module.network.first[0][0].weight.fill_(torch.finfo(torch.float32).max)
        module.network.third[2][1].weight.fill_(torch.finfo(torch.float32).max)
        with pytest.raises(UsageError, match="not finite: use other weights"):
            module.learn(120)

    @pytest.mark.oracle
    def test_is_the_network_on_images_of_public_scale(self, table: dict[str, Any], weights: Path):
        network = build_backbone_module("small").eval()
        network.load_state_dict(torch.load(weights, weights_only=True))
        x = images(3)
        mean = torch.tensor(backbones.CHANNEL_MEANS).view(3, 1, 1)
        deviation = torch.tensor(backbones.CHANNEL_DEVIATIONS).view(3, 1, 1)
        scaled = (x[:, None].repeat(1, 3, 1, 1) - mean) / deviation
        module = prepare_front_end(named({**table, "centred": False}), SHAPE).module
        assert torch.allclose(module.compute_features(x), network(scaled), atol=1e-5)

    @pytest.mark.unit
    @pytest.mark.parametrize("shape", [(30,), (2, 16, 16), (8, 8), (16, 1000), (1, 1, 16, 16)])
    def test_other_records_are_refused(self, table: dict[str, Any], shape: tuple):
        with pytest.raises(UsageError, match="A backbone needs images"):
            named(table).output_shape(shape)


class TestRun:
    """From a file of weights to a model that needs no such file any more."""

    def settings(self, path: Path, table: dict[str, Any], **more: Any) -> dict[str, Any]:
        network = {"front_end": table, "layers": []}
        return {"architecture": network, "budget": Budget(3.0, 1e-3), "out": path / "run",
                "device": "cpu", "recipe": "full-batches", "steps": 20, **more}  # fmt: skip

    @pytest.fixture
    def own(self, weights: Path, tmp_path: Path) -> dict[str, Any]:
        """A file that the test may remove."""
        path = tmp_path / "own.pt"
        path.write_bytes(weights.read_bytes())
        return {"weights": str(path), "module": "small"}

    @pytest.mark.contract
    def test_gives_a_model_that_predicts_without_the_file(
        self, images_file: Path, tmp_path: Path, own: dict[str, Any]
    ):
        result = train(str(images_file), **self.settings(tmp_path, own, data_is_public=True))
        Path(own["weights"]).unlink()
        backbones._WEIGHTS_PATHS.clear()
        again = load_result(tmp_path / "run")
        with np.load(images_file) as stored:
            x, y = stored["x"], stored["y"]
        assert (again.predict(x) == y).mean() > 0.8
        assert again.scores(x).tolist() == result.scores(x).tolist()
        assert verify(tmp_path / "run")[1] == []

    @pytest.mark.contract
    def test_the_mean_is_charged_and_card_and_plan_say_what_is_taken_as_public(
        self, images_file: Path, tmp_path: Path, own: dict[str, Any]
    ):
        result = train(str(images_file), **self.settings(tmp_path, own))
        names = [line["name"] for line in result.document["events"]]
        assert f"front end {named(own).text}" in names
        assert result.price.epsilon <= 3.0
        assert "which must not be trained on these records" in result.card
        assert result.document["assumed_public"] == [named(own).describe_public_inputs()]
        shown = plan_text(plan_architecture_search(
            str(images_file), **self.settings(tmp_path / "not", own, out=None, strategy="fixed")
        ))  # fmt: skip
        assert "assumed public, so not charged: the weights of a small backbone" in shown
        assert named(own).text.rpartition(":")[2] in result.card
        assert "assumed public" in result.report

    @pytest.mark.contract
    def test_is_resumed_without_the_file(
        self, images_file: Path, tmp_path: Path, own: dict[str, Any],
        monkeypatch: pytest.MonkeyPatch,
    ):  # fmt: skip
        from pasearch.search.engine import SearchEngine

        inside = SearchEngine._search_winner
        monkeypatch.setattr(
            SearchEngine, "_search_winner", lambda _: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(BaseException):  # noqa: B017, PT011 - as a crash, whatever its kind
            search_architecture(
                str(images_file), **self.settings(tmp_path, own, strategy="fixed", seed=1)
            )
        monkeypatch.setattr(SearchEngine, "_search_winner", inside)
        Path(own["weights"]).unlink()
        backbones._WEIGHTS_PATHS.clear()
        assert resume(tmp_path / "run").price.epsilon <= 3.0

    @pytest.mark.contract
    def test_a_release_that_names_a_file_opens_none(
        self, images_file: Path, tmp_path: Path, own: dict[str, Any],
        monkeypatch: pytest.MonkeyPatch,
    ):  # fmt: skip
        """A table opens a file only where a user says it: a release may come from anybody."""
        train(str(images_file), **self.settings(tmp_path, own, data_is_public=True))
        opened: list[Any] = []
        monkeypatch.setattr(
            backbones, "_read_weights_file", lambda path: opened.append(path) or b""
        )
        for place in ("best", "entries", "choices"):
            copy = tmp_path / place
            shutil.copytree(tmp_path / "run" / "release", copy)
            document = json.loads((copy / "result.json").read_text())
            if place == "best":
                document["best"]["front_end"] = own
            elif place == "entries":
                document["space"]["entries"][0]["front_end"] = own
            else:
                choices = {"front_end": [own], "layers": [0]}
                document["space"] = {
                    "name": "x",
                    "family": "fcn",
                    "choices": choices,
                    "default": {},
                }
            (copy / "result.json").write_text(json.dumps(document))
            for check in (verify, load_result, lambda path: load_result(path).predict([[0.0]])):
                with suppress(UsageError, ValueError):
                    check(copy)
        assert opened == []
