"""A released model as an ONNX file, which other programs run without pasearch, torch or Python.

    arrays, images   one input, `x`: records in the data's own units, double, (rows, *shape)
    tables           an input a column, (rows,): numbers as double (NaN is missing), categories as
                     string ("" and "?" are missing); the encoding is part of the graph
    encoded          one input, `encoded`: a table's rows as its schema encodes them, float,
                     (rows, features)

    classes          outputs `label`, (rows,), and `probabilities`, (rows, classes)
    a number         output `prediction`, (rows,), in the target's own units

An output that has the name of a column gets an underscore. Front end and network go through torch's
exporter. A table's encoding is built of standard operators: every column becomes what `data.column`
makes of it. Texts, whose words are looked up, have none. The schema is in the file's metadata, as
JSON.

Cost: none; the model was paid for.

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
from pasearch.spaces.modules import Rescale
from pasearch.terminal_escaping import escape_text

OPSET, ML_OPSET = 20, 4
"""The versions of the operators: those of early 2024."""

ROW_DIMENSION = "rows"
"""What a file calls the number of records, which is free."""

ENCODED_INPUT = "encoded"
"""The encoded rows, float, (rows, features)."""


def write_onnx(
    path: str | Path, schema: AnySchema, model: Any, *, about: dict[str, str], encoded: bool = False
) -> Path:
    """Write a released model as an ONNX file.

    Args:
        path: A new file.
        schema: Complete.
        model: Front end and network, an nn.Module of encoded records; or the linear model of a
            feature selection.
        about: Further metadata.
        encoded: Whether the input of a table is its encoded rows, and not its columns.

    Raises:
        UsageError: The file exists, onnx is not installed, or a part of the model has no form in
            ONNX; nothing was written.
    """
    path = Path(path)
    if path.exists():
        raise UsageError(f"{path} exists: name a new file for the model.")
    onnx = _import_onnx()
    table = isinstance(schema, TableSchema)
    before = (
        build_encoding_graph(schema) if isinstance(schema, TableSchema) and not encoded else None
    )
    module = _assemble_module(schema, model)
    graph = _export_module(module, schema.shape, ENCODED_INPUT if table else "x", table=table)
    if before is not None:
        joined = [(ENCODED_INPUT, ENCODED_INPUT)]
        graph.ir_version = before.ir_version
        graph = onnx.compose.merge_models(before, graph, io_map=joined)
    _finish_model(onnx, graph, schema, {"schema": json.dumps(schema.to_json()), **about})
    write_new_file(path, graph.SerializeToString())
    return path


def _import_onnx() -> Any:
    """Return the onnx package.

    Raises:
        UsageError: It, or what torch needs beside it, is not installed.
    """
    try:
        import_module("onnxscript")
        import_module("onnx.compose")
        return import_module("onnx")
    except ImportError:
        raise UsageError(
            "An ONNX file needs the packages onnx and onnxscript: pip install 'pasearch[onnx]'."
        ) from None


def _assemble_module(schema: AnySchema, model: Any) -> nn.Module:
    """Return the whole map as one module: from records to probabilities, or to the number."""
    parts: list[nn.Module] = []
    if isinstance(schema, Schema):
        parts.append(_RecordScaler(require_known(schema.low), require_known(schema.high)))
    if isinstance(model, nn.Module):
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
    """Records in the data's own units, scaled; one that is not finite becomes 0, as in training."""

    def forward(self, x: Tensor) -> Tensor:
        finite = torch.isfinite(x).flatten(1).all(dim=1).view(-1, *[1] * (x.ndim - 1))
        return torch.where(finite, super().forward(torch.where(finite, x, self.low)), 0.0)


class _NumberDecoder(nn.Module):
    """The prediction, (rows,), in the target's own units and within its bounds."""

    def __init__(self, schema: AnySchema):
        super().__init__()
        self.low, high = (float(schema.decode_number(np.array(end))) for end in (0.0, 1.0))
        self.width = high - self.low

    def forward(self, scaled: Tensor) -> Tensor:
        return self.low + scaled[:, 0].double().clamp(0.0, 1.0) * self.width


