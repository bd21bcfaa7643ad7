"""Write `docs/notebook.ipynb`, executed: every output in it comes from the cell above it.

python docs/make_notebook.py            writes it
python docs/make_notebook.py --check    executes it, and writes nothing; exit code 1 if a cell fails

It needs nbclient, nbformat, ipykernel and matplotlib (`pip install 'pasearch[test]'`).
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

PAGE = Path(__file__).with_name("notebook.ipynb")
SECONDS = 300
"""The longest that a cell may take."""

LONG = 1000
"""Of what is shown as HTML too, a longer text is left out."""

CELLS = (
    """# A table, from the schema to a prediction

A made-up table of 4,000 people: who has a high income? One budget, epsilon 1, pays for everything
that reads a record, the search for a good model too.""",
    """import numpy as np
import pandas as pd

import pasearch
from pasearch import Budget, plan_architecture_search, search_architecture

rng = np.random.default_rng(0)
people = pd.DataFrame(
    {
        "age": rng.integers(17, 91, 5000),
        "hours": rng.normal(40, 10, 5000).round().clip(1, 99),
        "sector": rng.choice(["Private", "State", "Self-employed"], 5000),
    }
)
points = (people["age"] - 45) / 15 + (people["hours"] - 40) / 8
people["income"] = np.where(points + rng.logistic(0, 0.5, 5000) > 0, "high", "low")
people, new = people[:4000], people[4000:]
people.head(3)""",
    """What everybody may know of the columns is declared: bounds and categories that are known
without a look at the records. What is left out would be estimated privately, and a part of the
budget would pay for it.""",
    """schema = {
    "target": "income",
    "columns": {
        "age": {"low": 17, "high": 90},
        "hours": {"low": 1, "high": 99},
        "sector": {"categories": ["Private", "State", "Self-employed"]},
        "income": {"categories": ["low", "high"]},
    },
}
options = {"schema": schema, "budget": Budget(1.0), "strategy": "ahead", "candidates": 3}
plan = plan_architecture_search(people, **options)
plan""",
    """The plan reads nothing. It says what will be released, what each release reads, and the price
of all of it. Each record is in one partition, so the price is the largest of theirs.""",
    """plan.plot();""",
    """Now the records are read. The search trains three candidates with noise, keeps the best, and
tests it.""",
    """result = search_architecture(people, **options, steps=30, out="runs/people")
result""",
    """Under this strategy every candidate may be shown, with its noisy score.""",
    """result.leaderboard()""",
    """result.plot();""",
    """The model is a scikit-learn estimator that is fitted already. It takes new records as they
are. A comparison with their labels has no noise: it is as private as these records.""",
    """model = pasearch.load("runs/people")
print(model.classes_, model.feature_names_in_)
print("accuracy on new records:", round((model.predict(new) == new["income"]).mean(), 3))
few = new.head(3)
few.assign(predicted=model.predict(few), high=model.predict_proba(few)[:, 1])""",
    """The price, recomputed from what was released:""",
    """price, problems = pasearch.verify("runs/people")
print(f"epsilon {price.epsilon:.4f} at delta {price.delta:g}; problems: {problems}")""",
)
"""Text and code in turn; code is what is no text."""


def is_text(cell: str) -> bool:
    """Return whether a cell is Markdown: sentences, no code."""
    first = cell.split("\n", 1)[0]
    return first[:1] in "#" or (first[:1].isupper() and first.count(" ") > 3)


def notebook() -> Any:
    """Return the notebook, not yet executed."""
    made = nbformat.v4.new_notebook()
    made.metadata["kernelspec"] = {
        "name": "python3", "display_name": "Python 3", "language": "python",
    }  # fmt: skip
    for place, text in enumerate(CELLS):
        new = nbformat.v4.new_markdown_cell if is_text(text) else nbformat.v4.new_code_cell
        made.cells.append(new(text, id=f"cell-{place}"))
    return made


def executed() -> Any:
    """Return the notebook, executed in an empty folder, with no trace of this machine.

    Raises:
        CellExecutionError: A cell failed.
    """
    made = notebook()
    with tempfile.TemporaryDirectory() as folder:
        root = str(Path(__file__).parent.parent)
        os.environ["PYTHONPATH"] = os.pathsep.join([root, os.environ.get("PYTHONPATH", "")])
        client = NotebookClient(
            made, timeout=SECONDS, kernel_name="python3", record_timing=False,
            resources={"metadata": {"path": folder}},
        )  # fmt: skip
        client.execute()
        made.metadata.pop("language_info", None)
        text = nbformat.writes(made)
        for place in (os.path.realpath(folder), folder):
            text = text.replace(f"{place}/", "")
    made = nbformat.reads(text, as_version=4)
    for cell in made.cells:
        if "outputs" in cell:
            cell.outputs = tidied(cell.outputs)
    return made


def tidied(outputs: list[Any]) -> list[Any]:
    """Return a cell's outputs with each stream once; of a line written anew, what stood last."""
    kept: list[Any] = []
    for output in outputs:
        same = kept and output.output_type == "stream" == kept[-1].output_type
        if same and output.name == kept[-1].name:
            kept[-1].text += output.text
        else:
            kept.append(output)
    for output in kept:
        if "text/html" in (data := output.get("data", {})) and len(data["text/plain"]) > LONG:
            del data["text/plain"]
        if output.output_type == "stream":
            lines = output.text.split("\n")
            output.text = "\n".join(line.rsplit("\r", 1)[-1].rstrip() for line in lines)
    return kept


def main() -> int:
    """Write the notebook, or with --check execute it only."""
    try:
        made = executed()
    except CellExecutionError as error:
        print(error, file=sys.stderr)
        return 1
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(nbformat.writes(made) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
