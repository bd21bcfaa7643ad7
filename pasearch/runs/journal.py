"""The store of finished trials: an Optuna study, so that Optuna's dashboard and plots read it.

Each trial is added once, in one transaction, when it is finished; a killed run finds on resume all
that were. The exact record (any JSON parameters, an integer score) is one attribute of the Optuna
trial; its numbers are given again as Optuna parameters, named by their path ("layers.0.width"), and
its texts and truth values as attributes. It lies in `private/`: under repeat-and-select no trial
may be shown.

Source: docs/rules.md, rule 10; Optuna's `Study.add_trial`.
"""

from __future__ import annotations

import json
import os
import sqlite3
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pasearch.errors import MachineError, UsageError, system_words

STUDY = "trials"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialRecord:
    """A finished trial.

    Args:
        number: From 0; the run's own numbering.
        parameters: What was tried, JSON values.
        value: Its noisy score, higher is better; None when it failed.
        attributes: Anything else about it, JSON values.
    """

    number: int
    parameters: dict[str, Any]
    value: float | int | None
    attributes: dict[str, Any]


class Journal:
    """The finished trials of a run, on disk.

    Guarantee: a trial is stored entirely or not at all, and never replaced. The run has one writer
    (the ledger's lock), so the records are read once.

    Args:
        path: The SQLite file; made, mode 0600, if it is missing.

    Raises:
        UsageError: The file is no store of trials.
    """

    __slots__ = ("_records", "_storage", "_study")

    def __init__(self, path: str | os.PathLike[str]):
        path = Path(path).absolute()
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))
            with _quiet_optuna() as optuna:
                # A connection of our own: in a URL, a "?" in the path would end it.
                self._storage = optuna.storages.RDBStorage(
                    "sqlite:///trials",
                    engine_kwargs={
                        "hide_parameters": True,
                        "creator": lambda: sqlite3.connect(path, check_same_thread=False),
                    },
                )
                self._study = optuna.create_study(
                    storage=self._storage,
                    study_name=STUDY,
                    direction="maximize",
                    load_if_exists=True,
                )
                stored = self._study.get_trials(deepcopy=False)
            records = [_record(trial.user_attrs["record"]) for trial in stored]
        except Exception as error:
            no_file = path.is_dir() or path.is_symlink()
            if system_words(error) is not None and not no_file:  # a full disk: the file is sound
                raise
            raise UsageError(
                f"{path} is no store of trials ({type(error).__name__}): start a new run."
            ) from error
        self._records = {record.number: record for record in records}

    def get(self, number: int) -> TrialRecord | None:
        """Return a trial, or None while it is not finished."""
        return self._records.get(number)

    def all(self) -> list[TrialRecord]:
        """Return all finished trials, by number."""
        return [self._records[number] for number in sorted(self._records)]

    def add(
        self,
        number: int,
        parameters: Mapping[str, Any],
        value: float | int | None,
        attributes: Mapping[str, Any],
    ) -> TrialRecord:
        """Store a finished trial; it is on disk at return.

        Raises:
            UsageError: The number is stored already, or a value that JSON cannot hold (NaN too).
            MachineError: The disk is full, say; neither the trial nor its score is named.
        """
        if number in self._records:
            raise UsageError(f"trial {number} is stored already: a trial is never replaced.")
        content = {
            "number": number,
            "parameters": dict(parameters),
            "value": value,
            "attributes": dict(attributes),
        }
        try:
            content = json.loads(json.dumps(content, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise UsageError(f"trial {number} holds what JSON cannot ({error}).") from None
        record = TrialRecord(**content)
        try:
            with _quiet_optuna() as optuna:
                self._study.add_trial(_as_optuna(optuna, record))
        except Exception as error:  # noqa: BLE001 - whatever it is names the trial and its score
            refused = system_words(error) or "A finished trial could not be stored."
            raise MachineError(
                f"{refused} Nothing is lost: then finish the run with `pasearch resume`."
            ) from None
        self._records[number] = record
        return record

    def close(self) -> None:
        """Close the file."""
        self._storage.remove_session()
        self._storage.engine.dispose()


def _record(stored: Mapping[str, Any]) -> TrialRecord:
    """Return what `add` stored; a ValueError if it is none."""
    record = TrialRecord(**stored)
    tables = isinstance(record.parameters, dict) and isinstance(record.attributes, dict)
    counted = type(record.number) is int and record.number >= 0
    if not (tables and counted and type(record.value) in (int, float, type(None))):
        raise ValueError("a trial of another form")
    return record


def _as_optuna(optuna: Any, record: TrialRecord) -> Any:
    """Return the record as an Optuna trial.

    A number becomes a float parameter, because Optuna refuses a study in which one name has two
    kinds of values; a text or truth value becomes an attribute, because a categorical parameter
    needs all its choices beforehand.
    """
    numbers, others = {}, {}
    for name, value in _leaves(record.parameters, ""):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        (numbers if number and abs(value) < 2**53 else others)[name] = value
    return optuna.trial.create_trial(
        state=getattr(optuna.trial.TrialState, "FAIL" if record.value is None else "COMPLETE"),
        value=record.value,
        params={name: float(value) for name, value in numbers.items()},
        distributions={
            name: optuna.distributions.FloatDistribution(float(value), float(value))
            for name, value in numbers.items()
        },
        user_attrs={
            **others,
            "record": {name: getattr(record, name) for name in TrialRecord.__slots__},
        },
    )


def _leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield (dotted path, scalar) of nested JSON values."""
    match value:
        case dict():
            for key, each in value.items():
                yield from _leaves(each, f"{path}.{key}" if path else key)
        case list():
            for index, each in enumerate(value):
                yield from _leaves(each, f"{path}.{index}")
        case _:
            yield path, value


@contextmanager
def _quiet_optuna() -> Iterator[Any]:
    """Import Optuna (it takes a second) and silence it, leaving the user's own settings alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import optuna

        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            yield optuna
        finally:
            optuna.logging.set_verbosity(verbosity)
