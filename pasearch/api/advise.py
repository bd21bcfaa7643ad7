"""Advice before a run: Bao et al.'s flowchart, answered from public numbers alone.

    a request -> the plan that `pasearch plan arch` would print -> facts -> a branch a question

What is read of the data is their form (names, shapes, types) and the number of records, as for a
plan; of public data, if they are named, all that is needed to compare their form.

Cost: none.

Source: Bao et al., Fig. 11, sections V-C, VI-E and VII; docs/rules.md, rule 13.
"""

from __future__ import annotations

from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pasearch.accounting.budget import Budget
from pasearch.api.request import DATA_OPTIONS, SearchRequest
from pasearch.api.resolve import dataset_of, public_data
from pasearch.api.search import prepared
from pasearch.cautions import LEAST_SIGNAL, mostly_noise, rare_categories
from pasearch.crossover.advice import Advice, Facts, Weakest, advised
from pasearch.crossover.forecast import Own, forecast, plain_name
from pasearch.data.front_ends import Raw
from pasearch.errors import UsageError
from pasearch.features.auto import columns_of
from pasearch.planning import planned_form
from pasearch.spaces.portfolio import Study, features_of, kind_of, signal_of, study_for
from pasearch.training.metrics import usual_metric

if TYPE_CHECKING:
    from pasearch.search.plan import Plan
    from pasearch.spaces.candidate import Candidate

ROUND = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Epsilons that are tried where the signal is too small."""


def advise(
    data: Any,
    *,
    epsilon: float,
    delta: float | None = None,
    public: str | Path | None = None,
    **options: Any,
) -> Advice:
    """Return what to do with data at a budget, and the evidence for it, before anything is read.

    Guarantee: of the data only the form and the number of records are read, as for a plan; two data
    sets that differ in values alone get the same advice.

    Args:
        data: As of `search_architecture`: a name, a path, a pandas frame, or (x, y) arrays.
        epsilon: Of the whole run that is thought of, above 0.
        delta: Of the whole run; None: the power of ten below 1/n.
        public: Public data of the same form, a name or a path; they are read.
        options: What the data are: schema, target, quotes, columns, separator, regression, labels,
            metric, bounds, classes, image_side, grey, max_categories, split, data_root; as of
            `search_architecture`.

    Returns:
        Advice: A summary, the one command to run, and a branch a question.

    Raises:
        UsageError: Data or options of bad form, or public data of another form.
        BudgetError: No plan fits the budget; the message names the smallest that would do.

    Cost: none: nothing private is read.

    Source: Bao et al., Fig. 11; `crossover.advice` names a source with every rule.
    """
    if unknown := sorted(set(options) - set(DATA_OPTIONS)):
        raise UsageError(
            f"{', '.join(unknown)}: no such option: expected epsilon, delta, public, or one of "
            f"{', '.join(DATA_OPTIONS)}."
        )
    request = SearchRequest(data, budget=Budget(epsilon, delta), **options)
    dataset = dataset_of(request.data, request)
    if public is not None:
        _, dataset, _ = public_data("public", str(public), request, dataset)
        request = replace(request, strategy="fixed")  # the search is made on the public data
    plan = prepared(request, dataset).plan
    facts = _facts(plan, request, None if public is None else Path(str(public)).name)
    said = {"epsilon": epsilon, "delta": delta, "public": public}
    said |= {name: value for name, value in options.items() if _is_said(name, value)}
    for name in ("columns", "labels", "classes"):
        if not isinstance(said.get(name), str | Path | Integral | None):
            said[name] = ",".join(map(str, said[name]))
    return advised(
        facts,
        data=str(data) if isinstance(data, (str, Path)) else None,
        said={n: str(v) if isinstance(v, Path) else v for n, v in said.items() if v is not None},
        warnings=_warnings(plan),
    )


def _is_said(name: str, value: Any) -> bool:
    """Return whether an option is other than what is taken without it."""
    usual = SearchRequest.__dataclass_fields__[name].default
    return value is not None and value != usual


def _warnings(plan: Plan) -> tuple[str, ...]:
    """Return the plan's warnings, without that of a weak signal, which has a branch of its own."""
    classes = planned_form(plan.schema, plan.most)[1]
    weak = mostly_noise(plan.final_mu or plan.trial_mu, plan.split.train, classes)
    return tuple(each for each in plan.warnings if each not in weak)


