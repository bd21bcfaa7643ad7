"""Private logistic regression: the minimiser, the noise, the price, and audits that see bugs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import beta, gamma, kstest

from pasearch.accounting.events import PureDP
from pasearch.errors import UsageError
from pasearch.features import logistic
from pasearch.features.logistic import ObjectivePerturbation, fit_many, fit_public
from pasearch.runs.keys import Keys, Stream

KEYS = Keys.from_seed(5)
pytestmark = pytest.mark.filterwarnings("ignore:scipy.optimize:DeprecationWarning")


def library_epsilon(mechanism: ObjectivePerturbation) -> float:
    """The epsilon at which diffprivlib draws this noise.

    It promises epsilon for a record that is replaced, and charges a curvature of up to 1/4 beside
    the largest gradient: 2 rate + 2 log(1 + 1/(4 a)) for each output.
    """
    own = 2 * mechanism.rate + 2 * math.log1p(0.25 / mechanism.strength)
    return mechanism.outputs * own


def library_fit(rows: Any, labels: Any, mechanism: ObjectivePerturbation, key: Stream) -> Any:
    """diffprivlib's weights, (outputs, columns), of `bounded` rows, with our noise of that key.

    A null record of each class is added, so that every class occurs; the intercept is a column of
    the rows, because diffprivlib would not regularise its own.
    """
    models = pytest.importorskip("diffprivlib.models")
    accountant = pytest.importorskip("diffprivlib.accountant").BudgetAccountant()
    anchors = np.zeros((mechanism.classes, rows.shape[1]))
    known = np.where(labels < mechanism.classes, labels, 0)
    model = models.LogisticRegression(
        epsilon=library_epsilon(mechanism), data_norm=1.0, C=1 / mechanism.strength, tol=1e-9,
        fit_intercept=False, max_iter=1000, n_jobs=1, random_state=logistic._random_state(key),
        accountant=accountant,
    )  # fmt: skip
    model.fit(np.concatenate([rows, anchors]), np.append(known, np.arange(mechanism.classes)))
    return model.coef_


def records(n: int = 80, d: int = 6, classes: int = 2, seed: int = 0, size: float = 1.0) -> Any:
    """Records in [0, 1] with some signal; a null one, one not finite and one of no class."""
    rng = np.random.default_rng(seed)
    x = rng.random((n, d)) * size
    y = (
        (x / size - 0.5) @ rng.normal(size=(d, classes)) + rng.gumbel(size=(n, classes)) * 0.3
    ).argmax(1)
    valid = np.ones(n, bool)
    valid[3], x[5, 0], y[7] = False, math.nan, classes
    return x, y, valid


def bounded(x: Any, y: Any, valid: Any, mask: Any, norm: float, classes: int = 2) -> Any:
    """Rows of norm at most 1, the 1 of the intercept last, written out; and which class each is."""
    found, labels = [], []
    for row, label, usable in zip(x, y, valid, strict=True):
        used = np.where(mask, row, 0.0)
        labels.append(label)
        if not (usable and np.isfinite(row).all() and 0 <= label < classes):
            found.append(np.zeros(len(row) + 1))
            continue
        length = math.sqrt((used**2).sum())
        used = used * min(1.0, norm / length) if length else used
        found.append(np.append(used, 1.0) / math.sqrt(norm**2 + 1))
    return np.array(found), np.array(labels)


def newton(rows: Any, hot: Any, strength: float, noise: Any, steps: int = 60) -> Any:
    """The minimiser by plain damped Newton steps, one output."""
    u = np.zeros(rows.shape[1])

    def value(u: Any) -> float:
        z = rows @ u
        return float(np.logaddexp(0, z).sum() - hot @ z + strength / 2 * u @ u + noise @ u)

    for _ in range(steps):
        s = 1 / (1 + np.exp(-rows @ u))
        gradient = rows.T @ (s - hot) + strength * u + noise
        hessian = (rows.T * (s * (1 - s))) @ rows + strength * np.eye(len(u))
        step, size = np.linalg.solve(hessian, gradient), 1.0
        while value(u - size * step) > value(u) + 1e-12 and size > 1e-8:
            size /= 2
        u = u - size * step
    return u


def fit_one(x: Any, y: Any, valid: Any, mechanism: Any, stream: Stream, mask: Any = None) -> Any:
    """One model, of all features without a mask: (outputs, d + 1)."""
    masks = np.ones((1, np.shape(x)[-1]), bool) if mask is None else [mask]
    return fit_many(x, y, valid, masks, [mechanism], [stream])[0]


def subsets(p: int, d: int, seed: int = 1) -> Any:
    masks = np.random.default_rng(seed).random((p, d)) < 0.6
    masks[0], masks[1] = True, False
    return masks


class TestTheMinimiser:
    @pytest.mark.oracle
    def test_without_noise_is_newtons(self):
        for classes in [2, 3]:
            for norm, strength in [(0.7, 0.05), (2.5, 1.0), (0.7, 40.0)]:
                x, y, valid = records(classes=classes)
                masks = subsets(9, 6)
                norms = np.full(9, norm) * np.linspace(1, 1.3, 9)
                found = fit_public(
                    x, y, valid, masks, data_norms=norms, classes=classes, regularisation=strength
                )
                assert found.shape == (9, 1 if classes == 2 else 3, 7)
                for mask, own, weights in zip(masks, norms, found, strict=True):
                    rows, labels = bounded(x, y, valid, mask, own, classes)
                    for output, counted in enumerate([1] if classes == 2 else range(classes)):
                        u = newton(rows, (labels == counted) * 1.0, strength, np.zeros(7))
                        expected = u / math.sqrt(own**2 + 1)
                        np.testing.assert_allclose(weights[output], expected, atol=1e-6)
                        assert (weights[output][:-1][~mask] == 0).all()

    @pytest.mark.oracle
    def test_of_many_with_noise_is_that_of_one(self):
        for classes, norm in [(2, 0.7), (4, 2.5)]:
            x, y, valid = records(classes=classes)
            masks = subsets(10, 6)
            mechanisms = [
                ObjectivePerturbation(epsilon=e, data_norm=norm, classes=classes)
                for e in (0.2, 1.0, 1.0, 4.0, 0.7) * 2
            ]
            streams = [KEYS.stream("fit", i) for i in range(10)]
            many = fit_many(x, y, valid, masks, mechanisms, streams)
            for mask, mechanism, stream, weights in zip(
                masks, mechanisms, streams, many, strict=True
            ):
                one = fit_one(x, y, valid, mechanism, stream, mask)
                np.testing.assert_allclose(one, weights, atol=1e-6)
                assert (one[:, :-1][:, ~mask] == 0).all()

    @pytest.mark.oracle
    @pytest.mark.parametrize("classes", [2, 3])
    def test_of_one_is_near_what_diffprivlib_gives(
        self, monkeypatch: pytest.MonkeyPatch, classes: int
    ):
        keys: list[Any] = []
        drawn: Any = logistic._draw_noise

        def spied(mechanism: Any, width: int, key: Stream) -> Any:
            keys.append(key)
            return drawn(mechanism, width, key)

        monkeypatch.setattr(logistic, "_draw_noise", spied)
        mechanism = ObjectivePerturbation(epsilon=1.0, data_norm=2.0, classes=classes)
        x, y, valid = records(classes=classes)
        one = fit_one(x, y, valid, mechanism, KEYS.stream("one"))
        rows, labels = bounded(x, y, valid, np.ones(6, bool), 2.0, classes)
        theirs = library_fit(rows, labels, mechanism, keys[0])
        np.testing.assert_allclose(one * mechanism.scale, theirs, atol=1e-4)
        assert np.abs(theirs).max() > 0.01

    @pytest.mark.property
    @settings(max_examples=40)
    @given(
        n=st.integers(1, 30),
        size=st.sampled_from([0.0, 1e-9, 1.0, 300.0, 1e300]),
        strength=st.sampled_from([0.2, 1.0, 1e3]),
        kind=st.sampled_from(["any", "one class", "separable", "same", "null"]),
        seed=st.integers(0, 99),
    )
    def test_is_found_whatever_the_records(
        self, n: int, size: float, strength: float, kind: str, seed: int
    ):
        rng = np.random.default_rng(seed)
        x, y = rng.normal(size=(n, 4)) * size, rng.integers(0, 2, n)
        if kind == "one class":
            y[:] = 1
        if kind == "separable":
            y = (x[:, 0] > 0).astype(int)
        if kind == "same":
            x[:] = x[0]
        valid = np.full(n, kind != "null")
        weights = fit_public(
            x, y, valid, np.ones((1, 4), bool), data_norms=[3.0], regularisation=strength
        )[0, 0]
        rows, labels = bounded(np.clip(x, -10, 10), y, valid, np.ones(4, bool), 3.0)
        u = weights * math.sqrt(10)
        s = 0.5 * (1 + np.tanh(rows @ u / 2))
        gradient = rows.T @ (s - labels) + strength * u
        assert np.abs(gradient).max() <= 1e-6 * strength + 1e-9 * n

    @pytest.mark.oracle
    @pytest.mark.parametrize("classes", [2, 3])
    @pytest.mark.parametrize("strength", [1e-4, 1.0])
    def test_is_found_where_steps_of_one_curvature_are_not_enough(
        self, classes: int, strength: float, monkeypatch: pytest.MonkeyPatch
    ):
        x, y, valid = records(classes=classes)
        x *= [10.0, 3.0, 1.0, 0.1, 1e-2, 1e-3]
        masks, norms = subsets(5, 6), np.full(5, 2.0)
        monkeypatch.setattr(logistic, "MAX_ACCELERATED_STEPS", 2)
        found = fit_public(
            x, y, valid, masks, data_norms=norms, classes=classes, regularisation=strength
        )
        for mask, outputs in zip(masks, found, strict=True):
            rows, labels = bounded(np.clip(x, -10, 10), y, valid, mask, 2.0, classes)
            for output, weights in enumerate(outputs):
                u = weights * math.sqrt(5)
                hot = labels == (1 if classes == 2 else output)
                s = 0.5 * (1 + np.tanh(rows @ u / 2))
                gradient = (rows.T @ (s - hot))[np.append(mask, True)]
                gradient += strength * u[np.append(mask, True)]
                assert np.abs(gradient).max() <= 1e-6 * strength + 1e-12
                assert not u[:-1][~mask].any()

    @pytest.mark.unit
    def test_of_a_set_does_not_depend_on_its_company_or_on_memory(
        self, monkeypatch: pytest.MonkeyPatch
    ):
        x, y, valid = records(size=5.0)
        masks = subsets(9, 6)
        mechanisms = [ObjectivePerturbation(epsilon=1.0, data_norm=2.0 + i) for i in range(9)]
        streams = [KEYS.stream(i) for i in range(9)]
        # Digits that are not released show how near the solver comes to the minimiser.
        monkeypatch.setattr(logistic, "WEIGHT_RESOLUTION", 2.0**-50)
        many = fit_many(x, y, valid, masks, mechanisms, streams)
        monkeypatch.setattr(logistic, "MAX_CHUNK_NUMBERS", 1)
        monkeypatch.setattr(logistic, "GRADIENT_BLOCK_RECORDS", 7)
        again = fit_many(x, y, valid, masks[::-1], mechanisms[::-1], streams[::-1])[::-1]
        np.testing.assert_allclose(many, again, rtol=0, atol=1e-10)

    @pytest.mark.unit
    def test_a_null_record_adds_nothing_not_even_to_the_intercept(self):
        x, y, valid = records()
        everything = np.ones((1, 6), bool)
        plain = fit_public(x, y, valid, everything, data_norms=[2.0])
        x[3], y[3] = 1e9, 1
        more = np.vstack([x, np.full((40, 6), 9.0)]), np.append(y, np.ones(40, int))
        same = fit_public(*more, np.append(valid, np.zeros(40, bool)), everything, data_norms=[2.0])
        np.testing.assert_allclose(plain, same, atol=1e-9)

    @pytest.mark.unit
    def test_classes_that_do_not_occur_decide_nothing(self):
        for classes in [2, 3]:
            x, _, valid = records()
            mechanism = ObjectivePerturbation(epsilon=1.0, data_norm=2.0, classes=classes)
            for y in (np.zeros(80, int), np.ones(80, int)):
                weights = fit_one(x, y, valid, mechanism, KEYS.stream("classes"))
                assert weights.shape == (mechanism.outputs, 7)


def noise_of(weights: Any, x: Any, y: Any, valid: Any, mechanism: ObjectivePerturbation) -> Any:
    """What noise must have been drawn for these weights, (d + 1,): minus the rest's gradient."""
    rows, labels = bounded(x, y, valid, np.ones(x.shape[1], bool), mechanism.data_norm)
    u = weights * math.sqrt(mechanism.data_norm**2 + 1)
    s = 1 / (1 + np.exp(-rows @ u))
    return -(rows.T @ (s - (labels == 1)) + mechanism.strength * u)