class _OneVsRestProbabilities(nn.Module):
    """Probabilities of classes that were each told from all others."""

    def forward(self, scores: Tensor) -> Tensor:
        each = torch.sigmoid(scores).clamp(min=1e-30)  # a sum above 0
        return each / each.sum(dim=1, keepdim=True)


def _replace_blocked_parts(module: nn.Module) -> nn.Module:
    """Replace the parts that go through records in blocks by parts for any number of records."""
    if isinstance(module, Scattering):
        return _ReplacedModule(module, _scatter_records)
    if isinstance(module, CentredPairs):
        return _PairsModule(module)
    if isinstance(module, PatchResemblances):
        return _ReplacedModule(module, PatchResemblances._compute_resemblances)
    for name, child in list(module.named_children()):
        setattr(module, name, _replace_blocked_parts(child))
    return module


class _ReplacedModule(nn.Module):
    """A module with another computation of its output, `compute(module, records)`."""

    def __init__(self, own: nn.Module, compute: Callable[[Any, Tensor], Tensor]):
        super().__init__()
        self.own, self.compute = own, compute

    def forward(self, records: Tensor) -> Tensor:
        return self.compute(self.own, records)


def _scatter_records(own: Scattering, records: Tensor) -> Tensor:
    """Scatter all records at once."""
    images = records.reshape(-1, *own.shape[-2:])
    found = own._scatter(images.permute(1, 2, 0)).permute(3, 2, 0, 1)
    return found.reshape(-1, *own.output_shape)


class _PairsModule(nn.Module):
    """Centred features and products, every part with all of its stretches."""

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
        told = torch.where(own.missing >= 0, 1.0 - x[:, own.missing.clamp(min=0)], 1.0)
        parts = (own.heights[:, 0] + bent - own.mean) * told
        products = parts[:, own.first] * parts[:, own.second] * own.weight
        return torch.cat([(x - own.shift) * own.scale, products], dim=1)


def _export_module(module: nn.Module, shape: tuple[int, ...], name: str, *, table: bool) -> Any:
    """Return a module as an ONNX model with one input and the output `found`.

    Raises:
        UsageError: torch has no form in ONNX for a part of it.
    """
    example = torch.zeros(2, *shape, dtype=torch.float32 if table else torch.float64)
    op: Any = getattr(import_module("onnxscript"), f"opset{OPSET}")

    def hypot(a: Any, b: Any) -> Any:
        return op.Sqrt(op.Add(op.Mul(a, a), op.Mul(b, b)))

    # Operations that torch's exporter does not know, in those that it does.
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
        raise _export_error(
            str(error).strip().splitlines()[-1] if str(error).strip() else ""
        ) from error
    assert program is not None
    graph = program.model_proto
    if len(graph.graph.input[0].type.tensor_type.shape.dim[0].dim_param) == 0:
        raise _export_error("it would take exactly two records at a time")
    return graph


def _export_error(why: str) -> UsageError:
    return UsageError(
        f"A part of this model has no form in ONNX ({escape_text(why)[:200]}): use `predict`, or "
        "search in a space whose front ends and layers are torch's own, such as raw or pca."
    )


