"""`pasearch train`: one network by one recipe, paid for whatever the recipe reads."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from doubles import Untouchable

from pasearch import Budget, SearchResult, verify
from pasearch.accounting.events import Composition, FilteredReleases, SelfComposition
from pasearch.api import search as api
from pasearch.api.lifecycle import Prepared, read_request
from pasearch.api.request import SearchRequest, TrainRequest, list_options
from pasearch.api.resume import REQUESTS, resume
from pasearch.api.search import prepare
from pasearch.cli.options import flag_name
from pasearch.data.partitions import Dataset
from pasearch.data.schema import Schema
from pasearch.errors import BudgetError, InterruptedRunError, UsageError
from pasearch.progress import Progress
from pasearch.runs.ledger import Ledger
from pasearch.search import engine
from pasearch.search.plan import VALIDATION_QUERY_LINE
from pasearch.training import presets
from pasearch.training.presets import (
    FORBIDDEN_FIELDS,
    PRESETS,
    SETTABLE_FIELDS,
    read_recipe,
    resolve_preset,
    select_settable_fields,
)

NETWORK = {"layers": [{"kind": "dense", "units": 6}]}
BUDGET = Budget(4.0, 1e-4)
SEARCHED = sorted(
    {name for name, _, _ in list_options(SearchRequest)}
    - {name for name, _, _ in list_options(TrainRequest)}
)
SCHEMA = Schema(shape=(5,), low=-3.0, high=3.0, classes=3)
QUERYING = ("sa-dpsgd", "dynamic-validation")


def people(n: int = 400) -> Dataset:
    generator = np.random.default_rng(0)
    y = generator.integers(0, 3, n)
    x = generator.normal(size=(n, 5)) * 0.5
    x[np.arange(n), y] += 2.0
    return Dataset(name="people", schema=SCHEMA, features=x.clip(-3, 3), labels=y)


def asked(recipe: Any = "default", data: Dataset | None = None, **options: Any) -> Prepared:
    settings: dict[str, Any] = {"architecture": NETWORK, "steps": 24, "batch": 60, "seed": 1}
    return prepare(data or people(), budget=BUDGET, recipe=recipe, **{**settings, **options})


def run(prepared: Prepared, out: Path, progress: Progress | None = None) -> SearchResult:
    return api.run(prepared, out=out, progress=progress)


@pytest.fixture
def others(tmp_path: Path) -> Path:
    data = people(150)
    path = tmp_path / "others.npz"
    found: list[np.ndarray] = []
    public = Dataset(
        name="o", schema=SCHEMA, features=data.features, labels=data.labels, public=True
    )
    public.completed(lambda schema, x, y: (found.extend((x, y)), schema)[1])
    np.savez(path, x=found[0], y=found[1], bounds=np.array([-3.0, 3.0]), classes=3)
    return path


class TestEveryRecipe:
    @pytest.mark.contract
    @pytest.mark.parametrize("name", PRESETS)
    def test_trains_within_its_budget_and_verifies(self, name: str, tmp_path: Path):
        result = run(asked(name), out=tmp_path / "run")
        price, problems = verify(tmp_path / "run")
        assert problems == []
        assert 0.9 * BUDGET.epsilon < price.epsilon <= BUDGET.epsilon
        assert result.document["recipe"]["noise_multiplier"] > 0
        assert 0.0 <= result.test_accuracy <= 1.0
        assert "noise multiplier" in result.card
        looks = [e for e in result.document["events"] if e["name"] == VALIDATION_QUERY_LINE]
        assert bool(looks) == (name in QUERYING)
        assert all(event["partition"] == "validation" for event in looks)

    @pytest.mark.contract
    @pytest.mark.parametrize("name", PRESETS)
    def test_is_planned_without_touching_a_value(self, name: str):
        data = Dataset(
            name="people",
            schema=SCHEMA,
            features=Untouchable((400, 5), "f8"),  # type: ignore[arg-type]
            labels=Untouchable((400,), "i8"),  # type: ignore[arg-type]
        )
        # The plan of the test above: its prices are known.
        plan = asked(name, data).plan
        assert plan.price.epsilon <= BUDGET.epsilon


class TestLooks:
    @pytest.mark.contract
    @pytest.mark.parametrize("name", QUERYING)
    def test_each_is_charged_before_validation_opens(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        prepared = asked(name)
        (line,) = (each for each in prepared.plan.lines if each.name == VALIDATION_QUERY_LINE)
        spent: list[str] = []
        charge = Ledger._charge

        def watched(self: Ledger, line: str, names: list[str], keys: list[str]) -> None:
            charge(self, line, names, keys)
            if line == VALIDATION_QUERY_LINE:
                spent.extend(keys)
                assert names == ["validation"]

        monkeypatch.setattr(Ledger, "_charge", watched)
        run(prepared, out=tmp_path / "run")
        assert 2 <= len(set(spent)) <= line.count
        if name == "sa-dpsgd":
            assert len(set(spent)) == line.count

    @pytest.mark.contract
    @pytest.mark.parametrize(
        ("screening", "public", "every"),
        [(None, False, 3), ({"every": 1}, False, 1), ({"every": 20}, False, 20), (None, True, 1)],
    )
    def test_interval_of_screening(
        self, screening: dict[str, int] | None, public: bool, every: int, others: Path
    ):
        """Public queries after every update, as in the paper; private ones fewer, and charged."""
        recipe: dict[str, Any] = {"preset": "sa-dpsgd"}
        if screening is not None:
            recipe["screening"] = {"q0": 10.0, "mu0": 10, **screening}
        plan = asked(recipe, steps=60, **({"validate_on": others} if public else {})).plan
        assert plan.recipes[0].screening is not None
        assert plan.recipes[0].screening.every == every
        charged = [line.count for line in plan.lines if line.name == VALIDATION_QUERY_LINE]
        assert charged == ([] if public else [60 // every + 1])

    @pytest.mark.contract
    def test_one_more_than_planned_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        """Teeth: an engine that looks twice as often runs out of what was charged."""
        query = engine.SearchEngine._make_validation_query

        def greedy(self: Any, *arguments: Any) -> Callable[[Any, int], float] | None:
            own = query(self, *arguments)
            assert own is not None
            return lambda network, k: own(network, 2 * k) + 0 * own(network, 2 * k + 1)

        monkeypatch.setattr(engine.SearchEngine, "_make_validation_query", greedy)
        with pytest.raises(BudgetError, match=VALIDATION_QUERY_LINE):
            run(asked("sa-dpsgd"), out=tmp_path / "run")

    @pytest.mark.contract
    def test_are_noisy(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        """Teeth: what the training is told is not what the records say."""
        exact: list[int] = []
        told: list[float] = []
        measure = engine.sum_loss_points
        query = engine.SearchEngine._make_validation_query

        def measured(*arguments: Any, **options: Any) -> int:
            exact.append(measure(*arguments, **options))
            return exact[-1]

        def watched(self: Any, *arguments: Any) -> Callable[[Any, int], float] | None:
            own = query(self, *arguments)
            assert own is not None

            def listened(network: Any, k: int) -> float:
                told.append(own(network, k))
                return told[-1]

            return listened

        monkeypatch.setattr(engine, "sum_loss_points", measured)
        monkeypatch.setattr(engine.SearchEngine, "_make_validation_query", watched)
        prepared = asked("sa-dpsgd")
        run(prepared, out=tmp_path / "run")
        slots, noise = prepared.plan.split.validation, prepared.plan.validation_noise
        assert noise is not None
        errors = np.array(told) * 100 * slots / 4.0 - np.array(exact)
        assert len(errors) == 25
        scale = noise.standard_deviation
        assert 0.4 * scale < float(np.std(errors)) < 2.5 * scale

    @pytest.mark.contract
    @pytest.mark.parametrize("name", QUERYING)
    def test_at_public_data_cost_nothing(self, name: str, others: Path, tmp_path: Path):
        prepared = asked(name, validate_on=others)
        assert VALIDATION_QUERY_LINE not in [line.name for line in prepared.plan.lines]
        assert "validation" not in {line.partition for line in prepared.plan.lines}
        document = run(prepared, out=tmp_path / "run").document
        assert document["validated_on"] == "others"
        assert verify(tmp_path / "run")[1] == []

    @pytest.mark.unit
    def test_with_a_search_elsewhere_are_refused(self, others: Path):
        with pytest.raises(UsageError, match="`search_on=` trains on the public data"):
            prepare(
                people(), budget=BUDGET, recipe="dynamic-validation", search_on=others,
                validate_on=others, space="fcn",
            )  # fmt: skip

    @pytest.mark.unit
    @pytest.mark.parametrize("name", QUERYING)
    def test_at_private_records_are_refused_in_a_search(self, name: str):
        with pytest.raises(UsageError, match=r"validate_on=|nothing is searched|search_on="):
            prepare(people(), budget=BUDGET, recipe=name, strategy="rs", space="fcn", steps=24)

    @pytest.mark.contract
    def test_at_a_public_table_complete_the_schema(self, tmp_path: Path):
        """Nothing is estimated or read of the private table: its values change no number."""
        generator = np.random.default_rng(0)

        def table(name: str, n: int, top: float) -> Path:
            rows = [f"{top * x:.3f},{'Rome' if x > 0.5 else 'Oslo'},{'ab'[int(x > 0.3)]}"
                    for x in np.r_[0.0, generator.random(n - 2), 1.0]]  # fmt: skip
            path = tmp_path / f"{top:g}" / name
            path.parent.mkdir()
            path.write_text("\n".join(["age,city,y", *rows]))
            return path

        others = table("others.csv", 150, 80.0)

        def planned(data: Path, **options: Any) -> Prepared:
            return prepare(
                data, budget=BUDGET, recipe="sa-dpsgd", architecture=NETWORK, steps=24, batch=60,
                **options,
            )  # fmt: skip

        tables = [table("people.csv", 400, top) for top in (60.0, 1000.0)]
        prepared = [planned(each, validate_on=others) for each in tables]
        plans = [each.plan for each in prepared]
        columns = {column["name"]: column for column in plans[0].schema.to_json()["columns"]}
        assert (columns["age"]["low"], columns["age"]["high"]) == (0.0, 80.0)
        assert columns["city"]["categories"] == ["Oslo", "Rome"]
        assert plans[0].schema == plans[1].schema
        assert plans[0].assumed_public == ("everything undeclared, from the public data others",)
        assert plans[0].prices == plans[1].prices
        assert {line.partition for line in plans[0].lines} == {"train", "test"}
        estimated = planned(tables[0]).plan
        assert estimated.schema_estimate is not None
        assert plans[0].schema_estimate is None
        document = run(prepared[1], out=tmp_path / "run").document
        assert document["validated_on"] == "others"
        assert verify(tmp_path / "run")[1] == []


class TestPlan:
    @pytest.mark.unit
    def test_a_validation_driven_schedule_is_charged_as_a_filter(self):
        plan = asked("dynamic-validation").plan
        (line,) = (each for each in plan.lines if each.partition == "train")
        assert isinstance(line.event, FilteredReleases)
        assert plan.prices[1]["train"].accountant.startswith("RDP")

    @pytest.mark.unit
    def test_a_schedule_is_charged_epoch_by_epoch(self):
        plan = asked("dynamic-time").plan
        (line,) = (each for each in plan.lines if each.partition == "train")
        assert isinstance(line.event, Composition)
        assert all(isinstance(each, SelfComposition) for each in line.event.events)
        assert sum(each.count for each in line.event.events) == 24  # type: ignore[union-attr]
        (claim,) = plan.list_published_bounds()
        assert claim.source == "Yu et al. Theorem 3"

    @pytest.mark.unit
    def test_the_papers_price_of_screening_stands_beside_ours(self):
        (claim,) = asked("sa-dpsgd").plan.list_published_bounds()
        assert claim.source == "Fu et al. Theorem 1"
        assert "half of the updates" in claim.describe()
        assert "not a valid bound" in claim.describe()

    @pytest.mark.unit
    def test_a_frozen_layer_and_another_activation_are_the_recipes(self):
        layers = asked("rwt").plan.space.candidate((0,)).architecture.layers
        assert [layer.trainable for layer in layers] == [False]  # type: ignore[union-attr]
        deep = {"layers": [{"kind": "dense", "units": units} for units in (8, 7, 6)]}
        layers = asked("rwt", architecture=deep).plan.space.candidate((0,)).architecture.layers
        flags = [layer.trainable for layer in layers]  # type: ignore[union-attr]
        assert flags == [False, False, True], "the last two layers, as `crossover +rwt`"
        relu = {"layers": [{"kind": "dense", "units": 6, "activation": "relu"}]}
        layers = asked("dpsgd-tanh", architecture=relu).plan.space.candidate((0,)).architecture
        assert layers.layers[0].activation == "tanh"  # type: ignore[union-attr]

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("options", "match"),
        [
            ({"strategy": "rs"}, "`architecture=` gives"),
            ({"space": "fcn"}, "`architecture=` gives"),
            ({"recipe": "rwt", "architecture": None, "strategy": "rs"}, "The recipe rwt changes"),
            ({"recipe": "nonsense"}, "Recipe 'nonsense' is not known"),
            ({"architecture": {"layers": 3}}, "list of layers"),
            ({"architecture": "no.toml"}, "no.toml"),
            ({"recipe": "auto-s", "validate_on": "digits"}, "this recipe makes none"),
            ({"recipe": {"preset": {"name": "dpsgd"}}}, "is not known"),
            ({"recipe": {"bounding": "flat"}}, "expected a table, such as .* name = .flat."),
            ({"recipe": {"schedule": {"name": "time"}}}, "'time' lacks rate"),
            ({"recipe": {"preset": "dpsgd", "noise_multiplier": 1.0}}, "calibrated to the budget"),
        ],
    )
    def test_what_does_not_go_together_is_refused(self, options: dict[str, Any], match: str):
        with pytest.raises(UsageError, match=match):
            asked(**{"recipe": "default", **options})


class TestEncoded:
    @pytest.mark.contract
    @pytest.mark.parametrize(
        ("recipe", "law", "denoised"),
        [
            ({"preset": "encoded-student-t", "denoising": {}}, "student-t noise (freedom 9)", True),
            ({"preset": "encoded-laplace"}, "laplace noise", False),
            ({"preset": "encoded-gaussian", "denoising": {"relative": False}}, "", True),
            ({"preset": "denoised-gaussian"}, "", True),
            ({"preset": "dpsgd"}, "", False),
        ],
    )
    def test_card_and_report_say_what_was_done(
        self, recipe: dict[str, Any], law: str, denoised: bool, tmp_path: Path
    ):
        result = run(asked(recipe), out=tmp_path / "run")
        report = (tmp_path / "run" / "release" / "report.html").read_text()
        encoded = recipe["preset"].startswith("encoded")
        for page in (result.card.lower(), report.lower()):
            words = "clamped, rank by rank, to the nearest of 1,000 public vectors of norm 1"
            assert (words in page) == encoded
            assert ("with the fisher information of" in page) == bool(law)
            assert law in page
            assert (
                "multiplied by its distance from pure noise, at no privacy cost" in page
            ) == denoised
        if law:
            (event,) = (each for each in result.document["events"] if each["name"] == "training")
            assert '"additive"' in json.dumps(event)
            assert recipe["preset"].removeprefix("encoded-") in json.dumps(event)


class TestViews:
    @pytest.mark.contract
    @pytest.mark.parametrize(
        ("shift", "flip", "size"), [(3, False, 4), (4, False, 4), (4, True, 4), (10**12, False, 4)]
    )
    def test_a_shift_out_of_sight_is_refused_before_a_value_is_read(
        self, shift: int, flip: bool, size: int
    ):
        data = Dataset(
            name="images",
            schema=Schema(shape=(8, 8), low=0.0, high=1.0, classes=3),
            features=Untouchable((400, 8, 8), "f8"),  # type: ignore[arg-type]
            labels=Untouchable((400,), "i8"),  # type: ignore[arg-type]
        )

        def plan() -> None:
            prepare(
                data, budget=BUDGET, architecture={**NETWORK, "front_end": "max_pool:2"}, steps=24,
                recipe={"preset": "dpsgd", "augmentation": {"shift": shift, "flip": flip}},
            )  # fmt: skip

        if shift < size:
            plan()
            return
        with pytest.raises(UsageError, match=f"{size} x {size}: a view would show nothing"):
            plan()

    @pytest.mark.contract
    @pytest.mark.parametrize("shift", [-1, 1.5, True, "2"])
    def test_a_shift_that_is_no_number_of_pixels_is_refused(self, shift: object):
        with pytest.raises(UsageError, match=r"shift is .*: expected an integer, 0 or above"):
            asked({"preset": "dpsgd", "augmentation": {"shift": shift}})


class TestSearch:
    @pytest.mark.contract
    @pytest.mark.parametrize("name", ["auto-s", "adaptive-flat", "dynamic-step"])
    def test_candidates_are_trained_by_the_recipe(self, name: str, tmp_path: Path):
        prepared = prepare(
            people(), budget=BUDGET, recipe=name, strategy="rs", candidates=2, space="fcn",
            steps=12, batch=60, seed=1, search_share=0.3,
        )  # fmt: skip
        document = run(prepared, out=tmp_path / "run").document
        assert document["price"]["epsilon"] <= BUDGET.epsilon
        assert verify(tmp_path / "run")[1] == []


class TestResume:
    @pytest.mark.contract
    @pytest.mark.parametrize("name", ["sa-dpsgd", "rwt"])
    def test_an_interrupted_training_is_finished_and_pays_nothing_twice(
        self, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        class Stops(Progress):
            def step(self, finished: int, total: int) -> None:
                if finished == 15:
                    raise KeyboardInterrupt

        data = people()
        settings: dict[str, Any] = {
            "architecture": NETWORK, "steps": 24, "batch": 60, "seed": 1, "recipe": name,
        }  # fmt: skip
        whole = run(prepare(data, budget=BUDGET, **settings), out=tmp_path / "whole").document
        path = tmp_path / "broken"
        with pytest.raises(InterruptedRunError):
            run(prepare(data, budget=BUDGET, **settings), out=path, progress=Stops())
        request: Any = read_request(path / "private", REQUESTS, data)
        assert request.recipe == [{"preset": name}]
        resumed = resume(path, data=people()).document
        assert resumed["model"]["sha256"] == whole["model"]["sha256"]


class TestCommand:
    @pytest.fixture
    def command(self, run: Any) -> Any:
        return run

    @pytest.mark.contract
    def test_trains_an_architecture_of_a_file(self, command: Any, tmp_path: Path):
        (tmp_path / "net.toml").write_text('[[layers]]\nkind = "dense"\nunits = 8\n')
        (tmp_path / "mine.toml").write_text('preset = "auto-s"\nsteps = 8\n')
        code, out, err = command(
            "train", "--eps", 4, "--architecture", "net.toml", "--recipe", "mine.toml",
            "--out", "run", "--verbose",
        )  # fmt: skip
        assert code == 0, err
        assert "8 steps" in out
        assert "each gradient scaled to about norm 1, large or small (AUTO-S, gamma 0.01)" in out
        assert re.search(r"^Model     MLP with 8 \w+ units \(data-independent choice\)$", out, re.M)
        assert not re.search(r"^(Strategy|Winner|Space) ", out, re.M), "nothing is searched"
        assert re.search(r"^Model: MLP with 8 \w+ units \(", out, re.M)
        document = json.loads((tmp_path / "run/release/result.json").read_text())
        assert document["best"]["layers"][0]["units"] == 8
        assert document["recipe"]["steps"] == 8
        assert document["recipe"]["name"].startswith("auto-s: ")
        assert document["task"] == "training"
        for file in ("privacy-card.md", "report.html"):
            shown = (tmp_path / "run/release" / file).read_text()
            assert "architecture search" not in shown.lower(), file

    @pytest.mark.slow
    @pytest.mark.contract
    def test_a_run_that_ends_with_its_budget_says_how_far_it_came(
        self, command: Any, tmp_path: Path
    ):
        code, out, err = command(
            "train", "--eps", 4, "--recipe", "dynamic-validation", "--steps", 40, "--out", "run"
        )
        assert code == 0, err
        made = json.loads((tmp_path / "run/release/result.json").read_text())["recipe"][
            "steps_made"
        ]
        assert 1 <= made <= 40
        words = f"{made} of at most 40"
        assert f"{words} steps" in out
        for file in ("privacy-card.md", "report.html"):
            assert words in (tmp_path / "run/release" / file).read_text(), file

    @pytest.mark.contract
    @pytest.mark.parametrize("option", SEARCHED)
    def test_an_option_of_a_search_is_refused_in_words(self, command: Any, option: str):
        name = flag_name(option)
        for given in ((name, "rs"), (f"{name}=rs",)):
            code, out, err = command("train", "--eps", 4, *given)
            assert (code, out) == (2, "")
            assert f"{name} is an option of a search" in err
            assert "pasearch train` trains one network" in err
            assert "`pasearch arch`" in err
        assert "No such option" not in command("arch", "--dry-run", name, "1")[2]

    @pytest.mark.contract
    @pytest.mark.parametrize("name", PRESETS)
    def test_a_recipe_is_shown_as_a_file_that_recipe_takes(
        self, command: Any, name: str, tmp_path: Path
    ):
        code, out, _ = command("recipes", name)
        assert code == 0
        own = resolve_preset({"preset": name})
        for text in (out, out.replace("\n# ", "\n")):
            (tmp_path / "mine.toml").write_text(text)
            read = resolve_preset(read_recipe(tmp_path / "mine.toml"))
            assert {key: read[key] for key in own} == own
        code, out, _ = command("recipes", name, "--json")
        read = resolve_preset(json.loads(out))
        assert code == 0
        assert {key: read[key] for key in own} == own

    @pytest.mark.unit
    def test_a_recipe_that_there_is_not_is_refused(self, command: Any):
        code, out, err = command("recipes", "nothing")
        assert (code, out, "'nothing' is not known" in err) == (2, "", True)

    @pytest.mark.contract
    @pytest.mark.parametrize("more", [("train", "--dry-run"), ("plan", "arch")])
    def test_what_a_plan_says_of_a_recipe_a_file_may_say(self, command: Any, more: Any):
        code, out, err = command(*more, "--eps", 4, "--steps", 30, "--recipe", "dpsgd", "--json")
        assert code == 0, err
        told = json.loads(out)["recipe"]
        assert "noise_multiplier" not in told
        assert resolve_preset(told)["steps"] == 30

    @pytest.mark.contract
    def test_what_a_result_says_and_a_file_may_not_is_refused_with_the_reason(self, tmp_path: Path):
        recipe = run(asked(), out=tmp_path / "run").document["recipe"]
        read_recipe(select_settable_fields(recipe))
        for name in set(recipe) - SETTABLE_FIELDS:
            with pytest.raises(
                UsageError, match=f"cannot set {name}: {FORBIDDEN_FIELDS[name][:20]}"
            ):
                read_recipe({name: recipe[name]})

    @pytest.mark.unit
    @pytest.mark.parametrize(
        ("more", "shown"), [((), True), (("--quiet",), False), (("--json",), False)]
    )
    def test_a_schedule_that_takes_long_to_price_is_announced_once(
        self, command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: Any, shown: bool
    ):
        monkeypatch.setattr(presets, "MIN_ANNOUNCED_LEVELS", 5)
        (tmp_path / "mine.toml").write_text('schedule = { name = "time", rate = 0.1 }')
        asks = ("train", "--eps", 4, "--recipe", "mine.toml", "--batch", 400, "--dry-run", *more)
        for steps, many in ((20, True), (4, False)):
            code, out, err = command(*asks, "--steps", steps)
            assert code == 0
            assert "noise levels" not in out
            assert err.count("privacy cost of 5 noise levels") == (shown and many)
        assert not logging.getLogger("pasearch").handlers

    @pytest.mark.unit
    def test_recipes_lists_every_preset_and_every_conflict(self, command: Any):
        from pasearch.training.recipe import STAGE_CONFLICTS

        code, out, _ = command("recipes")
        assert code == 0
        assert all(name in out for name in PRESETS)
        assert all(reason in out for reason in STAGE_CONFLICTS)
        code, out, _ = command("recipes", "--json")
        assert set(json.loads(out)["recipes"]) == set(PRESETS)
