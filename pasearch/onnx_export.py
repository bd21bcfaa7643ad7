"""Export of a released model to ONNX, which runs without pasearch, torch or Python.

    arrays, images   one input `x`: records in the original units, double, (rows, *shape)
    tables           one input per column, (rows,): numbers as double (missing: NaN), categories as
                     string (missing: "" and "?"); the graph contains the encoding
    encoded          one input `encoded`: rows of a table as its schema encodes them, float,
                     (rows, features)

    classification   outputs `label`, (rows,), and `probabilities`, (rows, classes)
    regression       output `prediction`, (rows,), in the target's units

If a column has the name of an output, the output gets an underscore at its end. torch exports
preprocessing and network. The encoding of a table is built from standard operators and equals that
of `data.column`. Text columns, and networks that read texts word by word, cannot be exported. The
metadata of the file contains the schema as JSON.

Cost: none (post-processing of the released model).

Source: docs/python.md; docs/rules.md, rules 3 and 13; the operators of ai.onnx and ai.onnx.ml.
"""

from __future__ import annotations

import contextlib
import json
import logging
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from pasearch.data.column import Column
from pasearch.data.front_ends import MaxPool
from pasearch.data.numbers import canonicalize_number
from pasearch.data.pairs import CentredPairs
from pasearch.data.patches import PatchResemblances
from pasearch.data.scattering import Scattering
from pasearch.data.schema import Schema, require_known
from pasearch.data.tables import AnySchema, TableSchema
from pasearch.errors import UsageError
from pasearch.files import write_new_file
from pasearch.spaces.modules import PerRecord, Rescale, TokenEmbedding
from pasearch.terminal_escaping import escape_text

OPSET = 20  # version of the standard operators (ai.onnx), of early 2024
ML_OPSET = 4  # version of the operators for machine learning (ai.onnx.ml)

ROW_DIMENSION = "rows"
"""Name of the first dimension of inputs and outputs, the number of records, which is free."""

ENCODED_INPUT = "encoded"
"""Name of the input of encoded rows, float, (rows, features)."""


def write_onnx(
    path: str | Path, schema: AnySchema, model: Any, *, about: dict[str, str], encoded: bool = False
) -> Path:
    """Write a released model as an ONNX file.

    Args:
        path: Path of a new file.
        schema: Complete schema.
        model: nn.Module of encoded records, or the linear model of a feature selection.
        about: Further metadata of the file, besides the schema.
        encoded: Whether the input of a table is its encoded rows instead of its columns.

    Raises:
        UsageError: The file exists, onnx is not installed, or ONNX cannot express a part of the
            model; nothing was written.
    """
    path = Path(path)
    if path.exists():
        raise UsageError(f"{path} already exists: choose a new file for the model.")
    try:
        import_module("onnxscript")
        import_module("onnx.compose")
        onnx: Any = import_module("onnx")
    except ImportError:
        raise UsageError(
            "ONNX export requires the packages onnx and onnxscript: pip install 'pasearch[onnx]'."
        ) from None
    table = isinstance(schema, TableSchema)
    # Built before the slow export, so that a column without operators is refused at once.
    module = _assemble_module(schema, model)
    before = build_encoding_graph(schema) if table and not encoded else None
    graph = _export_module(module, schema.shape, ENCODED_INPUT if table else "x", table=table)
    if before is not None:
        graph.ir_version = before.ir_version
        graph = onnx.compose.merge_models(before, graph, io_map=[(ENCODED_INPUT, ENCODED_INPUT)])
    _finish_model(onnx, graph, schema, {"schema": json.dumps(schema.to_json()), **about})
    write_new_file(path, graph.SerializeToString())
    return path


