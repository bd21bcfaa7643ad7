"""The models of a comparison: what their names mean, and which features each is given.

| name | is |
|---|---|
| `linear`, `fcn`, `cnn`, `net.toml` | no hidden layer; the default network of the space; a file |
| `...+scattering`, `...+pca:60` | the same behind a front end |
| `...+rwt` | random weights training: the last two layers are trained, as by the recipe `rwt` |
| `...+full-batches`, `...+recipe:NAME` | the same, trained otherwise |
| `...+cfs:6`, `...+random:6` | the same on six features: CFS-Greedy's, or any |
| `...+columns:age,sex`, `...+numbers` | the same on these columns, or on all but categories |

Source: Bao et al., sections VI-C (features), VII-B (front ends), VII-C (random weights training),
C-D (categories).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pasearch.accounting.checks import whole
from pasearch.data.front_ends import Raw
from pasearch.data.front_ends.parsing import front_end
from pasearch.data.tables import AnySchema, TableSchema
from pasearch.errors import UsageError, nearest
from pasearch.spaces.architecture import Architecture
from pasearch.spaces.candidate import Candidate, read_candidate
from pasearch.spaces.space import space
from pasearch.training.presets import RANDOM_WEIGHTS_TRAINED_LAST
from pasearch.training.settings import full_batches

if TYPE_CHECKING:
    from pasearch.data.partitions import Records

FAMILIES = ("linear", "fcn", "cnn")
"""Models with a name; a network's file is another."""

CHOICES = ("cfs", "random", "columns", "numbers")
"""Which features a model may be given, as its name says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Features:
    """Which features of an encoded record a model is given.

    Args:
        choice: One of `CHOICES`.
        size: How many, of `cfs` and `random`.
        names: Of `columns`.
    """

    choice: str
    size: int = 0
    names: tuple[str, ...] = ()

    @classmethod
    def read(cls, text: str) -> Features | None:
        """Return what a part of a model's name says; None where it says something else.

        Raises:
            UsageError: `cfs` without a number, `columns` without a name.
        """
        choice, _, rest = text.partition(":")
        if choice not in CHOICES:
            return None
        if choice in ("cfs", "random"):
            if not rest.isdecimal():
                raise UsageError(f"`+{text}`: expected how many features, such as +{choice}:6.")
            return cls(choice=choice, size=whole("features", int(rest)))
        names = tuple(filter(None, rest.split(",")))
        if (choice == "columns") is not bool(names):
            raise UsageError(f"`+{text}`: expected +numbers, or names such as +columns:age,sex.")
        return cls(choice=choice, names=names)

    def width(self, schema: AnySchema) -> int:
        """Return how many features that are.

        Raises:
            UsageError: A name that the data lack, more features than there are, or none.
        """
        every = int(np.prod(schema.shape))
        if self.size:
            if not self.size <= every:
                raise UsageError(f"`+{self.choice}:{self.size}`: the records have {every}.")
            return self.size
        return len(self._named(schema))

    def places(self, schema: AnySchema, own: Records, draw: np.random.Generator) -> np.ndarray:
        """Return which features, rising.

        Args:
            schema: Complete.
            own: The public records that are trained on: CFS-Greedy chooses by them.
            draw: What `random` draws from.

        Cost: none; only records that were declared public get here.
        """
        every = int(np.prod(schema.shape))
        if self.choice == "random":
            return np.sort(draw.permutation(every)[: self.size])
        if self.choice == "cfs":
            from pasearch.features.cfs import greedy, symmetrical_uncertainty
            from pasearch.features.contingency import attributes_of, count

            attributes = attributes_of(schema)
            joint = count(attributes.codes(own.x, own.y, own.valid), attributes)
            order = greedy(*symmetrical_uncertainty(joint, attributes), self.size)
            return np.sort(np.array(order.chosen))
        return self._named(schema)

    def _named(self, schema: AnySchema) -> np.ndarray:
        if not isinstance(schema, TableSchema):
            raise UsageError(f"`+{self.choice}` is of a table's columns: take +cfs or +random.")
        widths = [len(column.feature_names()) for column in schema.columns]
        known = [each.name for each in schema.columns]
        if missing := [name for name in self.names if name not in known]:
            raise UsageError(
                f"`+columns:`: the table has no column {missing[0]!r}; it has {', '.join(known)}."
            )
        kept = [
            each.name in self.names if self.names else each.kind == "number"
            for each in schema.columns
        ]
        found = np.flatnonzero(np.repeat(kept, widths))
        if not len(found):
            raise UsageError(f"`+{self.choice}` leaves no feature.")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A model of a comparison.

    Args:
        name: As the user says it.
        candidate: What is trained.
        features: Which it is given; None: all.
        recipe: How it is trained, where that is not as of the others.
        parameters: How many are trained.
    """

    name: str
    candidate: Candidate
    features: Features | None = None
    recipe: str | None = None
    parameters: int = 0

    def shape(self, schema: AnySchema) -> tuple[int, ...]:
        """Return the shape of a record that its front end is given."""
        return schema.shape if self.features is None else (self.features.width(schema),)

    def sized(self, schema: AnySchema) -> Model:
        """Return it with its number of trained parameters on records of a schema."""
        trained = self.candidate.parameters(self.shape(schema), schema.outputs)[1]
        return replace(self, parameters=trained)


