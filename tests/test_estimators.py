"""The scikit-learn estimators: their contract, what they look at, what they charge and keep."""

from __future__ import annotations

import copy
import json
import pickle
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import cross_val_score
from sklearn.utils import get_tags
from sklearn.utils.estimator_checks import parametrize_with_checks

from pasearch.accounting.budget import Budget
from pasearch.api.request import SearchRequest, list_options
from pasearch.data.estimation import read_public_schema
from pasearch.data.frames import TYPES_DESCRIPTION
from pasearch.data.partitions import Dataset, Partition, PartitionCells
from pasearch.errors import BudgetError, InterruptedRunError, UsageError
from pasearch.results import load_result
from pasearch.runs.shared_ledger import SharedLedger
from pasearch.search import engine
from pasearch.sklearn_api import estimators
from pasearch.sklearn_api.estimators import (
    PrivateArchitectureSearchClassifier,
    PrivateArchitectureSearchRegressor,
)
from pasearch.sklearn_api.fits import declared_label_type

SMALL: dict[str, Any] = {
    "strategy": "fixed", "space": "tables", "steps": 3, "device": "cpu", "force": True,
}  # fmt: skip
"""Too few records to learn from, so the runs insist."""
PUBLIC = {**SMALL, "assume_public_schema": True}
ENOUGH: dict[str, Any] = {"epsilon": 8.0, "steps": None}
"""With 400 records, enough to learn from: one setting, as every other has a plan to solve."""
LABELS = {
    "texts": ["b", "a", "c"],
    "whole": [9, 10, 100],
    "truth": [True, False],
    "floats": [1.0, 2.0],
}
NOT_PRIVATE = "ignore:random_state makes the noise reproducible:UserWarning"


def classifier(**settings: Any) -> PrivateArchitectureSearchClassifier:
    return PrivateArchitectureSearchClassifier(**{**SMALL, **settings})


def regressor(**settings: Any) -> PrivateArchitectureSearchRegressor:
    return PrivateArchitectureSearchRegressor(**{**SMALL, **settings})


def records(n: int = 60, labels: Any = (0, 1)) -> tuple[np.ndarray, np.ndarray]:
    """Two features in [-1, 1]; the first tells the class, in equal parts of its range."""
    x = np.random.Generator(np.random.PCG64(0)).uniform(-1, 1, size=(n, 2))
    place = np.minimum(((x[:, 0] + 1) / 2 * len(labels)).astype(int), len(labels) - 1)
    return x, np.array(labels)[place]


def frame(n: int = 60) -> tuple[pd.DataFrame, pd.Series]:
    x, y = records(n, ["no", "yes"])
    columns = {
        "age": x[:, 0],
        "town": pd.Series(np.where(x[:, 1] > 0, "Rome", "Oslo"), dtype="str"),
        "grade": pd.Series(np.where(x[:, 0] > 0, 1, 2)).astype("category"),
        "smokes": x[:, 1] > 0,
        "notes": pd.Series([None if v > 0 else "low" for v in x[:, 0]], dtype=object),
    }
    return pd.DataFrame(columns), pd.Series(y, name="age")


class Handed(Exception):
    """Carries the data set that a fit hands to the search."""


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch):
    def catch(dataset: Dataset, **options: Any) -> None:
        raise Handed(dataset)

    monkeypatch.setattr(estimators, "search_architecture", catch)

    def fit(estimator: Any, x: Any, y: Any) -> Dataset:
        with pytest.raises(Handed) as caught:
            estimator.fit(x, y)
        return caught.value.args[0]

    return fit


CHECKS = parametrize_with_checks(
    [
        PrivateArchitectureSearchClassifier(**PUBLIC),
        PrivateArchitectureSearchRegressor(**{**PUBLIC, "space": "fcn", "force": True}),
    ]
)


@pytest.mark.contract
@pytest.mark.filterwarnings(NOT_PRIVATE)
@pytest.mark.parametrize(CHECKS.args[0], list(CHECKS.args[1]), **CHECKS.kwargs)
def test_scikit_learn_finds_no_fault(estimator: Any, check: Any):
    check(estimator)


