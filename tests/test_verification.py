"""What `verify` finds: edits of one field and of several that agree, other files, signatures."""

from __future__ import annotations

import io
import json
import math
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives import serialization as form
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from scipy.stats import dlaplace
from typer.testing import CliRunner

from pasearch import Budget, load, load_result, search_architecture, select_features, verify
from pasearch.accounting.accountants import price_partitions
from pasearch.api.lifecycle import render_release_files
from pasearch.cli import app
from pasearch.documents import RESULT_FIELDS, check_fields, short_repr
from pasearch.errors import PasearchError, UsageError
from pasearch.features.model import pack_model
from pasearch.files import MAX_DEPTH
from pasearch.results import compose_events, compute_digest, model_file_name
from pasearch.search.plan import Plan
from pasearch.training.metrics import AccuracyByLogOdds
from pasearch.verification.reconstruction import reconstruct
from pasearch.verification.signing import (
    Signature,
    create_key_pair,
    read_private_key,
    read_public_key,
    read_signature,
    sign,
)
from pasearch.verification.verify import (
    MAX_TAIL_PROBABILITY,
    _check_ledger_total,
    check_cells,
    check_price,
    noise_reach,
)

Document = dict[str, Any]
Edit = Callable[[Document], object]

SPACE = {"choices": {"layers": [1, 2], "units_1": [4, 8], "learning_rate_scale": [0.5, 1.0]}}
GRID_SPACE = {
    "family": "portfolio", "name": "two",
    "entries": [{"layers": []}, {"layers": [{"kind": "dense", "units": 4}]}],
}  # fmt: skip
ARRAYS: dict[str, Any] = {
    "bounds": (-3, 3), "classes": 2, "space": SPACE, "steps": 6, "batch": 40, "device": "cpu",
}  # fmt: skip
OF_ARRAYS: dict[str, dict[str, Any]] = {
    "fixed": {"strategy": "fixed"},
    "rs": {"strategy": "rs", "candidates": 3, "search_share": 0.3},
    "paas": {"strategy": "paas", "candidates": 2, "generations": 2, "seed": 5},
    "insured": {"strategy": "insured", "candidates": 3, "seed": 4},
    "grid": {"strategy": "grid", "space": GRID_SPACE, "eps_grid": "0.3,0.6", "seed": 6},
    "portions": {"strategy": "portions", "candidates": 3},
    "stw": {"strategy": "stw", "candidates": 2, "generations": 1, "data_is_public": True},
    "pca": {
        "strategy": "rs", "candidates": 2,
        "space": {"choices": {"front_end": ["pca:2", "raw"], "units_1": [4]}},
    },
    "screened": {
        "strategy": "fixed", "space": "auto", "recipe": "sa-dpsgd",
        "architecture": {"layers": [{"kind": "dense", "units": 4}]},
    },
    "recipes": {"space": "auto", "recipe": ["default", {"optimizer": "adam"}]},
    "estimated_privately": {"strategy": "fixed", "bounds": None, "classes": None},
}  # fmt: skip
OF_TABLES: dict[str, dict[str, Any]] = {
    "cfs": {"method": "cfs-greedy", "k": 3},
    "pafs": {"method": "pafs", "population": 2, "generations": 2, "trainer": "objective"},
    "number": {"method": "pca", "k": 2, "target": "age", "regression": True},
}
RUNS = (*OF_ARRAYS, *OF_TABLES)


def arrays() -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.Generator(np.random.PCG64(0))
    x = generator.uniform(-3, 3, size=(400, 3))
    return x, (x[:, 0] > 0).astype(int)


class Runs:
    """One run of each kind, made when a test first asks for it."""

    def __init__(self, folder: Path):
        self.folder = folder
        cells = [f"{18 + i % 72},{('Rome', 'Oslo')[i % 2]},{('low', 'high')[i % 2]}" for i in
                 range(400)]  # fmt: skip
        (folder / "people.csv").write_text("\n".join(["age,city,income", *cells]))

    def __getitem__(self, name: str) -> Path:
        path = self.folder / name
        if path.exists():
            return path
        if name in OF_ARRAYS:
            given = {key: value for key, value in {**ARRAYS, **OF_ARRAYS[name]}.items()
                     if value is not None}  # fmt: skip
            search_architecture(arrays(), budget=Budget(8.0), out=path, **given)
        else:
            given = dict(OF_TABLES[name])
            target = given.pop("target", "income")
            select_features(
                self.folder / "people.csv", target=target, budget=Budget(8.0), out=path,
                device="cpu", **given,
            )  # fmt: skip
        return path


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("verified"))


@pytest.fixture(scope="module", autouse=True)
def equal_plans_are_compared_with_others_once() -> Iterator[None]:
    """What other budgets would buy is solved once a plan: hundreds of forgeries have equal ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Plan, "alternatives", cache(Plan.alternatives))
        yield


class Copy:
    """A copy of a release that a test may forge."""

    def __init__(self, run: Path, folder: Path):
        self.path = folder / "release"
        shutil.copytree(run / "release", self.path)
        self.file = self.path / "result.json"
        self.document: Document = json.loads(self.file.read_text())

    def write(self, document: Document) -> None:
        self.file.write_text(json.dumps(document, indent=2) + "\n")

    def reseal(self, document: Document) -> None:
        """Make card, report and digests fit a forged document, as a careful forger would."""
        for name, text in render_release_files(document).items():
            (self.path / name).write_text(text)
        for name in document["files"]:
            document["files"][name] = compute_digest((self.path / name).read_bytes())
        document["model"]["sha256"] = document["files"][model_file_name(document)]
        self.write(document)

    @contextmanager
    def edited(self, edit: str, sealed: bool) -> Iterator[None]:
        """Apply one edit; restore all files afterwards."""
        document = deepcopy(self.document)
        EDITS[edit](document)
        assert document != self.document, edit
        before = {file: file.read_bytes() for file in self.path.iterdir()}
        try:
            if sealed:
                self.reseal(document)
            else:
                self.write(document)
        except (PasearchError, ArithmeticError, LookupError, TypeError, ValueError):
            self.write(document)  # no report can be made of it
        yield
        for file, content in before.items():
            file.write_bytes(content)

    def problems(self, **given: Any) -> list[str]:
        """What is found; a result that cannot even be read counts as found."""
        try:
            return verify(self.path, **given)[1]
        except UsageError as error:
            return [str(error)]


@pytest.fixture
def copied(runs: Runs, tmp_path: Path) -> Callable[[str], Copy]:
    numbers = count()
    return lambda name: Copy(runs[name], tmp_path / f"copy {next(numbers)}")


@pytest.mark.contract
def test_a_recipe_states_its_own_temperature_or_none(copied: Callable[[str], Copy]):
    """Files of earlier versions state no temperature and verify; another than the rule's fails."""
    for temperature in [None, 3.0]:
        for name in ["fixed", "insured", "cfs"]:
            copy = copied(name)
            document = copy.document
            assert document["recipe"].pop("temperature") > 1.0
            for recipe in (
                *document["plan"].get("recipes", ()),
                *document["plan"].get("finals", ()),
            ):
                assert recipe.pop("temperature") is None
            if temperature is not None:
                document["recipe"]["temperature"] = temperature
            copy.reseal(document)
            assert bool(copy.problems()) == (temperature is not None)