def models_of(given: Sequence[str | Path | Candidate], schema: AnySchema) -> list[Model]:
    """Return the models of a comparison, the one with the fewest trained parameters first.

    Raises:
        UsageError: Fewer than two, two that are the same, or one that does not fit the records.
    """
    found = []
    for each in given:
        if isinstance(each, Candidate):
            model = Model(name=each.describe_network(), candidate=each)
        else:
            model = named(str(each), schema.regression)
        found.append(model.sized(schema))
    if len(found) < 2:
        raise UsageError("A crossover is of two or more models: name another.")
    for first, one in enumerate(found):
        for other in found[first + 1 :]:
            alike = replace(one, name="") == replace(other, name="")
            if alike or one.name == other.name:
                raise UsageError(f"{one.name} and {other.name} are the same model: name another.")
    return sorted(found, key=lambda model: model.parameters)


def named(text: str, regression: bool) -> Model:
    """Return the model of a name, or of a file, with what stands behind it.

    Raises:
        UsageError: A name that is not known, or two parts that do not go together.
    """
    name, *more = text.split("+")
    if name == "linear":
        candidate = Candidate(architecture=Architecture(layers=()))
    elif name in FAMILIES:
        chosen = space(name)
        candidate = Candidate(architecture=chosen.candidate(chosen.fixed()).architecture)
    elif name.endswith(".toml"):
        candidate = read_candidate(name)
    else:
        raise UsageError(
            f"Model {name!r} is not known: expected {', '.join(FAMILIES)} or a network's .toml "
            f"file.{nearest(name, FAMILIES)}"
        )
    model = Model(name=text, candidate=candidate)
    for each in more:
        model = _with(model, each, regression)
    if model.features is not None and not isinstance(model.candidate.front_end, Raw):
        raise UsageError(
            f"Model {text!r} chooses features and has a front end: expected one of the two."
        )
    return model


def _with(model: Model, part: str, regression: bool) -> Model:
    """Return a model with one part more of its name."""
    candidate = model.candidate
    if part == "rwt":
        frozen = candidate.architecture.train_last(RANDOM_WEIGHTS_TRAINED_LAST)
        return replace(model, candidate=replace(candidate, architecture=frozen))
    if part == "full-batches":
        return replace(model, candidate=replace(candidate, settings=full_batches(regression)))
    if part.startswith("recipe:"):
        return replace(model, recipe=part.removeprefix("recipe:"))
    if (features := Features.read(part)) is not None:
        if model.features is not None:
            raise UsageError(f"Model {model.name!r} chooses features twice: expected once.")
        return replace(model, features=features)
    if not isinstance(candidate.front_end, Raw):
        raise UsageError(f"Model {model.name!r} has two front ends: expected one.")
    return replace(model, candidate=replace(candidate, front_end=front_end(part)))
