"""Write the figures of README and docs from the result files: nothing is typed by hand.

    python docs/make_figures.py            # writes
    python docs/make_figures.py --check    # says what is not as it would be written; exit code 1

`images/accuracy.svg` is drawn from benchmarks/models/results/peers.jsonl; the tables between
`<!-- results ... -->` and `<!-- end of results -->` come from there, adult.jsonl and images.jsonl;
those between `<!-- speed ... -->` and its end from benchmarks/speed/results/steps.jsonl.
`images/report.png` is a photograph of a report and is taken by hand.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "benchmarks" / "models" / "results"
MARKS = re.compile(r"(<!-- results[^>]*-->\n).*?(<!-- end of results -->)", re.DOTALL)

STEPS = DOCS.parent / "benchmarks" / "speed" / "results" / "steps.jsonl"
SPEED = re.compile(r"(<!-- speed[^>]*-->\n).*?(<!-- end of speed -->)", re.DOTALL)
STEP_ROWS = {
    "logistic-100": "logistic regression, 100", "fcn-100": "network 784-300-128-10, 100",
    "fcn-2048": "network 784-300-128-10, 2,048", "scattering-100": "linear on scattering, 100",
    "scattering-2048": "linear on scattering, 2,048", "cnn-256": "convolutional network, 256",
    "cnn-1024": "convolutional network, 1,024", "lstm-100": "LSTM, 100",
}  # fmt: skip
STEP_PEERS = {
    "sgd": "plain SGD", "hand": "written by hand", "hooks": "Opacus, hooks",
    "ghost": "Opacus, ghost", "fastdp": "FastDP", "jax": "jax",
}  # fmt: skip

TWO_CLASSES = ("adult", "bank-churn", "bank-marketing", "eeg-eye-state", "magic", "online-shoppers")
ARMS = {
    "arch": ("pasearch", "#17605a", ""), "opacus": ("Opacus, 64 units", "#8a4b08", "7 4"),
    "dp-ebm": ("DP-EBM", "#4b4a8f", "2 4"), "diffprivlib": ("diffprivlib", "#777268", "10 4 2 4"),
}  # fmt: skip
IMAGES = {
    "mnist": "MNIST", "fashion-mnist": "Fashion-MNIST", "cifar10-jpeg-q75": "CIFAR-10 (JPEG q75)",
}  # fmt: skip
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 330, 60, 190, 34, 48


def lines(name: str) -> list[dict[str, Any]]:
    """Return what a result file holds."""
    return [json.loads(each) for each in (RESULTS / name).read_text().splitlines()]


def spread(values: list[float]) -> str:
    """Return median (least, most) with three digits, no leading zero."""
    told = [statistics.median(values), min(values), max(values)]
    middle, low, high = (f"{value:.3f}".removeprefix("0") for value in told)
    return f"{middle} ({low}, {high})"


def by_epsilon(rows: list[dict[str, Any]], key: str) -> list[tuple[float, list[float]]]:
    """Return what was measured at each epsilon, rising."""
    epsilons = sorted({each["epsilon"] for each in rows})
    return [(at, [each[key] for each in rows if each["epsilon"] == at]) for at in epsilons]


def table() -> str:
    """Return the table of results, in Markdown."""
    rows = ["| data | runs | test, by total epsilon |", "|---|---|---|"]
    images = [each for each in lines("images.jsonl") if each["arm"] == "fixed"]
    adult = [each for each in lines("adult.jsonl") if each["declared"] and each["arm"] == "arch"]
    given = [
        (name, [each for each in images if each["data"] == data], "accuracy", "accuracy")
        for data, name in IMAGES.items()
    ]
    given += [("Adult, UCI's split", adult, key, key) for key in ("accuracy", "auc")]
    for name, own, key, word in given:
        told = [f"{spread(found)} at {at:g}" for at, found in by_epsilon(own, key)]
        word = word.upper() if word == "auc" else word
        rows.append(f"| {name} | {len(own) // len(told)} | {word} {', '.join(told)} |")
    return "\n".join(rows) + "\n\n" + beside() + "\n"


def beside() -> str:
    """Return on how many tables the medians are better than every private peer's."""
    rows, told = lines("peers.jsonl"), []
    for epsilon in (0.5, 1.0, 3.0):
        tables = list(dict.fromkeys(r["table"] for r in rows if r["epsilon"] == epsilon))
        ahead = sum(is_ahead(rows, name, epsilon) for name in tables)
        told.append(f"{ahead} of {len(tables)} at epsilon {epsilon:g}")
    count = len({r["table"] for r in rows})
    return (
        f"Comparison on {count} tables: `pasearch` estimates ranges and categories within its "
        "budget; Opacus, DP-EBM, BoostedAdaSSP and diffprivlib receive them for free. The median "
        "accuracy of `pasearch` (for regression, its median error) is better than that of all four "
        f"on {', '.join(told)}."
    )


