"""The figures that advice rests on: ours, each with the file it stands in, and the paper's.

Every figure of ours is in the file that is named with it (tests/crossover/test_advice.py looks it
up), rounded at most. What follows from the data at hand is added by the rules (`crossover.advice`).

Source: Bao et al., sections as named; our files as named.
"""

from __future__ import annotations

from pasearch.crossover.facts import Evidence

STUDY = "pasearch/spaces/portfolio/portfolio-1.json"
"""The study on public data (benchmarks/portfolio), as it is shipped."""

BENCHMARKS = "benchmarks/README.md"
FEATURES = "benchmarks/features/README.md"
MODELS = "benchmarks/models/README.md"
CROSSOVER = "benchmarks/crossover/README.md"
PAYS = "benchmarks/search_pays/README.md"
RECIPES = "benchmarks/optimizers/results/runs.jsonl"
MEASURED = "docs/measured.md"

OURS = {
    "a private search": Evidence(
        says="What a search on public data gains was not measured. What a private one costs was: "
        "digits at epsilon 1, equal totals, medians of 10 runs, winners kept: one good default "
        ".913, a random search over the portfolio .897, a genetic one .760.",
        where=MEASURED,
    ),
    "backbones": Evidence(
        says="A backbone trained on another set's images (`pasearch pretrain`) is better than its "
        "random start, by .011 to .065 on five pairs of small data sets, and never better than "
        "whitened scattering coefficients, which need no data: CIFAR-10 .452 and .508 at epsilon "
        "1, 5,000 images.",
        where=MODELS,
    ),
    "declared": Evidence(
        says="Adult, `arch`: accuracy .866 with everything declared and .864 with nothing at "
        "epsilon 1; .850 and .845 at .1.",
        where=MODELS,
    ),
    "many columns": Evidence(
        says="Of 200 columns of which five matter (made up), `pasearch features` reaches .832 at "
        "epsilon 1 and .848 at 3, where the default network of `arch` has .65 and .76.",
        where=PAYS,
    ),
    "few columns": Evidence(
        says="Adult at epsilon .1, everything paid for: all features .855, the best 35 by private "
        "picks .843, those of cfs-greedy .822. At .5, 1 and 3 too no choice is above all.",
        where=FEATURES,
    ),
    "pixels": Evidence(
        says="MNIST, a linear model of `features`, one run: at epsilon .1 88.2 % with all 784 "
        "pixels, 88.4 % with 196 pooled ones; at .5 91.2 % and 90.6 %.",
        where=FEATURES,
    ),
    "one-hot": Evidence(
        says="Adult, our objective perturbation: 78.2 % with one-hot categories and 75.8 % with "
        "numbers alone at epsilon .1; 70.7 % and 75.8 % at .01.",
        where=FEATURES,
    ),
    "front of table": Evidence(
        says="Products of two columns beside the columns, at epsilon 1: eeg-eye-state .767 (before "
        ".715), letter .770 (before .724), magic .855 (before .843).",
        where=MODELS,
    ),
    "front of regression": Evidence(
        says="Products of two columns beside the columns, at epsilon 1: the mean absolute error on "
        "california-housing is .091 (before .097).",
        where=MODELS,
    ),
    "front of image": Evidence(
        says="Whitened scattering coefficients and patches, at epsilon 1: Fashion-MNIST .900 "
        "(before .879), MNIST .985 (before .982).",
        where=MODELS,
    ),
    "front of photo": Evidence(
        says="Whitened scattering coefficients and patches, at epsilon 1: CIFAR-10 .692 (before "
        ".586).",
        where=MODELS,
    ),
    "front of arrays": Evidence(
        says="`standardise`, once its fit is paid for, loses to records as they are on all public "
        "data sets but one.",
        where=BENCHMARKS,
    ),
    "components": Evidence(
        says="Private principal components do not pay for a linear model: MNIST at epsilon .5 90.3 "
        "% with 256 of them, 91.2 % with all 784 pixels.",
        where=FEATURES,
    ),
    "frozen": Evidence(
        says="At epsilon 3, one run each, a network with one hidden layer that keeps its random "
        "start has .855 on MNIST (.904 trained) and .763 on Fashion-MNIST (.799 trained): there "
        "the output layer alone is trained, not the last two layers as in the paper.",
        where=RECIPES,
    ),
    "frozen-low": Evidence(
        says="MNIST, four seeds, 120 steps: convolutions that keep their random start win up to "
        "epsilon 2.9 (.88 to > 6), hidden layers of a fully connected network up to .11. Not "
        "measured at the paper's length: 1.2 % of its steps at epsilon .34, .04 % at 2.11.",
        where=CROSSOVER,
    ),
    "rates": Evidence(
        says="A wrong rate costs much: letter at epsilon 1 has .771, with a tenth of the rate "
        ".657, with ten times it .693.",
        where=PAYS,
    ),
    "recipes": Evidence(
        says="None of the papers' recipes is better than plain DP-SGD at equal price: on MNIST at "
        "epsilon 3, one run each, it has .904, the default .905, the best of the others (auto-s) "
        ".906.",
        where=RECIPES,
    ),
    "looks": Evidence(
        says="`auto` against one default on 20 tables, equal totals: -.0004 on average at epsilon "
        "1 (-.0022 to +.0033), +.0173 at 3, where it found on one table what the default cannot "
        "(+.3372).",
        where=PAYS,
    ),
    "searches": Evidence(
        says="Full searches on digits at epsilon 1, equal totals, winners retrained: rs .899, mgrs "
        ".888, paas .888; one good default .913.",
        where=MEASURED,
    ),
    "rare": Evidence(
        says="Balanced accuracy at epsilon 1 on six tables: the threshold is worth .007 to .178; "
        "bank-marketing .639 without, .817 with it.",
        where=PAYS,
    ),
}
"""What we measured, by what it is about."""

