"""What a finished run says: `result.json`, and the model behind its front end.

`result.json` is stable: `SCHEMA_VERSION` changes when its meaning does. Its `events` are the whole
plan, in the closed table of event types; `verification` recomputes the price and all else.
Nothing here reads a private record.

Source: docs/result.md describes every field.
"""

from __future__ import annotations

import hashlib
import io
import pickle
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

SCHEMA_VERSION = 4
"""The only version that is read."""

FEATURE_SELECTION = "feature selection"
"""The task of a feature selection, as `result.json` names it."""

MAX_BINS = 100_000
"""The most bins of a column that are read: each is a feature with a name."""

BYTES_PER_PARAMETER = 4
"""Of one parameter: float32."""

MAX_MODEL_BYTES = 2**31
"""The most bytes of a model's file: twice what the largest network has."""

LOAD_ERRORS = (
    pickle.UnpicklingError, zipfile.BadZipFile, RuntimeError, ValueError, KeyError, TypeError,
    AttributeError, EOFError, OSError, IndexError,
)  # fmt: skip
"""What loading a file may raise that holds no weights, or those of another network."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """A finished run of any kind.

    Args:
        path: The run's folder, or its `release/` folder.
        document: `result.json`.
        card: The privacy card, Markdown.
    """

    path: Path
    document: dict[str, Any]
    card: str

    @property
    def price(self) -> PrivacyCost:
        """What the whole run cost."""
        return parse_price(self.document)

    @property
    def test_accuracy(self) -> float:
        """The noisy accuracy on the test slots, in [0, 1].

        Raises:
            UsageError: A number was predicted: see `test_error`.
        """
        return self._score("accuracy")

    @property
    def test_error(self) -> float:
        """The noisy mean absolute error on the test slots, as a share of the target's width."""
        return self._score("mean absolute error")

    @property
    def test_score(self) -> float:
        """The noisy score on the test slots, by the run's own metric.

        With a tiny epsilon, or few test records, its noise may be larger than what it could tell:
        the report says so then, and so does `print(result)`.
        """
        return float(self.document["score"]["test"])

    def _describe_score(self) -> str:
        from pasearch.report.score import is_below_noise

        score = self.document["score"]
        known = "unknown: noise drowns it" if is_below_noise(score) else f"{score['test']:.3f}"
        return f"test {score['metric']} {known}, for epsilon {self.price.epsilon:.4g}"

    def _score(self, metric: str) -> float:
        score = self.document["score"]
        if score["metric"] != metric:
            known = {"accuracy": "test_accuracy", "mean absolute error": "test_error"}
            own = known.get(score["metric"], "test_score")
            raise UsageError(
                f"This run was scored by its {score['metric']}, not its {metric}: take `{own}`."
            )
        return self.test_score

    @property
    def metrics(self) -> dict[str, Any]:
        """Post-processing of the test's table of counts; empty if it released one number.

        Each of `accuracy`, `balanced_accuracy`, `auc`, `most_common` and, one a class, `shares`,
        `recall` and `precision` has a `value`, a standard `error` and, where it has no value, the
        `reason`. `confusion`, `calibration`, `classes`: see docs/result.md. For a numeric target:
        `mean_absolute_error`, `median` (of always answering it), `lead` and `r2`. It costs nothing.
        """
        from pasearch.training.score_tables import compute_score_measures

        with require_well_formed():
            return compute_score_measures(self.document["score"], self.schema)

    @property
    def schema(self) -> AnySchema:
        """The schema of the records: declared, estimated privately or assumed public."""
        return restore_schema(self.document)

    @cached_property
    def model(self) -> Any:
        """The trained model itself; see `trained_model`."""
        return trained_model(self.path)

    @property
    def report(self) -> str:
        """The report, HTML."""
        return (find_release(self.path) / "report.html").read_text(encoding="utf-8")

    @property
    def classes_(self) -> np.ndarray:
        """The classes, in the order of `predict_proba`: a table's by their names.

        Raises:
            UsageError: A number was predicted.
        """
        import numpy as np

        if self.schema.regression:
            raise UsageError("This run predicts a number, so it has no classes: take `predict`.")
        return self.schema.decode_class(np.arange(self.schema.outputs))

    def predict(self, records: Any) -> np.ndarray:
        """Return the class of each new record (a table's by its name), or its number; (rows,).

        Args:
            records: In the data's own units: an array, (rows, *shape); a table (a pandas frame with
                the columns of the data, in any order); or a file of either.

        Cost: none; the model was paid for.
        """
        raise NotImplementedError

    def predict_proba(self, records: Any) -> np.ndarray:
        """Return the probability of each of `classes_`, (rows, classes); as `predict`."""
        raise NotImplementedError

    def to_onnx(self, path: str | Path, *, encoded: bool = False) -> Path:
        """Write the model as an ONNX file, which other programs run without pasearch or Python.

        Of arrays the input is `x`, records in the data's own units (double); of a table an input a
        column: numbers as double, NaN for missing, and categories as string, "" for missing. The
        outputs are `label` and `probabilities`, or `prediction`. The schema is in the metadata.

        Args:
            path: A new file.
            encoded: The input of a table is `encoded`, its rows as `schema.encode_new` returns
                them (float), and not its columns.

        Returns:
            Path: The file.

        Raises:
            UsageError: The file exists, the packages of `pasearch[onnx]` are not installed, or a
                part of the model has no form in ONNX; nothing was written.

        Cost: none; the model was paid for.
        """
        from pasearch.onnx_export import write_onnx

        price = self.document["price"]
        said = {name: str(price[name]) for name in ("epsilon", "delta", "accountant")}
        return write_onnx(path, self.schema, self._encoded_model(), about=said, encoded=encoded)

    def leaderboard(self) -> Any:
        """Return every trial as a pandas frame, the best score first.

        Its columns: `trial`; `network` with its `parameters` (how many) and `settings`, or
        `features` and how many (`size`); `score`, with noise, the number that `plot()` shows;
        `released` (whether it is the released candidate); and `metric`, the name of the score. What
        was not compared has no score. The score of the test is another number, of other records.

        Raises:
            UsageError: Trials are secret under this strategy, or pandas is not installed.

        Cost: none; the scores were paid for.
        """
        from pasearch.report.notebook import make_leaderboard

        with require_well_formed():
            return make_leaderboard(self.document, self.schema)

    def plot(self, kind: str | None = None, ax: Any = None, **kwargs: Any) -> Any:
        """Draw the result.

        Args:
            kind: "trials", "budget", or "schedule" of a network and "features" of a feature
                selection. None: the trials, if any may be shown; otherwise the features, or the
                budget.
            ax: Axes of matplotlib to draw on; None makes a figure.
            kwargs: As of the display's `plot`.

        Returns:
            The display (`pasearch.displays`), with `figure_` and `ax_`.

        Raises:
            UsageError: No such kind, or matplotlib is not installed (`pip install
                'pasearch[plots]'`).

        Cost: none.
        """
        return notebooks.plot_figure(self, self._plot_kinds(), kind, ax, **kwargs)

    def _plot_kinds(self) -> list[str]:
        """Return which figures there are, the one first that is usually wanted."""
        of_features = self.document["task"] == FEATURE_SELECTION
        own = ["features", "budget"] if of_features else ["budget", "schedule"]
        compared = self.document.get("trials") and self.document["selection"]["rule"] != "none"
        return ["trials", *own] if compared else [*own, "trials"]

    def _repr_html_(self) -> str:
        from pasearch.report.notebook import summary_html

        with require_well_formed():
            return summary_html(self.document, repr(self), self.schema)

    def _encoded_model(self) -> Any:
        """Return what maps encoded records."""
        raise NotImplementedError

    def _cells(self, records: Any) -> Any:
        """Return new records, read if they are a file."""
        from pasearch.data.sources import load_new_records

        named = isinstance(records, (str, Path))
        return load_new_records(str(records), self.schema) if named else records