@pytest.mark.contract
@pytest.mark.parametrize("name", RUNS)
def test_a_run_that_nobody_edited_verifies(runs: Runs, name: str):
    price, problems = verify(runs[name])
    assert problems == []
    document = json.loads((runs[name] / "release" / "result.json").read_text())
    assert price.epsilon == pytest.approx(document["price"]["epsilon"], rel=1e-9)
    assert reconstruct(document).document == document, "to the last digit, on the same machine"


def priced(document: Document) -> None:
    """Let a document state what its events cost, as a forger would."""
    total, shares = price_partitions(compose_events(document), document["price"]["delta"])
    document["price"] |= {"epsilon": total.epsilon, "accountant": total.accountant}
    document["selection"]["bound"] = total.accountant
    document["price_by_partition"] = {
        name: {"epsilon": share.epsilon, "accountant": share.accountant}
        for name, share in shares.items()
    }


def line(document: Document, name: str) -> Document:
    return next(each for each in document["events"] if each["name"] == name)


def free(document: Document) -> None:
    for each in document["events"]:
        each["event"] = {"type": "no-release"}
    priced(document)


def dropped(document: Document, partition: str) -> None:
    document["events"] = [e for e in document["events"] if e["partition"] != partition]
    priced(document)


def moved(document: Document, old: str, new: str) -> None:
    for each in document["events"]:
        if each["partition"] == old:
            each["partition"] = new
    priced(document)


def delta(document: Document, value: float) -> None:
    document["price"]["delta"] = document["budget"]["delta"] = value
    priced(document)


def sigma_of(event: Document) -> Document:
    """Where an event has its noise multiplier, however deep."""
    while "noise_multiplier" not in event:
        event = event["event"] if "event" in event else event["events"][0]
    return event


def louder(document: Document) -> None:
    """Ten times the noise, in events, recipe, claims and price."""
    for each in document["events"]:
        if "training" in each["name"]:
            sigma_of(each["event"])["noise_multiplier"] *= 10
    document["recipe"]["noise_multiplier"] *= 10
    priced(document)


def fewer_records(document: Document) -> None:
    document["dataset"]["n"] += 40
    document["dataset"]["slots"]["train"] += 40


def cell(document: Document, row: int, column: int, more: float) -> None:
    """Change one count of the test's table."""
    document["score"]["cells"][row][column] += more


def answers(document: Document) -> None:
    """The same records by class and answer: another table, of the same headline."""
    score = document["score"]
    score["cells"] = [[sum(row[:10]), sum(row[10:])] for row in score["cells"]]
    score["columns"] = "answer"
    score.pop("edges")


EDITS: dict[str, Edit] = {
    "every event free": free,
    "every event free, price as it was": lambda d: [
        each.update(event={"type": "no-release"}) for each in d["events"]
    ],
    "events of a partition removed": lambda d: dropped(d, "train"),
    "the test score removed": lambda d: dropped(d, "test"),
    "events on an invented partition": lambda d: moved(d, "train", "elsewhere"),
    "delta above 1/n": lambda d: delta(d, 0.1),
    "delta of the budget and the price": lambda d: delta(d, 1e-5),
    "ten times the noise in the recipe": lambda d: d["recipe"].update(
        noise_multiplier=10 * d["recipe"]["noise_multiplier"]
    ),
    "ten times the noise in recipe and events": louder,
    "reproducible": lambda d: d.update(reproducible=not d["reproducible"]),
    "declared_public": lambda d: d["dataset"].update(
        declared_public=not d["dataset"]["declared_public"]
    ),
    "estimated_privately": lambda d: d.update(
        estimated_privately=[*d["estimated_privately"], "front end pca:2"]
    ),
    "n": lambda d: d["dataset"].update(n=4000),
    "n and slots": fewer_records,
    "unit": lambda d: d["price"].update(unit="one person"),
    "points": lambda d: d["score"].update(points=d["score"]["points"] - 1),
    "noise of the score": lambda d: d["score"]["noise"].update(epsilon=0.1),
    "metric": lambda d: d["score"].update(metric="mean absolute error"),
    "a right answer of the table": lambda d: cell(d, 0, 0, 1),
    "a table that no such noise gives, its headline as it was": lambda d: cell(d, 0, -1, 70),
    "records in the table that the test has not": lambda d: [
        cell(d, 0, place, 5) for place in range(10, 20)
    ],
    "a table of answers": lambda d: answers(d),
    "a row more": lambda d: d["score"]["cells"].append([0] * 20),
    "a count that is not whole": lambda d: cell(d, 0, 0, 0.5),
    "no table": lambda d: [d["score"].pop(name) for name in ("cells", "columns", "edges")],
    "what the columns are": lambda d: d["score"].update(columns="answer"),
    "edges of the log-odds": lambda d: d["score"].update(edges=[0.0] * 19),
    "a lower price": lambda d: d["price"].update(epsilon=0.5),
    "a lower budget": lambda d: d["budget"].update(epsilon=0.5),
    "fewer of an event": lambda d: d["events"][0]["event"].update(count=1),
    "an event twice": lambda d: (d["events"].append(d["events"][0]), priced(d)),
    "law of the trainings": lambda d: d["selection"].update(law="one training"),
    "strategy": lambda d: d["strategy"].update(name="portions"),
    "strategy of the plan": lambda d: d["plan"].update(
        strategy={"name": "portions", "candidates": 2}
    ),
    "steps": lambda d: d["recipe"].update(steps=2),
    "steps of the plan": lambda d: d["plan"]["recipes"][0].update(steps=2),
    "a dial of the plan": lambda d: d["plan"]["dials"].update({"test accuracy": 1.0}),
    "a dial that no plan has": lambda d: d["plan"]["dials"].update(more=1.0),
    "claims": lambda d: d.update(claims=[{"source": "me", "verdict": "valid", "value": 0.1}]),
    "warnings": lambda d: d.update(warnings=["all is well"]),
    "task": lambda d: d.update(task="audit"),
    "schema": lambda d: d["dataset"]["schema"].update(high=9.0),
    "winner": lambda d: d.update(winner="kept" if d["winner"] == "retrained" else "retrained"),
    "another network of the space": lambda d: d["best"].update(
        layers=[{**d["best"]["layers"][0], "units": 12 - d["best"]["layers"][0]["units"]}]
    ),
    "randomness": lambda d: d.update(randomness="none"),
    "device": lambda d: d.update(device="abacus"),
    "alternatives": lambda d: d["alternatives"][0].update(noise_multiplier=1.0),
    "a field of one's own": lambda d: d.update(certified_by="me"),
    "a ledger that allows less": lambda d: d.update(ledger={"epsilon": 1.0, "delta": 1e-3}),
    "searched on public data": lambda d: d.update(searched_on="public"),
    "leak share": lambda d: d["plan"].update(leak_share=0.5),
    "a free front end": lambda d: d["plan"].update(free_front_ends=True),
    "trials": lambda d: d.update(trials=[], unique_trials=0),
}
"""Each changes one thing, or a few that agree; the price follows where `priced` is called."""


