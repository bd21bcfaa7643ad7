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
import pandas as pd
import pytest
import torch
from torch import nn

from pasearch.accounting.budget import Budget
from pasearch.api.search import search_architecture
from pasearch.data.partitions import Partition, Records
from pasearch.errors import UsageError
from pasearch.estimator import load
from pasearch.report.card import (
    NOT_COVERED,
    PUBLISHED_BOUNDS,
    card_json,
    card_markdown,
)
from pasearch.results import (
    SearchResult,
    find_release,
    load_network,
    load_result,
    read_document,
    standard_error,
    trained_model,
)
from pasearch.runs.ledger import Receipt
from pasearch.search.candidate_training import compute_score_count
from pasearch.search.names import show_strategy
from pasearch.verification.verify import verify

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
                    # On public data a second run, of `fixed`, opens its own test slots later.
                    self.tests.setdefault(way, records)
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
class TestEveryResult:
    def test_is_read_from_the_run_or_its_release(self, made: Made):
        for way in WAYS:
            run, release = (load_result(made.paths[way] / part) for part in ("", "release"))
            assert run.document == release.document
            assert run.card == release.card
            assert run.price == release.price
            assert isinstance(run, SearchResult)
            assert run.price.epsilon == run.document["price"]["epsilon"] <= 8.0

    def test_the_model_has_the_accuracy_that_was_noised(self, made: Made):
        for way in WAYS:
            result, records = load_result(made.paths[way]), made.tests[way]
            model = result.model
            units = records.x * 6.0 - 3.0  # the data's own units
            hits = int(((model(units).argmax(dim=1) == records.y) & records.valid).sum())
            assert hits == compute_score_count(load_network(made.paths[way]), records, device="cpu")
            score = result.document["score"]
            # The noise of the right cells of a table is that of a few tenths of a record.
            assert 0 < score["noise"]["standard_deviation"] * score["of"] < 0.2
            assert abs(score["points"] - hits) <= 2
            told = result.metrics
            assert told["accuracy"]["value"] == score["test"]
            assert told["accuracy"]["error"] == pytest.approx(standard_error(score))
            assert len(told["classes"]) == len(score["cells"]) == 2
            if way == "stw":
                assert score["exact"] == hits / len(records)

    def test_the_model_takes_records_in_their_own_units(self, made: Made):
        for way in WAYS:
            model = trained_model(made.paths[way])
            assert isinstance(model, nn.Module)
            assert not model.training
            x = torch.tensor([[0.5, -1.0, 2.0]])
            assert model(x).shape == (1, 2)
            assert torch.equal(model(x), model(x.double()))
            far, edge = torch.tensor([[99.0, -99.0, 3.0]]), torch.tensor([[3.0, -3.0, 3.0]])
            assert torch.equal(model(far), model(edge)), "values outside the bounds are clamped"

    def test_the_weights_need_no_trust(self, made: Made):
        for way in WAYS:
            content = torch.load(made.paths[way] / "release" / "model.pt", weights_only=True)
            assert content
            assert all(type(value) is torch.Tensor for value in content.values())

    def test_its_card_is_the_one_of_its_document(self, made: Made):
        for way in WAYS:
            result = load_result(made.paths[way])
            assert card_markdown(result.document) == result.card
            stored = json.loads((made.paths[way] / "release" / "privacy-card.json").read_text())
            assert stored == card_json(result.document)

    def test_its_task_is_what_was_done(self, made: Made):
        for way in WAYS:
            task = "training" if way == "fixed" else "architecture search"
            assert load_result(made.paths[way]).document["task"] == task

    def test_nothing_in_it_is_private(self, made: Made):
        for way in WAYS:
            text = (made.paths[way] / "release" / "result.json").read_text()
            master = str(made.paths[way])
            assert master not in text
            assert "fingerprint" not in text


