"""Runs the cases, side by side, and writes what each left as a JSON line."""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import io
import json
import os
import platform
import re
import shlex
import shutil
import sqlite3
import sys
import tempfile
import time
import tomllib
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from inputs import write_inputs

import pasearch

OUT = "run"
"""The folder of a case's run, in the case's own folder."""

RUNS = ("arch", "train", "features")
"""Commands that make a run: they are given a seed, a folder and the CPU."""

TOLD = ("check",)
"""Commands whose lines are kept: they have no JSON."""

MOST_NUMBERS = 48
"""A longer list of numbers is kept as its length and hash."""

DROPPED = {
    "versions": "of the program and its libraries; the first line of a recording has them",
    "files": "hashes of files whose words may change; result.json and the tensors are compared",
    "model.sha256": "of the model file's bytes, with names of tensors; its tensors are compared",
    "path": "of the run's folder, in what --json prints",
}
"""What of a result.json is not kept, and why: nothing in it is a clock's, or drawn seedless."""

UNTOLD = {
    r"Run '[0-9a-f]{32}'": "Run 'ID'",
    r"/\S*/case/": "",
}
"""What of an error message is not kept: a run's name in a ledger, which is drawn, and a folder."""


def record_cases(
    cases: Path, out: Path, *, renames: Path | None, only: list[str] | None, reverse: bool,
    workers: int,
) -> int:  # fmt: skip
    """Run the cases and write one JSON line each, after one that says on what.

    Args:
        cases: `cases.toml`.
        out: A file to write.
        renames: How the new command line calls what the cases call by the old names.
        only: Names or patterns; None runs all.
        reverse: The last one first: whether one changes what another gives.
        workers: How many are run at a time, each in a process of its own; 1: in this one.
    """
    table = tomllib.loads(cases.read_text())
    renamed = {} if renames is None else tomllib.loads(renames.read_text())
    chosen = {
        name: each
        for name, each in table["cases"].items()
        if only is None or any(fnmatch.fnmatch(name, pattern) for pattern in only)
    }
    own = renamed.get("cases", {})
    chosen = {name: each | own.get(name, {}) for name, each in chosen.items()}
    order = [name for name in chosen if "skip" not in chosen[name]]
    found, target = {}, out.absolute()
    print(f"The code of {Path(pasearch.__file__).parent}", file=sys.stderr)
    with tempfile.TemporaryDirectory() as temporary:
        inputs = Path(temporary) / "inputs"
        inputs.mkdir()
        write_inputs(inputs)
        _write_texts(table.get("files", {}), inputs, renamed)
        begun = time.monotonic()
        todo = {name: chosen[name] for name in (reversed(order) if reverse else order)}
        done = _recorded(todo, inputs, renamed, workers)
        for number, (name, kept, seconds) in enumerate(done, start=1):
            found[name] = kept
            print(
                f"{number}/{len(order)} {name}: exit {kept['exits']}, {seconds:.1f} s",
                file=sys.stderr,
            )
        total = time.monotonic() - begun
    lines = [{"machine": _machine()}, *({"name": name} | found[name] for name in order)]
    target.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    print(f"{len(order)} cases in {total:.0f} s: {out}", file=sys.stderr)
    return 0


def _write_texts(files: dict[str, str], folder: Path, renames: dict[str, Any]) -> None:
    for name, text in files.items():
        for each in renames.get("texts", []):
            if fnmatch.fnmatch(name, each.get("file", "*")):
                text = text.replace(each["old"], each["new"])
        (folder / name).write_text(text)
    examples = Path(__file__).parents[2] / "examples" / "architectures"
    for path in sorted(examples.glob("*.toml")):
        text = path.read_text()
        for each in renames.get("texts", []):
            if fnmatch.fnmatch(path.name, each.get("file", "*")):
                text = text.replace(each["old"], each["new"])
        (folder / path.name).write_text(text)


