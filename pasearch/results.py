"""Results of finished runs: `result.json`, and the released model with its preprocessing.

`SCHEMA_VERSION` changes whenever the meaning of `result.json` changes. The field `events` has every
release of the plan, and `verification` recomputes the privacy cost from it. Nothing here reads a
private record.

Source: docs/result.md describes every field.
"""

from __future__ import annotations

import hashlib
import io
import pickle
import warnings
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasearch import __version__, documents, notebooks
from pasearch.accounting.accountants import PrivacyCost
from pasearch.accounting.events import Composition, Event, SelfComposition, event_from_json
from pasearch.documents import (
    check_cell_table,
    check_fields,
    malformed_error,
    require_well_formed,
    short_repr,
)
from pasearch.errors import UsageError, suggest_file
from pasearch.files import MAX_JSON_BYTES, check_uncompressed, parse_json, read_bytes

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from pasearch.data.tables import AnySchema
    from pasearch.spaces.candidate import Candidate

SCHEMA_VERSION = 4  # version of `result.json`; files of other versions are refused
FEATURE_SELECTION = "feature selection"  # name of the task of a feature selection in `result.json`
MAX_BINS = 100_000  # maximum number of bins of a column in a file
BYTES_PER_PARAMETER = 4  # bytes of a float32 parameter
MAX_MODEL_BYTES = 2**31  # maximum size of a model file: twice that of the largest network

