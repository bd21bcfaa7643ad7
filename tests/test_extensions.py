"""A bound, a schedule and a front end from outside the package, each in one file.

They are found by an entry point of an installed package, as docs/extending.md says, and nothing
else is edited: a recipe file names them, they are planned, priced, trained, and rightly told.
"""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pasearch.report.wording import capitalize_first

pytestmark = pytest.mark.slow  # of seconds: programs of their own

ROOT = Path(__file__).parent.parent
EXAMPLES = ROOT / "examples" / "extensions"
MODULES = ("smooth_clip", "cosine", "log_scale")
RECIPE = """
preset = "dpsgd"
bounding = { name = "smooth-clip", bound = 0.3 }
schedule = { name = "cosine", end = 0.25, period = 3 }
"""
NETWORK = """
front_end = "log:7"

[[layers]]
kind = "dense"
units = 4
activation = "tanh"
"""
WORDS = (
    "scaled smoothly to a norm below 0.3",
    "noise falls along a cosine to 0.25 of its start in 3 epochs",
    "the logarithm of every feature, steepness 7",
)


def called(folder: Path, *arguments: str, installed: bool = True) -> tuple[int, str]:
    """What the command line says, with the extensions installed as a package of their own."""
    paths = [str(ROOT)]
    if installed:
        site = folder / "site"
        info = site / "somebody_s_stages-1.0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stages\nVersion: 1.0\n")
        lines = "".join(f"{name} = {name}\n" for name in MODULES)
        (info / "entry_points.txt").write_text(f"[pasearch.extensions]\n{lines}")
        paths += [str(EXAMPLES), str(site)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run(
        [sys.executable, "-m", "pasearch", *arguments],
        capture_output=True, text=True, cwd=folder, env=environment,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extended")
    (folder / "mine.toml").write_text(RECIPE)
    (folder / "network.toml").write_text(NETWORK)
    code, said = called(
        folder, "train", "digits", "--eps", "2", "--recipe", "mine.toml", "--steps", "12",
        "--architecture", "network.toml", "--seed", "3", "--out", "run", "--verbose",
    )  # fmt: skip
    (folder / "said.txt").write_text(said)
    assert code == 0, said
    return folder


@pytest.mark.contract
def test_plan_card_and_report_tell_them(run: Path):
    release = run / "run" / "release"
    report = html.unescape(re.sub(r"<[^>]+>", "", (release / "report.html").read_text()))
    texts = {
        "plan": (run / "said.txt").read_text(),
        "card": (release / "privacy-card.md").read_text(),
        "report": report,
    }
    for words in WORDS:
        for where, text in texts.items():
            assert words in text or capitalize_first(words) in text, where
    for text in texts.values():
        assert "clipped to norm" not in text
    assert "dpsgd, but for its bounding and schedule" in texts["plan"]
    for part in ("smooth_clip.SmoothClip", "cosine.Cosine", "log_scale.LogScale"):
        assert f"{part} from outside pasearch, SHA-256 " in texts["card"]
    assert "The proof and the privacy cost of components from outside pasearch: " in texts["card"]


@pytest.mark.contract
def test_they_are_priced_step_by_step_and_verified(run: Path):
    document = json.loads((run / "run" / "release" / "result.json").read_text())
    assert document["recipe"]["bounding"] == {"name": "smooth-clip", "bound": 0.3}
    assert document["recipe"]["schedule"] == {"name": "cosine", "end": 0.25, "period": 3}
    assert document["best"]["front_end"] == "log:7"
    (line,) = (each for each in document["events"] if each["name"] == "training")
    noises = [each["event"]["noise_multiplier"] for each in line["event"]["events"]]
    assert [each / noises[0] for each in noises] == pytest.approx([1.0, 0.8125, 0.4375])
    assert 1.99 < document["price"]["epsilon"] <= 2.0
    (claim,) = document["claims"]
    assert claim["source"] == "Yu et al. Theorem 3"
    assert called(run, "verify", "run")[0] == 0


@pytest.mark.contract
@pytest.mark.parametrize("command", [["verify", "run"], ["plan", "train", "--recipe", "mine.toml"]])
def test_without_them_their_names_are_unknown_and_no_other_stage_is_taken(
    run: Path, command: list[str]
):
    code, said = called(run, *command, installed=False)
    assert code == 2, said
    assert "'smooth-clip'" in said
    assert "is unknown" in said


@pytest.mark.unit
def test_one_that_cannot_be_imported_is_named(run: Path):
    for file in (run / "site").rglob("entry_points.txt"):
        file.write_text("[pasearch.extensions]\nsoft = no_such_module\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(run / "site")])}
    done = subprocess.run(
        [sys.executable, "-m", "pasearch", "plan", "train", "--recipe", "mine.toml"],
        capture_output=True, text=True, cwd=run, env=environment,
    )  # fmt: skip
    assert done.returncode == 2
    assert "extension 'soft' (no_such_module) cannot be imported" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.contract
@pytest.mark.parametrize("name", [*MODULES, "scale_layer"])
def test_the_guide_includes_the_examples(name: str):
    line = f'```{{ .python }}\n--8<-- "examples/extensions/{name}.py"\n```'
    assert line in (ROOT / "docs" / "extending.md").read_text()
    assert (EXAMPLES / f"{name}.py").is_file()