@pytest.mark.unit
@pytest.mark.parametrize("sealed", [False, True], ids=["alone", "with card, report and digests"])
@pytest.mark.parametrize("name", ["fixed", "rs"])
def test_an_edited_result_does_not_verify(copied: Callable[[str], Copy], name: str, sealed: bool):
    """Every edit is sealed in both runs. Alone, each stands in one of them: they take turns."""
    copy, survived = copied(name), []
    for edit in EDITS if sealed else [*EDITS][name == "rs" :: 2]:
        with copy.edited(edit, sealed):
            if not copy.problems():
                survived.append(edit)
    assert not survived


def cleared(document: Document) -> None:
    """As if an estimated schema had been declared: its event, its dial and its list are gone."""
    document["events"] = [e for e in document["events"] if e["name"] != "schema"]
    document["plan"]["declared"] = document["dataset"]["schema"]
    del document["plan"]["dials"]["schema"]
    document["estimated_privately"] = []
    priced(document)


def not_searched(document: Document) -> None:
    """As if the winner had been the one candidate from the beginning."""
    document["space"] = {"name": "given", "family": "portfolio", "entries": [
        {key: document["best"][key] for key in ("front_end", "layers", "settings")}]}  # fmt: skip
    document["plan"]["strategy"] = {"name": "fixed"}
    document["plan"]["finals"] = []
    document["events"] = [e for e in document["events"] if e["partition"] in ("train", "test")]
    document["dataset"]["slots"] = {
        name: size for name, size in document["dataset"]["slots"].items()
        if name in ("train", "test")
    }  # fmt: skip
    document["dataset"]["n"] = sum(document["dataset"]["slots"].values())
    priced(document)


def smaller_law(document: Document) -> None:
    """As if fewer trainings had been expected."""
    document["plan"]["strategy"]["law"]["mean"] = 1.5
    for each in document["events"]:
        if each["event"]["type"] == "repeat-and-select":
            each["event"]["law"]["mean"] = 1.5
    words = "a geometric law, mean 1.5"
    document["selection"]["law"] = document["strategy"]["trainings"] = words
    priced(document)


def made_private(document: Document) -> None:
    """As if public data had been private ones."""
    document["dataset"]["declared_public"] = False
    document["score"].pop("exact")
    for name in ("curves", "compared"):
        document.pop(name, None)


def unlike(document: Document) -> None:
    score = document["score"]
    score["points"] = 10**6
    score["test"] = 1.0


def quieter_dial(document: Document) -> None:
    """Ten times the noise everywhere, the plan's own dial included: a price far below."""
    document["plan"]["dials"]["training"] /= 10
    again = json.loads(json.dumps(reconstruct(document).document))
    document.clear()
    document.update(again)


def replanned(**changes: object) -> Edit:
    """Another strategy, and all that follows from it."""

    def edit(document: Document) -> None:
        document["plan"]["strategy"].update(changes)
        again = json.loads(json.dumps(reconstruct(document).document))
        document.clear()
        document.update(again)

    return edit