@dataclass(frozen=True, kw_only=True, repr=False)
class SearchResult(Result):
    """A finished architecture search.

    Args:
        trials: Every trial, where the strategy allows it to be shown; otherwise empty.
    """

    trials: tuple[Any, ...] = ()

    @property
    def best(self) -> Candidate:
        """The architecture that won, with its settings."""
        from pasearch.spaces.candidate import Candidate

        with require_well_formed():
            return Candidate.from_json(self.document["best"])

    def scores(self, records: Any) -> np.ndarray:
        """Return what the network says of new records, which are as of `predict`; float32.

        Scores of the classes, (rows, classes); or predicted numbers, in the target's own units and
        within its bounds, (rows,). Cost: none; the model was paid for.
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
        """The chosen features of an encoded record, in the order in which they were chosen."""
        return list(self.document["best"]["features"])

    @property
    def columns(self) -> list[str]:
        """The columns that they come from; arrays have none."""
        return list(self.document["best"]["columns"])

    @property
    def support(self) -> np.ndarray:
        """Which features of an encoded record were chosen, (features,) bool."""
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
    """Return the `release/` folder of a run, given the run's folder or that folder itself.

    Raises:
        UsageError: No result is there.
    """
    path = Path(path)
    for folder in (path, path / "release"):
        if (folder / "result.json").is_file():
            return folder
    if (path / "private").is_dir():
        raise UsageError(f"{path} is not finished: finish it with `pasearch resume {path}`.")
    why = "holds no result.json" if path.exists() else "is not there"
    raise UsageError(f"{path} {why}: expected a run's folder, or its release/.{suggest_file(path)}")


def read_document(path: str | Path) -> dict[str, Any]:
    """Return a run's `result.json`.

    Raises:
        UsageError: No result, not JSON, or of another version.
    """
    file = find_release(path) / "result.json"
    return parse_document(read_bytes(file, "a JSON file", most=MAX_JSON_BYTES), file)


def parse_document(content: bytes, file: Path) -> dict[str, Any]:
    """Return what the content of a `result.json` says; as `read_document`, for what was read."""
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
        raise UsageError("result.json lists no events: there is nothing to price.")
    check_fields(document, documents.RESULT_FIELDS)
    of_features = document["task"] == FEATURE_SELECTION
    check_fields(document, documents.FEATURE_FIELDS if of_features else documents.NETWORK_FIELDS)
    check_cell_table(document["score"])
    return document


def model_file_name(document: dict[str, Any]) -> str:
    """Return the name of the model's file: fixed by the task, whatever the document says."""
    return "model.npz" if document["task"] == FEATURE_SELECTION else "model.pt"


