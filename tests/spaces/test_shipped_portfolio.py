"""The shipped portfolio: a study of public data that is whole, and how it is read."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib.resources import files
from itertools import pairwise

import numpy as np
import pytest
import torch

from pasearch.data.built_in import BUILT_IN_NAMES
from pasearch.data.column import Column
from pasearch.data.schema import Schema
from pasearch.data.tables import TableSchema
from pasearch.spaces import portfolio
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.candidate import Candidate
from pasearch.spaces.layers import Dense
from pasearch.spaces.parsing import make_space
from pasearch.spaces.portfolio import (
    STUDY_ALIASES,
    STUDY_FILE,
    Study,
    compute_signal,
    find_data_kind,
    load_study,
)

KINDS = ("image", "photo", "arrays", "table", "regression")
SHAPES: dict[str, list[tuple[int, ...]]] = {
    "image": [(28, 28), (16, 16), (1, 32, 32)],
    "photo": [(3, 32, 32), (3, 64, 48)],
    "arrays": [(4,), (8, 8), (300,)],
    "table": [(7,), (100,)],
    "regression": [(7,), (28, 28)],
}
TARGET = Column(name="c", categories=("a", "b"))
NUMBER = Column(name="c", kind="number")
AGE = Column(name="age", low=0, high=90)
STUDIES = portfolio._read_studies()


def entry(units: int) -> Candidate:
    return Candidate(architecture=Architecture(layers=(Dense(units=units),)))


SMALL = Study(
    kind="arrays",
    entries=(entry(2), entry(3), entry(4)),
    signals={"one": np.array([0.0, 1.0]), "two": np.array([1.0, 3.0])},
    accuracy={
        "one": np.array([[0.2, 0.4], [0.5, 0.5], [0.2, 0.4]]),
        "two": np.array([[0.4, 0.8], [0.3, 0.3], [0.4, 0.8]]),
    },
)


@pytest.mark.contract
@pytest.mark.parametrize("kind", KINDS)
class TestTheFile:
    def test_has_a_study_of_the_kind(self, kind: str):
        study = STUDIES[kind]
        assert study.kind == kind
        assert study.signals
        assert set(study.signals) == set(study.accuracy)
        assert 2 <= len(study.entries) <= 16
        assert len(set(study.entries)) == len(study.entries), "no entry is there twice"

    def test_every_curve_is_whole(self, kind: str):
        study = STUDIES[kind]
        for name, signals in study.signals.items():
            assert np.isfinite(signals).all()
            assert all(a < b for a, b in pairwise(signals.tolist())), f"{name}: signals rise"
            curves = study.accuracy[name]
            assert curves.shape == (len(study.entries), len(signals))
            assert np.isfinite(curves).all()
            assert ((curves >= 0) & (curves <= 1)).all()

    def test_every_entry_is_a_network_that_runs(self, kind: str):
        outputs = 1 if kind == "regression" else 3
        for shape in SHAPES[kind]:
            fitting = STUDIES[kind].select_fitting(shape)
            assert len(fitting.entries) > 1
            fitting.portfolio().check_fits(shape, outputs)
            for each in fitting.entries:
                network = each.build(shape, outputs, np.random.default_rng(1))
                x = torch.rand(2, *each.front_end.output_shape(shape))
                assert network(x).shape == (2, outputs)

    def test_an_entry_without_a_fit_is_there(self, kind: str):
        """Disjoint portions need one; and where nothing is fitted in the study, none has a fit."""
        fits = [each.front_end.fitted for each in STUDIES[kind].entries]
        assert not all(fits)
        assert any(fits) == (kind != "arrays")

    def test_its_portfolio_is_a_space_that_comes_back(self, kind: str):
        made = STUDIES[kind].portfolio()
        assert made.entries == STUDIES[kind].entries
        assert make_space(json.loads(json.dumps(made.to_json()))) == made
        assert kind in made.name

    def test_data_sets_bear_the_names_that_users_give(self, kind: str):
        """Otherwise a data set would take part in a prediction about itself."""
        images = tuple(set(BUILT_IN_NAMES) - {"digits"})
        own = {"image": images, "photo": images, "arrays": ("digits",)}.get(kind, ())
        for name in STUDIES[kind].signals:
            known = name in own or name in STUDY_ALIASES.values()
            assert known or not name.startswith(own or ("/",)), name


@pytest.mark.contract
def test_the_file_is_plain_and_small():
    text = files("pasearch.spaces.portfolio").joinpath(STUDY_FILE).read_text(encoding="utf-8")
    assert len(text) < 300_000
    assert set(json.loads(text)["kinds"]) == set(KINDS)


@pytest.mark.unit
def test_large_images_have_the_entries_that_take_them():
    small, large = (load_study(Schema(shape=(3, side, side)), "mine") for side in (32, 400))
    assert {each.front_end.name for each in small.entries} == {"whitened_centred", "scattering"}
    assert {each.front_end.name for each in large.entries} == {"scattering"}
    assert large.accuracy_at(2.0).shape[1] == len(large.entries)
    large.portfolio().check_fits((3, 400, 400), 5)


class TestKind:
    @pytest.mark.unit
    def test_follows_from_the_form(self):
        for schema, kind in [
            (Schema(shape=(28, 28), classes=10), "image"),
            (Schema(shape=(16, 16)), "image"),
            (Schema(shape=(3, 32, 32), low=0, high=1), "photo"),
            (Schema(shape=(1, 32, 32), low=0, high=1), "image"),
            (Schema(shape=(4, 32, 32), low=0, high=1), "image"),
            (Schema(shape=(15, 40)), "arrays"),
            (Schema(shape=(8, 8), classes=10), "arrays"),
            (Schema(shape=(1000,)), "arrays"),
            (Schema(shape=(28, 28), regression=True), "regression"),
            (Schema(shape=(5,), regression=True), "regression"),
            (TableSchema(columns=(AGE,), target=TARGET), "table"),
            (TableSchema(columns=(Column(name="b"),), target=Column(name="c")), "table"),
            (TableSchema(columns=(AGE,), target=NUMBER), "regression"),
        ]:
            assert find_data_kind(schema) == kind
            assert load_study(schema, "nobody's").kind == kind

    @pytest.mark.unit
    def test_signal(self):
        for mu, slots, outputs, signal in [
            (0.1, 1000, 10, 1.0),
            (1.0, 1, 1, 0.0),
            (0.5, 60_000, 10, math.log10(3000)),
        ]:
            assert compute_signal(mu, slots, outputs) == pytest.approx(signal)


class TestReading:
    @pytest.mark.unit
    def test_looks_are_judged_by_one_minus_the_brier_score_where_it_was_measured(self):
        study = load_study(Schema(shape=(64,), low=0.0, high=1.0, classes=10), "nobody")
        assert set(study.brier) == set(study.signals)
        judged, reached = study.trial_score_at(2.0), study.accuracy_at(2.0)
        assert judged.shape == reached.shape
        assert not np.allclose(judged, reached)
        plain = replace(study, brier={})
        assert np.array_equal(plain.trial_score_at(2.0), reached)
        few = study.rescale_to_classes(2)
        name = next(iter(study.signals))
        share = (1 - 1 / 2) / (1 - 1 / study.classes[name])
        assert np.allclose(few.brier[name], study.brier[name] * share)

    def test_between_two_signals_it_is_interpolated_and_held_outside(self):
        found = {signal: SMALL.accuracy_at(signal) for signal in (-9.0, 0.0, 0.5, 1.0, 2.0, 99.0)}
        assert found[0.0].shape == (2, 3)
        assert found[-9.0].tolist() == found[0.0].tolist()
        assert found[0.5][0] == pytest.approx([0.3, 0.5, 0.3])
        assert found[0.5][1] == pytest.approx([0.4, 0.3, 0.4])
        assert found[2.0][0] == pytest.approx([0.4, 0.5, 0.4])
        assert found[2.0][1] == pytest.approx([0.6, 0.3, 0.6])
        assert found[99.0][1] == pytest.approx([0.8, 0.3, 0.8])

    @pytest.mark.unit
    def test_below_what_most_data_sets_have_nothing_is_known(self):
        """Curves end there and would be drawn on level, while accuracy falls to guessing."""
        lows = {"a": 0.5, "b": 1.0, "c": 2.0}
        signals = {name: np.array([low, 3.0]) for name, low in lows.items()}
        study = replace(SMALL, signals=signals, classes={}, features={})
        for signal, told in (
            (0.9, "below the range"),
            (1.0, ""),
            (3.4, ""),
            (3.6, "above the range"),
        ):
            found = study.describe_extrapolation(signal, 2, 5)
            assert told in found
            assert bool(found) == bool(told)

    @pytest.mark.unit
    def test_entries_are_ordered_by_their_mean_and_take_their_curves_along(self):
        early, late = SMALL.sort_by_accuracy(0.0), SMALL.sort_by_accuracy(3.0)
        assert early.entries == (entry(3), entry(2), entry(4)), "equal ones keep their order"
        assert late.entries == (entry(2), entry(4), entry(3))
        for signal in (0.0, 0.7, 3.0):
            assert (
                early.accuracy_at(signal).tolist()
                == SMALL.accuracy_at(signal)[:, [1, 0, 2]].tolist()
            )
        assert early.portfolio().candidate((0,)) == entry(3)

    @pytest.mark.unit
    def test_a_data_set_is_left_out_unless_it_is_the_only_one(self):
        left = SMALL.without_data_set("one")
        assert (set(left.signals), set(left.accuracy)) == ({"two"}, {"two"})
        assert left.entries == SMALL.entries
        assert set(SMALL.without_data_set("three").signals) == {"one", "two"}
        assert set(left.without_data_set("two").signals) == {"two"}
        assert set(SMALL.signals) == {"one", "two"}, "the study itself is kept"