def is_ahead(rows: list[dict[str, Any]], name: str, epsilon: float) -> bool:
    """Return whether `arch` has a better median than every peer on a table."""
    medians = {}
    for arm in (*ARMS, "adassp"):
        here = [r for r in rows if (r["table"], r["epsilon"], r["arm"]) == (name, epsilon, arm)]
        found = [-r["mae"] if "mae" in r else r["accuracy"] for r in here]
        if found:
            medians[arm] = statistics.median(found)
    return medians["arch"] > max(value for arm, value in medians.items() if arm != "arch")


def picture() -> str:
    """Return the chart of area under the curve over epsilon, an SVG of its own."""
    rows = lines("peers.jsonl")
    epsilons = (0.5, 1.0, 3.0)
    low, high = 0.5, 0.95

    def x(place: int) -> float:
        return LEFT + place * (WIDTH - LEFT - RIGHT) / (len(epsilons) - 1)

    def y(value: float) -> float:
        return TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" font-family="system-ui, sans-serif" font-size="13" role="img">',
        "<title>Area under the ROC curve over epsilon, mean over six tables</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fcfbf8"/>',
        f'<text x="{LEFT}" y="20" fill="#1d1c1a" font-weight="600">Area under the ROC curve, mean '
        "over six tables of two classes</text>",
    ]
    for tick in (0.5, 0.6, 0.7, 0.8, 0.9):
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" '
            f'stroke="#dcd8ce"/><text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" fill="#5d5a53" '
            f'text-anchor="end">{tick:g}</text>'
        )
    for place, epsilon in enumerate(epsilons):
        parts.append(
            f'<text x="{x(place):.1f}" y="{HEIGHT - BOTTOM + 20}" fill="#5d5a53" '
            f'text-anchor="middle">{epsilon:g}</text>'
        )
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle:.0f}" y="{HEIGHT - 8}" fill="#5d5a53" text-anchor="middle">'
        "total epsilon (less is more private)</text>"
    )
    told: list[float] = []
    for arm, (name, colour, dash) in ARMS.items():
        means = [
            statistics.mean(
                statistics.median(
                    r["auc"] for r in rows
                    if (r["table"], r["epsilon"], r["arm"]) == (table, epsilon, arm)
                )
                for table in TWO_CLASSES
            )
            for epsilon in epsilons
        ]  # fmt: skip
        points = " ".join(f"{x(i):.1f},{y(value):.1f}" for i, value in enumerate(means))
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        weight = 3 if arm == "arch" else 2
        label = y(means[-1]) + 4
        while any(abs(label - other) < 16 for other in told):
            label += 1
        told.append(label)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="{weight}"'
            f'{dashes}/><text x="{WIDTH - RIGHT + 10}" y="{label:.1f}" fill="{colour}">'
            f"{name}, {means[-1]:.2f}</text>"
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def speed() -> str:
    """Return the peers' times of a step divided by ours, one thread: medians."""
    last: dict[tuple[str, str], dict[str, Any]] = {}
    for each in map(json.loads, STEPS.read_text().splitlines()):
        if each["device"] == "cpu" and each["threads"] == 1:
            last[each["row"], each["peer"]] = each
    rows = ["| work, batch | " + " | ".join(STEP_PEERS.values()) + " |", "|---" * 7 + "|"]
    for row, words in STEP_ROWS.items():
        told = []
        for peer in STEP_PEERS:
            found = last.get((row, peer))
            told.append(f"{found['ratio']:.3g}" if found and "ratio" in found else "-")
        rows.append(f"| {words} | " + " | ".join(told) + " |")
    return "\n".join(rows) + "\n"


def written() -> dict[Path, str]:
    """Return every file that is written, as it should be."""
    found = {DOCS / "images" / "accuracy.svg": picture()}
    for page in (DOCS.parent / "README.md", DOCS / "measured.md"):
        text = MARKS.sub(lambda m: f"{m[1]}{table()}{m[2]}", page.read_text())
        found[page] = SPEED.sub(lambda m: f"{m[1]}{speed()}{m[2]}", text)
    return found


def main() -> None:
    """Write the files, or check them."""
    stale = [
        path for path, text in written().items() if not path.exists() or path.read_text() != text
    ]
    if "--check" in sys.argv:
        for path in stale:
            print(f"{path} is not what docs/make_figures.py writes: run it.")
        sys.exit(1 if stale else 0)
    for path, text in written().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