class TestReading:
    @pytest.mark.unit
    def test_another_version_is_refused(self, copy: Path):
        for version in (1, 2, 3, 5, 0, "4", None, 4.0, [4], True):
            change(copy, lambda document, new=version: document.update(schema_version=new))
            for read in (read_document, load_result, trained_model, load, verify):
                with pytest.raises(UsageError, match="schema_version"):
                    read(copy)

    @pytest.mark.unit
    def test_a_refusal_names_the_version_that_wrote_the_file(self, copy: Path):
        change(copy, lambda document: document["versions"].update(pasearch="0.1.0"))
        assert read_document(copy)["versions"]["pasearch"] == "0.1.0"
        change(copy, lambda document: document.update(schema_version=3))
        with pytest.raises(UsageError, match=r"written by version '0\.1\.0' of pasearch"):
            read_document(copy)

    @pytest.mark.unit
    def test_no_version_is_refused(self, copy: Path):
        change(copy, lambda document: document.pop("schema_version"))
        with pytest.raises(UsageError, match="None"):
            read_document(copy)

    @pytest.mark.unit
    def test_a_file_cut_short_or_of_other_content_is_refused(self, copy: Path):
        file = copy / "result.json"
        text = file.read_text().rstrip()
        for share in (0.0, 0.3, 0.999):
            file.write_text(text[: int(len(text) * share)])
            for read in (read_document, load_result, trained_model, load, verify):
                with pytest.raises(UsageError, match="JSON"):
                    read(copy)
        for content in (b"\xff\xfe", b"[]", b"null", b"3", b'"text"'):
            file.write_bytes(content)
            with pytest.raises(UsageError):
                read_document(copy)

    @pytest.mark.unit
    def test_a_folder_without_a_result(self, tmp_path: Path):
        with pytest.raises(UsageError, match=r"no result\.json"):
            find_release(tmp_path)
        (tmp_path / "private").mkdir()
        with pytest.raises(UsageError, match="pasearch resume"):
            load_result(tmp_path)

    @pytest.mark.unit
    def test_a_result_without_its_card(self, copy: Path):
        (copy / "privacy-card.md").unlink()
        with pytest.raises(UsageError, match="privacy-card"):
            load_result(copy)

    @pytest.mark.unit
    def test_another_model_file_is_refused(self, copy: Path):
        file = copy / "model.pt"
        content = file.read_bytes()
        for other in (content[:-1] + bytes([content[-1] ^ 1]), content + b"\0", None):
            file.unlink() if other is None else file.write_bytes(other)
            with pytest.raises(UsageError, match=r"model\.pt"):
                trained_model(copy)


class TestCard:
    @pytest.mark.unit
    def test_says_everything_that_was_promised(self, made: Made):
        for way in WAYS:
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
                "No search: one data-independent network was trained once"
                if way == "fixed"
                else f"Strategy: {show_strategy(document['strategy']['name'])} ",
                "Budget: epsilon 8, delta 0.001",
                "(group privacy)",
                *NOT_COVERED,
            ):
                assert text in card, text
            stated = (
                f"is ({price['epsilon']:.4f}, {price['delta']:g})-differentially private" in card
            )
            what = (
                "every access to a record"
                if way == "fixed"
                else "the model *and* the architecture search"
            )
            covers = f"The statement covers {what}" in card
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
        assert "is secret. Candidates are independent; only the winner is released" in card

    @pytest.mark.unit
    def test_a_papers_claim_stands_beside_labelled(self, made: Made):
        for way in ["rs", "paas"]:
            result = load_result(made.paths[way])
            (claim,) = result.document["claims"]
            section = result.card.split(f"## {PUBLISHED_BOUNDS}")[1].split("##")[0]
            assert f"claimed ({claim['source']})" in section
            assert claim["verdict"] in section
            assert "not a valid bound" in section or "pure" in section
            headline = result.card.split("## Setting")[0]
            assert claim["source"] not in headline

    @pytest.mark.unit
    def test_warns_of_a_seed_and_of_public_data(self, made: Made):
        cards = {way: load_result(path).card for way, path in made.paths.items()}
        assert [way for way in WAYS if "Not private: the noise is reproducible" in cards[way]] == [
            "paas"
        ]
        assert [
            way for way in WAYS if "Not private: the data were declared public" in cards[way]
        ] == ["stw"]
        private = {
            way: json.loads((path / "release" / "privacy-card.json").read_text())["private"]
            for way, path in made.paths.items()
        }
        assert private == {"fixed": True, "rs": True, "paas": False, "stw": False}

    @pytest.mark.unit
    def test_cudas_generator_is_said_to_be_no_cipher(self, made: Made):
        document = deepcopy(load_result(made.paths["fixed"]).document)
        on_cuda = {**document, "device": "cuda"}
        assert "not a cipher" not in card_markdown(document)
        assert "not a cipher" in card_markdown(on_cuda)
        assert "not a cipher" not in card_markdown({**on_cuda, "secure_noise": True})

    @pytest.mark.unit
    def test_a_users_name_stays_text(self, made: Made):
        for name in [
            "people\n\n# Not the title\n> **private**",
            "<script>alert(1)</script>",
            "[a](http://b) ![c](d)",
            "`code` **bold** _it_ | ~s~",
            "back\\slash & \u202e \x1b[31m",
            'quo"te',
        ]:
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