@pytest.mark.contract
def test_the_checks_are_let_off_nothing_but_determinism_and_score():
    for estimator in [classifier(), regressor()]:
        tags = get_tags(estimator)
        own = tags.classifier_tags or tags.regressor_tags
        assert own.poor_score
        assert tags.non_deterministic
        assert not tags.no_validation
        assert not tags._skip_test
        assert tags.requires_fit
        assert tags.input_tags.allow_nan, "and so they are: see the tests of missing values"
        assert tags.input_tags.string, "and so they are: see the tests of frames"


@pytest.mark.unit
def test_types_of_a_frame_are_listed_as_taken_as_public(handed: Any):
    """pandas chooses them from the values, where nobody has."""
    x, y = frame()
    assert handed(classifier(classes=["no", "yes"]), x, y).assumed == (TYPES_DESCRIPTION,)
    assert handed(classifier(classes=["no", "yes"]), x.astype(object), y).assumed == ()
    assert handed(classifier(classes=[0, 1]), *records()).assumed == ()


@pytest.mark.unit
class TestLabels:
    def test_come_back_as_they_were(self):
        for kind in LABELS:
            for way in ["declared", "bounds too", "estimated_privately", "assumed"]:
                x, y = records(400, LABELS[kind])
                settings: dict[str, Any] = {
                    "declared": {"classes": LABELS[kind]},
                    "bounds too": {"classes": LABELS[kind], "bounds": (-1, 1)},
                    "estimated_privately": {"bounds": [(-1, 1), (-1, 1)]},
                    "assumed": {"assume_public_schema": True},
                }[way]
                fitted = classifier(**ENOUGH, **settings).fit(x, y)
                assert fitted.classes_.tolist() == sorted(LABELS[kind])
                assert fitted.classes_.dtype.kind == y.dtype.kind
                guessing = 1 / len(LABELS[kind])
                assert fitted.score(x, y) > guessing + 0.08, (
                    "a wrong order of the classes would guess"
                )
                probabilities = fitted.predict_proba(x)
                assert probabilities.shape == (400, len(LABELS[kind]))
                np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
                assert (fitted.classes_[probabilities.argmax(axis=1)] == fitted.predict(x)).all()

    def test_of_objects_come_back_as_declared_or_read_or_as_texts(self):
        x, y = records(400)
        declared = classifier(classes=[0, 1]).fit(x, y.astype(object))
        assert declared.predict(x).dtype.kind == "i"
        estimated = classifier(**ENOUGH).fit(x, y.astype(object))
        assert estimated.classes_.tolist() == [0, 1]
        texts = np.where(y == 1, "yes", "no").astype(object)
        assert classifier(**PUBLIC).fit(x, texts).classes_.tolist() == ["no", "yes"]

    @pytest.mark.parametrize("bounds", [(-1, 1), None])
    def test_of_no_declared_class_are_null_records(self, handed: Any, bounds: Any):
        x, y = records(60, ["a", "b"])
        y[:20] = "z"
        dataset = handed(classifier(classes=["a", "b"], bounds=bounds), x, y)
        classes, valid = dataset.schema.encode_labels(dataset.labels._array)
        assert valid.tolist() == [False] * 20 + [True] * 40
        assert (classes[20:] == (y[20:] == "b")).all()

    def test_one_estimated_class_ends_the_fit_before_the_training(self):
        x, _ = records(400)
        with pytest.raises(BudgetError, match=r"only '7' was found, so no model was trained"):
            classifier(**ENOUGH, bounds=(-1, 1)).fit(x, np.full(400, 7))

    def test_too_rare_to_be_estimated_are_refused_before_a_charge(self):
        x, y = records(60)
        with pytest.raises(BudgetError, match=r"nothing was read or charged.*declare the classes"):
            classifier(epsilon=0.1, bounds=(-1, 1), force=False).fit(x, y)

    def test_are_declared_in_good_form(self):
        for classes, says in [
            ("ab", "two or more"),
            (2, "two or more"),
            ([0], "two or more"),
            ([[0, 1]], "two or more"),
            ([0, 1, 1], "a label twice"),
            (["a", "b"], "classes are strings, but y contains numbers"),
            ([False, True], "classes are booleans, but y contains numbers"),
        ]:
            with pytest.raises(UsageError, match=says):
                classifier(classes=classes).fit(*records())