class Streams:
    """Which random streams a case opens: the keys that numpy's Philox and AES-256 are given.

    What is drawn need not show in a result: noise of little scale is often 0, and a choice hides
    it. Kept as sets, since a stream opened twice gives the same numbers.
    """

    def __init__(self) -> None:
        self.philox: set[str] = set()
        self.cipher: set[bytes] = set()
        self.counters: set[bytes] = set()

    @contextlib.contextmanager
    def heard(self) -> Iterator[None]:
        """Listen to both libraries, by whatever names the program calls its streams."""
        philox, aes, ctr = np.random.Philox, algorithms.AES256, modes.CTR
        # Its first use looks these two up by name.
        Cipher(aes(bytes(32)), ctr(bytes(16))).encryptor()

        def made(*given: Any, **named: Any) -> Any:
            self.philox.add(repr((given, sorted(named.items()))))
            return philox(*given, **named)

        def keyed(key: bytes) -> Any:
            self.cipher.add(bytes(key))
            return aes(key)

        def counted(nonce: bytes) -> Any:
            self.counters.add(bytes(nonce))
            return ctr(nonce)

        np.random.Philox, algorithms.AES256, modes.CTR = made, keyed, counted
        try:
            yield
        finally:
            np.random.Philox, algorithms.AES256, modes.CTR = philox, aes, ctr

    def to_json(self) -> dict[str, str]:
        """Return how many there are of each, and a hash of them all."""
        found = {
            "philox": [each.encode() for each in self.philox],
            "aes keys": list(self.cipher),
            "aes counters": list(self.counters),
        }
        return {
            name: f"{len(each)} {_hash(b''.join(map(_digest, sorted(each))))[:20]}"
            for name, each in found.items()
        }


def _digest(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def _recorded(
    cases: dict[str, Any], inputs: Path, renames: dict[str, Any], workers: int
) -> Iterator[tuple[str, dict[str, Any], float]]:
    """Yield names of cases, what is kept of them, and their seconds, as they are done.

    The code that is recorded may be older than its executors: these processes are Python's own.
    """
    if workers == 1:
        for name, case in cases.items():
            yield name, *_timed(case, inputs, renames)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        names = {pool.submit(_timed, case, inputs, renames): name for name, case in cases.items()}
        for each in as_completed(names):
            yield names[each], *each.result()


def _timed(
    case: dict[str, Any], inputs: Path, renames: dict[str, Any]
) -> tuple[dict[str, Any], float]:
    """Run a case in a folder of its own; return what is kept of it, and its seconds."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as own:
        kept = _run_case(case, inputs, Path(own) / "case", renames)
    return kept, time.monotonic() - started


def _run_case(
    case: dict[str, Any], inputs: Path, folder: Path, renames: dict[str, Any]
) -> dict[str, Any]:
    """Run a case in a folder of its own, and return what is kept of it."""
    _forget()
    shutil.copytree(inputs, folder)
    before = Path.cwd()
    os.chdir(folder)
    kept: dict[str, Any] = {"argv": [], "exits": [], "printed": [], "errors": []}
    streams = Streams()
    try:
        with streams.heard():
            if "python" in case:
                _run_python(case["python"], kept, renames)
            commands = case.get("run", [])
            for command in [commands] if isinstance(commands, str) else commands:
                _run_command(shlex.split(command), kept, renames)
        kept["streams"] = streams.to_json()
        kept["result"] = _results(folder)
        kept["model"] = _tensors(sorted(folder.glob("*/release/model.*")))
        kept["trials"] = _tensors(sorted(folder.glob("*/private/**/*.pt"), key=_natural))
        kept["charges"] = _charges(folder)
        for name in case.get("left", []):
            kept.setdefault("left", {})[name] = (folder / name).read_text().splitlines()
    finally:
        os.chdir(before)
        shutil.rmtree(folder)
    return {name: each for name, each in kept.items() if each not in ([], {}, None)}


def _forget() -> None:
    """Empty the program's caches, so that a case opens its own streams whatever ran before."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "pasearch":
            for each in list(vars(module).values()):
                if callable(clear := getattr(each, "cache_clear", None)):
                    clear()


def new_arguments(argv: list[str], renames: dict[str, Any]) -> list[str]:
    """Return a command line of the old form in the new one.

    `[[commands]]` replaces leading words (`old`, `new`) and may `append` others; `[options]` has
    the new name of an option, or "" for a flag that there is no more; `[arguments]` has, by old
    option, new values.
    """
    for each in renames.get("commands", []):
        if argv[: len(each["old"])] == each["old"]:
            argv = [*each["new"], *argv[len(each["old"]) :], *each.get("append", [])]
            break
    options, values = renames.get("options", {}), renames.get("arguments", {})
    found: list[str] = []
    last = ""
    for word in argv:
        if word.startswith("--"):
            last = word
            if word not in options:
                found.append(word)
            elif options[word]:
                found.extend(shlex.split(options[word]))
        else:
            found.append(values.get(last, {}).get(word, word))
    return found


def _run_command(argv: list[str], kept: dict[str, Any], renames: dict[str, Any]) -> None:
    """Run the command line in this process."""
    from pasearch.cli import main

    if argv[0] in RUNS and "--resume" not in argv:
        own = {"--seed": "1", "--out": OUT, "--device": "cpu"}
        for option, value in own.items():
            argv += [] if option in argv else [option, value]
    kept["argv"].append(argv)
    out, err = io.StringIO(), io.StringIO()
    given, sys.argv = sys.argv, ["pasearch", *new_arguments(argv, renames)]
    code = 0
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0
    finally:
        sys.argv = given
    kept["exits"].append(code)
    if argv[0] in TOLD:
        kept.setdefault("told", []).append(out.getvalue().splitlines())
    if "--json" in argv and code == 0:
        kept["printed"].append(_kept_json(json.loads(out.getvalue())))
    if code != 0:
        message = err.getvalue().strip()
        for pattern, instead in UNTOLD.items():
            message = re.sub(pattern, instead, message)
        kept["errors"].append(message)


def _run_python(text: str, kept: dict[str, Any], renames: dict[str, Any]) -> None:
    """Run lines that leave something in `answer`."""
    for each in renames.get("texts", []):
        if fnmatch.fnmatch("python", each.get("file", "*")):
            text = text.replace(each["old"], each["new"])
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(text, "case", "exec"), names)
    kept["exits"].append(0)
    kept["printed"].append(_kept_json(names["answer"]))


