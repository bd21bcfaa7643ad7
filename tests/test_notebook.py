"""The example notebook: executed as it is committed, without an error or a trace of a machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
NEEDS = ("nbclient", "nbformat", "ipykernel", "matplotlib")
GONE = [name for name in NEEDS if find_spec(name) is None]


@pytest.fixture(scope="module")
def cells() -> list[dict[str, Any]]:
    return json.loads((ROOT / "docs" / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]


@pytest.mark.unit
class TestCommitted:
    def test_every_cell_was_executed_in_order_and_none_failed(self, cells: list[dict[str, Any]]):
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        assert len(code) >= 8
        assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
        assert all(cell["outputs"] for cell in code), "each shows something"
        kinds = {output["output_type"] for cell in code for output in cell["outputs"]}
        assert "error" not in kinds

    def test_it_shows_a_plan_a_result_a_frame_and_figures(self, cells: list[dict[str, Any]]):
        shown = [o.get("data", {}) for cell in cells for o in cell.get("outputs", ())]
        html = "".join("".join(data.get("text/html", ())) for data in shown)
        for part in ("no private record was read", "Test accuracy", "dataframe", "Privacy cost"):
            assert part in html
        assert sum("image/png" in data for data in shown) == 2

    def test_it_names_no_place_of_the_machine_that_made_it(self):
        text = (ROOT / "docs" / "notebook.ipynb").read_text(encoding="utf-8")
        told = "".join(re.sub(r'"image/png": "[^"]*"', "", text))
        assert not re.search(r"/(?:tmp|home|work|root|Users|private/var)/", told)
        assert len(text) < 300_000

    def test_it_has_the_cells_of_the_script_that_makes_it(self, cells: list[dict[str, Any]]):
        if GONE:
            pytest.skip(f"needs {', '.join(GONE)}: pip install 'pasearch[test]'")
        code = (
            "import json, runpy\n"
            "made = runpy.run_path('docs/make_notebook.py')\n"
            "print(json.dumps(made['CELLS']))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
        )
        assert ["".join(cell["source"]) for cell in cells] == json.loads(done.stdout)


@pytest.mark.slow
@pytest.mark.skipif(bool(GONE), reason=f"needs {', '.join(GONE)}: pip install 'pasearch[test]'")
def test_every_cell_runs():
    script = ROOT / "docs" / "make_notebook.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
