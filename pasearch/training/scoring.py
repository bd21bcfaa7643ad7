"""How many points answers have: what every score, of candidates and of the test, is made of.

    classes    1 where the largest output is the record's class
    a number   floor(G (1 - min(1, |error|))),  G = ERROR_GRID, in whole numbers record by record

A null record has 0, so replacing a record by it changes a sum by at most 1, or by G.

Source: Bao et al., section VIII-A; docs/rules.md, rule 9. Proof:
docs/guarantees/geometric-scores.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

ERROR_GRID = 100
"""How finely one record's error is told; the noise grows with it, so that 1 % is enough."""


def points_of(answers: Tensor, y: Tensor, valid: Tensor) -> int:
    """Return the points of all answers together.

    Answers are (n, outputs): one a class, or the scaled number; y is (n,), as is `valid`, which is
    False for a null record.

    Guarantee: each record's points are whole before they are added.
    """
    if y.is_floating_point():
        error = (answers.squeeze(1) - y).abs().nan_to_num(nan=1.0, posinf=1.0)
        each = (ERROR_GRID * (1.0 - error.clamp(max=1.0))).floor().long()
    else:
        each = (answers.argmax(dim=1) == y).long()
    return int(each[valid].sum())
