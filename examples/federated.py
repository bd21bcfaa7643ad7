"""DP-SGD where the records lie at several sites: a simulation in one process, not a service.

    site j:   S_j = its own Poisson(q) sample, by coins that nobody else sees
              s_j = sum over S_j of gradients clipped to C
              u_j = round(s_j / grid) + its masks, mod 2^64
    together: sum_j u_j mod 2^64 = sum_j round(s_j / grid), because the masks of each pair cancel
    step:     w <- w - rate (grid sum_j u_j + noise) / (q n)

A site's message alone is uniform: whoever adds them up learns the sum and nothing else. The noise
is added by an aggregator that all trust with the sum; or by the sites in shares: then only the
price of a site's own message is claimed, and not the smaller one of the sum.

    python examples/federated.py                                a trusted aggregator adds the noise
    python examples/federated.py shares --sites 4 --colluding 1     the sites do

Source: docs/sharp-edges.md says what holds and what is not claimed; Bonawitz et al. 2017 (masks).
"""

from __future__ import annotations

import argparse
import hashlib
import math
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from torch import nn

from pasearch.accounting.accountants import PrivacyCost, price
from pasearch.accounting.budget import Budget
from pasearch.accounting.calibration import calibrate_min
from pasearch.accounting.events import Event, PoissonGaussian, SelfComposition
from pasearch.errors import BudgetError, UsageError
from pasearch.runs.keys import Keys, Stream
from pasearch.runs.ledger import Ledger, PlannedRelease, Receipt
from pasearch.runs.normals import draw_normals
from pasearch.runs.sums import SUM_ROUNDING
from pasearch.training.batching import Poisson
from pasearch.training.clipping import FlatClipping
from pasearch.training.per_example import clipped_sum_and_counts, list_trainable_parameters

GRID = 2.0**-40
"""What sums are whole multiples of."""
MOST = 2.0**22
"""Below which every coordinate of a sum must stay: with any noise it is then below 2^63 grids."""
LINE = "training"

Numbers = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What everybody knows: all that sets the price, and each site checks it for itself.

    Args:
        n: Records of each site; public.
        q: With what probability a record is in a step's sample.
        steps: How many.
        sigma: The noise's standard deviation, in units of the sensitivity.
        clip_norm: C.
        rate: Learning rate.
        size: Of the network: inputs, hidden units, classes.
        shares: Whether the sites add the noise, in shares.
        colluding: Up to how many sites may pool what they know of their own shares.
    """

    n: tuple[int, ...]
    q: float
    steps: int
    sigma: float
    size: tuple[int, int, int]
    clip_norm: float = 1.0
    rate: float = 0.5
    shares: bool = False
    colluding: int = 0

    def __post_init__(self) -> None:
        """Check that no sum leaves the numbers below 2^63."""
        assert sum(self.n) * self.clip_norm < MOST

    @property
    def dimension(self) -> int:
        """How many weights there are."""
        inputs, hidden, classes = self.size
        return (inputs + 1) * hidden + (hidden + 1) * classes

    @property
    def sensitivity(self) -> float:
        """How far one record moves the sum: R C, and what the rounding of its site's sum adds.

        R covers how the site's own sum is rounded (docs/guarantees/floating-point.md). Two
        roundings to the grid differ by less than one grid point more than what they round.
        """
        return SUM_ROUNDING * self.clip_norm + GRID * math.sqrt(self.dimension)

    @property
    def scale(self) -> float:
        """The standard deviation of a step's noise."""
        return self.sigma * self.sensitivity

    @property
    def share(self) -> float:
        """What part of the noise is in a site's message: enough is left without colluding ones."""
        return 1.0 / math.sqrt(len(self.n) - self.colluding) if self.shares else 1.0

    @property
    def step_event(self) -> Event:
        """What a step is charged, to every site's ledger.

        Coins are independent from record to record, so the sites' samples together are one Poisson
        sample of all records. Of noise in shares it is what a site's own noisy message costs; the
        sum is made of such messages, so it costs no more.
        """
        return PoissonGaussian(self.q, self.sigma * self.share)

    def price(self, delta: float) -> PrivacyCost:
        """Return what the training costs a record of any site."""
        return price(SelfComposition(self.step_event, self.steps), delta)

    def aim(self) -> Event:
        """Return the event of all noise together: with noise in shares, nobody has proved it."""
        return SelfComposition(PoissonGaussian(self.q, self.sigma), self.steps)