LOAD_ERRORS = (
    pickle.UnpicklingError, zipfile.BadZipFile, RuntimeError, ValueError, KeyError, TypeError,
    AttributeError, EOFError, OSError, IndexError,
)  # fmt: skip
"""Exceptions from loading a file without weights, or with the weights of another network."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished run of any kind.

    Args:
        path: Folder of the run, or its `release/` folder.
        document: Content of `result.json`.
        card: Privacy card, Markdown.
    """

    path: Path
    document: dict[str, Any]
    card: str

    @property
    def price(self) -> PrivacyCost:
        """Total privacy cost of the run: epsilon, delta and accountant."""
        return parse_price(self.document)

    @property
    def test_accuracy(self) -> float:
        """Noisy accuracy on the test records, in [0, 1].

        Raises:
            UsageError: the run has another metric, such as that of `test_error`.
        """
        return self._require_score("accuracy")

    @property
    def test_error(self) -> float:
        """Noisy mean absolute error on the test records, as a fraction of the target's range."""
        return self._require_score("mean absolute error")

    @property
    def test_score(self) -> float:
        """Noisy score on the test records, in the metric of the run.

        With a small epsilon or few test records, the score may be below the noise level. The report
        and `print(result)` then say so.
        """
        return float(self.document["score"]["test"])

    def _describe_score(self) -> str:
        """Describe the test score in one phrase with epsilon."""
        from pasearch.report.score import is_below_noise

        score = self.document["score"]
        known = (
            "unknown (below the noise level)" if is_below_noise(score) else f"{score['test']:.3f}"
        )
        return f"test {score['metric']} {known}, for epsilon {self.price.epsilon:.4g}"

    def _require_score(self, metric: str) -> float:
        """Return the test score; refuse a run with another metric."""
        score = self.document["score"]
        if score["metric"] != metric:
            known = {"accuracy": "test_accuracy", "mean absolute error": "test_error"}
            own = known.get(score["metric"], "test_score")
            raise UsageError(
                f"The metric of this run is {score['metric']}, not {metric}: use `{own}`."
            )
        return self.test_score

    @property
    def metrics(self) -> dict[str, Any]:
        """Measures of the model, computed from the noisy table of test counts; empty without one.

        `accuracy`, `balanced_accuracy`, `auc`, `most_common` (majority-class baseline) and, per
        class, `shares`, `recall` and `precision` each have a `value` and a standard `error`, or a
        `reason` without a value. docs/result.md describes `confusion`, `calibration` and `classes`.
        Regression has `mean_absolute_error`, `median` (median baseline), `lead` and `r2`.

        Cost: none (post-processing).
        """
        from pasearch.training.score_tables import compute_score_measures

        with require_well_formed():
            return compute_score_measures(self.document["score"], self.schema)

    @property
    def schema(self) -> AnySchema:
        """Schema of the records: declared, estimated with DP, or assumed public."""
        return restore_schema(self.document)

    @cached_property
    def model(self) -> Any:
        """Trained model, as `trained_model` returns it."""
        return trained_model(self.path)

    @property
    def report(self) -> str:
        """Report, HTML."""
        return (find_release(self.path) / "report.html").read_text(encoding="utf-8")

    @property
    def classes_(self) -> np.ndarray:
        """Classes in the order of `predict_proba`; those of a table are strings.

        Raises:
            UsageError: the run is a regression.
        """
        import numpy as np

        if self.schema.regression:
            raise UsageError("This run is a regression, so it has no classes: use `predict`.")
        return self.schema.decode_class(np.arange(self.schema.outputs))

    def predict(self, records: Any) -> np.ndarray:
        """Predict the class (for tables, its name) or the value of each new record; (rows,).

        Args:
            records: New records in the original units: an array, (rows, *shape); a pandas data
                frame with the columns of the data, in any order; or a file of either.

        Cost: none (post-processing of the released model).
        """
        raise NotImplementedError

    def predict_proba(self, records: Any) -> np.ndarray:
        """Predict the probability of each of `classes_`, (rows, classes).

        Args:
            records: New records, like those of `predict`.
        """
        raise NotImplementedError

    def to_onnx(self, path: str | Path, *, encoded: bool = False) -> Path:
        """Export the model to an ONNX file, which runs without pasearch or Python.

        The input for arrays is `x`, records in the original units (double). A table has one input
        per column: numbers as double (NaN: missing), categories as string ("": missing). The
        outputs are `label` and `probabilities`, or `prediction`. The metadata has the schema.

        Args:
            path: Path of a new file.
            encoded: Whether the model of a table has one input `encoded` (float rows from
                `schema.encode_new`) instead of one input per column.

        Returns:
            Path: Path of the file.

        Raises:
            UsageError: the file exists, the packages of `pasearch[onnx]` are not installed, or
                ONNX cannot express a part of the model; nothing was written.

        Cost: none (post-processing of the released model).
        """
        from pasearch.onnx_export import write_onnx

        price = self.document["price"]
        said = {name: str(price[name]) for name in ("epsilon", "delta", "accountant")}
        return write_onnx(path, self.schema, self._encoded_model(), about=said, encoded=encoded)

    def leaderboard(self) -> Any:
        """Return all trials as a pandas data frame, the best score first.

        Columns: `trial`; `network`, `parameters` (number) and `settings`, or `features` and `size`
        (number of features); `score` (noisy, as `plot()` shows it; missing without comparison);
        `released` (whether it is the released candidate); `metric` (name of the score). The test
        score is a different number, on other records.

        Raises:
            UsageError: the trials are secret under this strategy, or pandas is not installed.

        Cost: none (the scores were charged by the run).
        """
        from pasearch.report.notebook import make_leaderboard

        with require_well_formed():
            return make_leaderboard(self.document, self.schema)

    def plot(self, kind: str | None = None, ax: Any = None, **kwargs: Any) -> Any:
        """Draw the result.

        Args:
            kind: Figure: "trials", "budget", "schedule" (networks) or "features" (feature
                selection). None: trials if they may be shown, else features or budget.
            ax: matplotlib axes to draw on; None creates a figure.
            kwargs: Options of the display's `plot`.

        Returns:
            Display (`pasearch.displays`), with `figure_` and `ax_`.

        Raises:
            UsageError: the kind is unknown, or matplotlib is not installed (`pip install
                'pasearch[plots]'`).

        Cost: none.
        """
        of_features = self.document["task"] == FEATURE_SELECTION
        own = ["features", "budget"] if of_features else ["budget", "schedule"]
        compared = self.document.get("trials") and self.document["selection"]["rule"] != "none"
        kinds = ["trials", *own] if compared else [*own, "trials"]
        return notebooks.plot_figure(self, kinds, kind, ax, **kwargs)

    def _repr_html_(self) -> str:
        from pasearch.report.notebook import summary_html

        with require_well_formed():
            return summary_html(self.document, repr(self), self.schema)

    def _encoded_model(self) -> Any:
        """Return the model of encoded records, in the form that `write_onnx` accepts."""
        raise NotImplementedError

    def _cells(self, records: Any) -> Any:
        """Load records from a file if `records` is a path; return other records unchanged."""
        from pasearch.data.sources import find_readable, load_new_records

        if not isinstance(records, (str, Path)):
            return records
        found = load_new_records(str(records), self.schema)
        if lost := int((~find_readable(found)).sum()):
            warnings.warn(
                f"{lost:,} of {len(found):,} records of {records} cannot be read, and are "
                "predicted like an empty record.",
                UserWarning,
                stacklevel=3,
            )
        return found