def _results(folder: Path) -> list[Any]:
    return [
        _kept_json(json.loads(path.read_text()))
        for path in sorted(folder.glob("*/release/result.json"))
    ]


def _charges(folder: Path) -> list[Any]:
    """Return how often each line of each run's plan was charged to each partition."""
    found = []
    for path in sorted(folder.glob("*/private/*.sqlite")):
        with contextlib.closing(sqlite3.connect(path)) as ledger:
            tables = ledger.execute("SELECT name FROM sqlite_master").fetchall()
            if ("charges",) in tables:
                rows = ledger.execute(
                    "SELECT line, partition, count(*) FROM charges GROUP BY 1, 2 ORDER BY 1, 2"
                )
                names = ("name", "partition", "charged")
                found.append([dict(zip(names, row, strict=True)) for row in rows])
    return found


def _kept_json(value: Any, path: tuple[str, ...] = ()) -> Any:
    """Return a value without what is dropped, and with long lists of numbers as hashes."""
    if isinstance(value, dict):
        found = {}
        for name, each in value.items():
            here = (*path, name)
            if ".".join(here) not in DROPPED:
                found[name] = _kept_json(each, here)
        return found
    if isinstance(value, np.ndarray):
        return _array(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (list, tuple)):
        numbers = all(isinstance(each, (int, float)) for each in value)
        if numbers and len(value) > MOST_NUMBERS:
            return {"length": len(value), "sha256": _hash(json.dumps(list(value)).encode())}
        return [_kept_json(each, (*path, str(number))) for number, each in enumerate(value)]
    return value


def _tensors(paths: list[Path]) -> list[Any]:
    """Return what each file of weights holds, in order: types, shapes and hashes, no names."""
    found = []
    for path in paths:
        if path.suffix == ".pt":
            import torch

            held = torch.load(path, map_location="cpu", weights_only=True)
        else:
            with np.load(path) as arrays:
                held = dict(arrays)
        found.append(list(_flat(held)))
    return found


def _flat(held: Any) -> Iterator[Any]:
    if isinstance(held, dict):
        for each in held.values():
            yield from _flat(each)
    elif isinstance(held, (list, tuple)):
        for each in held:
            yield from _flat(each)
    elif hasattr(held, "detach"):
        yield _array(held.detach().numpy())
    elif isinstance(held, np.ndarray):
        yield _array(held)
    else:
        yield held


def _array(array: np.ndarray[Any, Any]) -> str:
    shape = "x".join(map(str, array.shape))
    if array.dtype.kind == "O":
        content = json.dumps(array.tolist(), default=str).encode()
    else:
        content = np.ascontiguousarray(array).tobytes()
    return f"{array.dtype} {shape} {_hash(content)[:20]}"


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _natural(path: Path) -> list[Any]:
    parts = re.split(r"(\d+)", path.name)
    return [int(part) if part.isdigit() else part for part in parts]


def _machine() -> dict[str, str]:
    import scipy
    import sklearn
    import torch

    return {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "scikit-learn": sklearn.__version__,
        "torch": torch.__version__,
    }