class TestTheNoise:
    EPSILON, TIMES = 0.8, 900
    X, Y, VALID = records(40, 3)
    MECHANISM = ObjectivePerturbation(epsilon=EPSILON, data_norm=1.5)

    def drawn(self, times: int = TIMES) -> Any:
        many = fit_many(
            self.X, self.Y, self.VALID, np.ones((times, 3), bool), [self.MECHANISM] * times,
            [KEYS.stream("noise", i) for i in range(times)],
        )  # fmt: skip
        return np.array([noise_of(w[0], self.X, self.Y, self.VALID, self.MECHANISM) for w in many])

    def pvalues(self, noise: Any, scale: float) -> tuple[float, float]:
        norms = np.linalg.norm(noise, axis=1)
        length: Any = kstest(norms, gamma(4, scale=scale / self.EPSILON).cdf)
        shares = noise / norms[:, None]
        uniform: list[Any] = [kstest(s**2, beta(0.5, 1.5).cdf) for s in shares.T]
        return float(length.pvalue), min(float(each.pvalue) for each in uniform)

    @pytest.mark.statistical
    def test_has_the_law_that_is_charged_and_other_scales_are_rejected(self):
        noise = self.drawn()
        length, uniform = self.pvalues(noise, 1.0)
        assert length > 1e-4
        assert uniform > 1e-4
        assert self.pvalues(noise, 1.5)[0] < 1e-9
        assert self.pvalues(noise, 1 / 1.5)[0] < 1e-9
        assert np.abs(np.corrcoef(noise.T) - np.eye(4)).max() < 0.15
        # Signs are fair, and neighbours in the call have nothing in common.
        assert abs((noise > 0).mean() - 0.5) < 0.05
        assert abs(np.corrcoef(noise[:-1, 0], noise[1:, 0])[0, 1]) < 0.15

    @pytest.mark.statistical
    def test_off_is_seen(self, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(
            logistic, "_draw_noise", lambda m, width, _: np.zeros((m.outputs, width))
        )
        assert self.pvalues(self.drawn(100) + 1e-300, 1.0)[0] < 1e-9

    @pytest.mark.oracle
    @pytest.mark.parametrize("classes", [2, 3])
    def test_is_what_diffprivlibs_mechanism_draws(self, classes: int):
        mechanism = ObjectivePerturbation(epsilon=0.6, data_norm=3.0, classes=classes)
        key, mechanisms = KEYS.stream("draw"), pytest.importorskip("diffprivlib.mechanisms")
        state = logistic._random_state(key)
        for ours in logistic._draw_noise(mechanism, 5, key):
            vector = mechanisms.Vector(
                epsilon=library_epsilon(mechanism) / mechanism.outputs, dimension=5,
                alpha=mechanism.strength, function_sensitivity=0.25, data_sensitivity=1.0, n=7,
                random_state=state,
            )  # fmt: skip
            noisy = vector.randomise(lambda w: (0.0, np.zeros(5)))
            np.testing.assert_allclose(7 * noisy(np.zeros(5))[1], ours, rtol=1e-9)

    @pytest.mark.unit
    def test_belongs_to_stream_records_and_subset(self):
        x, y, valid = self.X, self.Y, self.VALID
        everything = np.ones((1, 3), bool)

        def drawn(x: Any, stream: Stream) -> Any:
            weights = fit_many(x, y, valid, everything, [self.MECHANISM], [stream])[0, 0]
            return noise_of(weights, x, y, valid, self.MECHANISM)

        first = drawn(x, KEYS.stream("a"))
        np.testing.assert_allclose(first, drawn(x.copy(), KEYS.stream("a")), atol=1e-6)
        other = x.copy()
        other[0, 0] += 1e-6
        for noise in (drawn(other, KEYS.stream("a")), drawn(x, KEYS.stream("b"))):
            assert np.linalg.norm(first - noise) > 0.1


def loss(rows: Any, hot: Any, record: Any, label: float, u: Any, rate: float, a: float) -> float:
    """Log density of releasing u with a record, less that without, from the formula itself."""

    def log_density(rows: Any, hot: Any) -> float:
        s = 0.5 * (1 + np.tanh(rows @ u / 2))
        noise = -(rows.T @ (s - hot) + a * u)
        hessian = (rows.T * (s * (1 - s))) @ rows + a * np.eye(len(u))
        return float(-rate * np.linalg.norm(noise) + np.linalg.slogdet(hessian)[1])

    return log_density(np.vstack([rows, record]), np.append(hot, label)) - log_density(rows, hot)


class TestThePrice:
    def worst(self, epsilon: float, strength: float) -> tuple[float, float]:
        """The least and the largest loss found, over other records, labels and weights."""
        rng, found = np.random.default_rng(2), []
        for trial in range(600):
            n, d = int(rng.integers(0, 6)), int(rng.integers(1, 4))
            rows = rng.normal(size=(n, d))
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
            direction = rng.normal(size=d)
            direction /= np.linalg.norm(direction)
            # Along the record at some margin, where gradient and curvature trade with each other.
            u = direction * rng.choice([-9, -4, -1, -0.2, 0.2, 1, 4, 9])
            u = u + rng.normal(size=d) * rng.choice([0, 0.3, 3])
            hot = rng.integers(0, 2, n).astype(float)
            found.append(loss(rows, hot, direction, trial % 2, u, epsilon, strength))
        # Others who pull the other way, with the record wrong at several margins.
        others = np.tile([-0.99, math.sqrt(1 - 0.99**2)], (5000, 1))
        for margin in (0.0, 0.5, 2.0, 4.0, 8.0):
            u = np.array([-margin, -7.5 * (margin + 1)])
            found.append(loss(others, np.ones(5000), [1.0, 0.0], 1.0, u, epsilon, strength))
        return min(found), max(found)

    @pytest.mark.oracle
    def test_of_any_record_is_epsilon_at_most_at_the_least_regularisation(self):
        for epsilon in [0.1, 1.0, 5.0]:
            mechanism = ObjectivePerturbation(
                epsilon=epsilon, data_norm=1.0, regularisation=1 / epsilon
            )
            low, high = self.worst(mechanism.rate, mechanism.strength)
            assert -epsilon <= low < -0.9 * epsilon
            assert 0.9 * epsilon < high <= epsilon

    @pytest.mark.oracle
    def test_would_be_more_with_less_regularisation(self):
        for epsilon in [0.1, 1.0, 5.0]:
            assert self.worst(epsilon, 1e-4 / epsilon)[1] > 1.1 * epsilon

    @pytest.mark.oracle
    def test_bounded_rows_have_norm_1_at_most(self, monkeypatch: pytest.MonkeyPatch):
        x, y, valid = records(200, 5, size=40.0)
        mechanism = ObjectivePerturbation(epsilon=1.0, data_norm=0.3)
        minimised, lengths = logistic.minimise_objectives, []

        def spied(rows: torch.Tensor, shrink: torch.Tensor, *rest: Any) -> torch.Tensor:
            bounded = torch.cat([rows[:, :-1] * shrink[0][:, None], rows[:, -1:]], dim=1)
            lengths.append(bounded.norm(dim=1) / mechanism.scale)
            return minimised(rows, shrink, *rest)

        monkeypatch.setattr(logistic, "minimise_objectives", spied)
        fit_one(x, y, valid, mechanism, KEYS.stream("bounded"))
        assert lengths[0].max() <= 1 - 1e-10
        assert lengths[0].max() > 1 - 1e-8

    @pytest.mark.unit
    def test_is_pure_and_the_law_of_the_usual_regularisation(self):
        mechanism = ObjectivePerturbation(epsilon=2, data_norm=3)
        assert mechanism.event == PureDP(epsilon=2.0)
        assert mechanism.strength == 4.0
        several = ObjectivePerturbation(epsilon=2.0, data_norm=3.0, classes=5)
        assert several.outputs * several.rate <= 2.0
        assert several.strength == 20.0
        assert several.event == PureDP(epsilon=2.0)

    @pytest.mark.unit
    def test_other_numbers_are_refused(self):
        for name, value in [
            ("epsilon", 0.0),
            ("epsilon", math.nan),
            ("epsilon", "1"),
            ("data_norm", 0.0),
            ("data_norm", math.inf),
            ("data_norm", True),
            ("classes", 1),
            ("classes", 2.0),
            ("regularisation", 0.499),
            ("regularisation", 0.0),
            ("regularisation", math.nan),
            ("regularisation", math.inf),
        ]:
            with pytest.raises(UsageError, match=name):
                ObjectivePerturbation(**{"epsilon": 2.0, "data_norm": 1.0, name: value})  # type: ignore[arg-type]

    @pytest.mark.unit
    def test_the_least_regularisation_is_of_each_output(self):
        with pytest.raises(UsageError, match=r"expected 1\.5 or above"):
            ObjectivePerturbation(epsilon=2.0, data_norm=1.0, classes=3, regularisation=1.4)
        ObjectivePerturbation(epsilon=2.0, data_norm=1.0, classes=3, regularisation=1.5)


class TestAudit:
    """Two worlds: a record, far outside the bound, or the null record in its place."""

    TIMES = 4000
    X, Y = np.array([[0.3], [0.6], [0.2], [9.0]]), np.array([0, 1, 0, 1])
    MECHANISM = ObjectivePerturbation(epsilon=1.0, data_norm=1.0, regularisation=1.0)

    def margins(self, world: bool, along: Any = (1.0, 1.0)) -> Any:
        """The record's margin under released weights: negative is wrong."""
        weights = fit_many(
            self.X, self.Y, np.array([True, True, True, world]), np.ones((self.TIMES, 1), bool),
            [self.MECHANISM] * self.TIMES,
            [KEYS.stream("audit", int(world), i) for i in range(self.TIMES)],
        )  # fmt: skip
        return weights[:, 0] @ np.array(along)

    def audit(self, below: float, along: Any = (1.0, 1.0)) -> float:
        """The least epsilon that both worlds allow, at 99.9% confidence (Clopper and Pearson).

        Where the record would be wrong it pulls with all its gradient: such weights are rarer
        with it.
        """
        n = self.TIMES
        a, b = (int((self.margins(world, along) < below).sum()) for world in (False, True))
        low = beta.ppf(5e-4, a, n - a + 1) if a else 0.0
        high = beta.ppf(1 - 5e-4, b + 1, n - b) if b < n else 1.0
        return math.log(low / high) if low > 0 else 0.0

    @pytest.mark.statistical
    def test_finds_nothing_wrong(self):
        assert 0.3 < self.audit(-0.7) <= 1.0

    @pytest.mark.statistical
    def test_sees_that_the_noise_is_a_third(self, monkeypatch: pytest.MonkeyPatch):
        noise = logistic._draw_noise
        monkeypatch.setattr(logistic, "_draw_noise", lambda *args: noise(*args) / 3)
        assert self.audit(-0.7) > 1.0

    @pytest.mark.statistical
    def test_sees_that_records_are_not_bounded(self, monkeypatch: pytest.MonkeyPatch):
        solved = logistic.solve_in_chunks

        def loose(rows: Any, hot: Any, masks: Any, norms: Any, *rest: Any) -> Any:
            return solved(rows, hot, masks, norms * 1e6, *rest)

        monkeypatch.setattr(logistic, "solve_in_chunks", loose)
        assert self.audit(-0.5, (1.0, 1 / 9)) > 1.0

    @pytest.mark.statistical
    @pytest.mark.parametrize("floor", [True, False])
    def test_sees_that_the_regularisation_is_too_small(self, floor: bool):
        mechanism = ObjectivePerturbation(epsilon=1.0, data_norm=1.0, regularisation=1.0)
        if not floor:
            object.__setattr__(mechanism, "regularisation", 1e-3)
        x, y = np.zeros((4, 1)), np.array([0, 0, 0, 1])
        x[3] = 1.0

        def near(u: Any) -> Any:
            return np.abs(u @ np.array([1.0, 1.0])) < 2.0

        valid = np.array([False, False, False, True])
        found = []
        for world in (True, False):
            weights = fit_many(
                x, y, valid & world, np.ones((self.TIMES, 1), bool), [mechanism] * self.TIMES,
                [KEYS.stream("floor", int(world), i) for i in range(self.TIMES)],
            )[:, 0]  # fmt: skip
            found.append(near(weights * mechanism.scale).mean())
        # Without a floor one record holds the weights back: its curvature is the only one.
        assert (math.log((found[0] - 0.03) / (found[1] + 0.003)) > 1.0) == (not floor)


@pytest.mark.unit
def test_shapes_that_do_not_fit_are_refused():
    x, y, valid = records()
    mechanism, stream = ObjectivePerturbation(epsilon=1.0, data_norm=1.0), KEYS.stream("x")
    everything = np.ones((1, 6), bool)
    other = ObjectivePerturbation(epsilon=1.0, data_norm=1.0, classes=3)
    for wrong in [
        lambda: fit_one(x, y[:-1], valid, mechanism, stream),
        lambda: fit_one(x[0], y, valid, mechanism, stream),
        lambda: fit_one(x, y, valid, mechanism, stream, np.ones(5, bool)),
        lambda: fit_many(x, y, valid, everything, [mechanism], [stream] * 2),
        lambda: fit_many(x, y, valid, everything, [mechanism] * 2, [stream]),
        lambda: fit_many(x, y, valid, np.ones((2, 6), bool), [mechanism, other], [stream] * 2),
        lambda: fit_many(x, y, valid, np.ones((1, 7), bool), [mechanism], [stream]),
        lambda: fit_public(x, y, valid, everything, data_norms=[1.0, 2.0]),
        lambda: fit_public(x, y, valid, everything, data_norms=[0.0]),
        lambda: fit_public(x, y, valid, everything, data_norms=[1.0], regularisation=0.0),
        lambda: fit_public(x, y, valid, everything, data_norms=[1.0], classes=1),
    ]:
        with pytest.raises(UsageError):
            wrong()


@pytest.mark.unit
def test_no_subset_is_no_model():
    x, y, valid = records()
    assert fit_many(x, y, valid, np.ones((0, 6), bool), [], []).shape == (0, 1, 7)


@pytest.mark.gpu
@pytest.mark.oracle
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
def test_on_a_gpu_is_the_same():
    x, y, valid = records()
    masks = subsets(20, 6)
    mechanisms = [ObjectivePerturbation(epsilon=1.0, data_norm=1.0)] * 20
    streams = [KEYS.stream(i) for i in range(20)]
    found = [fit_many(x, y, valid, masks, mechanisms, streams, device=d) for d in ("cpu", "cuda")]
    np.testing.assert_allclose(found[0], found[1], atol=1e-6)