@dataclass(frozen=True, kw_only=True, repr=False)
class SearchResult(Result):
    """A finished architecture search.

    Args:
        trials: All trials, if the strategy allows showing them; otherwise empty.
    """

    trials: tuple[Any, ...] = ()

    @property
    def best(self) -> Candidate:
        """Selected architecture with its settings."""
        from pasearch.spaces.candidate import Candidate

        with require_well_formed():
            return Candidate.from_json(self.document["best"])

    def scores(self, records: Any) -> np.ndarray:
        """Compute network outputs: logits, (rows, classes), or predicted values, (rows,).

        Args:
            records: New records, like those of `predict`.

        Returns:
            np.ndarray: float32; predicted values are in the target's units and within its bounds.

        Cost: none (post-processing of the released model).
        """
        import torch

        schema = self.schema
        x = schema.encode_new(self._cells(records))
        with torch.no_grad():
            outputs = self._network(torch.from_numpy(x)).numpy()
        if not schema.regression:
            return outputs
        return schema.decode_number(outputs[:, 0].clip(0.0, 1.0))

    @cached_property
    def _network(self) -> nn.Sequential:
        return load_network(self.path)

    def _encoded_model(self) -> Any:
        return load_network(self.path)

    def predict(self, records: Any) -> np.ndarray:
        scores = self.scores(records)
        return scores if self.schema.regression else self.schema.decode_class(scores.argmax(1))

    def predict_proba(self, records: Any) -> np.ndarray:
        from scipy.special import softmax

        assert len(self.classes_)
        return softmax(self.scores(records), axis=1)

    def __repr__(self) -> str:
        return f"SearchResult({self.best.describe()}: {self._describe_score()}, in {self.path})"


@dataclass(frozen=True, kw_only=True, repr=False)
class FeatureResult(Result):
    """A finished feature selection."""

    @property
    def features(self) -> list[str]:
        """Selected features of an encoded record, in the order of selection."""
        return list(self.document["best"]["features"])

    @property
    def columns(self) -> list[str]:
        """Table columns of the selected features; empty for arrays."""
        return list(self.document["best"]["columns"])

    @property
    def support(self) -> np.ndarray:
        """Mask of the selected features of an encoded record, (features,) bool."""
        import numpy as np

        best = self.document["best"]
        with require_well_formed():
            mask = np.zeros(best["of"], bool)
            mask[best["places"]] = True
        return mask

    def _encoded_model(self) -> Any:
        return self.model

    def predict(self, records: Any) -> np.ndarray:
        return self.model.predict(self._cells(records))

    def predict_proba(self, records: Any) -> np.ndarray:
        assert len(self.classes_)
        return self.model.predict_proba(self._cells(records))

    def __repr__(self) -> str:
        best = self.document["best"]
        return (
            f"FeatureResult({self.document['strategy']['name']}: {len(best['features'])} of "
            f"{best['of']} features, {self._describe_score()}, in {self.path})"
        )


