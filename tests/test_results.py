"""What a finished run says of itself: read, verified, loaded, and put on one page."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pasearch.accounting.budget import Budget
from pasearch.api import search_architecture
from pasearch.data.partitions import Partition, Records
from pasearch.errors import UsageError
from pasearch.report.card import NOT_COVERED, card_json, card_markdown, escaped
from pasearch.results import (
    SearchResult,
    events_of,
    load,
    load_result,
    read_document,
    release_of,
    verify,
)
from pasearch.runs.ledger import Receipt
from pasearch.search.fitness import correct

WAYS: dict[str, dict[str, Any]] = {
    "fixed": {"strategy": "fixed", "learning_rate": 1.0},
    "rs": {"strategy": "rs", "candidates": 3, "search_share": 0.3},
    "paas": {"strategy": "paas", "candidates": 3, "generations": 2},
    "stw": {"strategy": "stw", "candidates": 2, "generations": 1, "data_is_public": True},
}


def arrays() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.Generator(np.random.PCG64(0))
    x = generator.uniform(-3, 3, size=(200, 3))
    return x, (x[:, 0] > 0).astype(int)


class Made:
    """A run of each way, with the test slots that its accuracy was taken on."""

    def __init__(self, folder: Path):
        self.paths: dict[str, Path] = {}
        self.tests: dict[str, Records] = {}
        genuine = Partition.open
        for way, options in WAYS.items():
            self.paths[way] = folder / way

            def opening(partition: Partition, receipt: Receipt, way: str = way) -> Records:
                records = genuine(partition, receipt)
                if partition.name == "test":
                    self.tests[way] = records
                return records

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Partition, "open", opening)
                search_architecture(
                    arrays(), budget=Budget(8.0), out=self.paths[way], bounds=(-3, 3), classes=2,
                    space={"choices": {"layers": [1, 2], "units_1": [4, 8]}}, steps=40, batch=40,
                    device="cpu", seed=5 if way == "paas" else None, **options,
                )  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return Made(tmp_path_factory.mktemp("made"))


@pytest.fixture
def copy(made: Made, tmp_path: Path) -> Path:
    """A release that a test may spoil."""
    shutil.copytree(made.paths["paas"] / "release", tmp_path / "release")
    return tmp_path / "release"


def change(release: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    file = release / "result.json"
    document = json.loads(file.read_text())
    edit(document)
    file.write_text(json.dumps(document))


@pytest.mark.contract
@pytest.mark.parametrize("way", WAYS)
class TestEveryResult:
    def test_is_read_from_the_run_or_its_release(self, made: Made, way: str):
        run, release = (load_result(made.paths[way] / part) for part in ("", "release"))
        assert run.document == release.document
        assert run.card == release.card
        assert run.price == release.price
        assert isinstance(run, SearchResult)
        assert run.price.epsilon == run.document["price"]["epsilon"] <= 8.0

    def test_its_price_follows_from_the_file_alone(self, made: Made, way: str, tmp_path: Path):
        shutil.copy(made.paths[way] / "release" / "result.json", tmp_path)
        price, problems = verify(tmp_path)
        assert problems == []
        assert price.epsilon == pytest.approx(read_document(tmp_path)["price"]["epsilon"], rel=1e-9)

    def test_the_model_has_the_accuracy_that_was_noised(self, made: Made, way: str):
        result, records = load_result(made.paths[way]), made.tests[way]
        model = result.model
        units = records.x * 6.0 - 3.0  # the data's own units
        hits = int(((model(units).argmax(dim=1) == records.y) & records.valid).sum())
        assert hits == correct(model[1], records, device="cpu")  # type: ignore[index]
        score = result.document["score"]
        # The noise's standard deviation is below .1 records at this epsilon.
        assert score["noise"]["standard_deviation"] * score["of"] < 0.1
        assert abs(score["correct"] - hits) <= 2
        if way == "stw":
            assert score["exact"] == hits / len(records)

    def test_the_model_takes_records_in_their_own_units(self, made: Made, way: str):
        model = load(made.paths[way])
        assert isinstance(model, nn.Module)
        assert not model.training
        x = torch.tensor([[0.5, -1.0, 2.0]])
        assert model(x).shape == (1, 2)
        assert torch.equal(model(x), model(x.double()))
        far, edge = torch.tensor([[99.0, -99.0, 3.0]]), torch.tensor([[3.0, -3.0, 3.0]])
        assert torch.equal(model(far), model(edge)), "values outside the bounds are clamped"

    def test_the_weights_need_no_trust(self, made: Made, way: str):
        content = torch.load(made.paths[way] / "release" / "model.pt", weights_only=True)
        assert content
        assert all(type(value) is torch.Tensor for value in content.values())

    def test_its_card_is_the_one_of_its_document(self, made: Made, way: str):
        result = load_result(made.paths[way])
        assert card_markdown(result.document) == result.card
        stored = json.loads((made.paths[way] / "release" / "privacy-card.json").read_text())
        assert stored == card_json(result.document)

    def test_nothing_in_it_is_private(self, made: Made, way: str):
        text = (made.paths[way] / "release" / "result.json").read_text()
        master = str(made.paths[way])
        assert master not in text
        assert "fingerprint" not in text


class TestReading:
    @pytest.mark.unit
    @pytest.mark.parametrize("version", [2, 0, "1", None, 1.5, [1]])
    def test_another_version_is_refused(self, copy: Path, version: object):
        change(copy, lambda document: document.update(schema_version=version))
        for read in (read_document, load_result, load, verify):
            with pytest.raises(UsageError, match="schema_version"):
                read(copy)

    @pytest.mark.unit
    def test_no_version_is_refused(self, copy: Path):
        change(copy, lambda document: document.pop("schema_version"))
        with pytest.raises(UsageError, match="None"):
            read_document(copy)

    @pytest.mark.unit
    @pytest.mark.parametrize("share", [0.0, 0.3, 0.999])
    def test_a_file_cut_short_is_refused(self, copy: Path, share: float):
        file = copy / "result.json"
        text = file.read_text().rstrip()
        file.write_text(text[: int(len(text) * share)])
        for read in (read_document, load_result, load, verify):
            with pytest.raises(UsageError, match="JSON"):
                read(copy)

    @pytest.mark.unit
    @pytest.mark.parametrize("content", [b"\xff\xfe", b"[]", b"null", b"3", b'"text"'])
    def test_other_content_is_refused(self, copy: Path, content: bytes):
        (copy / "result.json").write_bytes(content)
        with pytest.raises(UsageError):
            read_document(copy)

    @pytest.mark.unit
    def test_a_folder_without_a_result(self, tmp_path: Path):
        with pytest.raises(UsageError, match=r"no result\.json"):
            release_of(tmp_path)
        (tmp_path / "private").mkdir()
        with pytest.raises(UsageError, match="--resume"):
            load_result(tmp_path)

    @pytest.mark.unit
    def test_a_result_without_its_card(self, copy: Path):
        (copy / "privacy-card.md").unlink()
        with pytest.raises(UsageError, match="privacy-card"):
            load_result(copy)

    @pytest.mark.unit
    @pytest.mark.parametrize("spoil", ["missing", "changed", "longer"])
    def test_another_model_file_is_refused(self, copy: Path, spoil: str):
        file = copy / "model.pt"
        content = bytearray(file.read_bytes())
        content[-1] ^= 1
        match spoil:
            case "missing":
                file.unlink()
            case "changed":
                file.write_bytes(content)
            case "longer":
                file.write_bytes(file.read_bytes() + b"\0")
        with pytest.raises(UsageError, match=r"model\.pt"):
            load(copy)


def scale_epsilon(document: dict, share: float) -> None:
    document["price"]["epsilon"] *= share


def scale_noise(document: dict) -> None:
    document["events"][0]["event"]["event"]["noise_multiplier"] *= 1.01


def first_named(document: dict, name: str) -> dict:
    return next(line for line in document["events"] if line["name"] == name)


class TestVerify:
    @pytest.mark.unit
    @pytest.mark.parametrize(
        "edit",
        [
            lambda d: scale_epsilon(d, 0.999),
            lambda d: scale_epsilon(d, 1.001),
            lambda d: d["price"].update(epsilon=float("nan")),
            lambda d: d["price"].update(epsilon=0.0),
            lambda d: d["budget"].update(epsilon=d["price"]["epsilon"] * 0.99),
            lambda d: d["budget"].update(delta=d["price"]["delta"] / 10),
            lambda d: d["price"].update(delta=d["price"]["delta"] * 10),
            scale_noise,
            lambda d: d["events"][0]["event"].update(count=39),
            lambda d: d["events"][0].update(count=5),
            lambda d: first_named(d, "score").update(count=7),
            lambda d: first_named(d, "test accuracy")["event"].update(epsilon=9.0),
            lambda d: first_named(d, "score").update(event={"type": "no-release"}),
            lambda d: d["events"].remove(first_named(d, "test accuracy")),
            lambda d: d["events"].pop(0),
            lambda d: d["events"].append(d["events"][0]),
            lambda d: first_named(d, "score").update(partition="test"),
            lambda d: d["dataset"]["slots"].pop("validation"),
            lambda d: d["price_by_partition"]["train"].update(epsilon=0.1),
        ],
    )
    def test_finds_what_was_altered(self, copy: Path, edit: Callable):
        change(copy, edit)
        _, problems = verify(copy)
        assert problems

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("edit", "word"),
        [
            (lambda d: d["events"][0]["event"].update(type="os.system"), "os.system"),
            (lambda d: d["events"][0]["event"].pop("type"), "unknown"),
            (lambda d: d["events"][0].update(event="gaussian"), "gaussian"),
            (lambda d: d["events"][0]["event"].update(extra=1), "extra"),
            (lambda d: d["events"][0]["event"]["event"].update(noise_multiplier=0), "noise"),
            (lambda d: d["events"][0]["event"]["event"].update(noise_multiplier="2"), "noise"),
            (
                lambda d: d["events"][0]["event"]["event"].update(noise_multiplier=float("nan")),
                "noise",
            ),
            (lambda d: d["events"][0].update(count=0), "count"),
            (lambda d: d["events"][0].update(count=2.5), "count"),
            (lambda d: d["events"][0].pop("count"), "count"),
            (lambda d: d.update(events=[]), "no events"),
            (lambda d: d.update(events=None), "no events"),
            (lambda d: d.update(events=7), "well formed"),
            (lambda d: d.pop("events"), "no events"),
            (lambda d: d.pop("price"), "price"),
            (lambda d: d.update(budget=[]), "well formed"),
            (lambda d: d["price"].update(epsilon="3"), "well formed"),
            (lambda d: d["price"].update(delta="3"), "delta"),
            (lambda d: d["price"].update(delta=0), "delta"),
            (lambda d: d.update(price_by_partition={}), "well formed"),
            (lambda d: d.pop("dataset"), "dataset"),
        ],
    )
    def test_refuses_what_is_not_well_formed(self, copy: Path, edit: Callable, word: str):
        change(copy, edit)
        with pytest.raises(UsageError, match=re.escape(word)):
            verify(copy)

    @pytest.mark.unit
    def test_composes_counts(self):
        event = {"type": "geometric", "epsilon": 0.1}
        line = {"name": "score", "partition": "validation", "count": 3, "event": event}
        (composed,) = events_of({"events": [line]}).values()
        assert composed.events[0].count == 3  # type: ignore[attr-defined]


class TestCard:
    @pytest.mark.unit
    @pytest.mark.parametrize("way", WAYS)
    def test_says_everything_that_was_promised(self, made: Made, way: str):
        result = load_result(made.paths[way])
        card, document = result.card, result.document
        price = document["price"]
        for text in (
            "Central model",
            "Unit of privacy: one record",
            "zero-out",
            "n = 200",
            f"Accountant: {price['accountant']}",
            "Poisson",
            "two-sided geometric",
            f"Strategy: {document['strategy']['name']}",
            "Budget: epsilon 8, delta 0.001",
            "group) privacy",
            *NOT_COVERED,
        ):
            assert text in card, text
        stated = f"is ({price['epsilon']:.4f}, {price['delta']:g})-differentially private" in card
        covers = "covers the model *and* the search" in card
        # A known seed, or data declared public: there is nothing to promise.
        assert stated == covers == (way in ("fixed", "rs"))
        assert ("- None" in card) == (way in ("paas", "stw"))
        for line in document["events"]:
            assert line["name"] in card
            assert f"`{line['partition']}`" in card
        for name, version in document["versions"].items():
            assert f"- {name} {version}" in card
        assert set(document["versions"]) >= {
            "pasearch",
            "python",
            "dp-accounting",
            "torch",
            "numpy",
        }

    @pytest.mark.unit
    def test_states_the_law_of_the_number_of_trainings_and_never_the_number(self, made: Made):
        card = load_result(made.paths["rs"]).card
        assert "geometric with mean 3" in card
        assert "secret; candidates are independent; only the winner is released" in card

    @pytest.mark.unit
    @pytest.mark.parametrize("way", ["rs", "paas"])
    def test_a_papers_claim_stands_beside_labelled(self, made: Made, way: str):
        result = load_result(made.paths[way])
        (claim,) = result.document["claims"]
        section = result.card.split("## Claims of the papers, beside")[1].split("##")[0]
        assert f"claimed ({claim['source']})" in section
        assert claim["verdict"] in section
        assert "not a valid bound" in section or "pure" in section
        headline = result.card.split("## Setting")[0]
        assert claim["source"] not in headline

    @pytest.mark.unit
    def test_warns_of_a_seed_and_of_public_data(self, made: Made):
        cards = {way: load_result(path).card for way, path in made.paths.items()}
        assert [way for way in WAYS if "Noise reproducible: not private" in cards[way]] == ["paas"]
        assert [way for way in WAYS if "Declared public: not private" in cards[way]] == ["stw"]
        private = {
            way: json.loads((path / "release" / "privacy-card.json").read_text())["private"]
            for way, path in made.paths.items()
        }
        assert private == {"fixed": True, "rs": True, "paas": False, "stw": False}

    @pytest.mark.unit
    def test_cuda_keys_are_said_to_be_short(self, made: Made):
        document = deepcopy(load_result(made.paths["fixed"]).document)
        assert "64 bits, not 128" not in card_markdown(document)
        assert "64 bits, not 128" in card_markdown({**document, "device": "cuda"})

    @pytest.mark.unit
    @pytest.mark.parametrize(
        "name",
        [
            "people\n\n# Not the title\n> **private**",
            "<script>alert(1)</script>",
            "[a](http://b) ![c](d)",
            "`code` **bold** _it_ | ~s~",
            "back\\slash & \u202e \x1b[31m",
            'quo"te',
        ],
    )
    def test_a_users_name_stays_text(self, made: Made, name: str):
        document = deepcopy(load_result(made.paths["fixed"]).document)
        plain = card_markdown(document)
        document["dataset"]["name"] = name
        card = card_markdown(document)
        assert len(card.splitlines()) == len(plain.splitlines())
        assert card.count("\n#") == plain.count("\n#")
        assert "<" not in re.sub(r"\\<|<=", "", card)
        assert "\x1b" not in card
        assert "\u202e" not in card
        for mark in ("`", "*", "[", "|", "~", "_"):
            bare = re.compile(rf"(?<!\\){re.escape(mark)}")
            assert len(bare.findall(card)) == len(bare.findall(plain)), mark
        assert json.loads(json.dumps(card_json(document)))["title"].endswith(name)

    @pytest.mark.unit
    def test_ordinary_names_are_not_touched(self):
        for name in ("digits", "fashion-mnist", "people 2024.v1", "größe"):
            assert escaped(name) == name


@pytest.mark.unit
def test_a_file_with_a_name_of_marks_gives_a_card_that_shows_it(tmp_path: Path):
    x, y = arrays()
    path = tmp_path / "a*b* <i>.npz"
    np.savez(path, x=x, y=y, bounds=np.array([-3, 3]), classes=np.array(2))
    result = search_architecture(
        path, budget=Budget(8.0), out=tmp_path / "x", strategy="fixed", steps=2, batch=40,
        device="cpu",
    )  # fmt: skip
    assert result.card.startswith("# Privacy card: architecture search on a\\*b\\* \\<i\\>\n")
    assert result.document["dataset"]["name"] == "a*b* <i>"
