"""Run the tutorial's commands, put what they say into its pages, and take pictures of the report.

python docs/make_pictures.py            remakes everything; noise is new each time, so numbers move
python docs/make_pictures.py pictures   only the pictures

An output stands between `<!-- output: NAME -->` and `<!-- end of output -->`. `images/report.png`
is the top of the report, for the home page; `images/report-numbered.png` is all of it, its headings
numbered as `tutorial-table.md` has them (of a long one the first 3,600 pixels). Pictures need
`chromium` on the path.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PASEARCH = (sys.executable, "-m", "pasearch")
OUTPUT = re.compile(r"<!-- output: ([\w ]+) -->\n.*?<!-- end of output -->", re.DOTALL)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = ("tutorial-digits.md", "tutorial-table.md", "../README.md", "index.md")
WIDTH, TOP, MOST = 1000, 1180, 3600
NUMBERS = """<style>
:root { color-scheme: light; }
body { counter-reset: part; }
h2 { position: relative; }
h2::before {
  counter-increment: part; content: counter(part); display: inline-block; width: 1.7em;
  margin-right: .5em; border-radius: 1em; background: #b3261e; color: #fff; text-align: center;
  font: 700 .95rem/1.7em system-ui, sans-serif;
}
</style>"""


def run(folder: Path, *command: str) -> str:
    """Return what a command prints, both streams, as a terminal of 88 columns shows it."""
    done = subprocess.run(
        [*PASEARCH, *command], cwd=folder, text=True, check=False,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        env={"COLUMNS": "88", "PATH": "/usr/bin:/bin", "HOME": str(folder)},
    )  # fmt: skip
    return done.stdout.replace(f"{folder}/", "").strip()


def last(text: str, begin: str) -> str:
    """Return the lines of an output from the last one that begins so."""
    lines = text.splitlines()
    places = [place for place, line in enumerate(lines) if line.startswith(begin)]
    return "\n".join(lines[places[-1] :])


def digits(folder: Path) -> dict[str, str]:
    """Run the first tutorial; return its outputs."""
    planned = run(folder, "plan", "arch", "--eps", "2")
    found = run(folder, "arch", "--eps", "2", "--out", "runs/digits")
    checked = run(folder, "verify", "runs/digits")
    end = last(found, "Data:")
    named = end.replace("runs/digits", "runs/digits-1")
    return {
        "digits plan": planned, "digits end": end, "digits verify": checked,
        "digits whole": named,
        "digits last": last(named, "Model:"),
    }  # fmt: skip


def table(folder: Path) -> dict[str, str]:
    """Run the second tutorial; return its outputs."""
    page = (DOCS / "tutorial-table.md").read_text(encoding="utf-8")
    script = next(text for name, text in BLOCK.findall(page) if name == "python")
    subprocess.run([sys.executable, "-c", script], cwd=folder, check=True)
    checked = run(folder, "check", "patients.csv", "--propose", "patients.toml")
    schema = (folder / "patients.toml").read_text(encoding="utf-8")
    asked = ("patients.csv", "--schema", "patients.toml", "--eps", "2")
    refused = run(folder, "plan", "arch", *asked)
    edited = schema.replace("proposed = true\n", "")
    (folder / "patients.toml").write_text(edited, encoding="utf-8")
    planned = run(folder, "plan", "arch", *asked)
    found = run(folder, "arch", *asked, "--delta", "1e-4", "--out", "runs/patients")
    rows = (folder / "patients.csv").read_text(encoding="utf-8").splitlines()[:4]
    new = "\n".join(row.rpartition(",")[0] for row in rows) + "\n"
    (folder / "new.csv").write_text(new, encoding="utf-8")
    return {
        "table check": checked,
        "table schema": "\n".join(schema.splitlines()[:17]) + "\n...",
        "table refused": refused,
        "table plan": planned,
        "table end": last(found, "Data:"),
        "table predict": run(folder, "predict", "runs/patients", "new.csv"),
    }


def fill(outputs: dict[str, str], pages: tuple[str, ...]) -> None:
    """Write outputs into pages; an output that is not given stays as it is."""
    for name in pages:
        page = DOCS / name
        text = OUTPUT.sub(
            lambda found: shown(found[1], outputs) if found[1] in outputs else found[0],
            page.read_text(encoding="utf-8"),
        )
        page.write_text(text, encoding="utf-8")


def shown(name: str, outputs: dict[str, str]) -> str:
    """Return an output as it stands in a page; one that was not made is an error."""
    kind = {"table schema": "toml", "report headings": ""}.get(name, "text")
    text = outputs[name]
    if kind == "text" and name != "digits whole":  # the README has no line to spare
        text = "\n".join(folded(line) for line in text.splitlines())
    if kind:
        text = f"```{kind}\n{text}\n```"
    return f"<!-- output: {name} -->\n{text}\n<!-- end of output -->"


def folded(line: str) -> str:
    """Return a line folded at spaces, as a terminal folds it."""
    return line.rstrip() if len(line) <= 88 else textwrap.fill(line, 88)


def headings(report: str) -> list[str]:
    """Return the headings of a report that are numbered, in their order."""
    found = re.findall(r"<h2\b[^>]*>(.*?)</h2>", report, re.DOTALL)
    return [" ".join(re.sub(r"<[^>]+>", "", each).split()) for each in found]


def pictures(report: Path, folder: Path) -> None:
    """Take the pictures of a report."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        sys.exit("pictures need chromium on the path")
    plain = re.sub(
        r"<meta http-equiv=.Content-Security-Policy[^>]*>", "", report.read_text(encoding="utf-8")
    )
    light = plain.replace("prefers-color-scheme: dark", "width: 0")
    for name, text, height in (
        ("report", light, TOP),
        ("report-numbered", light.replace("</head>", f"{NUMBERS}</head>"), None),
    ):
        page = folder / f"{name}.html"
        page.write_text(text, encoding="utf-8")
        for tall in [height] if height else [8000, None]:
            tall = tall or _used(DOCS / "images" / f"{name}.png")
            subprocess.run(
                [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
                 f"--window-size={WIDTH},{tall}",
                 f"--screenshot={DOCS / 'images' / f'{name}.png'}", page.as_uri()],
                check=True, capture_output=True, timeout=120,
            )  # fmt: skip


def _used(picture: Path) -> int:
    """Return the height of a picture without the empty rows at its end, and a margin."""
    from PIL import Image, ImageChops

    with Image.open(picture) as found:
        seen = found.convert("RGB")
        empty = Image.new("RGB", seen.size, seen.getpixel((0, seen.height - 1)))
        box = ImageChops.difference(seen, empty).getbbox()
    return min(MOST, (box[3] if box else TOP) + 30)


def made(asked: list[str]) -> Iterator[str]:
    """Do what was asked; yield what was made."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "pictures" not in asked:
            fill(digits(folder) | table(folder), PAGES)
            yield from PAGES
        else:
            table(folder)
        report = folder / "runs/patients/release/report.html"
        pictures(report, folder)
        named = enumerate(headings(report.read_text(encoding="utf-8")), 1)
        fill({"report headings": "\n".join(f"{n}. {name}" for n, name in named)}, PAGES)
        yield from ("images/report.png", "images/report-numbered.png")


if __name__ == "__main__":
    for each in made(sys.argv[1:]):
        print(each)
