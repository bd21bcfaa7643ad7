"""The private selectors: their contract with scikit-learn, what they keep, look at and charge."""

from __future__ import annotations

import pickle
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks

from pasearch.accounting.accountants import price_partitions
from pasearch.data.partitions import Dataset, Partition, PartitionCells, UnchargedReadError
from pasearch.errors import BudgetError, UsageError
from pasearch.features import cfs as cfs_of
from pasearch.features import contingency, engine
from pasearch.features import pca as pca_of
from pasearch.results import compose_events
from pasearch.runs.ledger import Ledger
from pasearch.runs.shared_ledger import SharedLedger
from pasearch.sklearn_api import selectors
from pasearch.sklearn_api.selectors import PAFS, PrivateCFS, PrivatePCA, column_offsets_and_widths

SMALL: dict[str, Any] = {"population": 3, "generations": 2, "device": "cpu"}
NOT_PRIVATE = "ignore:random_state makes the noise reproducible:UserWarning"
TOLD = [1, 4]
"""The columns that tell the class of `records`."""


def records(n: int = 400, d: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Columns in [-1, 1], independent; two of them tell the class."""
    x = np.random.Generator(np.random.PCG64(seed)).uniform(-1, 1, size=(n, d))
    return x, (x[:, TOLD].sum(axis=1) > 0).astype(int)


def cfs(**settings: Any) -> Any:
    return PrivateCFS(**{"bounds": (-1, 1), "classes": [0, 1], **settings})


def pafs(**settings: Any) -> Any:
    return PAFS(**{"bounds": (-1, 1), "classes": [0, 1], **SMALL, **settings})


def pca(**settings: Any) -> Any:
    return PrivatePCA(**{"bounds": (-1, 1), **settings})


ALL = pytest.mark.parametrize("make", [cfs, pafs, pca])


def frame(n: int = 1200) -> tuple[pd.DataFrame, np.ndarray]:
    """Of the columns, `town` alone tells the class."""
    generator = np.random.Generator(np.random.PCG64(1))
    y = generator.integers(2, size=n)
    table = pd.DataFrame(
        {
            "age": np.where(generator.random(n) < 0.3, np.nan, generator.uniform(17, 90, n)),
            "town": pd.Series(np.where(y == 1, "Rome", "Oslo"), dtype="str"),
            "grade": pd.Series(generator.integers(1, 4, n)).astype("category"),
            "smokes": generator.random(n) < 0.5,
        }
    )
    table.loc[table.index % 50 == 0, "town"] = None
    return table, y


CHECKS = parametrize_with_checks(
    [
        PrivateCFS(assume_public_schema=True),
        PAFS(assume_public_schema=True, force=True, **SMALL),
        PrivatePCA(assume_public_schema=True),
    ]
)


@pytest.mark.contract
@pytest.mark.filterwarnings(NOT_PRIVATE)
@pytest.mark.parametrize(CHECKS.args[0], list(CHECKS.args[1]), **CHECKS.kwargs)
def test_scikit_learn_finds_no_fault(estimator: Any, check: Any):
    check(estimator)


@pytest.mark.contract
@ALL
def test_the_checks_are_let_off_nothing_but_determinism(make: Any):
    tags = get_tags(make())
    assert tags.non_deterministic
    assert not tags.no_validation
    assert not tags._skip_test
    assert tags.requires_fit
    assert tags.input_tags.allow_nan, "and so they are: see the tests of what is missing"
    assert tags.input_tags.string, "and so they are: see the tests of frames"
    assert tags.target_tags.required is (make is not pca)


@pytest.mark.unit
@pytest.mark.filterwarnings(NOT_PRIVATE)
class TestSupport:
    def test_has_the_columns_that_tell_the_class(self):
        for make in [cfs, pafs]:
            for bounds in [(-1, 1), None]:
                x, y = records(2000)
                more = (
                    {"population": 12, "generations": 3, "random_state": 0} if make is pafs else {}
                )
                fitted = make(epsilon=20.0, bounds=bounds, **more).fit(x, y)
                assert fitted.get_support()[TOLD].all()
                assert not fitted.get_support().all(), "and something was left out"
                assert (
                    fitted.get_support(indices=True).tolist()
                    == np.flatnonzero(fitted.support_).tolist()
                )
                assert fitted.get_feature_names_out().tolist() == [
                    f"x{i}" for i in fitted.get_support(True)
                ]

    def test_has_k_columns_of_numbers(self):
        for k in [1, 3, 6]:
            for bounds in [(-1, 1), [(-1, 1)] * 5 + [None]]:
                fitted = cfs(k=k, bounds=bounds, epsilon=20.0).fit(*records(2000))
                assert fitted.support_.sum() == k
                assert k == 1 or fitted.support_[TOLD].all()

    def test_by_entropies(self):
        fitted = cfs(merits="entropies", epsilon=5000.0, k=2).fit(*records(2000))
        assert fitted.get_support(indices=True).tolist() == TOLD
        lines = {line["name"]: line["count"] for line in fitted.result_.document["events"]}
        assert set(lines) == {"entropies"}

    def test_of_a_number(self):
        x, _ = records(2000)
        y = 100.0 * x[:, TOLD].sum(axis=1)
        for bounds in ((-200, 200), None):
            fitted = cfs(
                classes=None, regression=True, target_bounds=bounds, k=2, epsilon=20.0
            ).fit(x, y)
            assert fitted.get_support(indices=True).tolist() == TOLD

    def test_does_not_move_with_values_that_are_missing(self):
        x, y = records(3000)
        for value in (np.nan, np.inf):
            bad = x.copy()
            bad[::3] = value
            bad[1::5, 0] = value
            for bounds in ((-1, 1), None):
                fitted = cfs(k=2, epsilon=20.0, bounds=bounds).fit(bad, y)
                assert fitted.get_support(indices=True).tolist() == TOLD
        pafs(epsilon=20.0).fit(bad, y)

    def test_labels_of_no_declared_class_are_null_records(self):
        x, y = records(3000)
        y[np.abs(x[:, 0]) > 0.5] = 7
        fitted = cfs(k=2, epsilon=20.0).fit(x, y)
        assert fitted.get_support(indices=True).tolist() == TOLD, "column 0 tells only which are 7"
        assert 0 in cfs(k=2, epsilon=20.0, classes=[0, 7]).fit(x, y).get_support(indices=True)

    def test_transform_keeps_the_cells_as_they_are_and_gives_them_back(self):
        x, y = records()
        x[3, 1] = 1e6  # outside of the bounds
        fitted = cfs(k=2, epsilon=20.0).fit(x, y)
        kept = fitted.transform(x)
        np.testing.assert_array_equal(kept, x[:, fitted.support_])
        back = fitted.inverse_transform(kept)
        np.testing.assert_array_equal(back[:, fitted.support_], kept)
        assert (back[:, ~fitted.support_] == 0).all()


@pytest.mark.unit
class TestFrames:
    SETTINGS = ({"bounds": None}, {"bounds": None, "assume_public_schema": True})

    def test_a_column_is_kept_if_any_of_its_features_was_chosen(self):
        for settings in self.SETTINGS:
            x, y = frame()
            fitted = cfs(epsilon=20.0, **settings).fit(x, y)
            assert "town" in fitted.get_feature_names_out()
            best = fitted.result_.document["best"]
            assert sorted(best["columns"]) == sorted(fitted.get_feature_names_out())
            assert all(each.startswith(tuple(best["columns"])) for each in best["features"])
            assert best["of"] > x.shape[1]

    @pytest.mark.filterwarnings(NOT_PRIVATE)
    def test_sets_of_pafs_are_of_whole_columns(self):
        for settings in self.SETTINGS:
            x, y = frame()
            fitted = pafs(epsilon=20.0, population=6, random_state=0, **settings).fit(x, y)
            assert fitted.support_[1]
            every = {
                each["feature"] for each in cfs(**settings).fit(x, y).result_.document["relevance"]
            }
            for trial in fitted.result_.document["trials"]:
                chosen = set(trial["features"])
                for column in x.columns:
                    own = {each for each in every if each.split()[0] == column}
                    assert own <= chosen or not own & chosen, trial

    def test_stay_frames_whose_columns_are_as_they_were(self):
        x, y = frame()
        fitted = cfs(epsilon=20.0, bounds=None, k=3).fit(x, y)
        for output in ("default", "pandas"):
            kept = fitted.set_output(transform=output).transform(x)
            pd.testing.assert_frame_equal(kept, x[list(fitted.get_feature_names_out())])
        with pytest.raises(NotFittedError):
            cfs().transform(x)
        assert pca(bounds=None).fit(x).set_output(transform="pandas").transform(x).shape[0] == 1200

    def test_with_other_columns_are_refused(self):
        x, y = frame(100)
        few = {"bounds": None, "force": True}
        for fitted in (cfs(**few).fit(x, y), pca(**few).fit(x, y)):
            with pytest.raises(ValueError, match="feature names"):
                fitted.transform(x[x.columns[::-1]])

    def test_of_truth_values(self):
        x, y = records(2000)
        fitted = cfs(bounds=None, k=3, epsilon=20.0).fit(x > 0, y)
        assert set(TOLD) <= set(fitted.get_support(indices=True))
        assert pca(bounds=None).fit(x > 0).transform(x > 0).shape[0] == 2000

    def test_y_may_be_called_as_a_column_is(self):
        x, y = frame(100)
        cfs(bounds=None, force=True).fit(x, pd.Series(y, name="age"))


@pytest.mark.unit
class TestComponents:
    def test_are_found_at_a_generous_epsilon(self):
        x, _ = records(4000)
        x[:, 3] = x[:, 0]
        fitted = pca(epsilon=50.0, n_components=1).fit(x)
        np.testing.assert_allclose(np.abs(fitted.components_[0]), [0.7, 0, 0, 0.7, 0, 0], atol=0.1)
        np.testing.assert_allclose(fitted.mean_, x.mean(axis=0), atol=0.05)

    def test_project_by_released_values_alone(self):
        x, _ = records()
        fitted = pca(bounds=[(-2, 2)] * 3 + [None] * 3, n_components=3, epsilon=8.0).fit(x)
        low, width = column_offsets_and_widths(fitted._table)
        inside = np.clip(x, low, low + width)
        np.testing.assert_allclose(
            fitted.transform(x), (inside - fitted.mean_) * fitted.scale_ @ fitted.components_.T
        )
        np.testing.assert_allclose(fitted.components_ @ fitted.components_.T, np.eye(3), atol=1e-9)
        assert fitted.get_feature_names_out().tolist() == [f"privatepca{i}" for i in range(3)]

    def test_all_of_them_give_the_records_back(self):
        x, _ = records()
        fitted = pca(n_components=6).fit(x)
        np.testing.assert_allclose(fitted.inverse_transform(fitted.transform(x)), x, atol=1e-9)

    def test_a_missing_number_stands_in_the_middle(self):
        x, _ = records()
        bad, middle = x.copy(), x.copy()
        bad[::2, 1], middle[::2, 1] = np.nan, 3.0
        fitted = pca(bounds=(-1, 7)).fit(bad)
        np.testing.assert_allclose(fitted.transform(bad), fitted.transform(middle))

    def test_of_categories_cannot_be_taken_back(self):
        x, _ = frame()
        fitted = pca(bounds=None, n_components=2).fit(x)
        assert np.isfinite(fitted.transform(x)).all()
        with pytest.raises(UsageError, match="requires a fit on numbers only"):
            fitted.inverse_transform(fitted.transform(x))

    def test_do_not_depend_on_y(self):
        x, y = records()
        with pytest.warns(UserWarning, match="not private"):
            one, other = (pca(random_state=1).fit(x, labels) for labels in (None, y))
        assert (one.components_ == other.components_).all()
        assert one.result_.document["estimated_privately"] == []


def price_of_events(document: dict[str, Any]) -> float:
    return price_partitions(compose_events(document), document["price"]["delta"])[0].epsilon


@pytest.mark.unit
class TestPrice:
    @ALL
    @pytest.mark.parametrize("bounds", [(-1, 1), None])
    def test_is_recorded_and_nearly_all_of_the_budget(self, make: Any, bounds: Any):
        fitted = make(epsilon=2.0, delta=1e-5, bounds=bounds).fit(*records())
        assert fitted.price_ == fitted.result_.price
        assert fitted.price_.epsilon == pytest.approx(price_of_events(fitted.result_.document))
        assert 0.98 * 2.0 <= fitted.price_.epsilon <= 2.0
        assert fitted.price_.delta <= 1e-5
        assert f"({fitted.price_.epsilon:.4g}, 1e-05)" in fitted.result_.statement
        card = fitted.result_.card
        assert f"({fitted.price_.epsilon:.4f}, 1e-05)-differentially private" in card
        for line in fitted.result_.document["events"]:
            assert f"{line['name']}: reads `{line['partition']}`" in card
        assert "release/" not in card, "a fit leaves no files"
        assert "weights" not in card, "nor a model"

    @ALL
    def test_is_for_the_choice_alone(self, make: Any):
        document = make().fit(*records()).result_.document
        own = {
            cfs: {"contingency tables"},
            pafs: {"feature means", "candidate training", "score"},
            pca: {"feature means", "second moments"},
        }[make]
        assert {line["name"] for line in document["events"]} == own
        slots = {"train": 360, "validation": 40} if make is pafs else {"train": 400}
        assert document["dataset"]["slots"] == slots, "nothing is tested, so no slot is for it"

    @ALL
    @pytest.mark.parametrize("bounds", [(-1, 1), None])
    def test_every_line_is_charged_and_every_read_under_a_charge(
        self, make: Any, bounds: Any, monkeypatch: pytest.MonkeyPatch
    ):
        charges: list[tuple[str, str]] = []
        doors: list[str] = []
        genuine = Ledger.charged

        def charged(self: Ledger, line: str, *partitions: Any, key: str):
            each = [key] if isinstance(key, str) else list(key)
            charges.extend([(line, partitions[0].name)] * len(each))
            return genuine(self, line, *partitions, key=key)

        monkeypatch.setattr(Ledger, "charged", charged)
        for kind in (Partition, PartitionCells):
            opened = kind.open
            monkeypatch.setattr(
                kind,
                "open",
                lambda self, receipt, opened=opened: (
                    doors.append(self.name) or opened(self, receipt)
                ),
            )
        monkeypatch.setattr(Dataset, "completed", lambda *_: pytest.fail("read for nothing"))
        document = make(bounds=bounds).fit(*records()).result_.document
        planned = {(line["name"], line["partition"]): line["count"] for line in document["events"]}
        assert set(charges) == set(planned)
        for line, count in planned.items():
            # A set that was scored already is not trained again, and is paid for all the same.
            repeats = make is pafs and line[0] in ("candidate training", "score")
            assert charges.count(line) <= count if repeats else charges.count(line) == count
        assert 0 < len(doors) <= len(charges)
        assert (("schema", "validation") in planned) is (bounds is None)

    @ALL
    def test_of_what_chooses_cannot_be_left_out(self, make: Any, monkeypatch: pytest.MonkeyPatch):
        """Teeth: a plan without the line stops the fit, and a read without a charge does."""
        name = {cfs: "contingency tables", pafs: "candidate training", pca: "second moments"}[make]
        genuine = selectors.make_feature_plan

        def without(*terms: Any, **settings: Any):
            plan = genuine(*terms, **settings)
            lines = tuple(line for line in plan.lines if line.name != name)
            assert len(lines) == len(plan.lines) - 1
            return replace(plan, lines=lines or (replace(plan.lines[0], name="another"),))

        with monkeypatch.context() as patched:
            patched.setattr(selectors, "make_feature_plan", without)
            with pytest.raises(BudgetError):
                make().fit(*records())

        def uncharged(self: Any, line: str, partition: str, *keys: str):
            return self.dataset[partition].open(None)

        with monkeypatch.context() as patched:
            patched.setattr(engine.FeatureSearch, "_open_line", uncharged)
            with pytest.raises(UnchargedReadError):
                make().fit(*records())

    def test_is_that_of_the_noise_which_is_added(self, monkeypatch: pytest.MonkeyPatch):
        sigmas: list[float] = []
        places = {"ContingencyTables": cfs_of, "GaussianSum": pca_of, "FeatureMeans": engine}
        for name, module in places.items():
            genuine = getattr(module, name)
            monkeypatch.setattr(
                module,
                name,
                lambda *, noise_multiplier, genuine=genuine, **more: (
                    sigmas.append(noise_multiplier)
                    or genuine(noise_multiplier=noise_multiplier, **more)
                ),
            )
        for make in (cfs, pca):
            sigmas.clear()
            document = make().fit(*records()).result_.document
            charged = [line["event"]["noise_multiplier"] for line in document["events"]]
            assert sigmas == pytest.approx(charged)

    @ALL
    def test_only_the_form_reaches_the_plan(self, make: Any, monkeypatch: pytest.MonkeyPatch):
        plans = []

        def stop(plan: Any):
            plans.append(plan)
            raise KeyboardInterrupt

        genuine = selectors.make_feature_plan
        monkeypatch.setattr(
            selectors, "make_feature_plan", lambda *terms, **each: stop(genuine(*terms, **each))
        )
        x, y = records()
        for bounds in ((-1, 1), None):
            for cells in (x, np.full_like(x, np.nan)):
                with pytest.raises(KeyboardInterrupt):
                    make(bounds=bounds).fit(cells, y)
            assert plans[-1] == plans[-2]


@pytest.mark.unit
class TestLedger:
    @ALL
    def test_a_second_fit_and_a_clone_are_refused_when_it_is_full(self, make: Any, tmp_path: Path):
        path = tmp_path / "ledger"
        fitted = make(ledger=str(path), ledger_budget=(1.5, 2e-3)).fit(*records())
        for twin in (fitted, clone(fitted), pickle.loads(pickle.dumps(fitted))):
            assert twin.ledger == str(path)
            with pytest.raises(BudgetError, match="does not fit"):
                twin.fit(*records())
        assert len(SharedLedger.open(path).runs()) == 1
        assert fitted.result_.document["ledger"] == {"epsilon": 1.5, "delta": 2e-3}

    def test_cross_validation_is_refused_midway(self, tmp_path: Path):
        path = tmp_path / "ledger"
        settings = {"delta": 9e-4, "ledger": path, "ledger_budget": (2.5, 2e-3)}
        model = make_pipeline(cfs(**settings), LogisticRegression())
        with pytest.raises(BudgetError, match="does not fit"):
            cross_val_score(model, *records(), cv=3, error_score="raise")
        assert len(SharedLedger.open(path).runs()) == 2
        assert SharedLedger.open(path).spent().epsilon <= 2.5

    def test_is_reserved_before_a_record_is_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        path, reserved = tmp_path / "ledger", []
        for kind in (Partition, PartitionCells):

            def opening(self: Any, receipt: Any, genuine: Any = kind.open):
                reserved.append(len(SharedLedger.open(path).runs()))
                return genuine(self, receipt)

            monkeypatch.setattr(kind, "open", opening)
        cfs(ledger=path, ledger_budget=(3.0, 2e-3)).fit(*records())
        assert reserved == [1]
        with pytest.raises(BudgetError, match="does not fit"):
            cfs(epsilon=9.0, ledger=path).fit(*records())
        assert reserved == [1]

    def test_without_one_each_fit_states_its_own_price(self):
        selector = cfs()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            first = selector.fit(*records()).price_
        with pytest.warns(UserWarning, match="2 private fits so far"):
            assert selector.fit(*records()).price_ == first
        assert selector.result_.document["ledger"] is None


@pytest.mark.unit
class TestPipelines:
    def test_transforming_costs_nothing(self, monkeypatch: pytest.MonkeyPatch):
        x, y = records()
        fitted = [make().fit(x, y) for make in (cfs, pafs, pca)]
        for name in ("charged", "create", "open"):
            monkeypatch.setattr(Ledger, name, lambda *_, **__: pytest.fail("charged"))
        for each in fitted:
            price = each.price_
            assert len(each.transform(records(50, seed=3)[0])) == 50
            assert each.price_ == price

    @ALL
    def test_a_pickle_transforms_the_same_and_a_clone_is_not_fitted(self, make: Any):
        x, y = records()
        fitted = make().fit(x, y)
        twin = pickle.loads(pickle.dumps(fitted))
        assert (twin.transform(x) == fitted.transform(x)).all()
        assert (twin.price_, twin.result_) == (fitted.price_, fitted.result_)
        assert {type(each).__module__.split(".")[0] for each in vars(fitted).values()} <= {
            "builtins", "numpy", "pasearch",
        }  # fmt: skip
        with pytest.raises(NotFittedError):
            clone(fitted).transform(x)

    def test_no_folder_is_left(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        cfs().fit(*records())
        monkeypatch.setattr(
            contingency, "count_tables", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            cfs().fit(*records())
        assert list(tmp_path.iterdir()) == []


@pytest.mark.unit
class TestSettings:
    @ALL
    def test_a_seed_is_warned_of_once_and_reproduces(self, make: Any):
        x, y = records()
        runs = []
        for _ in range(2):
            with pytest.warns(UserWarning, match="not private") as caught:
                runs.append(make(random_state=3).fit(x, y))
            assert len(caught) == 1
            assert Path(caught[0].filename) == Path(__file__)
        assert runs[0].result_ == runs[1].result_
        assert (runs[0].transform(x) == runs[1].transform(x)).all()
        assert runs[0].result_.statement.startswith("None")

    def test_are_checked_by_the_fit(self):
        for selector, says in [
            (cfs(epsilon=0.0), "epsilon"),
            (cfs(k=7), "k is 7: expected at most 6"),
            (cfs(k=0), "k is 0"),
            (pca(n_components=7), "k is 7: expected at most 6"),
            (cfs(merits="best"), "merits"),
            (cfs(merits="entropies", bounds=None), "entropies"),
            (cfs(regression=True), "exclude each other"),
            (cfs(target_bounds=(0, 1)), "require regression=True"),
            (cfs(bounds=[(0, 1)]), "one for each of 6 features"),
            (cfs(classes=["a", "b"]), "classes are strings, but y contains numbers"),
            (cfs(assume_public_schema=1), "assume_public_schema"),
            (cfs(ledger_budget=(1.0, 1e-5)), "ledger"),
            (pafs(population=1), "population is 1"),
            (pafs(trainer="lasso"), "trainer"),
            (pafs(device="tpu"), "Device"),
        ]:
            with pytest.raises(UsageError, match=says):
                selector.fit(*records())

    def test_arrays_are_of_good_form(self):
        for x, y, says in [
            (np.zeros(10), np.zeros(10), "2D array"),
            (np.zeros((10, 2)), np.zeros(9), "inconsistent numbers of samples"),
            (np.zeros((10, 2)), np.zeros((10, 2)), "1d array"),
            (np.zeros((10, 2)), pd.Series(np.zeros(10, complex)), "y has dtype complex128"),
            (pd.DataFrame(np.zeros((10, 2), complex)), np.zeros(10), "X has dtype complex128"),
            (np.zeros((10, 2)), np.zeros(10, "M8[s]"), "is of type datetime64"),
            (np.zeros((10, 2)), None, "requires y"),
        ]:
            for selector in (cfs(), pafs()):
                with pytest.raises(ValueError, match=says):
                    selector.fit(x, y)

    @pytest.mark.filterwarnings(NOT_PRIVATE)
    def test_a_row_of_a_list_that_is_no_row_is_missing(self):
        for odd in [None, [0.5], [0.5] * 9, "secret", 7]:
            x, y = records()
            rows, missing = x.tolist(), x.tolist()
            rows[3], missing[3] = odd, [None] * 6
            found = [cfs(random_state=1).fit(each, y.tolist()) for each in (rows, missing)]
            assert found[0].result_.document == found[1].result_.document
            assert (found[0].support_ == found[1].support_).all()

    def test_too_rare_classes_are_refused_before_a_charge(self):
        x, y = records(60)
        with pytest.raises(BudgetError, match=r"nothing was read or charged.*declare the classes"):
            cfs(classes=None, epsilon=0.1).fit(x, y)

    def test_what_is_assumed_public_is_listed_and_not_estimated(self):
        x, y = records()
        fitted = cfs(bounds=None, classes=None, assume_public_schema=True).fit(x, y)
        document = fitted.result_.document
        assert document["assumed_public"] == [*(f"x{i}" for i in range(6)), "target"]
        assert document["estimated_privately"] == []
        document = cfs(bounds=[(-1, 1)] * 5 + [None]).fit(x, y).result_.document
        assert [line.split(":")[0] for line in document["estimated_privately"]] == ["x5"]