@pytest.mark.unit
class TestBounds:
    def test_a_feature_may_be_left_to_buy(self, handed: Any):
        schema = handed(classifier(bounds=[(0, 1), None]), *records()).schema
        assert schema.undeclared == ("x1", "target")
        assert schema.columns[0].bins is None

    def test_for_all_are_for_the_numbers_of_a_frame(self, handed: Any):
        x, y = frame()
        kinds = {each.name: each for each in handed(classifier(bounds=(0, 9)), x, y).schema.columns}
        assert (kinds["age"].low, kinds["age"].high) == (0, 9)
        assert kinds["town"].kind == kinds["grade"].kind == "category"
        assert kinds["smokes"].categories == ("False", "True")
        assert kinds["notes"].kind is None

    def test_are_of_good_form(self):
        for bounds, says in [
            ([(0, 1)], "one for each of 2 features"),
            ([(0, 1)] * 3, "one for each of 2 features"),
            (3, "one for each of 2 features"),
            ([(0, 1), 5], "expected two numbers"),
            ([(0, 1), (1, 0)], "low < high"),
            ((1.0, 0.0), "low < high"),
            ((0.0, float("nan")), "two finite numbers"),
        ]:
            for estimator in (classifier(bounds=bounds, classes=[0, 1]), regressor(bounds=bounds)):
                with pytest.raises(UsageError, match=says):
                    estimator.fit(*records())


@pytest.mark.unit
class TestPeeking:
    @pytest.mark.parametrize("declared", [True, False])
    def test_only_the_form_reaches_the_schema(self, handed: Any, declared: bool):
        x, y = records()
        broken = np.full_like(x, np.nan)
        broken[0] = np.inf
        settings: dict[str, Any] = {"bounds": (-1, 1)} if declared else {}
        aims = {classifier: {"classes": [0, 1]}, regressor: {"target_bounds": (0, 1)}}
        for make, aim in aims.items():
            estimator = make(**settings, **(aim if declared else {}))
            good = handed(estimator, x, y.astype(float)).schema
            bad = handed(estimator, broken, np.full(len(y), np.nan)).schema
            assert good == bad

    def test_values_that_cannot_be_used_stop_nothing(self):
        x, y = records()
        for value in (np.nan, np.inf, 1e300):
            bad = x.copy()
            bad[::3] = value
            for bounds in ((-1, 1), None):
                fitted = classifier(classes=[0, 1], bounds=bounds).fit(bad, y)
                assert set(fitted.predict(bad)) <= {0, 1}
        labels = y.astype(float)
        labels[::2] = np.nan
        assert np.isfinite(regressor(target_bounds=(0, 1)).fit(x, labels).predict(x)).all()

    def test_nothing_is_read_without_a_charge(self, monkeypatch: pytest.MonkeyPatch):
        # The records of a data set leave it through these doors only, each under a charge.
        doors = []
        for kind in (Partition, PartitionCells):
            genuine = kind.open
            monkeypatch.setattr(
                kind,
                "open",
                lambda self, receipt, genuine=genuine: (
                    doors.append(self.name) or genuine(self, receipt)
                ),
            )
        monkeypatch.setattr(Dataset, "completed", lambda *_: pytest.fail("read for nothing"))
        fitted = classifier(**ENOUGH).fit(*records(400))
        document = fitted.result_.document
        assert set(doors) == {"test", "train"}
        assert len(document["estimated_privately"]) == 3
        assert document["assumed_public"] == []
        assert any(line["name"] == "schema" for line in document["events"])

    def test_labels_are_looked_at_only_where_they_are_assumed_public(self):
        x, _ = records()
        one = np.zeros(60, int)
        with pytest.raises(ValueError, match="only one class"):
            classifier(**PUBLIC).fit(x, one)
        assert classifier(**PUBLIC, classes=[0, 1]).fit(x, one).classes_.tolist() == [0, 1]
        with pytest.raises(ValueError, match="cannot be sorted"):
            classifier(**PUBLIC).fit(x, np.array(["a", 1] * 30, object))