def _assemble_module(schema: AnySchema, model: Any) -> nn.Module:
    """Make the module from records (arrays: in original units) to probabilities or predictions."""
    parts: list[nn.Module] = []
    if isinstance(schema, Schema):
        parts.append(_RecordScaler(require_known(schema.low), require_known(schema.high)))
    if isinstance(model, nn.Module):
        if any(isinstance(each, TokenEmbedding) for each in model.modules()):
            raise UsageError(
                "Networks that read texts word by word cannot be exported to ONNX: use `predict`."
            )
        parts += [
            _replace_blocked_parts(model),
            _NumberDecoder(schema) if schema.regression else nn.Softmax(dim=1),
        ]
        return nn.Sequential(*parts).eval()
    if model.pool:
        parts.append(MaxPool(size=model.pool).module(schema.shape))
    linear = nn.Linear(model.weights.shape[1], len(model.weights))
    linear.weight = nn.Parameter(torch.from_numpy(model.weights).float(), requires_grad=False)
    linear.bias = nn.Parameter(torch.from_numpy(model.intercept).float(), requires_grad=False)
    parts += [nn.Flatten(), linear]
    if schema.regression:
        parts += [nn.Hardtanh(0.0, 1.0), _NumberDecoder(schema)]
    else:
        parts.append(nn.Softmax(dim=1) if model.link == "softmax" else _OneVsRestProbabilities())
    return nn.Sequential(*parts).eval()


class _RecordScaler(Rescale):
    """Scaling of records to [0, 1]; a record with a non-finite value becomes 0, as in training."""

    def forward(self, x: Tensor) -> Tensor:
        finite = torch.isfinite(x).flatten(1).all(dim=1).view(-1, *[1] * (x.ndim - 1))
        return torch.where(finite, super().forward(torch.where(finite, x, self.low)), 0.0)


class _NumberDecoder(nn.Module):
    """Conversion of scaled predictions, (rows, 1), to the target's units and bounds, (rows,)."""

    def __init__(self, schema: AnySchema):
        super().__init__()
        self.low, high = (float(schema.decode_number(np.array(end))) for end in (0.0, 1.0))
        self.width = high - self.low

    def forward(self, scaled: Tensor) -> Tensor:
        return self.low + scaled[:, 0].double().clamp(0.0, 1.0) * self.width


class _OneVsRestProbabilities(nn.Module):
    """Conversion of the scores of one-versus-rest classifiers to probabilities."""

    def forward(self, scores: Tensor) -> Tensor:
        each = torch.sigmoid(scores).clamp(min=1e-30)  # avoids a division by 0
        return each / each.sum(dim=1, keepdim=True)


def _replace_blocked_parts(module: nn.Module) -> nn.Module:
    """Replace feature extractors that torch cannot export by equivalent modules."""

    def scatter(own: Scattering, records: Tensor) -> Tensor:
        images = records.reshape(-1, *own.shape[-2:])
        found = own._scatter(images.permute(1, 2, 0)).permute(3, 2, 0, 1)
        return found.reshape(-1, *own.output_shape)

    if isinstance(module, PerRecord):
        return module.module  # gives the same outputs for a batch, as was checked in the plan
    if isinstance(module, Scattering):
        return _ReplacedModule(module, scatter)
    if isinstance(module, CentredPairs):
        return _PairsModule(module)
    if isinstance(module, PatchResemblances):
        return _ReplacedModule(module, PatchResemblances._compute_resemblances)
    for name, child in list(module.named_children()):
        setattr(module, name, _replace_blocked_parts(child))
    return module


class _ReplacedModule(nn.Module):
    """Module whose output is computed by `compute(module, records)`."""

    def __init__(self, own: nn.Module, compute: Callable[[Any, Tensor], Tensor]):
        super().__init__()
        self.own, self.compute = own, compute

    def forward(self, records: Tensor) -> Tensor:
        return self.compute(self.own, records)