@contextlib.contextmanager
def _silence_exporter() -> Iterator[None]:
    """Keep the exporter's own messages, which are for torch's developers, from the user."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _finish_model(onnx: Any, model: Any, schema: AnySchema, about: dict[str, str]) -> None:
    """Name the outputs, add the label, and write the metadata; then check the model."""
    graph, taken = model.graph, {each.name for each in model.graph.input}

    def free(name: str) -> str:
        while name in taken:
            name += "_"
        return name

    found = graph.output[0].name
    name = free("prediction" if schema.regression else "probabilities")
    graph.node.append(onnx.helper.make_node("Identity", [found], [name]))
    graph.output[0].name = name
    if not schema.regression:
        label = free("label")
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
    """Return the encoding of a table's columns as an ONNX model.

    Args:
        schema: Complete.

    Raises:
        UsageError: A column of a kind that no standard operators encode.
    """
    helper, graph = import_module("onnx.helper"), _GraphBuilder()
    parts = []
    for place, column in enumerate(schema.columns):
        write = COLUMN_WRITERS.get(str(column.kind))
        if write is None:
            raise UsageError(
                f"Column {column.name!r} is of kind {column.kind!r}, which standard ONNX operators "
                "cannot encode: take `encoded=True`, and encode rows with the "
                "schema's `encode_new` first."
            )
        parts += write(graph, column, f"pasearch/{place}")
    graph.add("Concat", parts, ENCODED_INPUT, axis=1)
    output = helper.make_tensor_value_info(ENCODED_INPUT, FLOAT, [ROW_DIMENSION, *schema.shape])
    made = helper.make_graph(graph.nodes, "pasearch", graph.inputs, [output], graph.constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    return helper.make_model(made, opset_imports=opsets, ir_version=IR)


FLOAT, STRING, INT64, BOOL, DOUBLE, IR = 1, 8, 7, 9, 11, 10
"""Types of ONNX's tensors, and the version of the file's form."""


class _GraphBuilder:
    """Nodes, constants and inputs while a graph is built."""

    def __init__(self) -> None:
        self.helper = import_module("onnx.helper")
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []

    def add(self, kind: str, inputs: list[str], output: str, **more: Any) -> str:
        """Add a node, and return the name of its output."""
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
    """Write a number: scaled, its bin, and whether it is missing."""
    low, high = require_known(column.bounds)
    given = graph.input(column.name, DOUBLE)
    bounds = [graph.constant(f"{own}/{n}", v, DOUBLE) for n, v in (("low", low), ("high", high))]
    one = graph.constant(f"{own}/axis", [1], INT64)
    # An infinite number less itself is NaN, as NaN is.
    apart = graph.add("Sub", [given, given], f"{own}/apart")
    missing = graph.add("IsNaN", [apart], f"{own}/not finite")
    if markers := column.reading.missing_numbers:
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
        # A number is in bin k if it is beyond k edges and no more: neighbours' differences.
        nothing = graph.add("Mul", [known, graph.constant(f"{own}/0", 0.0, FLOAT)], f"{own}/none")
        beyond = graph.add("Mul", [beyond, known], f"{own}/beyond known")
        upper = graph.add("Concat", [beyond, nothing], f"{own}/upper", axis=1)
        lower = graph.add("Concat", [known, beyond], f"{own}/lower", axis=1)
        parts.append(graph.add("Sub", [lower, upper], f"{own}/bins"))
    return [*parts, lost]


def _write_category(graph: _GraphBuilder, column: Column, own: str) -> list[str]:
    """Write a category: which of the declared ones, other, or missing."""
    names = require_known(column.categories)
    if column.case is False:
        raise UsageError(
            f"Column {column.name!r} takes capitals and small letters for one, which standard ONNX "
            "operators cannot: take `encoded=True`, and encode rows with the schema's "
            "`encode_new` first."
        )
    places = {each: at for at, name in enumerate(names) for each in _list_spellings(column, name)}
    for mark in sorted(column.reading.marks):
        places |= dict.fromkeys(_list_spellings(column, mark), len(names) + 1)
    place = graph.add(
        "LabelEncoder", [graph.input(column.name, STRING)], f"{own}/place", domain="ai.onnx.ml",
        keys_strings=list(places), values_int64s=list(places.values()), default_int64=len(names),
    )  # fmt: skip
    depth = graph.constant(f"{own}/depth", column.width, INT64)
    off_on = graph.constant(f"{own}/off on", [0.0, 1.0], FLOAT)
    return [graph.add("OneHot", [place, depth, off_on], f"{own}/one", axis=-1)]


SURROUNDING_SPACES = (("", ""), (" ", ""), ("", " "), (" ", " "))
"""Spaces around a text, which do not count. No operator strips them, so one on a side is known."""


def _list_spellings(column: Column, text: str) -> list[str]:
    """Return the usual spellings of a category: a graph compares texts, not numbers."""
    key = column.comparison_key(text)
    decimal = [f"{key}.0"] if canonicalize_number(f"{key}.0") == key else []
    spelled = [text, key, unicodedata.normalize("NFD", text), *decimal]
    return [f"{left}{each}{right}" for each in spelled for left, right in SURROUNDING_SPACES]


COLUMN_WRITERS: dict[str, Callable[[_GraphBuilder, Column, str], list[str]]] = {
    "number": _write_number,
    "category": _write_category,
    "ignore": lambda graph, column, own: [],
}
"""How a column of each kind is written."""