FORGERIES: list[tuple[str, str, Edit]] = [
    ("paas", "a space of fewer candidates", replanned(distinct=2)),
    ("insured", "looks that are said to be shorter", replanned(looks=0.001)),
    ("insured", "looks that are a little shorter", replanned(looks=0.045)),
    ("insured", "a handicap that makes another win", lambda d: (
        d["plan"]["strategy"].update(handicaps=[0.0, 1e5, 0.0]),
        d["best"].update(d["trials"][1]["parameters"]))),
    ("insured", "looks at other candidates than the default first",
     lambda d: d["trials"].insert(0, d["trials"].pop())),
    ("insured", "a recipe by a name of the forger's", lambda d: (
        d["plan"].update(recipe_names=["default: costs epsilon 0.01 only"]),
        d["recipe"].update(name="default: costs epsilon 0.01 only"))),
    ("grid", "levels that are said to be smaller", replanned(shares=[0.001, 0.002])),
    ("grid", "a model twice and another never",
     lambda d: d["trials"][0].update(parameters=d["trials"][-1]["parameters"])),
    ("grid", "another winner", lambda d: d["best"].update(
        next(each["parameters"] for each in d["trials"]
             if each["parameters"]["layers"] != d["best"]["layers"]))),
    ("grid", "points that say another sentence",
     lambda d: d["crossover"].update(sentence="Measured on your records: take any.")),
    ("grid", "points that the trials do not have",
     lambda d: d["crossover"]["models"][0]["accuracy"].__setitem__(0, 0.99)),
    ("insured", "a look less", lambda d: line(d, "training, look").update(count=2)),
    ("insured", "another winner", lambda d: d["best"].update(
        next(each["parameters"] for each in d["trials"]
             if each["parameters"]["layers"] != d["best"]["layers"]))),
    ("estimated_privately", "an estimated schema that is called declared", cleared),
    ("rs", "a search that is called one training", not_searched),
    ("rs", "a law of fewer trainings", smaller_law),
    ("stw", "public data that are called private", made_private),
    ("fixed", "a score that noise cannot give", unlike),
    ("fixed", "all of a louder plan", quieter_dial),
    ("paas", "a trial less", lambda d: d["trials"].pop(0)),
    ("paas", "another winner", lambda d: d["trials"][-1].update(noisy_correct=99)
     or d["trials"][-2].update(noisy_correct=98) or d["best"].update(d["trials"][0]["parameters"])),
    ("paas", "number of different trials", lambda d: d.update(unique_trials=9)),
    ("pca", "a front end that nobody paid for", lambda d: (
        d.update(estimated_privately=[]), d["events"].remove(line(d, "front end pca:2")),
        priced(d))),
    ("pca", "its dial", lambda d: d["plan"]["dials"].update({"front end pca:2": 99.0})),
    ("screened", "validation queries that nobody paid for", lambda d: (
        d["events"].remove(line(d, "validation query")), priced(d))),
    ("screened", "validation queries on public data", lambda d: d.update(validated_on="public")),
    ("portions", "portions that overlap", lambda d: d["dataset"]["slots"].update({"train 1": 300})),
    ("portions", "the score of the pick", lambda d: (
        line(d, "pick")["event"].update(epsilon=0.1), priced(d))),
    ("recipes", "name of the recipe", lambda d: d["recipe"].update(name="safe: no noise needed")),
    ("recipes", "the other recipe", lambda d: d["best"]["settings"].update(
        recipe=1.0 - d["best"]["settings"].get("recipe", 0.0))),
    ("stw", "the comparison", lambda d: d["compared"]["this"].update(test=0.125)),
    ("stw", "the exact score", lambda d: d["score"].update(exact=0.125)),
    ("cfs", "another feature", lambda d: d["best"]["features"].reverse()),
    ("cfs", "a feature more", lambda d: d["best"]["places"].append(99)),
    ("cfs", "features that were not selected", lambda d: (
        d["best"].update(places=[1, 2, 4]), d["best"].update(features=[
            d["relevance"][i]["feature"] for i in (1, 2, 4)]))),
    ("cfs", "how telling features are", lambda d: d["relevance"].pop()),
    ("cfs", "tables that nobody paid for", lambda d: (
        d["events"].remove(line(d, "contingency tables")), priced(d))),
    ("cfs", "another method", lambda d: (
        d["plan"]["choice"].update(method="all", size=None), d["strategy"].update(name="all"))),
    ("cfs", "size", lambda d: d["plan"]["choice"].update(size=2)),
    ("cfs", "link", lambda d: d["model"].update(link="identity")),
    ("cfs", "pool", lambda d: d["model"].update(pool=2)),
    ("cfs", "merit", lambda d: d["best"].update(merit=None)),
    ("cfs", "an estimated column", lambda d: d["dataset"]["schema"]["columns"][0].update(low=-1e9)
     or d["estimated_privately"].pop()),
    ("pafs", "another winner", lambda d: d["trials"][0].update(noisy_correct=-5000)
     or d["trials"][1].update(noisy_correct=5000)
     if d["best"]["features"] == d["trials"][0]["features"]
     else d["trials"][0].update(noisy_correct=5000)),
    ("pafs", "a set twice", lambda d: d["trials"].append(d["trials"][0])),
    ("number", "directions", lambda d: d["best"].update(directions=1)),
    ("number", "epsilon of the error", lambda d: d["score"]["noise"].update(epsilon=99.0)),
]  # fmt: skip


@pytest.mark.unit
@pytest.mark.parametrize("run", sorted({name for name, *_ in FORGERIES}))
def test_several_fields_that_agree_do_not_verify(copied: Callable[[str], Copy], run: str):
    for name, what, edit in FORGERIES:
        if name != run:
            continue
        copy = copied(name)
        document = deepcopy(copy.document)
        edit(document)
        assert document != copy.document
        try:
            copy.reseal(document)
        except (PasearchError, ArithmeticError, LookupError, TypeError, ValueError):
            copy.write(document)
        assert copy.problems(), what


def seedless(document: Document) -> None:
    document["reproducible"] = False
    document["randomness"] = (
        "a 256-bit key from the operating system, destroyed when the run ended; noise from "
        "AES-256, batches and candidates from Philox (128 bits)"
    )


def better(document: Document) -> None:
    score = document["score"]
    more = 1 if score["points"] < score["of"] else -1
    score["points"] += more
    score["cells"][0][0] += more
    score["test"] = score["points"] / score["of"]
    document["crossover"] = reconstruct(document).document["crossover"]


def of_smaller_budget(document: Document) -> None:
    """A whole document of another run: everything is made anew from a smaller budget."""
    from pasearch.accounting.calibration import NoiseParameters, StatedNoiseParameters

    solved = NoiseParameters()
    document["budget"]["epsilon"] *= 0.9  # of the same test: it has as many counts

    def largest(self: StatedNoiseParameters, name: str, *given: Any) -> float:
        self.values[name] = solved.calibrate_max(name, *given)
        return self.values[name]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StatedNoiseParameters, "calibrate_max", largest)
        again = reconstruct(document).document
    document.clear()
    document.update(again)


UNSEEN: list[tuple[str, str, Edit]] = [
    ("paas", "a seed that is denied", seedless),
    ("fixed", "a better score, within the noise", better),
    ("fixed", "another run's plan altogether", of_smaller_budget),
    ("fixed", "name of the data", lambda d: d["dataset"].update(name="everybody")),
    ("fixed", "versions", lambda d: d["versions"].update(torch="99")),
]


@pytest.mark.unit
@pytest.mark.parametrize(
    ("name", "what", "edit"), UNSEEN, ids=[f"{name}: {what}" for name, what, _ in UNSEEN]
)
def test_a_consistent_forgery_needs_a_signature(
    copied: Callable[[str], Copy], tmp_path: Path, name: str, what: str, edit: Edit
):
    copy = copied(name)
    public = create_key_pair(tmp_path / "key")
    sign(copy.path, read_private_key(tmp_path / "key"))
    assert copy.problems(public=public) == []
    document = deepcopy(copy.document)
    edit(document)
    assert document != copy.document
    copy.reseal(document)
    (copy.path / "result.sig").rename(tmp_path / "sig")
    assert copy.problems() == [], "docs/verify.md says that this is not seen"
    assert copy.problems(public=public) == ["result.sig is missing: the result is not signed."]
    (tmp_path / "sig").rename(copy.path / "result.sig")
    assert any("not the signature" in each for each in copy.problems(public=public)), what
    assert any("not the signature" in each for each in copy.problems()), "nor without the key"