FIT = (1.1, 8922.4)
"""The paper's alpha and beta of eps = ln(alpha + beta / n), its simple model on MNIST, VI-B."""

FROZEN_CNN, FROZEN_FCN = 0.6, 1.4
"""Below which epsilon random weights training wins on MNIST in the paper (Fig. 10)."""

ONE_HOT = 0.05
"""From which epsilon on one-hot categories pay on Adult (Table XVI, and ours)."""

PAPER = {
    "signal": Evidence(
        says="At epsilon 1 a simple network needs 13,574 records for an accuracy of .85 on MNIST, "
        "a complex one 19,145. Their fit of the simple one, eps = ln(alpha + beta / n) with alpha "
        "1.1 and beta 8922.4, is an illustration of one task alone",
        where="VI-B, Fig. 6",
    ),
    "public": Evidence(
        says="Public data take the privacy concern from the search; the final model is still "
        "trained privately. Without them the genetic search costs an epsilon of 22.3 in all where "
        "one training costs 2.11.",
        where="VIII-C, Table VIII",
    ),
    "declared": Evidence(
        says="Categories are encoded as the records hold them; the privacy of such steps is set "
        "aside.",
        where="III-D, IV-A",
    ),
    "features": Evidence(
        says="Adult at epsilon .1, the choice not charged: 78.58 % with the best five features, "
        "70.86 % with all 108; without privacy all are best.",
        where="V-B, Fig. 3",
    ),
    "one-hot": Evidence(
        says="Adult: numbers alone are better at epsilon .01 (64.33 % against 59.03 %), one-hot "
        "from .05 on (66.13 % against 65.5 %).",
        where="C-D, Table XVI",
    ),
    "front": Evidence(
        says="SVHN at epsilon 2.58: 76.10 % behind 300 principal components, 70.38 % without; the "
        "components are not charged.",
        where="VII-B, Table V",
    ),
    "complexity": Evidence(
        says="The simpler of two networks wins in all eight comparisons at epsilon 1.54 to 5.38, "
        "by .98 to 8.04 points. On MNIST logistic regression is best below epsilon .25, a "
        "convolutional network above .5.",
        where="Table I; VI-D, Fig. 8",
    ),
    "frozen": Evidence(
        says="MNIST: better below epsilon .6 for a convolutional network and 1.4 for a fully "
        "connected one, worse above: 73.06 % against 51.34 % at .341, 84.32 % against 90.06 % at "
        "2.11 (fully connected).",
        where="VII-C, Fig. 10, Table VI",
    ),
    "recipe": Evidence(
        says="Tuning the learning rate is crucial, and it is another one with privacy: .1 to .2 "
        "for fully connected networks by DP-SGD, .0001 to .001 by SGD.",
        where="VII-C, Fig. 9; IX-A",
    ),
    "search": Evidence(
        says="All its searches find good networks for MNIST: paas 94.94 %, rs 95.18 %, mgrs 95.54 "
        "%, for 22.3, 3.51 and 8.53 in all, where one training costs 2.11.",
        where="IX-A, Table VIII",
    ),
    "rare": Evidence(says="It reports accuracy alone.", where="V to IX"),
}
"""What Bao et al. say, by question."""
