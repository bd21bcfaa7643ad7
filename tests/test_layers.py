"""The layers of the architecture, asserted from the import graph: imports point down only."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "pasearch"
LAYERS = [
    {"shown"},
    {"accounting", "files", "registry"},
    {"runs", "progress"},
    {"data"},
    {"spaces"},
    {"training"},
    {"planning"},
    {"search", "features"},
    {"documents"},
    {"results", "report"},
    {"api"},
    {"verification"},
    {"sklearn_api"},
    {"cli"},
    {"__main__"},
]
FREE = {"errors", "__init__"}
RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def part_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(file: Path) -> set[str]:
    """The package's own parts that a file imports, those for types only left out."""
    tree = ast.parse(file.read_text())
    for_types = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    found = set()
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pasearch."):
            found.add((node.module or "").split(".")[1])
        if isinstance(node, ast.Import):
            found |= {n.name.split(".")[1] for n in node.names if n.name.startswith("pasearch.")}
    return found - FREE


FILES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.contract
@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_imports_point_down(file: Path):
    if part_of(file) in FREE:
        pytest.skip("names only, imported lazily")
    for other in imports(file):
        assert RANK[other] <= RANK[part_of(file)], f"{file.name} imports {other}, which is above"


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
def test_the_form_of_a_table_needs_neither_torch_nor_pandas():
    """What reads data loads them inside the functions that need them, so a file is read quickly."""
    code = (
        "import sys\n"
        "import pasearch.data.sources, pasearch.data.tables\n"
        "import pasearch.data.front_ends, pasearch.data.check, pasearch.data.purchase\n"
        "import pasearch.spaces.portfolio\n"
        "print(sorted({'torch', 'pandas', 'sklearn', 'optuna'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


@pytest.mark.contract
def test_every_part_has_a_layer():
    assert {part_of(file) for file in FILES} == set(RANK) | FREE
    assert RANK["api"] < RANK["sklearn_api"] < RANK["cli"]


@pytest.mark.contract
def test_the_checker_sees_a_wrong_import(tmp_path: Path):
    bad = tmp_path / "bad.py"
    bad.write_text("def f():\n    from pasearch.api.search import run\n")
    assert imports(bad) == {"api"}
    assert RANK["api"] > RANK["accounting"]


READERS = {
    "json.loads": {"files.py", "runs/allowance.py", "runs/journal.py",
                   "spaces/portfolio/__init__.py", "results.py"},
    "json.load": set(),
    "tomllib.loads": {"files.py"},
    "tomllib.load": set(),
    "np.load": {"data/cache.py"},
    "torch.load": {"search/engine.py", "results.py"},
    "Image.open": {"data/images.py"},
    "sqlite3.connect": {"runs/ledger.py", "runs/allowance.py", "runs/journal.py"},
    "pickle.load": set(),
    "pickle.loads": set(),
}  # fmt: skip
"""Where each reader of a file may be called: what else is read goes through `pasearch.files`."""


@pytest.mark.contract
@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_files_are_read_in_one_place(file: Path):
    called = {
        ast.unparse(node.func)
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
    }
    for reader in called & set(READERS):
        assert str(file.relative_to(PACKAGE)) in READERS[reader], f"{file} calls {reader}"