class TestFiles:
    @pytest.mark.unit
    @pytest.mark.parametrize(
        "file", ["privacy-card.md", "privacy-card.json", "report.html", "model.pt"]
    )
    def test_another_file_does_not_verify(
        self, copied: Callable[[str], Copy], tmp_path: Path, file: str
    ):
        for spoil in ("removed", "emptied", "changed", "digest too", "linked"):
            copy = copied("fixed")
            path, content = copy.path / file, (copy.path / file).read_bytes()
            match spoil:
                case "removed":
                    path.unlink()
                case "emptied":
                    path.write_bytes(b"")
                case "changed":
                    path.write_bytes(content.replace(b"e", b"a", 1))
                case "digest too":
                    path.write_bytes(content.replace(b"e", b"a", 1) + b" ")
                    document = deepcopy(copy.document)
                    document["files"][file] = compute_digest(path.read_bytes())
                    if file == "model.pt":
                        path.write_bytes(b"PK" + content[:40])
                        document["files"][file] = compute_digest(path.read_bytes())
                        document["model"]["sha256"] = document["files"][file]
                    copy.write(document)
                case "linked":
                    (tmp_path / "elsewhere").write_bytes(content)
                    path.unlink()
                    path.symlink_to(tmp_path / "elsewhere")
            assert any(file in each for each in copy.problems())

    @pytest.mark.unit
    def test_the_list_of_digests_is_whole(self, copied: Callable[[str], Copy]):
        edits: tuple[Edit, ...] = (
            lambda d: d["files"].pop("report.html"),
            lambda d: d["files"].update({"../private/keys": "0" * 64}),
            lambda d: d["files"].update({"model.pt": "0" * 64}),
            lambda d: d["files"].clear(),
        )
        for edit in edits:
            copy = copied("fixed")
            edit(copy.document)
            copy.write(copy.document)
            assert copy.problems()

    @pytest.mark.unit
    def test_a_file_that_no_run_writes_is_told(self, copied: Callable[[str], Copy]):
        copy = copied("fixed")
        (copy.path / "about.html").write_text("Certified.")
        assert copy.problems() == ["'about.html' is in the folder, but no run writes it."]

    @pytest.mark.unit
    def test_weights_of_features_that_were_not_chosen_are_seen(self, copied: Callable[[str], Copy]):
        copy = copied("cfs")
        with np.load(copy.path / "model.npz") as found:
            weights, intercept = found["weights"], found["intercept"]
        for changed in (weights + 1.0, weights[:, :-1], weights[:1], weights.astype(int)):
            fitting = intercept[: len(changed)]
            (copy.path / "model.npz").write_bytes(pack_model(changed, fitting))
            copy.reseal(copy.document)
            assert any("model.npz" in each for each in copy.problems())

    @pytest.mark.unit
    def test_a_card_of_another_version_says_which_to_take(self, copied: Callable[[str], Copy]):
        copy = copied("fixed")
        copy.document["versions"]["pasearch"] = "0.0.1"
        copy.write(copy.document)
        assert any("verify it with that version" in each for each in copy.problems())


class TestAll:
    @pytest.mark.unit
    def test_the_price_follows_from_the_events_alone(self, runs: Runs):
        document = json.loads((runs["rs"] / "release" / "result.json").read_text())
        price, problems = check_price({name: document[name] for name in (
            "events", "price", "budget", "price_by_partition", "dataset")})  # fmt: skip
        assert problems == []
        assert price.epsilon == pytest.approx(document["price"]["epsilon"], rel=1e-9)
        lower = {**document, "price": {**document["price"], "epsilon": 0.99 * price.epsilon}}
        again, problems = check_price(lower)
        assert again == price
        assert [each.split()[0] for each in problems] == ["price.epsilon"]


def refusal(read: Callable[[Path], object], path: Path) -> str:
    """What a reader of results says when it refuses one; it may raise nothing else."""
    try:
        read(path)
    except UsageError as error:
        return str(error)
    return ""


HOSTILE: dict[str, Callable[[str], str]] = {
    "deep brackets": lambda text: "[" * 100_000 + "]" * 100_000,
    "brackets in a field": lambda text: text.replace(
        '"ledger": null', '"ledger": ' + "[" * 5000 + "]" * 5000
    ),
    "brackets just below the limit": lambda text: text.replace(
        '"ledger": null', '"ledger": ' + "[" * 900 + "]" * 900
    ),
    "a number of 4,300 digits": lambda text: text.replace('"n": 400', '"n": ' + "9" * 4300),
    "a number of 4,301 digits": lambda text: text.replace('"n": 400', '"n": ' + "9" * 4301),
    "a large number of events": lambda text: text.replace('"count": 1', '"count": ' + "9" * 400),
    "NaN": lambda text: text.replace('"n": 400', '"n": NaN'),
    "no JSON": lambda text: text[:-10],
    "a list": lambda text: "[]",
    "null": lambda text: "null",
}


@pytest.mark.unit
def test_a_malformed_file_is_one_message(copied: Callable[[str], Copy]):
    for name in ["fixed", "cfs"]:
        for how in HOSTILE:
            copy = copied(name)
            text = copy.file.read_text()
            assert HOSTILE[how](text) != text
            copy.file.write_text(HOSTILE[how](text))
            for read in (verify, load, load_result):
                told = refusal(read, copy.path)
                assert len(told) < 500
                assert "\n" not in told
            assert copy.problems(), how


@pytest.mark.unit
def test_the_model_is_in_its_own_folder(copied: Callable[[str], Copy]):
    for file in ["../private/keys", "/etc/passwd", "model.pt/../model.pt", "", "model.npz", 7, None,
             ["model.pt"], "model.pt\0", "x" * 5000]:  # fmt: skip
        copy = copied("fixed")
        copy.document["model"]["file"] = file
        copy.write(copy.document)
        with pytest.raises(UsageError, match=r"model\.file"):
            load(copy.path)
        assert any("model.file" in each for each in copy.problems())


