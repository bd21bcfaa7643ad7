"""The plan of a feature selection: every release, priced and solved, before a record is read.

    partition    lines                                              of the epsilon of the partition
    train        feature means                                      MEANS_SHARE
                 what the method reads to choose (table below)      SELECTION_SHARE, or half
                 the final training                                 the rest
    validation   scores of candidates (pafs, subsets)               all
    test         the accuracy that is printed                       all

Without a final model (`final=False`, as in `selectors`) the choice has all of epsilon, and means
are bought only where candidates or components need them.

| method | what it reads to choose | charged as |
|---|---|---|
| all, max-pool | nothing | - |
| random | nothing | - |
| cfs-greedy, cfs-ga | all contingency tables, or entropies | one Gaussian; Pure, composed |
| top | class shares, then k picks by exact counts | Gaussian; k Pure |
| pca | the second moments | Gaussian |
| pafs | k l privately trained models, and their scores | all that are planned, composed |
| subsets | K privately trained models, and their scores | one repeat-and-select |

PAFS is charged for the k l trainings that are planned, whether sets repeat or not: how many are
different depends on the data. The price of CFS does not depend on how many sets it scores.

Source: Bao et al., sections V-B and VIII-B, VIII-C; docs/rules.md, rules 1, 4, 8 to 10. Proof:
docs/guarantees/feature-selection.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pasearch.accounting.budget import Budget
from pasearch.accounting.checks import fraction, positive, whole
from pasearch.accounting.claims import Claim, eq8
from pasearch.accounting.dials import Dials
from pasearch.accounting.events import (
    Event,
    Gaussian,
    Geometric,
    Pure,
    RepeatAndSelect,
    SelfComposed,
)
from pasearch.accounting.selection import Law
from pasearch.data.front_ends import MaxPool
from pasearch.errors import BudgetError, UsageError
from pasearch.features.contingency import attributes_of
from pasearch.features.evolution import ALPHA, P_CO, P_MU, Evolution
from pasearch.features.merit import NoisyEntropies
from pasearch.features.size import check_objective
from pasearch.planning import (
    MU_RANGE,
    PURCHASE_DELTA,
    SCORE_RANGE,
    SIGMA_RANGE,
    Charged,
    Dial,
    ScoreNoise,
    accuracy_line,
    drowned,
    planned_form,
    purchase_partition,
    score_noise,
    solve,
    solve_purchase,
    unbought,
    untold,
)
from pasearch.runs.ledger import Line
from pasearch.training.bounding.flat import Flat
from pasearch.training.recipe import Recipe

if TYPE_CHECKING:
    from pasearch.data.purchase import Purchase
    from pasearch.data.split import Split
    from pasearch.data.tables import AnySchema

METHODS: dict[str, str] = {
    "all": "every feature, nothing is chosen",
    "random": "features drawn at random",
    "cfs-greedy": "correlation-based selection from noisy tables, one feature after another",
    "cfs-ga": "correlation-based selection from noisy tables, by a genetic algorithm",
    "top": "the features most associated with the target, each picked privately",
    "pca": "principal components of noisy second moments",
    "pafs": "a genetic search over sets, scored by privately trained models",
    "one-hot": "all features, or numbers alone: whichever trains the better model, privately",
    "subsets": "random sets, each trained privately; the best is kept (repeat-and-select)",
    "max-pool": "neighbouring pixels pooled, nothing is chosen",
}
"""What may be asked for, and what it does; `auto` takes one of them."""

ON_PUBLIC: dict[str, str] = {
    "cfs-greedy": "correlation-based selection, one feature after another",
    "cfs-ga": "correlation-based selection, by a genetic algorithm",
    "top": "the features most associated with the target",
    "pca": "principal components",
    "pafs": "a genetic search over sets, scored by models trained as the private one will be",
    "one-hot": "all features, or numbers alone: whichever trains the better model",
}
"""Methods that can choose on public data instead, for nothing, and what they do there."""

TRAINERS: dict[str, str] = {
    "dpsgd": "a linear model by DP-SGD: full batches, momentum, averaged weights",
    "objective": "logistic regression by objective perturbation, pure epsilon-DP; of a number, "
    "linear regression from noisy second moments",
}
"""How the released model is trained."""

SIZELESS: dict[str, str] = {
    "all": "chooses nothing",
    "max-pool": "chooses nothing",
    "cfs-ga": "searches over sizes too",
    "pafs": "searches over sizes too",
    "subsets": "searches over sizes too",
    "one-hot": "has two sets of its own",
}
"""Methods that take no number of features, and why."""

EVOLVED: dict[str, dict[str, Any]] = {
    "cfs-ga": {"population": 5000, "generations": 10, "alpha": ALPHA},
    "pafs": {"population": 20, "generations": 3, "alpha": 0.3},
}
"""Methods by Algorithm 4, with k, l and alpha: sets of CFS-GA cost nothing, those of PAFS are few
and a larger share of them must become parents."""

OWN: dict[str, tuple[str, ...]] = {
    "merits": ("cfs-greedy", "cfs-ga"),
    "pick": ("top",),
    "until_no_gain": ("cfs-greedy",),
    **dict.fromkeys(("population", "generations", "alpha", "p_co", "p_mu"), tuple(EVOLVED)),
    "law": ("subsets",),
    "mean": ("subsets",),
    "pool": ("max-pool",),
}
"""Settings of a `Choice` that only some methods have a use for, and which."""

MERITS = ("tables", "entropies")
PICKS = ("permute-and-flip", "gumbel")

MEANS_SHARE = 0.1
"""The share of epsilon that the features' means take, of the slots that are trained on."""

