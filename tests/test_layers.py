"""The layers of the architecture, asserted from the import graph of files.

Imports point down only, and no two files import each other, however far around, not even for types
or inside a function. The name of a module in a string counts as an import (`import_module`, tables
of modules), except in two places: `pasearch/__init__.py`, which names the public interface, and
the calls of `Registry`, because a plug-in imports the interface that it implements.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "pasearch"
LAYERS = [
    {"terminal_escaping", "notebooks", "status_message"},
    {"accounting", "files", "registry"},
    {"runs", "progress"},
    {"data"},
    {"spaces"},
    {"training", "gpu"},
    {"plan_warnings"},
    {"planning"},
    {"engine"},
    {"search", "features", "crossover"},
    {"documents"},
    {"results", "feature_effects", "report", "onnx_export"},
    {"estimator"},
    {"displays"},
    {"curator"},
    {"api"},
    {"verification"},
    {"sklearn_api"},
    {"cli"},
    {"__main__"},
]
FREE = {"errors", "__init__"}
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {".".join(file.relative_to(PACKAGE.parent).with_suffix("").parts): file for file in FILES}


def name_of(file: Path) -> str:
    return str(file.relative_to(PACKAGE))


def part_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_by(tree: ast.AST) -> set[Path]:
    """The package's files that a file imports, anywhere in it and for whatever reason."""
    modules: set[str] = set()
    plug_ins = {
        part
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "Registry"
        for part in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in plug_ins:
            modules.add(node.value)
        if isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            modules |= names if names & set(MODULES) else set()
            # A name is a module of its own, or stands in the module before it.
            modules |= {node.module} if names - set(MODULES) else set()
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    folders = {f"{module}.__init__" for module in modules}
    return {MODULES[module] for module in (modules | folders) & set(MODULES)}


def circles_of(graph: dict[Path, set[Path]]) -> set[frozenset[str]]:
    """Files that lead to each other: what is left when all that leads nowhere is taken away."""
    reached = {file: set(others) for file, others in graph.items()}
    for through in graph:
        for others in reached.values():
            if through in others:
                others |= reached[through]
    return {
        frozenset(name_of(b) for b in graph if b in reached[a] and a in reached[b])
        for a in graph
        if a in reached[a]
    }


GRAPH = {
    file: imported_by(ast.parse(file.read_text())) - {PACKAGE / "__init__.py", file}
    for file in FILES
}


@pytest.mark.contract
def test_imports_point_down():
    """Files that are free hold names only, imported lazily."""
    assert not [
        f"{name_of(file)} imports {name_of(other)}, which is above"
        for file in FILES
        for other in GRAPH[file]
        if not {part_of(file), part_of(other)} & FREE
        if RANK[part_of(other)] > RANK[part_of(file)]
    ]


@pytest.mark.contract
def test_only_the_command_and_the_api_import_the_curators_check():
    """It shows values of private data."""
    importers = {
        part_of(file)
        for file in FILES
        for other in GRAPH[file]
        if part_of(other) == "curator" != part_of(file)
    }
    assert "cli" in importers
    assert importers <= {"cli", "api"}


@pytest.mark.contract
def test_no_files_import_each_other():
    assert not circles_of(GRAPH)
    assert PACKAGE / "runs" / "compiled.py" in GRAPH[PACKAGE / "runs" / "normals.py"], "by its name"


@pytest.mark.contract
@pytest.mark.parametrize(
    ("part", "banned"),
    [
        ("accounting", {"torch", "sklearn", "sqlite3", "pathlib", "os", "optuna"}),
        ("runs", {"torch", "sklearn"}),
    ],
)
def test_lower_layers_stay_light(part: str, banned: set[str]):
    for file in (PACKAGE / part).rglob("*.py"):
        tree = ast.parse(file.read_text())
        names = {
            name.split(".")[0]
            for node in ast.walk(tree)
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        }
        assert not names & banned, f"{file} imports {names & banned}"


@pytest.mark.contract
def test_the_form_of_a_table_needs_neither_torch_nor_pandas_nor_pyarrow():
    """What reads data loads them inside the functions that need them, so a file is read quickly."""
    code = (
        "import sys\n"
        "import pasearch.data.sources, pasearch.data.tables\n"
        "import pasearch.data.front_ends, pasearch.curator.check, pasearch.data.estimation\n"
        "import pasearch.spaces.portfolio\n"
        "print(sorted({'torch', 'pandas', 'pyarrow', 'sklearn', 'optuna'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


@pytest.mark.contract
@pytest.mark.parametrize(
    ("task", "unneeded"),
    [("plan", {"torch", "pandas", "sklearn", "optuna"}), ("arch", {"torch._dynamo", "sklearn"})],
)
def test_a_small_run_imports_what_it_needs_alone(task: str, unneeded: set[str], tmp_path: Path):
    """Each of these takes a second or more: longer than the training."""
    out = [] if task == "plan" else ["--out", str(tmp_path / "run"), "--steps", "2"]
    words = [*(["plan", "arch"] if task == "plan" else ["arch"]), "digits", "--eps", "2", *out]
    code = (
        "import sys\n"
        f"sys.argv = ['pasearch', *{words!r}]\n"
        "from pasearch.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        f"print(sorted({unneeded!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1] == "[]"


@pytest.mark.contract
def test_what_a_run_is_bound_to_does_not_depend_on_what_else_was_imported():
    """A run that was begun with scikit-learn imported is taken up where it is not."""
    ask = "from pasearch.api.binding import list_blas_libraries\nprint(list_blas_libraries())\n"
    scipy, sklearn = "import scipy.optimize\n", "import sklearn.linear_model\n"
    found = [
        line
        for code in (f"{ask}{scipy}{ask}{sklearn}{ask}", f"{sklearn}{ask}")  # after it, and before
        for line in subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout.splitlines()
    ]
    assert len(found) == 4
    assert len(set(found)) == 1
    assert "internal_api" in found[0]


@pytest.mark.contract
def test_a_run_is_bound_to_the_instructions_that_it_computes_with():
    """Sums of floats differ between them: the same keys would meet another sum."""
    code = (
        "import json\nfrom pasearch.runs.processor import describe_processor\n"
        "print(json.dumps(describe_processor()))"
    )

    def told(**other: str) -> list[str]:
        return json.loads(subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True,
            env={**os.environ, **other},
        ).stdout)  # fmt: skip

    plain, compatible = told(), told(MKL_CBWR="COMPATIBLE")
    assert plain[0] != told(ATEN_CPU_CAPABILITY="default")[0]
    assert plain[:2] == compatible[:2]
    assert plain != compatible


@pytest.mark.contract
def test_plain_training_never_enters_the_wing_of_encoded_gradients():
    code = (
        "import sys\n"
        "import numpy as np\n"
        "from pasearch import Budget, train\n"
        "x, y = np.zeros((200, 4)), np.arange(200) % 2\n"
        "train((x, y), budget=Budget(2.0), bounds=(0, 1), classes=2, steps=2, out='run')\n"
        "import pasearch.report.html\n"
        "print([name for name in sys.modules if name.startswith('pasearch.training.encoded')])"
    )
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder,
            env={**os.environ, "PYTHONPATH": str(PACKAGE.parent)},
        )  # fmt: skip
    assert (done.returncode, done.stdout.strip().splitlines()[-1]) == (0, "[]"), done.stderr


@pytest.mark.contract
def test_every_part_has_a_layer():
    assert {part_of(file) for file in FILES} == set(RANK) | FREE
    assert RANK["api"] < RANK["sklearn_api"] < RANK["cli"]


@pytest.mark.contract
@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    from pasearch.api.search import run",
        "if TYPE_CHECKING:\n    from pasearch.api.search import run",
        "from pasearch.api import search",
        "import pasearch.api.search",
        "import_module('pasearch.api.search')",
        "TASKS = {'arch': 'pasearch.api.search'}\nimport_module(TASKS['arch'])",
    ],
)
def test_the_checker_sees_a_wrong_import(text: str):
    found = imported_by(ast.parse(text))
    assert PACKAGE / "api" / "search.py" in found
    below = PACKAGE / "accounting" / "budget.py"
    assert RANK["api"] > RANK[part_of(below)]
    assert circles_of(GRAPH | {below: found}) - circles_of(GRAPH)


READERS = {
    "json.loads": {"files.py", "runs/shared_ledger.py", "runs/journal.py",
                   "spaces/portfolio/__init__.py", "results.py"},
    "json.load": set(),
    "tomllib.loads": {"files.py"},
    "tomllib.load": set(),
    "np.load": {"data/cache.py", "data/partitions.py"},
    "torch.load": {
        "search/weights.py", "search/candidate_training.py", "results.py", "data/backbones.py",
    },
    "Image.open": {"data/image_folder.py"},
    "sqlite3.connect": {"runs/ledger.py", "runs/shared_ledger.py", "runs/journal.py"},
    "pickle.load": set(),
    "pickle.loads": set(),
}  # fmt: skip
"""Where each reader of a file may be called: what else is read goes through `pasearch.files`."""


@pytest.mark.contract
def test_files_are_read_in_one_place():
    assert not [
        f"{name_of(file)}:{node.lineno} calls {reader}"
        for file in FILES
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        if (reader := ast.unparse(node.func)) in READERS and name_of(file) not in READERS[reader]
    ]


@pytest.mark.contract
def test_every_public_method_is_documented_by_itself_or_by_its_base():
    names = [name.removesuffix(".__init__") for name in MODULES if not name.endswith("__main__")]
    classes = [
        each
        for name in names
        for each in vars(importlib.import_module(name)).values()
        if isinstance(each, type) and each.__module__ == name and not each.__name__.startswith("_")
    ]
    assert len(classes) > 100
    assert not [
        f"{kind.__module__}.{kind.__name__}.{method} has no docstring"
        for kind in classes
        for method, value in vars(kind).items()
        if not method.startswith("_") and inspect.isfunction(value)
        if not inspect.getdoc(getattr(kind, method))
    ]