def find_release(path: str | Path) -> Path:
    """Find the `release/` folder of a run, from the folder of the run or the folder itself.

    Raises:
        UsageError: there is no result.
    """
    path = Path(path)
    for folder in (path, path / "release"):
        if (folder / "result.json").is_file():
            return folder
    if (path / "private").is_dir():
        raise UsageError(f"The run {path} is not finished: use `pasearch resume {path}`.")
    why = "contains no result.json" if path.exists() else "does not exist"
    raise UsageError(
        f"{path} {why}: expected the folder of a run, or its release/.{suggest_file(path)}"
    )


def read_document(path: str | Path) -> dict[str, Any]:
    """Read the `result.json` of a run.

    Raises:
        UsageError: there is no result, or it is malformed or has another version.
    """
    file = find_release(path) / "result.json"
    return parse_document(read_bytes(file, "a JSON file", most=MAX_JSON_BYTES), file)


def parse_document(content: bytes, file: Path) -> dict[str, Any]:
    """Parse and check the content of a `result.json`.

    Args:
        content: Content of the file.
        file: Path of the file, for messages.

    Raises:
        UsageError: the content is malformed or has another version.
    """
    document = parse_json(content, str(file), "a JSON file")
    version = document.get("schema_version") if isinstance(document, dict) else None
    if type(version) is not int or version != SCHEMA_VERSION:
        versions = document.get("versions") if isinstance(document, dict) else None
        writer = versions.get("pasearch") if isinstance(versions, dict) else None
        raise UsageError(
            f"{file} has schema_version {short_repr(version)} and was written by version "
            f"{short_repr(writer)} of pasearch. Version {__version__} reads schema_version "
            f"{SCHEMA_VERSION}: use the version that wrote the file."
        )
    if not document.get("events"):
        raise UsageError("result.json lists no events, so its privacy cost cannot be computed.")
    check_fields(document, documents.RESULT_FIELDS)
    of_features = document["task"] == FEATURE_SELECTION
    check_fields(document, documents.FEATURE_FIELDS if of_features else documents.NETWORK_FIELDS)
    check_cell_table(document["score"])
    return document


def model_file_name(document: dict[str, Any]) -> str:
    """Return the name of the file with the model's weights."""
    return "model.npz" if document["task"] == FEATURE_SELECTION else "model.pt"


def load_result(path: str | Path) -> SearchResult | FeatureResult:
    """Load the result of a finished architecture search, training or feature selection.

    Args:
        path: Folder of the run, or its `release/` folder.

    Raises:
        UsageError: there is no result, it has another version, or its card is missing.

    Cost: none.

    Example:
        >>> from pasearch import Budget, load_result, train
        >>> run = train("digits", budget=Budget(epsilon=2.0), steps=10)
        >>> load_result(run.path).price == run.price
        True
    """
    document, file = read_document(path), find_release(path) / "privacy-card.md"
    try:
        card = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {error}.") from None
    kind = FeatureResult if document.get("task") == FEATURE_SELECTION else SearchResult
    return kind(path=Path(path), document=document, card=card)


def trained_model(path: str | Path) -> Any:
    """Load the trained model of a finished run; `pasearch.load` is easier to use.

    Args:
        path: Folder of the run, or its `release/` folder.

    Returns:
        A fitted scikit-learn estimator (`features.model`) for a feature selection; otherwise an
        nn.Sequential in evaluation mode. For arrays, it clips and rescales records in the original
        units, (batch, *shape). For tables, it takes rows encoded by the schema (`predict` of
        `load_result` takes the table). Outputs are logits, (batch, classes), or the scaled
        prediction, (batch, 1).

    Raises:
        UsageError: there is no result, it has another version, or the model file was changed.

    Cost: none (post-processing of the released model).
    """
    from torch import nn

    from pasearch.data.schema import Schema
    from pasearch.spaces.modules import Rescale

    document = read_document(path)
    schema = restore_schema(document)
    if document["task"] == FEATURE_SELECTION:
        from pasearch.features.model import load_model

        with require_well_formed():
            return load_model(schema, document["model"], _read_model_file(path, document))
    model = load_network(path)
    if isinstance(schema, Schema) and schema.low is not None and schema.high is not None:
        model = nn.Sequential(Rescale(schema.low, schema.high), *model)
    return model.eval()