SELECTION_SHARE = 0.4
"""The share of epsilon that the choice of features takes."""

SEARCH_SHARE = 0.6
"""The same of PAFS, whose choice trains every candidate."""

SHARED = tuple(ON_PUBLIC)
"""Methods whose choice shares the epsilon of the slots that the model is trained on."""

MOST_SHARE = 0.8
"""The largest share that the choice may take."""

CLASS_SHARE = 0.1
"""The share of the choice's epsilon that class shares take, where picks need them."""

STEPS = 160
"""Steps of DP-SGD: full batches, so more of them cost time and no epsilon."""

CLIP_NORM = 1.0
"""Norm that a record's gradient is cut to; records have a root mean square norm of ROW_NORM."""

ROW_NORM = 5.0
"""The root mean square norm that records are scaled to, by the bought means."""

REACH = 1.25
"""Longer rows than REACH times ROW_NORM are cut, where a method bounds rows and not gradients."""

MOST_GENERATIONS = 1000
"""The most generations of a genetic search."""

MOST_POOL = 1024
"""The largest side of a pool, pixels."""

MOST_FEATURES = 20_000
"""The most features: their correlations take a square of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How features are chosen, and how the model on them is trained: a frozen value.

    Args:
        method: One of `METHODS`.
        trainer: One of `TRAINERS`.
        size: How many features; None leaves it to the method: cfs-greedy takes where the merit is
            largest, the others d^(2/3) of d. Methods in `SIZELESS` take None only.
        merits: Of cfs: "tables" (Gaussian noise on all contingency tables) or "entropies" (Laplace
            noise on every entropy, the paper's way).
        until_no_gain: Of cfs-greedy: stop at the first feature that does not raise the merit, where
            it may rise again later.
        population: k of Algorithm 4, like the next four; None takes that of `EVOLVED`.
        generations: l; None as well.
        alpha: Share of the fittest that become parents; None as well.
        p_co: Probability of a crossover.
        p_mu: Probability of a mutation.
        pick: Of top: "permute-and-flip" or "gumbel".
        law: Of subsets: the law of the number of trainings.
        mean: Of subsets: its mean.
        pool: Of max-pool: the side of a pool, pixels.

    Raises:
        UsageError: A value outside these.
    """

    method: str
    trainer: str = "dpsgd"
    size: int | None = None
    merits: str = "tables"
    until_no_gain: bool = False
    population: int | None = None
    generations: int | None = None
    alpha: float | None = None
    p_co: float = P_CO
    p_mu: float = P_MU
    pick: str = "permute-and-flip"
    law: str = "geometric"
    mean: float = 8.0
    pool: int = 2

    def __post_init__(self) -> None:
        """Check every field."""
        for name, known in (
            ("method", METHODS), ("trainer", TRAINERS), ("merits", MERITS), ("pick", PICKS),
        ):  # fmt: skip
            if (value := getattr(self, name)) not in known:
                raise UsageError(f"{name} is {value!r}: expected one of {', '.join(known)}.")
        for name, usual in EVOLVED.get(self.method, {}).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, usual)
        for name, most in (("generations", MOST_GENERATIONS), ("pool", MOST_POOL)):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, whole(name, getattr(self, name), most=most))
        if self.method in EVOLVED:
            for name, value in asdict(self.evolution).items():  # checked there
                object.__setattr__(self, name, value)
        if type(self.until_no_gain) is not bool:
            raise UsageError(f"until_no_gain is {self.until_no_gain!r}: expected true or false.")
        if self.until_no_gain and self.size is not None:
            raise UsageError(
                f"until_no_gain is set beside k, which is {self.size}: either says how many "
                "features are chosen. Leave one out."
            )
        if self.size is not None:
            object.__setattr__(self, "size", whole("k", self.size))
        object.__setattr__(self, "mean", positive("candidates", self.mean))

    @property
    def evolution(self) -> Evolution:
        """How sets evolve, of the methods in `EVOLVED`."""
        assert self.population is not None
        assert self.alpha is not None
        return Evolution(
            population=self.population, alpha=self.alpha, p_co=self.p_co, p_mu=self.p_mu
        )

    @property
    def trains_candidates(self) -> bool:
        """Whether models are compared."""
        return self.method in ("pafs", "one-hot", "subsets")

    @property
    def centred(self) -> bool:
        """Whether it is made on centred features, so that it needs their means."""
        return self.trains_candidates or self.method == "pca"

    @property
    def trainings(self) -> int:
        """How many trainings are charged: k l of PAFS, two of one-hot."""
        return 2 if self.method == "one-hot" else self.evolution.population * self.rounds

    @property
    def rounds(self) -> int:
        """In how many rounds candidates are trained: generations, or all at once."""
        if self.method == "pafs":
            assert self.generations is not None
            return self.generations
        return int(self.trains_candidates)

    def law_of(self) -> Law:
        """Return the law of the number of trainings, of subsets."""
        return Law.named(self.law, mean=self.mean)

    @property
    def way(self) -> str:
        """How it is chosen, in the words of result.json."""
        if self.method in ("all", "random", "max-pool"):
            return "none"
        return "repeat-and-select" if self.method == "subsets" else "composition"

    def describe(self, *, public: bool = False) -> str:
        """Return it in words: what it does on private records, or on public ones."""
        words = (ON_PUBLIC if public else METHODS)[self.method]
        if self.method in EVOLVED:
            words += f"; {self.generations} generations of {self.population} sets"
        if self.until_no_gain:
            words += ", until one raises the merit no more"
        if self.method == "subsets":
            words += f"; the number of trainings is secret, {self.law_of().describe()}"
        if self.method == "top" and not public:
            words += f", by {self.pick}"
        if self.method == "max-pool":
            words += f", {self.pool} x {self.pool}"
        if self.method.startswith("cfs") and self.merits == "entropies":
            words = words.replace("tables", "entropies")
        return words

    def to_json(self) -> dict[str, Any]:
        """Return plain values: what this method has a use for."""
        own = {name: getattr(self, name) for name, of in OWN.items() if self.method in of}
        return {"name": self.method, "trainer": self.trainer, "size": self.size, **own}