@pytest.mark.unit
def test_a_malformed_schema_is_one_message(copied: Callable[[str], Copy]):
    for schema in (
        {}, {"kind": "table"}, {"kind": "arrays", "shape": 3}, {"kind": "arrays", "shape": [-1]},
        {"kind": "arrays", "shape": [3], "low": "a", "high": "b"}, {"kind": 3, "columns": None},
        {"kind": "table", "name": "x", "target": {"name": 3}, "columns": [], "official_test": 0},
        {"kind": "table", "name": "x", "target": None, "columns": 7, "official_test": 0},
        {"kind": "arrays", "shape": [10**9, 10**9], "low": 0, "high": 1, "classes": 2},
    ):  # fmt: skip
        for name in ["fixed", "cfs"]:
            copy = copied(name)
            copy.document["dataset"]["schema"] = schema
            copy.write(copy.document)
            with pytest.raises(UsageError):
                load(copy.path)
            with pytest.raises(UsageError):
                _ = load_result(copy.path).model
            assert copy.problems()


@pytest.mark.unit
def test_what_is_expected_of_a_field_is_said():
    with pytest.raises(UsageError, match=r"price\.epsilon is 'x': expected a number"):
        check_fields(
            {"price": {"epsilon": "x"}}, {"price": {"epsilon": RESULT_FIELDS["price"]["epsilon"]}}
        )
    with pytest.raises(UsageError, match=r"price\.epsilon is missing"):
        check_fields({"price": {}}, {"price": RESULT_FIELDS["price"]})
    with pytest.raises(UsageError, match=r"estimated_privately is 3: expected a list"):
        check_fields(
            {"estimated_privately": 3},
            {"estimated_privately": RESULT_FIELDS["estimated_privately"]},
        )
    assert short_repr("a\nb\x1b") == r"'a\nb\x1b'"
    assert len(short_repr("x" * 999)) < 100
    assert short_repr(10**5000).startswith("a very large")
    assert MAX_DEPTH < 900, "Python's own limit is about 1000"