def restore_schema(document: dict[str, Any]) -> AnySchema:
    """Restore the schema from a `result.json`."""
    from pasearch.data.schema import Schema
    from pasearch.data.tables import TableSchema

    values = document["dataset"]["schema"]
    with require_well_formed():
        bins = [each.get("bins") for each in values.get("columns", ())]
        if any(isinstance(each, int) and each > MAX_BINS for each in bins):
            raise malformed_error(f"a column has more than {MAX_BINS:,} bins")
        return (TableSchema if values.get("kind") == "table" else Schema).from_json(values)


def parse_price(document: dict[str, Any]) -> PrivacyCost:
    """Read the total privacy cost from a `result.json`."""
    price = document["price"]
    return PrivacyCost(
        epsilon=price["epsilon"], delta=price["delta"], accountant=price["accountant"]
    )


def standard_error(score: dict[str, Any]) -> float:
    """Compute the standard error of a released score, from sampling and noise together."""
    from pasearch.training.metrics import compute_score_error

    return compute_score_error(score)


def load_network(path: str | Path) -> nn.Sequential:
    """Load the network of a finished run with its preprocessing, for records scaled to [0, 1]."""
    document = read_document(path)
    return build_network(document, _read_model_file(path, document))


def _read_model_file(path: str | Path, document: dict[str, Any]) -> bytes:
    """Read the model file of a run; refuse one whose hash differs from `result.json`."""
    name = model_file_name(document)
    if document["model"]["file"] != name:
        raise malformed_error(
            f"model.file is {short_repr(document['model']['file'])}, and not {name!r}"
        )
    file = find_release(path) / name
    content = read_bytes(file, "a model", most=MAX_MODEL_BYTES) if file.is_file() else b""
    if not content or compute_digest(content) != document["model"]["sha256"]:
        raise UsageError(f"{file} is missing or not the file that result.json describes.")
    return content


def build_network(document: dict[str, Any], weights: bytes) -> nn.Sequential:
    """Build the network that a `result.json` describes, with preprocessing and weights.

    Args:
        document: Content of `result.json`.
        weights: Content of `model.pt`.

    Raises:
        UsageError: the weights do not belong to this network.
    """
    import torch
    from torch import nn

    from pasearch.spaces.candidate import Candidate
    from pasearch.spaces.user_modules import describe_changed_class

    with require_well_formed():
        if changed := describe_changed_class(document):
            warnings.warn(changed, UserWarning, stacklevel=2)
        schema, candidate = restore_schema(document), Candidate.from_json(document["best"])
        # Checked before the network is built, because a forged document may name a huge one.
        known = BYTES_PER_PARAMETER * candidate.parameters(schema.shape, schema.outputs)[0] <= len(
            weights
        )
    if not known:
        raise UsageError("model.pt is too small for the network that result.json describes.")
    with require_well_formed():
        network = candidate.build(schema.shape, schema.outputs)
        model = nn.Sequential(candidate.front_end.module(schema.shape), network)
    try:
        check_uncompressed(weights)
        model.load_state_dict(torch.load(io.BytesIO(weights), weights_only=True))
    except LOAD_ERRORS as error:
        raise UsageError(
            f"model.pt does not hold the network that result.json describes: {short_repr(error)}."
        ) from None
    return model.eval()


def compute_digest(content: bytes) -> str:
    """Compute the SHA-256 hash of a file's content, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def compose_events(document: dict[str, Any]) -> dict[str, Event]:
    """Return the composition of the charged events of each partition, from `result.json`.

    Raises:
        UsageError: an event has an unknown type, or there are no events.
    """
    grouped: dict[str, list[Event]] = {}
    for line in document.get("events") or ():
        with require_well_formed():
            event = SelfComposition(event=event_from_json(line["event"]), count=line["count"])
        grouped.setdefault(str(line["partition"]), []).append(event)
    if not grouped:
        raise UsageError("result.json lists no events, so its privacy cost cannot be computed.")
    return {partition: Composition(events=tuple(events)) for partition, events in grouped.items()}