@dataclass(frozen=True, kw_only=True)
class FeaturePlan(Charged):
    """A solved plan of a selection. Made by `make_feature_plan`; nothing runs outside it.

    Args:
        choice: How features are chosen and the model is trained.
        accuracy: The noise of the printed accuracy; None where no model is trained.
        score: The noise of a candidate's score; None when nothing is compared.
        means_sigma: Noise multiplier of the features' means; None when they are not bought.
        selection_sigma: Of the tables, the second moments or the class shares.
        entropy_epsilon: Epsilon of one entropy.
        pick_epsilon: Epsilon of one pick.
        trial_epsilon: Epsilon of a candidate's training by objective perturbation.
        trial_sigma: Noise multiplier of candidates' second moments.
        trial_mu: The dial of a candidate's DP-SGD.
        final_epsilon: Epsilon of the final training by objective perturbation.
        final_sigma: Noise multiplier of the final training's second moments.
        final_mu: The dial of the final DP-SGD.
        searched_on: Name of the declared-public data that features are chosen on, if any.
    """

    choice: Choice
    accuracy: ScoreNoise | None = None
    score: ScoreNoise | None = None
    means_sigma: float | None = None
    selection_sigma: float | None = None
    entropy_epsilon: float | None = None
    pick_epsilon: float | None = None
    trial_epsilon: float | None = None
    trial_sigma: float | None = None
    trial_mu: float | None = None
    final_epsilon: float | None = None
    final_sigma: float | None = None
    final_mu: float | None = None
    searched_on: str | None = None

    @property
    def test(self) -> ScoreNoise:
        """The noise of the printed accuracy, of a plan that trains a model."""
        assert self.accuracy is not None
        return self.accuracy

    @property
    def trainings(self) -> int | None:
        """How many rounds of trainings are planned; None where their number is secret."""
        return None if self.choice.way == "repeat-and-select" else self.choice.rounds + 1

    @property
    def recipe(self) -> Recipe | None:
        """How the released model is trained by DP-SGD; None by objective perturbation."""
        mu = self.trial_mu if self.final_mu is None else self.final_mu
        return None if mu is None else linear_recipe(self.split.train, mu, self.schema.regression)

    @property
    def selection_way(self) -> str:
        """How features are chosen, in the words of result.json."""
        return self.choice.way if self.searched_on is None else "not private"

    @property
    def selection_words(self) -> str:
        """What the method does."""
        return self.choice.describe(public=self.searched_on is not None)

    def claims(self) -> list[Claim]:
        """Return what the papers' own formulas would charge for this run; never charged here."""
        choice = self.choice
        if self.entropy_epsilon is not None:
            entropies = NoisyEntropies(
                epsilon=self.entropy_epsilon, attributes=attributes_of(self.schema)
            )
            return [entropies.claim(n=self.split.trial_slots, delta=self.delta)]
        if self.trial_epsilon is not None and choice.way == "composition":
            return [eq8(epsilon=self.trial_epsilon, runs=choice.trainings, delta_prime=self.delta)]
        return []

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain values; two plans are the same when these are."""
        recipe = self.recipe
        return {
            **self.priced_json(),
            "strategy": {"name": self.choice.method, **self.choice.to_json()},
            "way": "aside" if self.split.search else "in place",
            "recipe": None if recipe is None else recipe.to_json(),
            "searched_on": self.searched_on,
        }


def _check_findable(purchase: Purchase | None, schema: AnySchema, split: Split) -> None:
    """Refuse to buy classes that more records must have than they are bought from."""
    if purchase is None or schema.regression or schema.outputs > 0:
        return
    slots = getattr(split, purchase_partition(split))
    if purchase.least > slots:
        raise BudgetError(
            f"The classes are not declared, and would be bought from {slots:,} slots: only what "
            f"about {purchase.least:,} of them hold would be found, so none would be. Declare them "
            "(--schema; `pasearch check` proposes one), raise --eps, or have more records."
        )


def linear_recipe(slots: int, mu: float, regression: bool) -> Recipe:
    """Return how a linear model is trained by DP-SGD on so many slots, with the dial at mu.

    Full batches: for a given price, their noise a record is least. Measured on Adult and Breast
    Cancer (benchmarks/features): half of the steps averaged, and a rate that grows with the signal.
    """
    recipe = Recipe(
        expected_batch_size=slots, steps=STEPS, bounding=Flat(clip_norm=CLIP_NORM), average=0.5,
        learning_rate=learning_rate(mu * slots, regression),
    )  # fmt: skip
    return recipe.with_noise(recipe.noise_for_mu(mu, slots))


def learning_rate(signal: float, regression: bool) -> float:
    """Return the rate for a signal mu n, from public numbers only; a squared error bends more."""
    rate = 2.5 * signal / 1000.0
    return min(1.5, 0.3 * rate) if regression else min(10.0, rate)


def make_feature_plan(
    *,
    name: str,
    schema: AnySchema,
    public: bool,
    budget: Budget,
    split: Split,
    choice: Choice,
    selection_share: float | None = None,
    most_categories: int = 32,
    assumed_public: tuple[str, ...] = (),
    leak_share: float = PURCHASE_DELTA,
    final: bool = True,
    searched_on: str | None = None,
    dials: Dials | None = None,
) -> FeaturePlan:
    """Solve the noise of everything a feature selection will release.

    Args:
        name: The data set's name.
        schema: The declared form of the data.
        public: Whether the user declared the data public.
        budget: Epsilon and delta of the whole run; delta None takes the default for n.
        split: Sizes of the partitions.
        choice: How features are chosen and the model is trained.
        selection_share: The share of epsilon that the choice takes, where model and choice read the
            same slots; None takes `SELECTION_SHARE`.
        most_categories: The most categories that an undeclared column may be bought with.
        assumed_public: What was read from the records for nothing, because the user said so.
        leak_share: The share of delta that may go to categories which one record might show.
        final: Whether a model is trained on what was chosen, and tested.
        searched_on: Name of declared-public data that features are chosen on, for nothing.
        dials: What solves the noise; None solves it against the budget.

    Returns:
        FeaturePlan: Its price is at most the budget.

    Raises:
        UsageError: More features asked for than there are; a method without a use for the data.
        BudgetError: Even the most noise costs more than the budget.
    """
    budget, dials = budget.resolve(split.n), dials or Dials()
    _check_choice(choice, schema, split, most_categories, public=searched_on is not None)
    purchase, bought = solve_purchase(schema, split, budget, most_categories, leak_share, dials)
    place, found = split.trial_partition, _Solver(budget, schema.regression, list(bought), dials)
    usual = SEARCH_SHARE if choice.method == "pafs" else SELECTION_SHARE
    apart = place == "search" or searched_on is not None
    if selection_share is not None and (apart or choice.method not in SHARED):
        raise UsageError(
            f"selection_share is {selection_share:g}, and with method {choice.method!r} "
            + (
                "the choice has records of its own"
                if apart
                else "no choice shares an epsilon with the model"
            )
            + ": leave it out."
        )
    share = usual if selection_share is None else fraction("selection_share", selection_share)
    if not share <= MOST_SHARE:
        raise UsageError(
            f"selection_share is {share:g}: expected at most {MOST_SHARE}, because the features' "
            f"means take {MEANS_SHARE} and the model needs the rest."
        )
    if final:
        _check_findable(purchase, schema, split)
    share = 1.0 if place == "search" or not final else share  # nothing else is read there after it
    own: dict[str, Any] = {}
    if final or choice.centred:
        own["means_sigma"] = found.gaussian("feature means", "train", MEANS_SHARE)
    match choice.method:
        case _ if searched_on is not None:
            pass
        case "cfs-greedy" | "cfs-ga" if choice.merits == "tables":
            own["selection_sigma"] = found.gaussian("contingency tables", place, share)
        case "cfs-greedy" | "cfs-ga":
            entropies = NoisyEntropies(epsilon=1.0, attributes=attributes_of(schema))
            own["entropy_epsilon"] = found.pure("entropies", place, share, entropies.count)
        case "pca":
            own["selection_sigma"] = found.gaussian("second moments", place, share)
        case "top":
            own["selection_sigma"] = found.gaussian("class shares", place, share * CLASS_SHARE)
            count = chosen_size(choice, math.prod(schema.widest_shape(most_categories)))
            own["pick_epsilon"] = found.pure("picks", place, share * (1.0 - CLASS_SHARE), count)
        case "pafs" | "one-hot":
            times = trainings_charged(choice, schema.regression)
            own |= found.training(
                "trial", choice, split.trial_slots, share,
                lambda event: [_line("candidate training", place, event, times)],
            )  # fmt: skip
        case "subsets":
            own |= found.training(
                "trial", choice, split.trial_slots, 1.0,
                lambda event: [_line("training", place, RepeatAndSelect(event, choice.law_of()))],
            )  # fmt: skip
    if final and (choice.method != "subsets" or split.search):
        own |= found.training(
            "final", choice, split.train, 1.0,
            lambda event: [_line("final training", "train", event)],
        )  # fmt: skip
    if choice.trains_candidates and searched_on is None:
        own["score"] = score_noise(schema.regression, found.scores(choice))
    if final:
        epsilon = found.dial(lambda e: [accuracy_line(Geometric(epsilon=e))], 1.0, SCORE_RANGE)
        own["accuracy"] = score_noise(schema.regression, epsilon)
    mu = own.get("final_mu") or own.get("trial_mu")
    plan = FeaturePlan(
        name=name, schema=schema, public=public, budget=budget, split=split, choice=choice,
        lines=tuple(found.lines), purchase=purchase, assumed_public=assumed_public,
        most=most_categories, searched_on=searched_on,
        warnings=(
            *budget.warnings(split.n), *untold(schema), *unbought(purchase, split),
            *drowned(mu, split.train, planned_form(schema, most_categories)[1]),
        ),
        basis={
            "declared": schema.to_json(), "most_categories": most_categories,
            "leak_share": leak_share, "fixed_tail": split.fixed_tail, "choice": choice.to_json(),
            "selection_share": selection_share, "dials": dials.values,
        },
        **own,
    )  # fmt: skip
    if not plan.price.epsilon <= budget.epsilon:
        raise BudgetError(
            f"The plan costs epsilon {plan.price.epsilon:.4g}, the budget is {budget.epsilon:.4g}: "
            "raise --eps, or lower --selection-share."
        )
    return plan


@dataclass(slots=True)
class _Solver:
    """Lines that are solved one after another, each on the private side of its part."""

    budget: Budget
    regression: bool
    lines: list[Line]
    dials: Dials

    def dial(self, make_lines: Dial, share: float, bounds: tuple[float, float]) -> float:
        """Turn a dial as far as a share of epsilon goes; all of it: beside the lines before."""
        part = Budget(share * self.budget.epsilon, self.budget.delta)
        try:
            others = self.lines if share == 1.0 else None
            value, charged = solve(make_lines, part, bounds, others, self.dials)
        except BudgetError as error:
            names = ", ".join(line.name for line in make_lines(bounds[0]))
            raise BudgetError(
                f"For {names}, which has a share of {share:g} of epsilon {self.budget.epsilon:g}: "
                f"{error}"
            ) from None
        self.lines += charged
        return value

    def gaussian(self, name: str, partition: str, share: float) -> float:
        """Return the noise multiplier of one Gaussian release."""
        return self.sigma(lambda event: [_line(name, partition, event)], share)

    def sigma(self, lines_of: Callable[[Event], list[Line]], share: float) -> float:
        """Return the noise multiplier of the Gaussian releases that these lines charge."""
        ends = (1.0 / SIGMA_RANGE[1], 1.0 / SIGMA_RANGE[0])
        return 1.0 / self.dial(lambda mu: lines_of(Gaussian(1.0 / mu)), share, ends)

    def pure(self, name: str, partition: str, share: float, count: int) -> float:
        """Return the epsilon of each of so many pure releases, which are charged together."""

        def lines(epsilon: float) -> list[Line]:
            return [_line(name, partition, SelfComposed(event=Pure(epsilon), count=count))]

        return self.dial(lines, share, SCORE_RANGE)

    def training(
        self,
        kind: str,
        choice: Choice,
        slots: int,
        share: float,
        lines_of: Callable[[Event], list[Line]],
    ) -> dict[str, float]:
        """Return the dial of a training: an epsilon, a noise multiplier, or mu of DP-SGD."""
        if choice.trainer == "objective" and self.regression:
            return {f"{kind}_sigma": self.sigma(lines_of, share)}
        if choice.trainer == "objective":
            return {f"{kind}_epsilon": self.dial(lambda e: lines_of(Pure(e)), share, SCORE_RANGE)}

        def event(mu: float) -> Event:
            return linear_recipe(slots, mu, self.regression).event(slots)

        return {f"{kind}_mu": self.dial(lambda mu: lines_of(event(mu)), share, MU_RANGE)}

    def scores(self, choice: Choice) -> float:
        """Return the epsilon of one candidate's score: validation has all of it for these."""

        def lines(epsilon: float) -> list[Line]:
            event: Event = Geometric(epsilon=epsilon)
            if choice.method == "subsets":
                return [_line("score", "validation", RepeatAndSelect(event, choice.law_of()))]
            return [_line("score", "validation", event, choice.trainings)]

        return self.dial(lines, 1.0, SCORE_RANGE)


