"""Labels keep their type, and scores are charged or warned of."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.metrics import accuracy_score
from sklearn.model_selection import GridSearchCV, cross_val_score

from pasearch import load, search_architecture
from pasearch.accounting.budget import Budget
from pasearch.errors import BudgetError, UsageError
from pasearch.runs.keys import Keys
from pasearch.runs.shared_ledger import SharedLedger
from pasearch.sklearn_api.estimators import (
    PrivateArchitectureSearchClassifier as Classifier,
)
from pasearch.sklearn_api.estimators import (
    PrivateArchitectureSearchRegressor as Regressor,
)
from pasearch.sklearn_api.estimators import noisy_accuracy, noisy_r_squared
from pasearch.sklearn_api.fits import check_labels, common_label_type

N = 400
AGES = np.random.default_rng(0).integers(18, 90, N)
OLD = AGES > 50
X = pd.DataFrame({"age": AGES})
SMALL: dict[str, Any] = {"epsilon": 8.0, "strategy": "fixed", "device": "cpu", "steps": 20}
DECLARED: dict[str, Any] = {**SMALL, "epsilon": 1.0, "bounds": (18, 90), "delta": 1e-4}
NUMBERS, WORDS, TRUTH = ["0", "1"], ["no", "yes"], ["False", "True"]


def of(names: list[Any]) -> np.ndarray:
    return np.where(OLD, names[1], names[0])


def fitted(y: Any, names: list[str]) -> Classifier:
    columns = {"age": {"low": 18, "high": 90}, "y": {"categories": names}}
    return Classifier(**SMALL, schema={"target": "y", "columns": columns}).fit(X, y)


ints = of([0, 1])
TYPES: dict[str, tuple[Any, list[str], type]] = {
    "list of integers": (ints.tolist(), NUMBERS, np.integer),
    "tuple of integers": (tuple(ints.tolist()), NUMBERS, np.integer),
    "list of numpy integers": (list(ints), NUMBERS, np.integer),
    "object integers": (pd.Series(ints, dtype=object), NUMBERS, np.integer),
    "object integers, one missing": ([None, *ints.tolist()[1:]], NUMBERS, np.integer),
    "object integers, one is a text": (["x", *ints.tolist()[1:]], NUMBERS, np.integer),
    "categories of integers": (pd.Series(ints).astype("category"), NUMBERS, np.integer),
    "categorical, no series": (pd.Categorical(ints), NUMBERS, np.integer),
    "Int64": (pd.Series(ints).astype("Int64"), NUMBERS, np.integer),
    "Int64, one missing": (pd.Series([None, *ints[1:]], dtype="Int64"), NUMBERS, np.integer),
    "UInt8": (pd.Series(ints).astype("UInt8"), NUMBERS, np.integer),
    "categories of Int64": (pd.Series(ints, dtype="Int64").astype("category"), NUMBERS, np.integer),
    "frame of Int64": (pd.DataFrame({"y": ints}, dtype="Int64"), NUMBERS, np.integer),
    "list of floats": (ints.astype(float).tolist(), NUMBERS, np.floating),
    "Float64": (pd.Series(ints).astype("Float64"), NUMBERS, np.floating),
    "list of truth values": (OLD.tolist(), TRUTH, np.bool_),
    "boolean": (pd.Series(OLD).astype("boolean"), TRUTH, np.bool_),
    "boolean, one missing": (pd.Series([None, *OLD[1:]], dtype="boolean"), TRUTH, np.bool_),
    "categories of truth values": (pd.Series(OLD).astype("category"), TRUTH, np.bool_),
    "numpy truth values": (OLD, TRUTH, np.bool_),
    "list of texts": (of(WORDS).tolist(), WORDS, str),
    "list of texts that are numbers": (of(NUMBERS).tolist(), NUMBERS, str),
    "string": (pd.Series(of(WORDS)).astype("string"), WORDS, str),
    "categories of texts": (pd.Series(of(WORDS)).astype("category"), WORDS, str),
    "numpy texts": (of(WORDS), WORDS, str),
}


@pytest.mark.contract
@pytest.mark.filterwarnings("ignore:A column-vector y")
def test_predicted_labels_have_the_type_of_y_and_can_be_scored():
    for given in TYPES:
        y, names, kind = TYPES[given]
        model = fitted(y, names)
        predicted = model.predict(X)
        assert {isinstance(each, kind) for each in predicted} == {True}
        assert model.classes_.tolist() == sorted(model.classes_.tolist())
        assert model.score(X, y) > 0.8
        if "one" not in given and given not in ("object integers", "categorical, no series"):
            assert accuracy_score(np.asarray(y).ravel().tolist(), predicted.tolist()) > 0.8


class Tensor:
    """Like a tensor of torch: it has a dtype of its own, and no `astype`."""

    dtype = "torch.int64"

    def __init__(self, values: np.ndarray):
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        return self.values


@pytest.mark.contract
def test_tensors_are_taken_as_arrays():
    model = Classifier(**DECLARED, classes=[0, 1])
    model.fit(Tensor(X.to_numpy(float)), Tensor(ints))  # pyright: ignore[reportArgumentType]
    assert model.predict(X.to_numpy(float)).dtype == ints.dtype


@pytest.mark.unit
@pytest.mark.parametrize("given", [{}, {"assume_public_schema": True}])
def test_labels_of_other_types_are_refused_before_a_charge(tmp_path: Path, given: dict[str, Any]):
    kept = {"ledger": tmp_path / "l", "ledger_budget": (9.0, 1e-4)}
    model = Classifier(**SMALL, bounds=(18, 90), **kept, **given)
    dates = of(["2020-01-01", "2021-01-01"]).astype("datetime64[D]")
    bytes_ = of([b"no", b"yes"])
    for y in (bytes_, dates, pd.Series(dates)):
        with pytest.raises(ValueError, match="numbers, booleans or strings"):
            model.fit(X, y)
    with pytest.raises(UsageError, match="numbers, booleans or strings"):
        model.set_params(classes=[b"no", b"yes"]).fit(X, bytes_.astype(object))
    assert not (tmp_path / "l").exists()


@pytest.mark.unit
@pytest.mark.parametrize("missing", [None, float("nan"), pd.NA, "", "NA"])
def test_missing_labels_that_are_assumed_public_are_named(missing: Any):
    y = of(WORDS).astype(object)
    y[~OLD] = missing
    with pytest.raises(ValueError, match="means a missing label"):
        Classifier(**SMALL, assume_public_schema=True).fit(X, y)


@pytest.mark.unit
def test_a_missing_label_that_is_assumed_public_is_not_printed():
    y = of(WORDS).astype(object)
    y[0] = "\ud800Alice"
    with pytest.raises(ValueError, match="means a missing label") as refused:
        Classifier(**SMALL, assume_public_schema=True).fit(X, y)
    assert "Alice" not in str(refused.value)


@pytest.mark.unit
def test_bytes_in_a_list_are_strings():
    model = fitted(of([b"no", b"yes"]).tolist(), WORDS)
    assert set(model.predict(X)) == set(WORDS)


@pytest.mark.unit
@pytest.mark.parametrize(
    ("values", "names", "kind"), [([0, 1], NUMBERS, "i"), ([False, True], TRUTH, "b")]
)
def test_predictions_have_the_type_of_an_arrow_array(
    values: list[Any], names: list[str], kind: str
):
    y = pa.chunked_array([pa.array([None, *of(values).tolist()[1:]])])
    assert fitted(y, names).predict(X).dtype.kind == kind


@pytest.mark.unit
def test_a_null_of_an_arrow_array_changes_no_other_label_and_no_metadata():
    large = [2**53, 2**53 + 1]
    for values in (large, [0, 1], [False, True]):
        y = of(values).tolist()
        worlds = pa.array(y), pa.array([None, *y[1:]])
        whole, missing = (check_labels(each, read=False) for each in worlds)
        assert whole[1:].tolist() == missing[1:].tolist() == y[1:]
        assert whole.dtype == missing.dtype == object
        assert common_label_type(whole) == common_label_type(missing)


@pytest.mark.unit
def test_a_table_without_types_is_refused():
    table = pa.table({"age": AGES, "old": OLD})
    with pytest.raises(ValueError, match="a pandas frame"):
        Classifier(**SMALL).fit(table, ints)
    with pytest.raises(ValueError, match="a pandas frame"):
        Classifier(**SMALL).fit(X, pa.table({"y": ints}))


@pytest.mark.unit
def test_one_label_does_not_decide_the_type_of_all():
    for most, one, expected in [
        ([0.5, 1.5], 1, float), ([0, 1], 0.5, int), ([0, 1], float("nan"), int),
        ([None], b"a", object), (["a"], 1, object), ([b"a"], "a", object),
    ]:  # fmt: skip
        labels = np.array([*most * 5, one], dtype=object)
        assert common_label_type(labels) == np.dtype(expected)


@pytest.mark.unit
def test_types_of_values_are_listed_as_assumed_public():
    assert "labels" in str(fitted(ints.tolist(), NUMBERS).result_.document["assumed_public"])
    assert "labels" not in str(fitted(ints, NUMBERS).result_.document["assumed_public"])


@pytest.mark.unit
@pytest.mark.parametrize("names", [WORDS, NUMBERS])
def test_truth_values_of_other_names_are_refused_before_a_charge(tmp_path: Path, names: list[str]):
    columns = {"age": {"low": 18, "high": 90}, "y": {"categories": names}}
    kept = {"ledger": tmp_path / "l", "ledger_budget": (9.0, 1e-4)}
    model = Classifier(**SMALL, schema={"target": "y", "columns": columns}, **kept)
    with pytest.raises(UsageError, match="expected classes as y has them"):
        model.fit(X, OLD)
    assert not (tmp_path / "l").exists()


# Scores


@pytest.mark.contract
@pytest.mark.parametrize("given", [None, 0.25])
def test_a_score_within_a_ledger_is_charged_and_noisy(tmp_path: Path, given: float | None):
    path = tmp_path / "ledger"
    kept = {"ledger": path, "ledger_budget": (3.0, 1e-3), "score_epsilon": given}
    model = Classifier(**DECLARED, classes=[0, 1], **kept).fit(X.to_numpy(), ints)
    exact = float((model.predict(X.to_numpy()) == ints).mean())
    scores = {model.score(X.to_numpy(), ints) for _ in range(4)}
    assert len(scores) > 1
    assert all(abs(score - exact) < 0.5 for score in scores)
    assert all(score * N == pytest.approx(round(score * N)) for score in scores)
    costs = [price.epsilon for _, _, price in SharedLedger.open(path).runs()]
    assert costs[1:] == pytest.approx([given or 0.1] * 4, rel=0.05)
    with pytest.raises(UsageError, match="sample_weight"):
        model.score(X.to_numpy(), ints, sample_weight=np.ones(N))


@pytest.mark.contract
def test_a_score_that_does_not_fit_reads_no_label(tmp_path: Path, monkeypatch: Any):
    kept = {"ledger": tmp_path / "l", "ledger_budget": (1.05, 1e-3), "score_epsilon": 1.0}
    model = Classifier(**DECLARED, classes=[0, 1], **kept).fit(X.to_numpy(), ints)
    read = []
    monkeypatch.setattr("pasearch.data.tables.TableSchema.encode_labels", lambda *_: read.append(1))
    with pytest.raises(BudgetError, match="does not fit"):
        model.score(X.to_numpy(), ints)
    assert not read


@pytest.mark.contract
def test_a_score_of_numbers_within_a_ledger_is_charged_and_noisy(tmp_path: Path):
    kept = {"ledger": tmp_path / "l", "ledger_budget": (9.0, 1e-3), "score_epsilon": 3.0}
    y = AGES / 90.0
    model = Regressor(**DECLARED, target_bounds=(0, 1), **kept).fit(X.to_numpy(float), y)
    scores = [model.score(X.to_numpy(float), y) for _ in range(2)]
    assert scores[0] != scores[1]
    costs = [price.epsilon for _, _, price in SharedLedger.open(tmp_path / "l").runs()]
    assert costs[1:] == pytest.approx([3.0, 3.0], rel=1e-3)


@pytest.mark.statistical
def test_noisy_scores_are_those_without_noise_at_a_large_epsilon():
    generator, keys = np.random.default_rng(1), Keys.from_seed(1)
    target = generator.random(500)
    predicted = np.clip(target + 0.1 * generator.standard_normal(500), 0, 1)
    exact = 1 - ((target - predicted) ** 2).sum() / ((target - target.mean()) ** 2).sum()
    assert noisy_r_squared(target, predicted, 1e4, keys.stream("r")) == pytest.approx(
        exact, abs=1e-2
    )
    assert noisy_accuracy(target > 0.3, 50.0, keys.stream("a")) == (target > 0.3).mean()
    found = [noisy_accuracy(target > 0.3, 0.1, keys.stream("n", i)) for i in range(400)]
    assert np.std(found) * 500 == pytest.approx(np.sqrt(2) / 0.1, rel=0.15)


@pytest.mark.contract
def test_cross_validation_within_a_ledger_charges_fits_and_scores(tmp_path: Path):
    kept = {"ledger": tmp_path / "l", "ledger_budget": (3.0, 1e-3)}
    model = Classifier(**DECLARED, classes=[0, 1], **kept)
    cross_val_score(model, X.to_numpy(), ints, cv=2, error_score="raise")
    assert len(SharedLedger.open(tmp_path / "l").runs()) == 4


@pytest.mark.contract
def test_an_exact_score_warns_once_in_one_sentence(tmp_path: Path):
    model = Classifier(**DECLARED, classes=[0, 1]).fit(X.to_numpy(), ints)
    number = Regressor(**DECLARED, target_bounds=(0, 90)).fit(X.to_numpy(float), AGES)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(3):
            model.score(X.to_numpy(), ints)
            number.score(X.to_numpy(float), AGES)
    (only,) = [str(each.message) for each in told if "exact and" in str(each.message)]
    assert re.match(r"[^.]*\.$", only)
    assert told[0].filename == __file__


@pytest.mark.contract
def test_the_exact_score_of_a_loaded_run_warns(tmp_path: Path):
    search_architecture(
        (X.to_numpy(float), ints), budget=Budget(1.0, 1e-4), bounds=(18, 90), classes=2,
        strategy="fixed", steps=3, out=tmp_path / "x", progress=False,
    )  # fmt: skip
    with pytest.warns(UserWarning, match="exact and was not charged"):
        load(tmp_path / "x").score(X.to_numpy(float), ints)


SCRIPT = """
import numpy as np, warnings
from sklearn.model_selection import GridSearchCV
from pasearch.sklearn_api.estimators import PrivateArchitectureSearchClassifier as C
x = np.random.default_rng(0).random((120, 1)); y = (x[:, 0] > .5).astype(int)
made = C(strategy="fixed", steps=2, device="cpu", delta=1e-4, bounds=(0, 1), classes=[0, 1])
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    GridSearchCV(made, {"epsilon": [1.0, 2.0]}, cv=2, n_jobs=2).fit(x, y)
print(*[str(each.message) for each in told if "fits so far" in str(each.message)], sep="\\n")
from joblib.externals.loky import get_reusable_executor
get_reusable_executor().shutdown(wait=True, kill_workers=True)
"""


@pytest.mark.contract
def test_fits_of_workers_and_the_refit_are_counted_together(tmp_path: Path):
    # Files, not pipes: a worker that outlives its parent would keep a pipe open.
    out, errors = tmp_path / "out", tmp_path / "errors"
    with out.open("w") as to, errors.open("w") as to_errors:
        subprocess.run([sys.executable, "-c", SCRIPT], stdout=to, stderr=to_errors, check=True)
    (only,) = out.read_text().strip().splitlines()
    assert only.startswith("5 private fits so far")
    count, together = re.search(r"epsilon ([\d.]+), not ([\d.]+)", only).groups()  # type: ignore[union-attr]
    assert float(count) == pytest.approx(6 + float(together), abs=0.05)
    assert errors.read_text().count("This score is exact") == 1


@pytest.mark.unit
def test_one_process_counts_its_fits_and_the_refit():
    made = Classifier(**DECLARED, classes=[0, 1])
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        GridSearchCV(made, {"steps": [2, 3]}, cv=2).fit(X.to_numpy(), ints)
    fits = [str(each.message) for each in told if "fits so far" in str(each.message)]
    assert [each.split()[0] for each in fits] == ["2", "3", "4", "5"]
