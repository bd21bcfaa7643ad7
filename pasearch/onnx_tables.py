"""How a table's row is encoded, as an ONNX graph: an input a column, and one encoded row.

Every column becomes what `data.column` makes of it, with standard operators; texts, whose words are
looked up, have none.

Source: docs/rules.md, rules 3 and 13; the operators of ai.onnx and ai.onnx.ml.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from pasearch.data.column import Column
from pasearch.data.numbers import canonical_number
from pasearch.data.schema import needed
from pasearch.data.tables import TableSchema
from pasearch.errors import UsageError

OPSET, ML_OPSET = 20, 4
"""The versions of the operators: those of early 2024."""

ROWS = "rows"
"""What a file calls the number of records, which is free."""

ENCODED = "encoded"
"""The encoded rows, float, (rows, features)."""


def encoding_graph(schema: TableSchema) -> Any:
    """Return the encoding of a table's columns as an ONNX model.

    Args:
        schema: Complete.

    Raises:
        UsageError: A column of a kind that no standard operators encode.
    """
    helper, graph = import_module("onnx.helper"), _Graph()
    parts = []
    for place, column in enumerate(schema.columns):
        write = WRITERS.get(str(column.kind))
        if write is None:
            raise UsageError(
                f"Column {column.name!r} is of kind {column.kind!r}, which standard ONNX operators "
                "cannot encode: take `encoded=True`, and encode rows with the "
                "schema's `encode_new` first."
            )
        parts += write(graph, column, f"pasearch/{place}")
    graph.add("Concat", parts, ENCODED, axis=1)
    output = helper.make_tensor_value_info(ENCODED, FLOAT, [ROWS, *schema.shape])
    made = helper.make_graph(graph.nodes, "pasearch", graph.inputs, [output], graph.constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    return helper.make_model(made, opset_imports=opsets, ir_version=IR)


FLOAT, STRING, INT64, BOOL, DOUBLE, IR = 1, 8, 7, 9, 11, 10
"""Types of ONNX's tensors, and the version of the file's form."""


class _Graph:
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
        self.inputs.append(self.helper.make_tensor_value_info(name, kind, [ROWS]))
        return name


def _number(graph: _Graph, column: Column, own: str) -> list[str]:
    """Write a number: scaled, its bin, and whether it is missing."""
    low, high = needed(column.bounds)
    given = graph.input(column.name, DOUBLE)
    bounds = [graph.constant(f"{own}/{n}", v, DOUBLE) for n, v in (("low", low), ("high", high))]
    one = graph.constant(f"{own}/axis", [1], INT64)
    # An infinite number less itself is NaN, as NaN is.
    apart = graph.add("Sub", [given, given], f"{own}/apart")
    missing = graph.add("IsNaN", [apart], f"{own}/not finite")
    if markers := column.reading.absent_numbers:
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


def _category(graph: _Graph, column: Column, own: str) -> list[str]:
    """Write a category: which of the declared ones, other, or missing."""
    names = needed(column.categories)
    if column.case is False:
        raise UsageError(
            f"Column {column.name!r} takes capitals and small letters for one, which standard ONNX "
            "operators cannot: take `encoded=True`, and encode rows with the schema's "
            "`encode_new` first."
        )
    places = {each: at for at, name in enumerate(names) for each in _spellings(column, name)}
    for mark in sorted(column.reading.marks):
        places |= dict.fromkeys(_spellings(column, mark), len(names) + 1)
    place = graph.add(
        "LabelEncoder", [graph.input(column.name, STRING)], f"{own}/place", domain="ai.onnx.ml",
        keys_strings=list(places), values_int64s=list(places.values()), default_int64=len(names),
    )  # fmt: skip
    depth = graph.constant(f"{own}/depth", column.width, INT64)
    off_on = graph.constant(f"{own}/off on", [0.0, 1.0], FLOAT)
    return [graph.add("OneHot", [place, depth, off_on], f"{own}/one", axis=-1)]


SPACES = (("", ""), (" ", ""), ("", " "), (" ", " "))
"""Spaces around a text, which do not count. No operator strips them, so one on a side is known."""


def _spellings(column: Column, text: str) -> list[str]:
    """Return the usual spellings of a category: a graph compares texts, not numbers."""
    key = column.key(text)
    decimal = [f"{key}.0"] if canonical_number(f"{key}.0") == key else []
    spelled = [text, key, unicodedata.normalize("NFD", text), *decimal]
    return [f"{left}{each}{right}" for each in spelled for left, right in SPACES]


def _ignored(graph: _Graph, column: Column, own: str) -> list[str]:
    """Write nothing."""
    return []


WRITERS: dict[str, Callable[[_Graph, Column, str], list[str]]] = {
    "number": _number,
    "category": _category,
    "ignore": _ignored,
}
"""How a column of each kind is written."""