def _line(name: str, partition: str, event: Event, count: int = 1) -> Line:
    return Line(name=name, partition=partition, event=event, count=count)


def trainings_charged(choice: Choice, regression: bool) -> int:
    """Return how many releases candidates are trained from.

    One each; but second moments, once released, serve every set.
    """
    return 1 if regression and choice.trainer == "objective" else choice.trainings


def chosen_size(choice: Choice, features: int) -> int:
    """Return how many features are chosen of so many, where the method does not say itself."""
    return min(features, max(1, round(features ** (2 / 3))) if choice.size is None else choice.size)


def one_hot_sets(schema: AnySchema) -> np.ndarray:
    """Return the two sets of `one-hot`, (2, d) bool: all features, and what is no indicator.

    Those are the numbers, scaled, without their bins, and the first category of two.

    Args:
        schema: Complete, or as far as it is declared.
    """
    plain = [np.zeros(0, bool)]
    for column in getattr(schema, "columns", ()):
        own = np.zeros(column.width, bool)
        two = column.kind == "category" and len(column.categories or ()) == 2
        own[:1] = column.kind == "number" or two
        plain.append(own)
    numbers = np.concatenate(plain)
    return np.array([np.ones(len(numbers), bool), numbers if numbers.any() else ~numbers])


def _check_choice(
    choice: Choice, schema: AnySchema, split: Split, most: int, *, public: bool
) -> None:
    """Refuse what this data has no use for, and more features than there are."""
    shape = schema.widest_shape(most)
    features = math.prod(shape)
    if choice.size is not None and not choice.size <= features:
        raise UsageError(
            f"k is {choice.size:,}, but the data has {features:,} features: take --k {features} or "
            "less."
        )
    if choice.size is not None and choice.method in SIZELESS:
        raise UsageError(f"Method {choice.method!r} {SIZELESS[choice.method]}: leave --k out.")
    if choice.method == "max-pool":
        if len(shape) == 1:
            raise UsageError("Method 'max-pool' is for images: records here have no neighbours.")
        MaxPool(size=choice.pool).output_shape(shape)
    if features > MOST_FEATURES:
        raise UsageError(
            f"The records become {features:,} features: expected at most {MOST_FEATURES:,}. "
            "Declare columns as kind 'ignore', or fewer categories."
        )
    if choice.method.startswith("cfs") and choice.merits == "entropies" and schema.undeclared:
        raise UsageError(
            "Noisy entropies are one release for each pair of features, so their number must be "
            "known: declare the schema, or take --merits tables."
        )
    if public and choice.method not in ON_PUBLIC:
        raise UsageError(
            f"--search-on chooses on public data, and method {choice.method!r} has no use for "
            f"them: take {', '.join(ON_PUBLIC)}."
        )
    if public and choice.merits == "entropies":
        raise UsageError(
            "--merits entropies is a way to add noise, and --search-on has none: leave it out."
        )
    if public and split.search:
        raise UsageError(
            "--search-share sets private slots aside for a choice, and --search-on makes it on "
            "public data: leave one of them out."
        )
    if choice.method == "one-hot" and not getattr(schema, "columns", ()):
        raise UsageError(
            "Method 'one-hot' is for tables: records here are numbers already. Take --method all."
        )
    if choice.method == "one-hot" and not schema.undeclared and one_hot_sets(schema).all():
        raise UsageError(
            "Method 'one-hot' compares all features with numbers alone: this table has no number "
            "and no category of two, or nothing else. Take --method all."
        )
    if choice.trains_candidates and not split.validation and not public:
        raise UsageError(
            f"Method {choice.method!r} compares models, and the split has no validation part."
        )
    if choice.trainer == "objective" and not schema.regression:
        sized = choice.method in ("random", "top")
        check_objective(split.train, chosen_size(choice, features) if sized else features)
        if choice.trains_candidates:
            check_objective(split.trial_slots, features)
    if split.search and not choice.trains_candidates and not choice.method.startswith("cfs"):
        raise UsageError(
            f"--search-share sets slots aside for a search, and method {choice.method!r} makes "
            "none: leave it out."
        )