def solved(budget: Budget, **settings: Any) -> Plan:
    """Return the plan of least noise whose sum is aimed at a budget."""

    def aim(sigma: float) -> Event:
        return Plan(**settings, sigma=sigma).aim()

    return Plan(**settings, sigma=calibrate_min(aim, budget, 0.3, 100.0))


def encoded(values: Numbers) -> Numbers:
    """Return numbers as whole multiples of the grid, modulo 2^64."""
    return np.rint(values / GRID).astype(np.int64).view(np.uint64)


def decoded(words: Numbers) -> Numbers:
    """Return what `encoded` was given, rounded, if it is below 2^23."""
    return words.view(np.int64) * GRID


def network_of(plan: Plan, weights: Numbers) -> nn.Module:
    """Return the network with these weights."""
    inputs, hidden, classes = plan.size
    network = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, classes))
    nn.utils.vector_to_parameters(torch.from_numpy(weights.copy()), network.double().parameters())
    return network


def bounded_sum(plan: Plan, weights: Numbers, x: Numbers, y: Numbers) -> Numbers:
    """Return the sum over records of their gradients, each clipped to norm C."""
    if not len(x):
        return np.zeros(plan.dimension)
    network, labels = network_of(plan, weights), torch.from_numpy(y)

    def loss(outputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(outputs, labels, reduction="none")

    everyone = torch.ones(len(x), dtype=torch.bool)
    bound = FlatClipping(clip_norm=plan.clip_norm)
    sums, _ = clipped_sum_and_counts(network, torch.from_numpy(x), loss, bound, everyone)
    assert len(sums) == len(list_trainable_parameters(network))
    return np.concatenate([each.numpy().ravel() for each in sums])


@dataclass(kw_only=True)
class Site:
    """Who holds records: they never leave it, and it charges them before it reads them.

    Args:
        number: Its place among the sites.
        x: Features, (n, inputs).
        y: Classes, (n,).
        folder: Of its ledger.
        budget: The most that its records may cost.
        keys: Its own randomness: coins, and its share of the noise.
    """

    number: int
    x: Numbers
    y: Numbers
    folder: Path
    budget: Budget
    keys: Keys = field(default_factory=Keys)
    name: str = "train"

    def __post_init__(self) -> None:
        """Make the key that pairs of sites agree on their masks by."""
        self._private = X25519PrivateKey.generate()
        self._masks: dict[int, Stream] = {}
        self._plan: Plan | None = None

    @property
    def public_key(self) -> X25519PublicKey:
        """What other sites must know, and know to be this site's."""
        return self._private.public_key()

    def join(self, plan: Plan, public_keys: Mapping[int, X25519PublicKey]) -> None:
        """Check the plan's price by this site's own budget, open a ledger, agree on masks."""
        assert self.budget.delta is not None
        cost = plan.price(self.budget.delta)
        if not cost.epsilon <= self.budget.epsilon:
            raise BudgetError(
                f"Site {self.number}: this plan costs its records epsilon {cost.epsilon:.3f}, and "
                f"they have {self.budget.epsilon:g}: it does not take part."
            )
        self._plan = plan  # what it has agreed to: nothing else is answered
        line = PlannedRelease(
            name=LINE, partition=self.name, event=plan.step_event, count=plan.steps
        )
        self.ledger = Ledger.create(self.folder / f"site-{self.number}.sqlite", [line])
        for other, key in public_keys.items():
            if other != self.number:
                shared = self._private.exchange(key)
                self._masks[other] = Stream(hashlib.sha256(b"mask" + shared).digest())

    def open(self, receipt: Receipt) -> tuple[Numbers, Numbers]:
        """Return the records, under a charge."""
        assert receipt.active
        assert receipt.partition == self.name
        return self.x, self.y

    def chosen(self, plan: Plan, step: int) -> Numbers:
        """Return its sample of a step, by its own coins."""
        sampling = Poisson(sampling_probability=plan.q)
        return sampling.batch(len(self.y), self.keys.stream("batch"), step)

    def answer(self, plan: Plan, step: int, weights: Numbers) -> Numbers:
        """Return its masked sum; a step is answered once: one mask hides one message.

        Cost: one step, charged to its ledger before a record is read.
        """
        if plan != self._plan:
            raise BudgetError(
                f"Site {self.number}: this is not the plan that it has joined, whose price it has "
                "checked: it does not answer."
            )
        if self.ledger.is_charged(LINE, key := f"step {step}"):
            raise BudgetError(
                f"Site {self.number} was asked twice for step {step}: the difference of the two "
                "answers would have no mask."
            )
        with self.ledger.charged(LINE, self, key=key) as (x, y):
            own = self.chosen(plan, step)
            total = bounded_sum(plan, weights, x[own], y[own])
        if plan.shares:  # to the sum itself: noise on a coarser grid would leave its low bits bare
            share = draw_normals(plan.dimension, self.keys.stream("share"), step)
            share.add_to(total, plan.scale * plan.share)
        return encoded(total) + self._mask(plan, step)

    def _mask(self, plan: Plan, step: int) -> Numbers:
        """Return the sum of what is agreed with each other site, with opposite signs."""
        total = np.zeros(plan.dimension, dtype=np.uint64)
        for other, stream in self._masks.items():
            words = stream.random_words(step).take(plan.dimension).view(np.uint64)
            total = total + words if other > self.number else total - words
        return total


@dataclass(kw_only=True)
class Aggregator:
    """Who adds up messages and keeps the weights. Trusted if it adds the noise: it sees the sum.

    Args:
        plan: The plan.
        keys: Its own randomness, of the noise.
    """

    plan: Plan
    keys: Keys = field(default_factory=Keys)

    def noisy(self, total: Numbers, step: int) -> Numbers:
        """Return a sum with this step's noise, unless the sites have added it."""
        released = total.copy()
        if not self.plan.shares:
            noise = draw_normals(self.plan.dimension, self.keys.stream("noise"), step)
            noise.add_to(released, self.plan.scale)
        return released

    def updated(self, weights: Numbers, total: Numbers, step: int) -> Numbers:
        """Return the weights after a step."""
        plan = self.plan
        return weights - plan.rate * self.noisy(total, step) / (plan.q * sum(plan.n))


def started(plan: Plan) -> Numbers:
    """Return the weights before the first step: public."""
    generator, (inputs, hidden, _) = np.random.Generator(np.random.PCG64(0)), plan.size
    weights = generator.normal(size=plan.dimension) / math.sqrt(hidden)
    weights[: inputs * hidden] *= math.sqrt(hidden / inputs)
    return weights


def federated(
    plan: Plan, sites: list[Site], aggregator: Aggregator, absent: Iterable[tuple[int, int]] = ()
) -> Numbers:
    """Train where the records are; (step, site) of `absent` do not answer.

    A step without one site's message is lost, because its masks stay: it is paid and skipped.
    """
    public_keys = {each.number: each.public_key for each in sites}
    for site in sites:
        site.join(plan, public_keys)
    weights, missing = started(plan), set(absent)
    for step in range(plan.steps):
        here = [site for site in sites if (step, site.number) not in missing]
        messages = [site.answer(plan, step, weights) for site in here]
        if len(here) == len(sites):
            total = decoded(np.sum(messages, axis=0, dtype=np.uint64))
            weights = aggregator.updated(weights, total, step)
    return weights


def central(plan: Plan, sites: list[Site], aggregator: Aggregator) -> Numbers:
    """Train with the same coins and noise where all records are in one place: to compare with."""
    x, y = (np.concatenate([getattr(site, name) for site in sites]) for name in ("x", "y"))
    begins = np.cumsum([0, *plan.n])
    weights = started(plan)
    for step in range(plan.steps):
        chosen = [site.chosen(plan, step) + begins[site.number] for site in sites]
        own = np.concatenate(chosen)
        weights = aggregator.updated(weights, bounded_sum(plan, weights, x[own], y[own]), step)
    return weights


def accuracy(plan: Plan, weights: Numbers, x: Numbers, y: Numbers) -> float:
    """Return the share of right answers; exact, for the digits are public."""
    answers = network_of(plan, weights)(torch.from_numpy(x)).argmax(dim=1).numpy()
    return float((answers == y).mean())


def digits(count: int) -> tuple[list[tuple[Numbers, Numbers]], tuple[Numbers, Numbers]]:
    """Return the digits at several sites, each larger than the one before, and a test set."""
    from sklearn.datasets import load_digits

    found: Any = load_digits(return_X_y=True)
    x, y = found[0] / 16.0, found[1].astype(np.int64)
    order = np.random.Generator(np.random.PCG64(1)).permutation(len(y))
    train, test = order[:1500], order[1500:]
    shares = np.cumsum(range(1, count + 1)) / (count * (count + 1) / 2)
    parts = np.split(train, (shares[:-1] * len(train)).astype(int))
    return [(x[part], y[part]) for part in parts], (x[test], y[test])


def main(arguments: list[str] | None = None) -> None:
    """Train at several sites and in one place, and say what each one saw and paid."""
    asked = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    asked.add_argument("noise", nargs="?", choices=("central", "shares"), default="central")
    asked.add_argument("--sites", type=int, default=4, help="3 or more (default 4)")
    asked.add_argument("--steps", type=int, default=150, help="default 150")
    asked.add_argument("--eps", type=float, default=2.0, help="epsilon (default 2)")
    asked.add_argument("--colluding", type=int, default=1, help="of noise in shares (default 1)")
    given = asked.parse_args(arguments)
    if not (3 <= given.sites <= 50 and 0 <= given.colluding < given.sites - 1):
        asked.error("--sites is 3 to 50, and at least two of them do not collude")
    parts, test = digits(given.sites)
    try:
        budget = Budget(given.eps, 1e-5)
    except UsageError as error:
        asked.error(str(error))
    plan = solved(
        budget, n=tuple(len(y) for _, y in parts), q=0.1, steps=given.steps, size=(64, 32, 10),
        shares=given.noise == "shares", colluding=given.colluding,
    )  # fmt: skip
    cost = plan.price(1e-5)
    with tempfile.TemporaryDirectory() as folder:
        sites = [
            Site(
                number=number, x=x, y=y, folder=Path(folder),
                budget=Budget(max(given.eps, cost.epsilon), 1e-5),
            )
            for number, (x, y) in enumerate(parts)
        ]  # fmt: skip
        aggregator = Aggregator(plan=plan)
        weights = federated(plan, sites, aggregator)
        for site in sites:
            steps = site.ledger.spent()[0][3]
            print(f"Site {site.number}: {len(site.y)} records, {steps} steps in its ledger")
            site.ledger.close()
    right = accuracy(plan, weights, *test)
    print(f"Accuracy on {len(test[1])} public test digits: {right:.3f}")
    print(f"Price, for one record of any site: epsilon {cost.epsilon:.4f}, delta {cost.delta:g}")
    if plan.shares:
        print(
            f"Aimed at: epsilon {given.eps:g}. Not claimed: a sum of rounded shares is not the "
            "noise that the accountant prices (docs/sharp-edges.md)."
        )
        return
    there = central(plan, sites, aggregator)
    right = accuracy(plan, there, *test)
    print(
        f"With all records in one place, the same coins and noise: {right:.3f}; "
        f"weights differ by at most {abs(weights - there).max():.1e}"
    )


if __name__ == "__main__":
    main()