class TestPredict:
    """New records through `SearchResult`: encoded as in training, answered in their own units."""

    @pytest.mark.unit
    def test_arrays_are_answered_as_by_the_model(self, made: Made):
        for way in WAYS:
            result, x = load_result(made.paths[way]), arrays()[0]
            scores = result.scores(x)
            assert scores.shape == (200, 2)
            assert scores.dtype == np.float32
            with torch.no_grad():
                own = result.model(torch.from_numpy(x)).numpy()
            assert scores == pytest.approx(own, abs=1e-4)
            assert (result.predict(x) == scores.argmax(axis=1)).all()

    @pytest.mark.unit
    def test_values_that_cannot_be_used_are_answered_like_the_null_record(self, made: Made):
        result = load_result(made.paths["fixed"])
        x = np.array([[np.nan, 1, 1], [np.inf, -1, 2], [1e300, 0, 0], [3.0, 0, 0]])
        scores = result.scores(x)
        assert np.isfinite(scores).all()
        assert (scores[0] == scores[1]).all()
        assert (scores[2] == scores[3]).all(), "clamped to the bounds"

    @pytest.mark.unit
    def test_records_of_another_form_are_refused(self, made: Made):
        for records in [np.zeros((3, 4)), np.zeros(3), np.zeros((3, 3, 1)), np.array([["a"] * 3])]:
            with pytest.raises(UsageError, match="expected numbers"):
                load_result(made.paths["fixed"]).predict(records)

    @pytest.mark.unit
    def test_no_record_has_no_answer(self, made: Made):
        result = load_result(made.paths["fixed"])
        assert result.scores(np.zeros((0, 3))).shape == (0, 2)
        assert result.predict(np.zeros((0, 3))).shape == (0,)

    @pytest.mark.unit
    def test_the_error_of_a_classifier_is_refused(self, made: Made):
        result = load_result(made.paths["fixed"])
        with pytest.raises(UsageError, match="is accuracy, not mean absolute error"):
            _ = result.test_error

    @pytest.mark.unit
    def test_weights_behind_a_front_end_come_back(self, tmp_path: Path):
        result = search_architecture(
            arrays(), budget=Budget(8.0), out=tmp_path / "x", bounds=(-3, 3), classes=2, steps=3,
            space={"choices": {"front_end": ["pca:2"], "units_1": [4]}}, batch=20, device="cpu",
            strategy="fixed",
        )  # fmt: skip
        content = torch.load(tmp_path / "x/release/model.pt", weights_only=True)
        fitted = torch.load(tmp_path / "x/private/front_ends/pca-2.pt", weights_only=True)
        assert {name for name in content if name.startswith("0.")} == {f"0.{n}" for n in fitted}
        for name, value in fitted.items():
            assert torch.equal(content[f"0.{name}"], value)
        assert result.document["estimated_privately"] == ["front end pca:2"]
        assert trained_model(tmp_path / "x")(torch.zeros(5, 3)).shape == (5, 2)


