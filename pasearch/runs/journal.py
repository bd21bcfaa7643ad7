"""The store of finished trials: an Optuna study, so that Optuna's dashboard and plots read it.

Each trial is added once, in one transaction, when it is finished; a killed run finds on resume all
that were. The exact record (any JSON parameters, an integer score) is one attribute of the Optuna
trial; its numbers are given again as Optuna parameters, named by their path ("layers.0.width"), and
its texts and truth values as attributes. It lies in `private/`, or where the user named a store
that machines share (`stores`): under repeat-and-select no trial may be shown.

    seal  =  HMAC(the run's key for it, the exact record)      128 bits

Whoever can write a shared store could alter scores, and with them what is released. So a run takes
up a record only with the seal that its own keys give it; a record that was deleted is made again by
the same keys, equal to what it was.

Source: docs/rules.md, rules 10 and 11; docs/howto-storage.md; Optuna's `Study.add_trial`.
"""

from __future__ import annotations

import hmac
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasearch.errors import MachineError, UsageError, system_words
from pasearch.runs.stores import Address, open_store, refusal

if TYPE_CHECKING:
    from pasearch.runs.keys import Stream

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


class MissingStudyError(UsageError):
    """A store that does not hold a run's trials."""


class Journal:
    """The finished trials of a run, stored.

    Guarantee: a trial is stored entirely or not at all, and never replaced; in a shared store it is
    stored once, however many processes add to a study. The file of a run has one writer, by the
    ledger's lock.

    Args:
        place: The run's own SQLite file, made, mode 0600, if it is missing; or a shared store.
        study: The run's name there.
        new: Whether a study that is missing is made: in a shared store it then must be missing.

    Raises:
        UsageError: It is no store of trials, cannot be reached, or does not hold the study.
    """

    __slots__ = ("_place", "_records", "_seal", "_store", "_study")

    def __init__(
        self, place: str | os.PathLike[str] | Address, study: str = STUDY, *, new: bool = True
    ):
        self._place = place
        self._seal: Stream | None = None
        self._records: dict[int, TrialRecord] = {}
        with self._opening(), _quiet_optuna() as optuna:
            self._store = open_store(place, optuna)
            try:
                with self._store.exclusive(study):
                    self._study = self._found(optuna, study, new)
                    self._read()
            except BaseException:
                self._store.close()
                raise

    def _found(self, optuna: Any, study: str, new: bool) -> Any:
        storage, shared = self._store.storage, isinstance(self._place, Address)
        if new:
            try:
                return optuna.create_study(
                    storage=storage, study_name=study, direction="maximize",
                    load_if_exists=not shared,
                )  # fmt: skip
            except optuna.exceptions.DuplicatedStudyError:
                raise UsageError(f"{self._place} holds a study {study!r} already.") from None
        try:
            return optuna.load_study(storage=storage, study_name=study)
        except KeyError:
            raise MissingStudyError(
                f"{self._place} does not hold this run's trials ({study!r}). If they are "
                "elsewhere, name that store (`storage=`). If they are lost, name a new one: what "
                "the run has paid for is then trained again, at no further price."
            ) from None

    @contextmanager
    def _opening(self) -> Iterator[None]:
        """Tell the user in one sentence why a store cannot be opened."""
        try:
            yield
        except UsageError:
            raise
        except Exception as error:
            own, then = None, "name another"
            if not isinstance(self._place, Address):
                own, then = Path(self._place), "start a new run"
            elif (told := refusal(self._place, error)) is not None:
                raise told from None  # what caused it may hold the password
            no_file = own is not None and (own.is_dir() or own.is_symlink())
            if system_words(error) is not None and not no_file:  # a full disk: the file is sound
                raise
            raise UsageError(
                f"{self._place} is no store of trials ({type(error).__name__}): {then}."
            ) from error

    def _read(self) -> None:
        found: dict[int, TrialRecord] = {}
        for trial in self._study.get_trials(deepcopy=False):
            record = _record(trial.user_attrs["record"])
            if found.setdefault(record.number, record) != record:
                raise ValueError("one trial, stored with two results")
            if self._seal is not None and not hmac.compare_digest(
                str(trial.user_attrs.get("seal")).encode(), self._seal_of(record).encode()
            ):
                raise UsageError(
                    f"{self._place} holds trials of other keys than this run's: it was altered, so "
                    "nothing more can be released from it. Start a new run."
                )
        self._records = found

    def sealed_by(self, seal: Stream) -> None:
        """Read the records again, refuse those of other keys, and seal those to come.

        Args:
            seal: Of the run's keys, used for nothing else.

        Raises:
            UsageError: The store was altered, or is another run's.
        """
        self._seal = seal
        with self._opening(), _quiet_optuna():
            self._read()

    def _seal_of(self, record: TrialRecord) -> str:
        assert self._seal is not None
        own = self._seal.child(json.dumps(_plain(record), sort_keys=True))
        return f"{own.child(0).seed64():016x}{own.child(1).seed64():016x}"

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
            with _quiet_optuna() as optuna, self._store.exclusive(self._study.study_name):
                if isinstance(self._place, Address):
                    self._read()
                if not (stored := number in self._records):
                    seal = None if self._seal is None else self._seal_of(record)
                    self._study.add_trial(_as_optuna(optuna, record, seal))
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is names the trial and its score
            refused = system_words(error) or "A finished trial could not be stored."
            raise MachineError(
                f"{refused} Nothing paid for is lost: then finish the run with `pasearch resume`."
            ) from None
        if stored:
            raise UsageError(
                "A finished trial is stored already, and is never replaced: another process works "
                "on this run, or on a copy of it. Let one of them finish."
            )
        self._records[number] = record
        return record

    def forget_if_empty(self) -> bool:
        """Take a study without a trial out of a shared store, if it can be; return whether it was.

        It is called where a run is refused: a store that fails too does not hide why.
        """
        if isinstance(self._place, Address) and not self._records:
            with suppress(Exception), _quiet_optuna() as optuna:
                optuna.delete_study(study_name=self._study.study_name, storage=self._store.storage)
                return True
        return False

    def close(self) -> None:
        """Close the store."""
        self._store.close()


def _plain(record: TrialRecord) -> dict[str, Any]:
    return {name: getattr(record, name) for name in TrialRecord.__slots__}


def _record(stored: Mapping[str, Any]) -> TrialRecord:
    """Return what `add` stored; a ValueError if it is none."""
    record = TrialRecord(**stored)
    tables = isinstance(record.parameters, dict) and isinstance(record.attributes, dict)
    counted = type(record.number) is int and record.number >= 0
    if not (tables and counted and type(record.value) in (int, float, type(None))):
        raise ValueError("a trial of another form")
    return record


def _as_optuna(optuna: Any, record: TrialRecord, seal: str | None) -> Any:
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
        user_attrs={**others, "seal": seal, "record": _plain(record)},
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