class _PairsModule(nn.Module):
    """Equivalent of `CentredPairs` that torch can export: features and their pairwise products.

    Each factor of a product is a piecewise-linear function of a feature. It is computed as a sum of
    clipped linear pieces.
    """

    start: Tensor
    widths: Tensor
    slopes: Tensor

    def __init__(self, own: CentredPairs):
        super().__init__()
        self.own = own
        widths, rises = own.knots.diff(dim=1), own.heights.diff(dim=1)
        slopes = torch.where(widths > 0, rises / widths.clamp(min=1e-30), 0.0)
        for name, value in (("start", own.knots[:, :-1]), ("widths", widths), ("slopes", slopes)):
            self.register_buffer(name, value.clone())

    def forward(self, x: Tensor) -> Tensor:
        own = self.own
        along = (x[:, own.feature][:, :, None] - self.start).clamp(min=0.0)
        bent = (torch.minimum(along, self.widths) * self.slopes).sum(dim=2)
        present = torch.where(own.missing >= 0, 1.0 - x[:, own.missing.clamp(min=0)], 1.0)
        parts = (own.heights[:, 0] + bent - own.mean) * present
        products = parts[:, own.first] * parts[:, own.second] * own.weight
        return torch.cat([(x - own.shift) * own.scale, products], dim=1)


def _export_module(module: nn.Module, shape: tuple[int, ...], name: str, *, table: bool) -> Any:
    """Export a module by torch, and return it as an ONNX model with the input `name`."""
    example = torch.zeros(2, *shape, dtype=torch.float32 if table else torch.float64)
    op: Any = getattr(import_module("onnxscript"), f"opset{OPSET}")

    def hypot(a: Any, b: Any) -> Any:
        return op.Sqrt(op.Add(op.Mul(a, a), op.Mul(b, b)))

    # Translations for operations that torch's exporter does not know.
    more = {torch.ops.aten.hypot.default: hypot, torch.ops.prims.hypot.default: hypot}
    try:
        with _silence_exporter(), torch.no_grad():
            program = torch.onnx.export(
                module, (example,), dynamo=True, opset_version=OPSET, verbose=False,
                input_names=[name], output_names=["found"],
                dynamic_shapes=({0: torch.export.Dim(ROW_DIMENSION)},),
                custom_translation_table=more,
            )  # fmt: skip
    except (torch.onnx.errors.OnnxExporterError, RuntimeError, NotImplementedError) as error:
        last = str(error).strip().splitlines()[-1:]
        raise _export_error("".join(last)) from error
    assert program is not None
    graph = program.model_proto
    if len(graph.graph.input[0].type.tensor_type.shape.dim[0].dim_param) == 0:
        raise _export_error("it would accept exactly two records at a time")
    return graph


def _export_error(why: str) -> UsageError:
    """Make the error for a model that ONNX cannot express."""
    return UsageError(
        f"ONNX cannot express a part of this model ({escape_text(why)[:200]}): use `predict`, or "
        "search a space with standard layers and feature extractors, such as raw or pca."
    )