TABLE = """target = "income"
[columns.age]
low = 18
high = 90
[columns.city]
categories = ["Rome", "Oslo", "Lima"]
[columns.note]
kind = "ignore"
[columns.income]
categories = ["low", "high"]
"""


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> SearchResult:
    folder = tmp_path_factory.mktemp("table")
    rows = [f"{18 + i % 72},{('Rome', 'Oslo')[i % 2]},x,{('low', 'high')[i % 2]}"
            for i in range(200)]  # fmt: skip
    (folder / "people.csv").write_text("\n".join(["age,city,note,income", *rows]))
    (folder / "s.toml").write_text(TABLE)
    return search_architecture(
        folder / "people.csv", budget=Budget(8.0), out=folder / "x", schema=folder / "s.toml",
        space={"choices": {"layers": [0]}}, strategy="fixed", steps=60, batch=60, device="cpu",
    )  # fmt: skip


class TestPredictTables:
    def frame(self, **columns: Any) -> pd.DataFrame:
        plain = {"age": [20, 70, 40], "city": ["Rome", "Oslo", "Lima"], "note": ["a", "b", "c"]}
        return pd.DataFrame({**plain, **columns})

    @pytest.mark.unit
    def test_classes_are_answered_by_their_names(self, result: SearchResult):
        predicted = result.predict(self.frame())
        assert predicted.shape == (3,)
        assert set(predicted) <= {"low", "high"}
        assert list(predicted[:2]) == ["low", "high"], "the city tells"
        assert result.scores(self.frame()).shape == (3, 2)

    @pytest.mark.unit
    def test_columns_may_come_in_any_order_and_with_others(self, result: SearchResult):
        frame = self.frame(more=[1, 2, 3])
        turned = frame[["more", "note", "city", "age"]]
        assert (result.scores(turned) == result.scores(self.frame())).all()
        assert (result.scores(frame.set_index("more")) == result.scores(self.frame())).all()

    @pytest.mark.unit
    def test_cells_in_the_schemas_order_do_too(self, result: SearchResult):
        cells = [[20, "Rome", "a"], [70, "Oslo", "b"], [40, "Lima", "c"]]
        for given in (cells, np.array(cells, object), np.array(cells)):
            assert (result.scores(given) == result.scores(self.frame())).all()

    @pytest.mark.unit
    def test_unseen_and_missing_categories_are_answered(self, result: SearchResult):
        for cell in ["Atlantis", "", "?", None, np.nan, pd.NA, 7, 1.5]:
            scores = result.scores(self.frame(city=[cell, "Oslo", "Lima"]))
            assert np.isfinite(scores).all()
            assert (scores[1:] == result.scores(self.frame())[1:]).all(), "each row is on its own"

    @pytest.mark.unit
    def test_numbers_that_are_none_are_answered(self, result: SearchResult):
        for cell in ["old", None, np.nan, np.inf, 1e300, -1e300, "", pd.NA]:
            column = pd.Series([cell, 70, 40], dtype=object)
            assert np.isfinite(result.scores(self.frame(age=column))).all()

    @pytest.mark.unit
    def test_a_column_that_is_missing_is_named(self, result: SearchResult):
        with pytest.raises(UsageError, match="no column 'city'"):
            result.predict(self.frame().drop(columns="city"))
        with pytest.raises(UsageError, match="'age', 'city'"):
            result.predict(pd.DataFrame({"other": [1]}))

    @pytest.mark.unit
    def test_one_that_is_ignored_need_not_be_there(self, result: SearchResult):
        bare = self.frame().drop(columns="note")
        assert (result.scores(bare) == result.scores(self.frame())).all()

    @pytest.mark.unit
    def test_rows_of_another_length_are_refused(self, result: SearchResult):
        with pytest.raises(UsageError, match="expected"):
            result.predict([[20, "Rome"]])