def _facts(plan: Plan, request: SearchRequest, public: str | None) -> Facts:
    """Return what the rules of the advice may depend on."""
    schema = plan.schema
    outputs = planned_form(schema, plan.most)[1]
    mu = plan.final_mu or plan.trial_mu
    assert mu is not None
    default = plan.space.candidate(plan.space.fixed())
    signal = signal_of(mu, plan.kept_slots, outputs)
    study = study_for(schema, plan.name).among(outputs)
    outside = study.outside(signal, outputs, features_of(schema))
    recipe = plan.final_recipe(default) if plan.retrained else plan.trial_recipe(default)
    usual = plan.scored_by is usual_metric(schema.regression)
    found = _forecast(plan, default, mu, outputs) if usual and not outside else None
    return Facts(
        name=plan.name, form=schema.describe(), kind=kind_of(schema),
        epsilon=plan.budget.epsilon, delta=plan.delta, records=plan.split.n, outputs=outputs,
        known=bool(schema.outputs), signal=10**signal, enough=_enough(plan, default, outputs, mu),
        columns=columns_of(schema), pixels=len(schema.widest_shape(2)) > 1,
        table=schema.to_json()["kind"] == "table", undeclared=schema.undeclared,
        poor=bool(rare_categories(plan.schema_estimate, plan.split)), public=public,
        metric=request.metric, default=plain_name(default),
        front="" if isinstance(default.front_end, Raw) else default.front_end.words(),
        hidden=len(default.architecture.layers), rate=recipe.learning_rate or 0.0,
        batch=recipe.expected_batch_size, slots=plan.kept_slots, steps=recipe.steps,
        compares=plan.strategy.scored, why="" if plan.auto is None else plan.auto["why"],
        outside=outside, weakest=_weakest(study), reached=_reached(study, plan, signal, outputs),
        forecast=found,
    )  # fmt: skip


def _forecast(plan: Plan, default: Candidate, mu: float, outputs: int) -> dict[str, Any] | None:
    own = Own(
        epsilon=plan.budget.epsilon, delta=plan.delta, mu=mu, slots=plan.kept_slots, score=None,
        error=0.0,
    )  # fmt: skip
    return forecast(plan.schema, plan.name, own, default, outputs, plan.space.contains)


def _enough(plan: Plan, default: Candidate, outputs: int, mu: float) -> float | None:
    """Return the least round epsilon whose signal is large enough; the run's own if it is."""
    epsilon = plan.budget.epsilon
    if mu * plan.kept_slots >= LEAST_SIGNAL * outputs:
        return epsilon
    factors = tuple(each / epsilon for each in ROUND if each > epsilon)
    for each in plan.alternatives(default, factors):
        signal = each["signal_to_noise"]
        if signal is not None and signal >= LEAST_SIGNAL * outputs:
            return float(f"{each['epsilon']:.3g}")
    return None


def _weakest(study: Study) -> Weakest:
    """Return the training with the weakest signal in a study."""
    name = min(study.signals, key=lambda each: float(study.signals[each][0]))
    classes = study.classes.get(name, 0)
    return Weakest(
        data=name,
        signal=10 ** float(study.signals[name][0]),
        accuracy=float(study.accuracy[name][:, 0].max()),
        guessing=None if study.kind == "regression" or not classes else 1 / classes,
    )


def _reached(
    study: Study, plan: Plan, signal: float, outputs: int
) -> tuple[tuple[str, float], ...]:
    """Return (model, mean accuracy at a signal) of a study, the smallest model first."""
    shape = planned_form(plan.schema, plan.most)[0]
    means = study.at(signal).mean(axis=0)
    sizes = [each.parameters(shape, outputs)[0] for each in study.entries]
    order = sorted(range(len(sizes)), key=lambda place: (sizes[place], place))
    return tuple((plain_name(study.entries[place]), float(means[place])) for place in order)