@contextlib.contextmanager
def _silence_exporter() -> Iterator[None]:
    """Suppress the warnings and log messages of torch's exporter."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _finish_model(onnx: Any, model: Any, schema: AnySchema, about: dict[str, str]) -> None:
    """Name the outputs of an ONNX model, add class labels and metadata, and check the model."""
    graph, taken = model.graph, {each.name for each in model.graph.input}

    def make_unused_name(name: str) -> str:
        while name in taken:
            name += "_"
        return name

    found = graph.output[0].name
    name = make_unused_name("prediction" if schema.regression else "probabilities")
    graph.node.append(onnx.helper.make_node("Identity", [found], [name]))
    graph.output[0].name = name
    if not schema.regression:
        label = make_unused_name("label")
        classes = schema.decode_class(np.arange(schema.outputs))
        names = [str(each).encode() for each in classes] if classes.dtype.kind == "U" else classes
        types = {"U": "STRING", "f": "DOUBLE", "b": "BOOL"}
        kind = getattr(onnx.TensorProto, types.get(classes.dtype.kind, "INT64"))
        graph.initializer.append(onnx.helper.make_tensor("classes", kind, [len(classes)], names))
        graph.node.extend([
            onnx.helper.make_node("ArgMax", [name], ["best"], axis=1, keepdims=0),
            onnx.helper.make_node("Gather", ["classes", "best"], [label]),
        ])  # fmt: skip
        graph.output.insert(0, onnx.helper.make_tensor_value_info(label, kind, [ROW_DIMENSION]))
    for key, value in about.items():
        model.metadata_props.add(key=key, value=value)
    onnx.checker.check_model(model)


def build_encoding_graph(schema: TableSchema) -> Any:
    """Build the encoding of a table's columns as an ONNX model.

    Args:
        schema: Complete schema.

    Raises:
        UsageError: Standard operators cannot encode a column.
    """
    helper, graph = import_module("onnx.helper"), _GraphBuilder()
    parts = []
    for place, column in enumerate(schema.columns):
        write = COLUMN_WRITERS.get(str(column.kind))
        if write is None:
            raise UsageError(
                f"Column {column.name!r} is of kind {column.kind!r}, which standard ONNX operators "
                "cannot encode: use `encoded=True`, and encode rows with the "
                "schema's `encode_new` first."
            )
        parts += write(graph, column, f"pasearch/{place}")
    graph.add("Concat", parts, ENCODED_INPUT, axis=1)
    output = helper.make_tensor_value_info(ENCODED_INPUT, FLOAT, [ROW_DIMENSION, *schema.shape])
    made = helper.make_graph(graph.nodes, "pasearch", graph.inputs, [output], graph.constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    return helper.make_model(made, opset_imports=opsets, ir_version=IR_VERSION)


FLOAT = 1  # element types of ONNX tensors, as in onnx.TensorProto
INT64 = 7
STRING = 8
BOOL = 9
DOUBLE = 11

IR_VERSION = 10  # version of the ONNX file format


class _GraphBuilder:
    """Builder of an ONNX graph: its nodes, constants and inputs."""

    def __init__(self) -> None:
        self.helper = import_module("onnx.helper")
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []

    def add(self, kind: str, inputs: list[str], output: str, **more: Any) -> str:
        """Add a node with the operator `kind`, and return the name of its output."""
        self.nodes.append(self.helper.make_node(kind, inputs, [output], **more))
        return output

    def constant(self, name: str, values: Any, kind: int) -> str:
        """Add a constant, and return its name."""
        values = np.asarray(values)
        tensor = self.helper.make_tensor(name, kind, values.shape, values.reshape(-1).tolist())
        self.constants.append(tensor)
        return name

    def input(self, name: str, kind: int) -> str:
        """Add an input, (rows,), and return its name."""
        self.inputs.append(self.helper.make_tensor_value_info(name, kind, [ROW_DIMENSION]))
        return name


def _write_number(graph: _GraphBuilder, column: Column, own: str) -> list[str]:
    """Add the encoding of a numeric column; return the names of its outputs, (rows, k) each."""
    low, high = require_known(column.bounds)
    given = graph.input(column.name, DOUBLE)
    bounds = [graph.constant(f"{own}/{n}", v, DOUBLE) for n, v in (("low", low), ("high", high))]
    one = graph.constant(f"{own}/axis", [1], INT64)
    # x - x is NaN for infinities and NaN, and 0 for all other numbers.
    apart = graph.add("Sub", [given, given], f"{own}/apart")
    missing = graph.add("IsNaN", [apart], f"{own}/not finite")
    if markers := column.cell_format.missing_numbers:
        marks = graph.constant(f"{own}/markers", [markers], DOUBLE)
        equal = graph.add("Unsqueeze", [given, one], f"{own}/given")
        equal = graph.add("Equal", [equal, marks], f"{own}/equal")
        equal = graph.add("Cast", [equal], f"{own}/equal float", to=FLOAT)
        equal = graph.add("ReduceMax", [equal, one], f"{own}/marker", keepdims=0)
        equal = graph.add("Cast", [equal], f"{own}/is marker", to=BOOL)
        missing = graph.add("Or", [missing, equal], f"{own}/missing")
    inside = graph.add("Where", [missing, bounds[0], given], f"{own}/there")
    inside = graph.add("Clip", [inside, *bounds], f"{own}/inside")
    inside = graph.add("Unsqueeze", [inside, one], f"{own}/column")
    gone = graph.add("Unsqueeze", [missing, one], f"{own}/gone")
    width = graph.constant(f"{own}/width", high - low, DOUBLE)
    scaled = graph.add("Sub", [inside, bounds[0]], f"{own}/above")
    scaled = graph.add("Div", [scaled, width], f"{own}/scaled")
    parts = [graph.add("Cast", [scaled], f"{own}/float", to=FLOAT)]
    lost = graph.add("Cast", [gone], f"{own}/lost", to=FLOAT)
    if column.edges:
        edges = graph.constant(f"{own}/edges", [column.edges], DOUBLE)
        beyond = graph.add("GreaterOrEqual", [inside, edges], f"{own}/beyond")
        beyond = graph.add("Cast", [beyond], f"{own}/beyond float", to=FLOAT)
        known = graph.add("Cast", [graph.add("Not", [gone], f"{own}/not gone")],
                          f"{own}/known", to=FLOAT)  # fmt: skip
        # A number is in bin k if exactly k edges are at most as large: difference of neighbours.
        nothing = graph.add("Mul", [known, graph.constant(f"{own}/0", 0.0, FLOAT)], f"{own}/none")
        beyond = graph.add("Mul", [beyond, known], f"{own}/beyond known")
        upper = graph.add("Concat", [beyond, nothing], f"{own}/upper", axis=1)
        lower = graph.add("Concat", [known, beyond], f"{own}/lower", axis=1)
        parts.append(graph.add("Sub", [lower, upper], f"{own}/bins"))
    return [*parts, lost]


def _write_category(graph: _GraphBuilder, column: Column, own: str) -> list[str]:
    """Add the one-hot encoding of a category; return the name of its output in a list."""
    names = require_known(column.categories)
    if column.case is False:
        raise UsageError(
            f"Column {column.name!r} ignores case, which standard ONNX operators cannot: use "
            "`encoded=True`, and encode rows with the schema's `encode_new` first."
        )
    indices = column.map_categories()
    texts = [*names, *sorted(column.cell_format.marks), *indices]
    places = {
        spelled: indices[column.comparison_key(text)]
        for text in texts
        for spelled in _list_spellings(column, text)
    }
    place = graph.add(
        "LabelEncoder", [graph.input(column.name, STRING)], f"{own}/place", domain="ai.onnx.ml",
        keys_strings=list(places), values_int64s=list(places.values()), default_int64=len(names),
    )  # fmt: skip
    depth = graph.constant(f"{own}/depth", column.width, INT64)
    off_on = graph.constant(f"{own}/off on", [0.0, 1.0], FLOAT)
    return [graph.add("OneHot", [place, depth, off_on], f"{own}/one", axis=-1)]


MAX_TRAILING_ZEROS = 4
"""Number of decimal places of a number that is a category, such as 2.0000."""

SURROUNDING_SPACES = (("", ""), (" ", ""), ("", " "), (" ", " "))
"""Spaces around a category that the exported model ignores: at most one on each side.

ONNX has no operator that removes them."""


def _list_spellings(column: Column, text: str) -> list[str]:
    """List the spellings of a category that the exported model recognises."""
    key = column.comparison_key(text)
    whole, _, decimals = key.partition(".")
    padded = (
        f"{whole}.{decimals}{'0' * many}"
        for many in range(1, MAX_TRAILING_ZEROS + 1 - len(decimals))
    )
    decimal = [each for each in padded if canonicalize_number(each) == key]
    spelled = [text, key, unicodedata.normalize("NFD", text), *decimal]
    return [f"{left}{each}{right}" for each in spelled for left, right in SURROUNDING_SPACES]


COLUMN_WRITERS: dict[str, Callable[[_GraphBuilder, Column, str], list[str]]] = {
    "number": _write_number,
    "category": _write_category,
    "ignore": lambda graph, column, own: [],
}
"""Function that adds the encoding of a column to a graph, by the kind of the column."""