ODD = (None, "x", -1, 0, 1e308, float("nan"), [], {}, 10**15, [[]])


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where a document has fields; of lists the first entry only."""
    found = [path] if path else []
    if isinstance(value, dict):
        found += [each for key in value for each in paths(value[key], (*path, key))]
    elif isinstance(value, list) and value:
        found += paths(value[0], (*path, 0))
    return found


@pytest.mark.slow
@pytest.mark.unit
@pytest.mark.parametrize(
    ("turn", "name"),
    [*enumerate(["rs", "paas", "recipes", "estimated_privately", "cfs", "pafs"])],
)
def test_no_odd_value_anywhere_passes_or_crashes(
    copied: Callable[[str], Copy], turn: int, name: str
):
    """Each run tries every third field: most fields are in all of them."""
    copy = copied(name)
    for number, path in [*enumerate(paths(copy.document))][turn % 3 :: 3]:
        document = deepcopy(copy.document)
        place = document
        for key in path[:-1]:
            place = place[key]
        odd = ODD[number % len(ODD)]
        if path[-1] == "noisy_correct" and odd in (None, -1, 0):
            odd = "x"  # a trial that lost may have had so few points, or have failed
        if place[path[-1]] == odd:
            continue
        place[path[-1]] = odd
        copy.write(document)
        where = ".".join(map(str, path))
        assert copy.problems(), f"{where}: {odd!r}"
        for read in (load, load_result):
            assert len(refusal(read, copy.path)) < 500


def keys_of_others(folder: Path) -> dict[str, Path]:
    """Files that are no ed25519 private key in PEM form."""
    plain, pem, pkcs8 = form.NoEncryption(), form.Encoding.PEM, form.PrivateFormat.PKCS8
    own = ed25519.Ed25519PrivateKey.generate()
    contents = {
        "empty": b"",
        "text": b"not a key\n",
        "other kind": rsa.generate_private_key(65537, 2048).private_bytes(pem, pkcs8, plain),
        "passphrase": own.private_bytes(pem, pkcs8, form.BestAvailableEncryption(b"secret")),
        "public": own.public_key().public_bytes(pem, form.PublicFormat.SubjectPublicKeyInfo),
        "der": own.private_bytes(form.Encoding.DER, pkcs8, plain),
    }
    found = {}
    for name, content in contents.items():
        found[name] = folder / name.replace(" ", "-")
        found[name].write_bytes(content)
    return {**found, "missing": folder / "missing", "folder": folder}


@pytest.mark.unit
def test_a_candidate_that_did_not_win_has_settings_too(copied: Callable[[str], Copy]):
    for odd in ODD:
        copy = copied("recipes")
        entries = copy.document["space"]["entries"]
        loser = next(
            each for each in entries if each["settings"] != copy.document["best"]["settings"]
        )
        loser["settings"]["learning_rate_scale"] = odd
        copy.write(copy.document)
        assert copy.problems()


@pytest.mark.unit
def test_bounds_and_bins_are_such_as_are_estimated(copied: Callable[[str], Copy]):
    for changed, told in [
        (lambda number: {"low": 32.1234}, "bounds that no estimate gives"),
        (lambda number: {"bins": len(number["bins"]) + 1}, "bins that no estimate gives"),
        (
            lambda number: {
                "bins": [number["high"] + each for each, _ in enumerate(number["bins"])]
            },
            "bins that no estimate gives",
        ),
    ]:
        copy = copied("cfs")
        columns = copy.document["dataset"]["schema"]["columns"]
        number = next(each for each in columns if each["kind"] == "number")
        assert isinstance(number["bins"], list), "it was estimated"
        number.update(changed(number))
        copy.write(copy.document)
        assert any(told in each for each in copy.problems())


class TestSignature:
    @pytest.mark.unit
    def test_a_pair_of_keys_signs_and_verifies(
        self, run: Callable[..., Any], copied: Callable[[str], Copy], tmp_path: Path
    ):
        copy = copied("fixed")
        code, out, _ = run("key", "mine.pem")
        assert (code, "mine.pem.pub" in out) == (0, True)
        assert (tmp_path / "mine.pem").stat().st_mode & 0o777 == 0o600
        code, out, _ = run("verify", copy.path)
        assert (code, "Not signed" in out) == (0, True)
        times = copy.file.stat().st_mtime, copy.path.stat().st_mtime
        assert run("sign", copy.path, "--key", "mine.pem")[0] == 0
        assert times == ((copy.path / "result.sig").stat().st_mtime, copy.path.stat().st_mtime)
        code, out, _ = run("verify", copy.path)
        assert (code, "a forger can sign" in out) == (0, True)
        code, out, _ = run("verify", copy.path, "--public-key", "mine.pem.pub")
        assert (code, "Signed with the given key" in out) == (0, True)
        run("key", "other.pem")
        code, _, err = run("verify", copy.path, "--public-key", "other.pem.pub")
        assert (code, "another key" in err) == (2, True)
        assert (tmp_path / "mine.pem").read_bytes() not in [
            each.read_bytes() for each in copy.path.iterdir()
        ]

    @pytest.mark.unit
    def test_what_is_no_key_is_one_message(
        self, run: Callable[..., Any], runs: Runs, tmp_path: Path
    ):
        for kind, path in keys_of_others(tmp_path).items():
            for read in (
                (read_private_key,) if kind == "public" else (read_private_key, read_public_key)
            ):
                with pytest.raises(UsageError, match="expected") as caught:
                    read(path)
                assert str(path) in str(caught.value)
            before = sorted(tmp_path.iterdir())
            for asked in (
                ("arch", "digits", "--eps", 2, "--sign", path, "--out", "x"),
                ("train", "digits", "--eps", 2, "--sign", path, "--out", "x"),
                ("features", "digits", "--sign", path, "--out", "x"),
                ("sign", runs["fixed"], "--key", path),
            ):
                code, out, err = run(*asked)
                assert (code, out) == (2, ""), asked[0]
                assert err.startswith("Error: ")
            assert sorted(tmp_path.iterdir()) == before

    @pytest.mark.unit
    def test_another_signers_signature_is_not_replaced(
        self, tmp_path: Path, copied: Callable[[str], Copy]
    ):
        copy = copied("fixed")
        for name in ("mine", "other"):
            create_key_pair(tmp_path / name)
        file = sign(copy.path, read_private_key(tmp_path / "mine"))
        signed = file.read_bytes()
        assert sign(copy.path, read_private_key(tmp_path / "mine")) == file, (
            "the same key may again"
        )
        with pytest.raises(UsageError, match="another signer's"):
            sign(copy.path, read_private_key(tmp_path / "other"))
        assert file.read_bytes() == signed

    @pytest.mark.unit
    def test_a_run_is_signed_when_it_ends(self, run: Callable[..., Any], tmp_path: Path):
        run("key", "k")
        asked = ("--eps", 2, "--steps", 2, "--sign", "k", "--quiet")
        assert run("train", "digits", *asked, "--out", "t")[0] == 0
        assert run("features", "digits", "--method", "all", "--sign", "k", "--out", "f")[0] == 0
        for name in ("t", "f"):
            assert run("verify", name, "--public-key", "k.pub")[0] == 0
            release = tmp_path / name / "release"
            assert len({path.stat().st_mtime for path in release.iterdir()}) == 1
            secret = (tmp_path / "k").read_bytes().splitlines()[1]
            for file in (tmp_path / name).rglob("*"):
                assert not (file.is_file() and secret in file.read_bytes()), file

    @pytest.mark.unit
    def test_what_does_not_verify_is_not_signed(
        self, run: Callable[..., Any], copied: Callable[[str], Copy]
    ):
        copy = copied("fixed")
        copy.document["price"]["epsilon"] = 0.1
        copy.write(copy.document)
        run("key", "k")
        code, _, err = run("sign", copy.path, "--key", "k")
        assert (code, "not signed" in err) == (2, True)
        assert not (copy.path / "result.sig").exists()

    @pytest.mark.unit
    def test_one_bit_decides(self, copied: Callable[[str], Copy], tmp_path: Path):
        copy = copied("fixed")
        public = create_key_pair(tmp_path / "k")
        sign(copy.path, read_private_key(tmp_path / "k"))
        found = read_signature(copy.path)
        assert found is not None
        assert Signature.read(found.text()) == found
        for place in (0, 31, 63):
            value = bytearray(found.value)
            value[place] ^= 1
            changed = Signature(key=found.key, value=bytes(value))
            (copy.path / "result.sig").write_text(changed.text())
            assert copy.problems(public=public)
        (copy.path / "result.sig").write_text(found.text())
        assert copy.problems(public=public) == []
        copy.file.write_text(copy.file.read_text() + "\n")
        assert copy.problems(public=public) == [
            "result.json is not formatted by pasearch (a duplicate field, or other spaces).",
            "result.sig is not the signature of this result.json.",
        ]

    @pytest.mark.unit
    def test_a_key_is_not_written_over(self, tmp_path: Path):
        create_key_pair(tmp_path / "k")
        before = (tmp_path / "k").read_bytes()
        with pytest.raises(UsageError, match="exists"):
            create_key_pair(tmp_path / "k")
        (tmp_path / "l.pub").touch()
        with pytest.raises(UsageError, match="exists"):
            create_key_pair(tmp_path / "l")
        with pytest.raises(UsageError, match="cannot be written"):
            create_key_pair(tmp_path / "nowhere" / "k")
        assert (tmp_path / "k").read_bytes() == before
        assert not (tmp_path / "l").exists()


@pytest.mark.unit
def test_the_command_tells_every_problem_on_a_line(copied: Callable[[str], Copy]):
    copy = copied("fixed")
    copy.document["price"]["unit"] = "one family"
    copy.write(copy.document)
    done = CliRunner().invoke(app, ["verify", str(copy.path)])
    assert isinstance(done.exception, UsageError)
    head, *lines = str(done.exception).splitlines()
    assert head.endswith("failed verification:")
    assert all(each.startswith("  - ") for each in lines)
    assert len(lines) >= 3


class TestBytes:
    @pytest.mark.unit
    def test_a_result_in_other_bytes_is_seen(self, copied: Callable[[str], Copy]):
        for change in [
            lambda text: text.replace("{\n", '{\n  "price": {"epsilon": 0.01},\n', 1),
            lambda text: text.replace('"price": {', '"price": {\n    "epsilon": 0.01,', 1),
            lambda text: text + " ",
            lambda text: "\ufeff" + text,
            lambda text: json.dumps(json.loads(text)),
        ]:
            copy = copied("fixed")
            copy.file.write_text(change(copy.file.read_text()), encoding="utf-8")
            assert any("not formatted by pasearch" in each for each in copy.problems())

    @pytest.mark.unit
    def test_a_result_behind_a_link_is_refused(self, copied: Callable[[str], Copy]):
        copy = copied("fixed")
        elsewhere = copy.path.parent / "elsewhere.json"
        copy.file.rename(elsewhere)
        copy.file.symlink_to(elsewhere)
        assert "it is a link" in copy.problems()[0]


class TestLedger:
    @pytest.mark.unit
    def test_the_price_is_compared_at_the_ledgers_delta(self, copied: Callable[[str], Copy]):
        copy = copied("fixed")
        document = copy.document
        own = document["price"]
        larger = own["delta"] * 1.5
        at_it, _ = price_partitions(compose_events(document), larger)
        assert at_it.epsilon < own["epsilon"]
        for epsilon, fits in ((at_it.epsilon, True), (at_it.epsilon * 0.99, False)):
            changed = {**document, "ledger": {"epsilon": epsilon, "delta": larger}}
            told = _check_ledger_total(changed)
            assert (told == []) == fits


class TestCost:
    @pytest.mark.unit
    def test_events_of_no_plan_are_not_priced(self, copied: Callable[[str], Copy]):
        for many in [2, 10**5, 10**7, 10**12]:
            copy = copied("fixed")
            before = copy.document["price"]["epsilon"]
            copy.document["events"][0]["count"] = many
            copy.write(copy.document)
            price, problems = verify(copy.path)
            assert price.epsilon == pytest.approx(before)
            assert any("events" in each or "releases" in each for each in problems)

    @pytest.mark.unit
    def test_a_file_of_900_gb_is_not_read(self, copied: Callable[[str], Copy]):
        for name in ["model.pt", "report.html", "privacy-card.md"]:
            copy = copied("fixed")
            with (copy.path / name).open("r+b") as file:
                file.truncate(900 * 10**9)
            assert any(f"{name} is missing, not a regular file" in each for each in copy.problems())


class TestPayload:
    @staticmethod
    def problems(copy: Copy, content: bytes) -> str:
        (copy.path / model_file_name(copy.document)).write_bytes(content)
        copy.reseal(copy.document)
        return "\n".join(copy.problems())

    @pytest.mark.unit
    def test_anything_beside_the_weights_is_seen(self, copied: Callable[[str], Copy]):
        for name in ["fixed", "cfs"]:
            copy = copied(name)
            content = (copy.path / model_file_name(copy.document)).read_bytes()
            buffer = io.BytesIO(content)
            with zipfile.ZipFile(buffer, "a") as archive:
                archive.writestr("records.csv", "1,2,3")
            for other in (buffer.getvalue(), b"#!" + content, content + b"more"):
                assert model_file_name(copy.document) in self.problems(copy, other)

    @pytest.mark.unit
    def test_other_tensors_are_seen(self, copied: Callable[[str], Copy]):
        copy = copied("fixed")
        state = torch.load(copy.path / "model.pt", weights_only=True)
        first = next(iter(state))
        large = torch.zeros(10_000)
        view = large[: state[first].numel()].view_as(state[first])
        named = type(state)(state)
        named._metadata = {"": {"version": 1, "name": "a person"}}
        forged = {
            "double": {key: value.double() for key, value in state.items()},
            "a view of more": {**state, first: view},
            "a plain table": dict(state),
            "metadata": named,
            "no numbers": {key: value * math.nan for key, value in state.items()},
        }
        for what, other in forged.items():
            buffer = io.BytesIO()
            torch.save(other, buffer)
            assert "model.pt" in self.problems(copy, buffer.getvalue()), what

    @pytest.mark.unit
    def test_compressed_weights_are_refused(self, copied: Callable[[str], Copy]):
        copy = copied("fixed")
        buffer = io.BytesIO()
        with (
            zipfile.ZipFile(copy.path / "model.pt") as old,
            zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as new,
        ):
            for each in old.infolist():
                new.writestr(each.filename, old.read(each))
            new.writestr("archive/zeros", bytes(10**6))
        assert "compressed" in self.problems(copy, buffer.getvalue())


class TestUnused:
    @pytest.mark.unit
    def test_what_nothing_uses_is_seen(self, copied: Callable[[str], Copy]):
        copy = copied("fixed")
        copy.document["plan"]["score_epsilon"] = 0.5
        copy.reseal(copy.document)
        assert "plan.score_epsilon is given, but nothing is scored." in copy.problems()


class TestReach:
    """How far the noise of a table reaches: never less than its law says, and not much more."""

    @pytest.mark.oracle
    def test_of_one_count(self):
        for epsilon in [0.05, 0.3, 2.0, 8.0]:
            most = noise_reach(1, epsilon)
            assert 2 * dlaplace.sf(most, epsilon) <= MAX_TAIL_PROBABILITY
            assert 2 * dlaplace.sf(0.8 * most - 2, epsilon) > MAX_TAIL_PROBABILITY, (
                "and it is not idle"
            )

    @pytest.mark.oracle
    def test_of_a_sum(self):
        for cells in [2, 40]:
            for epsilon in [0.3, 2.0]:
                draw = np.random.default_rng(0)
                sums = dlaplace.rvs(epsilon, size=(40_000, cells), random_state=draw).sum(axis=1)
                for often in (0.5, 0.1, 0.01):
                    most = noise_reach(cells, epsilon, often)
                    assert np.mean(np.abs(sums) > most) <= often
                    assert most <= 3 * np.quantile(np.abs(sums), 1 - often) + 2


@pytest.mark.unit
def test_a_table_of_public_data_is_held_against_its_exact_score(copied: Callable[[str], Copy]):
    """Its headline follows from it, and lies within the noise of the exact one, or does not."""
    for forged in [40, -40]:
        copy = copied("stw")
        document = deepcopy(copy.document)
        score = document["score"]
        score["exact"] = 0.5 - math.copysign(0.4, forged)
        score["cells"] = [[0] * 20 for _ in range(2)]
        cell(document, 0, 0, score["of"] if forged > 0 else 0)
        found = [*check_cells({**score, "points": sum(score["cells"][0])}, AccuracyByLogOdds())]
        assert found == [
            f"score.points is {sum(score['cells'][0])}: its noise never reaches so far."
        ]


@pytest.mark.unit
def test_a_failed_network_with_a_table_of_right_answers_is_seen(copied: Callable[[str], Copy]):
    copy = copied("fixed")
    state = torch.load(copy.path / "model.pt", weights_only=True)
    for value in state.values():
        value.fill_(math.nan)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    (copy.path / "model.pt").write_bytes(buffer.getvalue())
    copy.reseal(deepcopy(copy.document))
    assert any("non-finite weights" in each for each in copy.problems())