def load_result(path: str | Path) -> SearchResult | FeatureResult:
    """Return a finished run's result: of an architecture search, or of a feature selection.

    Args:
        path: The run's folder, or its `release/` folder.

    Raises:
        UsageError: No result is there, of another version, or without its card.

    Cost: none.
    """
    document, file = read_document(path), find_release(path) / "privacy-card.md"
    try:
        card = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"{file} cannot be read: {error}.") from None
    kind = FeatureResult if document.get("task") == FEATURE_SELECTION else SearchResult
    return kind(path=Path(path), document=document, card=card)


def trained_model(path: str | Path) -> Any:
    """Return the trained model of a finished run itself; `pasearch.load` is easier to use.

    Args:
        path: The run's folder, or its `release/` folder.

    Returns:
        Of a feature selection, a fitted scikit-learn estimator (`features.model`). Of other runs an
        nn.Sequential in evaluation mode. Of arrays it clamps and rescales records in the data's
        own units, (batch, *shape); of tables it takes rows encoded by the schema (`scores` and
        `predict` of `load_result` take the table itself). It gives logits, (batch, classes), or the
        scaled number, (batch, 1).

    Raises:
        UsageError: No result is there, of another version, or the model file was changed.

    Cost: none; the model was paid for.
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
    """Return the schema that a run's `result.json` describes."""
    from pasearch.data.schema import Schema
    from pasearch.data.tables import TableSchema

    values = document["dataset"]["schema"]
    with require_well_formed():
        bins = [each.get("bins") for each in values.get("columns", ())]
        if any(isinstance(each, int) and each > MAX_BINS for each in bins):
            raise malformed_error(f"a column has more than {MAX_BINS:,} bins")
        return (TableSchema if values.get("kind") == "table" else Schema).from_json(values)


def parse_price(document: dict[str, Any]) -> PrivacyCost:
    """Return the price that a run's `result.json` states."""
    price = document["price"]
    return PrivacyCost(
        epsilon=price["epsilon"], delta=price["delta"], accountant=price["accountant"]
    )


def standard_error(score: dict[str, Any]) -> float:
    """Return the standard error of a released score: of the sample and of the noise."""
    from pasearch.training.metrics import compute_score_error

    return compute_score_error(score)


def load_network(path: str | Path) -> nn.Sequential:
    """Return front end and network of a finished run: they take records scaled to [0, 1]."""
    document = read_document(path)
    return build_network(document, _read_model_file(path, document))


def _read_model_file(path: str | Path, document: dict[str, Any]) -> bytes:
    """Return the content of the model's file, if it is the one that the document describes."""
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
    """Return front end and network that a `result.json` describes, with a `model.pt`'s weights.

    Raises:
        UsageError: They are not those of that network.
    """
    import torch
    from torch import nn

    from pasearch.spaces.candidate import Candidate

    with require_well_formed():
        schema, candidate = restore_schema(document), Candidate.from_json(document["best"])
        # A network that is larger than its file would be built only to be refused.
        known = BYTES_PER_PARAMETER * candidate.parameters(schema.shape, schema.outputs)[0] <= len(
            weights
        )
    if not known:
        raise UsageError("model.pt is too small to hold the network that result.json describes.")
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
    """Return the SHA-256 of a file's content, in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def compose_events(document: dict[str, Any]) -> dict[str, Event]:
    """Return the composition of what each partition is charged, from `result.json`.

    Raises:
        UsageError: An event that is not in the closed table, or no events at all.
    """
    grouped: dict[str, list[Event]] = {}
    for line in document.get("events") or ():
        with require_well_formed():
            event = SelfComposition(event=event_from_json(line["event"]), count=line["count"])
        grouped.setdefault(str(line["partition"]), []).append(event)
    if not grouped:
        raise UsageError("result.json lists no events: there is nothing to price.")
    return {partition: Composition(events=tuple(events)) for partition, events in grouped.items()}