@pytest.mark.unit
def test_fits_that_no_ledger_adds_up_are_told_of_together(tmp_path: Path):
    settings = {"delta": 1e-3, "bounds": (-1, 1), "classes": [0, 1]}
    x, y = records(90)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = classifier(**settings).fit(x, y)
        kept = {"ledger": str(tmp_path / "ledger"), "ledger_budget": (5.0, 5e-3)}
        for _ in range(2):  # one that is kept elsewhere is none of these
            classifier(**settings, **kept).fit(x, y)
    both = f"{2 * first.price_.epsilon:.3g}, not {first.price_.epsilon:.3g}"
    with pytest.warns(UserWarning, match=f"2 private fits so far.*epsilon {both}"):
        classifier(**settings).fit(x, y)


@pytest.mark.unit
class TestLedger:
    def test_cross_validation_is_charged_fold_by_fold(self, tmp_path: Path):
        path = tmp_path / "ledger"
        SharedLedger.open(path, Budget(9.0, 5e-3))
        estimator = regressor(bounds=(-1, 1), target_bounds=(0, 1), ledger=path)
        scores = cross_val_score(estimator, *records(90), cv=3, error_score="raise")
        assert scores.shape == (3,)
        runs = SharedLedger.open(path).runs()
        assert len({name for name, *_ in runs}) == 6, "a fit and a score of each fold"

    def test_is_reserved_before_a_record_is_read(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        path, genuine = tmp_path / "ledger", Partition.open
        reserved = []

        def opening(self: Partition, receipt: Any):
            reserved.append(len(SharedLedger.open(path).runs()))
            return genuine(self, receipt)

        monkeypatch.setattr(Partition, "open", opening)
        settings = {"bounds": (-1, 1), "classes": [0, 1], "ledger": path}
        classifier(**settings, ledger_budget=(3.0, 5e-3)).fit(*records())
        assert reserved == [1, 1]
        with pytest.raises(BudgetError, match="does not fit"):
            classifier(**settings, epsilon=9.0).fit(*records())
        assert reserved == [1, 1]

    def test_is_a_path_in_every_copy(self, tmp_path: Path):
        path = str(tmp_path / "ledger")
        fitted = classifier(
            bounds=(-1, 1), classes=[0, 1], ledger=path, ledger_budget=(2.0, 5e-3)
        ).fit(*records())
        for twin in (clone(fitted), copy.deepcopy(fitted), pickle.loads(pickle.dumps(fitted))):
            assert twin.ledger == path
            with pytest.raises(BudgetError, match="does not fit"):
                twin.set_params(epsilon=1.9).fit(*records())


@pytest.mark.unit
class TestFrames:
    def test_of_mixed_columns(self):
        for settings in [{}, {"assume_public_schema": True}]:
            x, y = frame(400)
            fitted = classifier(**ENOUGH, **settings).fit(x, y)
            assert fitted.feature_names_in_.tolist() == list(x.columns)
            assert fitted.n_features_in_ == 5
            assert set(fitted.predict(x)) <= {"no", "yes"}
            schema = fitted.result_.schema
            assert schema.target.name == "age_", "a feature is called as y is"
            kinds = {each.name: (each.kind, set(each.categories or ())) for each in schema.columns}
            assert kinds["town"] == ("category", {"Oslo", "Rome"})
            assert kinds["grade"] == ("category", {"1", "2"})
            assert kinds["smokes"] == ("category", {"False", "True"})
            assert kinds["age"][0] == "number"

    def test_cells_mean_at_prediction_what_they_meant_in_the_fit(self):
        x, _ = frame()
        fitted = regressor(**PUBLIC).fit(x, records()[1])
        encoded = fitted.result_.schema.encode_new(fitted._cells(x, reset=False))
        smokes = fitted.result_.schema.names.index("smokes = True")
        assert (encoded[:, smokes] == x["smokes"]).all()

    def test_with_missing_cells_of_pandas_own(self):
        x, _ = records()
        table = pd.DataFrame({"a": pd.array([None, 1] * 30, dtype="Int64"), "b": x[:, 1]})
        labels = pd.Series([None, "a", "b"] * 20, dtype="str")
        fitted = classifier(classes=["a", "b"]).fit(table, labels)
        assert set(fitted.predict(table)) <= {"a", "b"}
        fitted = classifier(classes=[0, 1]).fit(table, pd.Series([None, 0, 1] * 20, dtype="Int64"))
        assert set(fitted.predict(table)) <= {0, 1}


@pytest.mark.unit
class TestRegression:
    def test_predicts_in_the_targets_own_units(self):
        for bounds in [(-1, 1), [(-1, 1), (-1, 1)]]:
            x, _ = records(400)
            y = 50.0 + 20.0 * x[:, 0]
            estimator = regressor(**ENOUGH, bounds=bounds, target_bounds=(30, 70))
            fitted = estimator.fit(x, y)
            assert fitted.predict(x).dtype == np.float64
            assert fitted.score(x, y) > 0.5

    @pytest.mark.filterwarnings(NOT_PRIVATE)
    def test_buys_the_bounds_of_the_target(self):
        x, _ = records(400)
        fitted = regressor(**ENOUGH, bounds=(-1, 1), random_state=1).fit(x, 50.0 + 20.0 * x[:, 0])
        low, high = fitted.result_.document["dataset"]["schema"]["target"]
        # Half-octaves: 32, 45.3, 64, 90.5; the outermost may hold too few of the 40 slots.
        assert 20 < low < 46
        assert 63 < high < 100
        assert len(fitted.result_.document["estimated_privately"]) >= 1


@pytest.mark.unit
class TestKept:
    def test_a_fitted_estimator_predicts_the_same_from_a_pickle(self):
        x, y = records()
        for fitted in (
            classifier(classes=[0, 1], bounds=(-1, 1)).fit(x, y),
            regressor(target_bounds=(0, 1)).fit(x, y),
        ):
            twin = pickle.loads(pickle.dumps(fitted))
            assert (twin.predict(x) == fitted.predict(x)).all()
            assert twin.price_ == fitted.price_
            assert twin.result_ == fitted.result_
            held = {type(value).__module__.split(".")[0] for value in vars(fitted).values()}
            assert "torch" not in held

    def test_it_says_what_the_runs_folder_says(self, tmp_path: Path):
        x, y = records(60, ["a", "b"])
        fitted = classifier(classes=["a", "b"], out=tmp_path / "run").fit(x, y)
        stored = load_result(tmp_path / "run")
        assert fitted.result_.document == stored.document
        assert fitted.result_.card == stored.card
        assert fitted.price_ == stored.price
        assert fitted.price_.epsilon <= 1.0
        assert (stored.predict(x) == fitted.predict(x)).all()
        np.testing.assert_allclose(fitted._compute_logits(x), stored.scores(x), rtol=1e-6)
        with pytest.raises(UsageError, match="exists"):
            fitted.fit(x, y)

    def test_an_interrupted_fit_names_a_folder_only_if_it_is_left(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        def interrupt(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(engine, "train_candidate", interrupt)
        monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
        with pytest.raises(KeyboardInterrupt):
            classifier(classes=[0, 1]).fit(*records())
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(InterruptedRunError, match="run"):
            classifier(classes=[0, 1], out=tmp_path / "run").fit(*records())


@pytest.mark.unit
class TestSettings:
    def test_reach_the_search(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
        given: dict[str, Any] = {
            "strategy": "rs", "space": "fcn", "max_categories": 5, "candidates": 3.0,
            "search_share": 0.2, "steps": 7, "batch": 9, "device": "cpu", "ledger": "there",
            "ledger_budget": (2.0, 1e-6), "assume_public_schema": False, "secure_noise": True,
            "metric": "rmse", "force": True,
        }  # fmt: skip
        seen: dict[str, Any] = {}

        def catch(dataset: Dataset, **options: Any) -> None:
            seen.update(options)
            raise Handed

        monkeypatch.setattr(estimators, "search_architecture", catch)
        estimator = regressor(**given, epsilon=2.0, delta=1e-5, out=tmp_path)
        with pytest.raises(Handed):
            estimator.fit(*records())
        assert seen.pop("budget") == Budget(2.0, 1e-5)
        assert seen.pop("out") == tmp_path
        assert seen.pop("seed") is None
        assert seen.pop("progress") is False, "an estimator is silent"
        assert seen == given
        assert set(seen) <= {name for name, _, _ in list_options(SearchRequest)}

    def test_a_seed_is_warned_of_once_and_reproduces(self):
        x, y = records()
        settings: dict[str, Any] = {"classes": [0, 1], "bounds": (-1, 1)}
        runs = []
        for _ in range(2):
            with pytest.warns(UserWarning, match="not private") as caught:
                runs.append(classifier(**settings, random_state=3).fit(x, y))
            assert len(caught) == 1
            assert Path(caught[0].filename) == Path(__file__)
        assert runs[0].result_.document == runs[1].result_.document
        assert (runs[0].decision_function(x) == runs[1].decision_function(x)).all()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fresh = classifier(**settings).fit(x, y)
        assert fresh.result_.document["reproducible"] is False
        assert not torch.equal(*(next(r.result_.network().parameters()) for r in (fresh, runs[0])))

    @pytest.mark.filterwarnings(NOT_PRIVATE)
    def test_are_checked_by_the_fit(self):
        for settings, says in [
            ({"random_state": -1}, "Seed"),
            ({"random_state": np.random.RandomState(0)}, "Seed"),
            ({"epsilon": 0.0}, "epsilon"),
            ({"assume_public_schema": 1}, "assume_public_schema"),
            ({"strategy": "none"}, "Strategy"),
            ({"device": "tpu"}, "Device"),
        ]:
            with pytest.raises(UsageError, match=says):
                classifier(classes=[0, 1], **settings).fit(*records())

    def test_arrays_are_of_good_form(self):
        for x, y, says in [
            (np.zeros((10, 2, 2)), np.zeros(10), "dim 3"),
            (np.zeros(10), np.zeros(10), "2D array"),
            (np.zeros((10, 2)), np.zeros(9), "inconsistent numbers of samples"),
            (np.zeros((10, 2)), np.zeros((10, 2)), "1d array"),
            (np.zeros((10, 2)), np.zeros(10, "M8[s]"), "is of type datetime64"),
            (np.zeros((10, 2)), None, "requires y"),
        ]:
            for estimator in (classifier(classes=[0, 1]), regressor(target_bounds=(0, 1))):
                with pytest.raises(ValueError, match=says):
                    estimator.fit(x, y)


@pytest.mark.parametrize("assume", [False, True])
@pytest.mark.parametrize("made", [np.asarray, pd.Series, pd.DataFrame, list], ids=str)
@pytest.mark.parametrize("which", ["x", "y"])
def test_complex_numbers_are_refused_by_their_type_and_not_shown(
    which: str, made: Any, assume: bool, handed: Any
):
    """scikit-learn would print them."""
    x, y = records()
    secret = 123456.5j
    if which == "x" and made is pd.Series:
        x = pd.DataFrame({"a": x[:, 0], "b": x[:, 1] + secret})
    elif which == "x":
        x = made((x + secret).tolist()) if made is not np.asarray else x + secret
    else:
        y = made(y + secret)
    for estimator in (classifier(classes=[0, 1]), regressor(target_bounds=(0, 1))):
        estimator.set_params(assume_public_schema=assume)
        if made is list and not assume:
            # Their type would be read from every value: each is a cell that is no number.
            assert handed(estimator, x, y).n == len(y)
            continue
        with pytest.raises(ValueError, match=f"{which.title() if which == 'x' else which} has dtype"
                           " complex128") as caught:  # fmt: skip
            estimator.fit(x, y)
        assert "123456" not in str(caught.value)


class Odd:
    """A cell that shows itself in what it raises."""

    def __str__(self) -> str:
        raise RuntimeError("secret")

    __repr__ = __str__


ODD = [
    b"\xff\xfe", b"low", bytearray(b"low"), "\ud800", "\udc80low", 1 + 2j, Odd(), 10**5000, [1, 2],
    {"a": 1}, float("nan"), float("-inf"), np.longdouble("1e4000"), np.datetime64("NaT"), pd.NaT,
    pd.NA, None, object(), "\u202elow", "9" * 5000, "0x1f", np.bytes_(b"\xe9"), True, type,
]  # fmt: skip


@pytest.mark.parametrize("odd", ODD, ids=lambda cell: type(cell).__name__)
def test_an_odd_cell_stops_nothing(odd: Any, handed: Any):
    whole, y = frame()

    def with_odd(column: Any) -> pd.Series:
        cells = np.empty(len(y), object)
        cells[:] = list(column)
        cells[3] = odd
        return pd.Series(cells, dtype=object)

    whole = whole.assign(notes=with_odd(whole["notes"]), grade=with_odd(whole["grade"]))
    label = with_odd(y)
    estimator = classifier(classes=["no", "yes"], assume_public_schema=False)
    dataset = handed(estimator, whole, label)
    assert len(dataset.fingerprint()) == 64
    read = replace(dataset, public=True).completed(lambda s, x, y: read_public_schema(s, x, y, 9))
    records_of = read.all_records(None)
    assert torch.isfinite(records_of.x).all()
    assert not records_of.valid[3]
    assert records_of.valid.sum() == len(y) - 1
    json.dumps(read.schema.to_json()).encode()
    "".join(read.schema.describe_items()).encode()


def test_one_value_of_a_list_decides_nothing_public():
    """Of a list numpy would infer a type from every value."""
    for odd in [None, "x", 3.5]:
        x, y = records()
        rows, labels = x.tolist(), y.tolist()
        rows[7][0] = labels[7] = odd
        made = [
            classifier(bounds=(-1, 1), classes=[0, 1], random_state=0)._check_input(*each)
            for each in ((x.tolist(), y.tolist()), (rows, labels))
        ]
        kinds, dtypes = zip(
            *((each[0], (each[1].dtype, each[2].dtype)) for each in made), strict=True
        )
        assert kinds[0] == kinds[1]
        assert dtypes[0] == dtypes[1]


STRANGE_ROWS = [None, [], [0.5], [0.5] * 9, "abcde", 3.5, {}, np.zeros(3), np.zeros((5, 2)), Odd()]


def test_a_row_of_a_list_that_is_no_row_is_missing():
    for odd in STRANGE_ROWS:
        for each in [True, False]:
            x, y = records()
            bounds: Any = [(-1, 1)] * x.shape[1] if each else (-1, 1)
            rows = x.tolist()
            rows[0 if each else 7] = odd
            estimator = classifier(bounds=bounds, classes=[0, 1], random_state=0)
            kinds, cells, _ = estimator._check_input(rows, y.tolist())
            whole_kinds, whole, _ = estimator._check_input(x.tolist(), y.tolist())
            assert (kinds, cells.dtype, cells.shape) == (whole_kinds, whole.dtype, whole.shape)
            place = 0 if each else 7
            assert (cells == None)[place].all()  # noqa: E711 - of each cell
            assert (np.delete(cells, place, 0) == np.delete(whole, place, 0)).all()


def test_a_label_of_a_list_that_is_none_changes_no_other():
    for odd in [None, [], [1, 0], 3, "x", {}]:
        x, y = records()
        for labels in (y.tolist(), [[label] for label in y.tolist()]):
            for place in (0, 7):  # also the first, which must not decide the form of the others
                changed = [*labels[:place], odd, *labels[place + 1 :]]
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = classifier(classes=[0, 1])._check_input(x, changed)[2]
                assert found.shape == y.shape
                assert (np.delete(found, place) == np.delete(y, place)).all()


def test_one_missing_category_decides_nothing_public():
    x, y = records()
    whole = pd.Series(y).astype("category")
    other = whole.copy()
    other[7] = None
    kinds = [classifier(classes=[0, 1])._check_input(x, each)[2].dtype for each in (whole, other)]
    assert [kind.kind for kind in kinds] == ["O", "O"]


def test_the_first_row_of_a_list_decides_nothing_about_the_others():
    x, y = records()
    whole = classifier(classes=[0, 1])._check_input(x.tolist(), y.tolist())[1]
    for odd in [None, [], [0.1], 3.0]:
        found = classifier(classes=[0, 1])._check_input([odd, *x.tolist()[1:]], y.tolist())[1]
        assert (np.delete(found, 0, 0) == np.delete(whole, 0, 0)).all()


def test_one_category_decides_no_type_of_labels():
    x, y = records()
    for classes in ([0, 1], None):
        kinds = []
        for first in (y[0], 1.5, "x"):
            labels = pd.Series([first, *y[1:]], dtype=object).astype("category")
            model = classifier(classes=classes)._check_input(x, labels)[2]
            kinds.append((model.dtype, declared_label_type(labels, model)))
        assert len(set(kinds)) == 1


def test_labels_in_rows_of_several_are_refused_before_a_charge():
    x, y = records()
    for labels in ([[0, 1], [1, 0]] * (len(y) // 2), [[[label]] for label in y], [[]] * len(y)):
        with pytest.raises(ValueError, match=r"1d array|dim 3|0 feature"):
            classifier(classes=[0, 1])._check_input(x[: len(labels)], labels)
