"""The exact minimisers of many ridged logistic regressions with noise, all in one call.

    argmin  sum_i log(1 + e^(v_i w)) - w target  +  (ridge / 2) ||w||^2

for hundreds of subsets of the features. Steps with a common bound of the curvature arrive from
anywhere; nearer curvatures and float32 are tried first, and what is left is Newton's.

Source: Anderson 1965, Walker and Ni 2011 (combined steps); Jaakkola and Jordan 2000 (the nearer
curvature). Why it must be exact: docs/guarantees/objective-perturbation.md.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pasearch.accounting.profiles import Array

TOLERANCE = 1e-7
"""How far weights may be from the minimiser, in the L2 norm, beside rounding."""
MEMORY = 8
"""How many earlier steps an accelerated step combines."""
MOST_STEPS = 1000
MOST_NEWTON, LEAST_STEP = 200, 1e-8
"""How many Newton steps are tried, and the least share of one."""
NEAR_STEPS, ROUGH_STEPS = 200, 60
"""How many steps are tried with a curvature that bounds nothing, and of those in float32."""
ROUGH = 1e-7
"""How near float32 comes, in units of the gradient's rounding."""
FEWEST = 8
"""For fewer problems a curvature of their own is not worth its price."""
CHUNK = 1 << 22
"""How many numbers, for each of a few arrays, the solver holds at a time."""
ROWS = 2048
"""Records at a time in a gradient: what is computed of them stays in a core's cache."""


def solved(
    rows: Array,
    hot: Array,
    masks: np.ndarray[Any, Any],
    norms: Array,
    ridges: Array,
    noise: Array,
    device: str,
) -> Array:
    """Return the minimisers, (p, outputs, d + 1), in chunks that fit into memory.

    In units of the weights: the ridges, (p,), are a T^2, the noise, (p, outputs, d + 1), T b. Rows,
    (n, d + 1), and hot, (n, outputs), are as `logistic` prepares them; a row's features are
    shortened to the norms, (p,), on each mask, (p, d).
    """

    def on(array: Any) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float64)).to(device)

    (n, width), outputs = rows.shape, hot.shape[1]
    points, answers = on(rows), on(hot)
    quarter, near, rough = points.T @ points / 4, None, None
    if n > ROWS:  # of few records a step costs little, whatever its precision
        near, rough = quarter, points.float()
        if len(masks) >= FEWEST:
            near = _curvature(points, rough, answers, quarter, float(np.median(ridges)))
    size = max(1, CHUNK // (n * outputs + width * (width + 3 * MEMORY * outputs)))
    found = np.empty((len(masks), outputs, width))
    for start in range(0, len(masks), size):
        part = slice(start, start + size)
        used = on(np.pad(masks[part], ((0, 0), (0, 1)), constant_values=True))
        lengths, bounds = _lengths(points, used), on(norms[part])[:, None]
        shrink = None
        target = (answers.T @ points)[None] * used[:, None] - on(noise[part])
        if bool((lengths > bounds).any()):
            shrink = bounds / torch.maximum(lengths, bounds)
            kept = (shrink[:, None] * answers.T).reshape(-1, n) @ points[:, :-1]
            target[..., :-1] = kept.view(len(used), outputs, -1) * used[:, None, :-1]
            target[..., :-1] -= on(noise[part])[..., :-1]
        zero = torch.zeros_like(target)
        found[part] = (
            minimised(
                points, shrink, target, used, on(ridges[part]), zero, quarter, near=near,
                rough=rough,
            ).cpu().numpy()
        )  # fmt: skip
    return found


def _lengths(points: Tensor, used: Tensor) -> Tensor:
    """Return the norms of the rows' features on each set, (p, n)."""
    blocks = points[:, :-1].split(max(1, CHUNK // points.shape[1]))
    return torch.cat([used[:, :-1] @ (block**2).T for block in blocks], dim=1).sqrt_()


def _curvature(
    points: Tensor, rough: Tensor, answers: Tensor, quarter: Tensor, ridge: float
) -> Tensor:
    """Return a curvature of these records that is nearer to that of their models than a quarter.

    X' diag(tanh(z/2) / 2z) X, with z the records' logits under all features, without noise: at z
    no smaller parabola lies above log(1 + e^z) (Jaakkola and Jordan 2000). It decides how fast a
    minimiser is found, not which one.
    """
    width, outputs = points.shape[1], answers.shape[1]
    every, ridges = torch.ones_like(points[:1]), torch.full_like(points[0, :1], ridge)
    enough = _rounding(ROUGH, quarter, len(points)) * torch.ones_like(ridges)
    weights, _ = _descended(
        (rough,), (None,), (answers.T @ points)[None], every, ridges,
        points.new_zeros(1, outputs, width), quarter, (enough,), ROUGH_STEPS,
    )  # fmt: skip
    near, size = torch.zeros_like(quarter), max(1, CHUNK // width)
    for block, own in zip(points.split(size), rough.split(size), strict=True):
        z = (own @ weights[0].to(own.dtype).T).abs().clamp(min=1e-3).to(block.dtype)
        near += (block * (torch.tanh(z / 2) / (2 * z)).amax(dim=1, keepdim=True)).T @ block
    return near


def _rounding(unit: float, quarter: Tensor, n: int) -> float:
    """Return how long a gradient is that may be rounding alone."""
    return unit * math.sqrt(n * float(quarter.trace()))


def minimised(
    rows: Tensor,
    shrink: Tensor | None,
    target: Tensor,
    masks: Tensor,
    ridges: Tensor,
    w: Tensor,
    quarter: Tensor,
    *,
    near: Tensor | None = None,
    rough: Tensor | None = None,
) -> Tensor:
    """Return argmin of sum_i log(1 + e^(z_i)) - w target + (ridge / 2) ||w||^2 for many problems.

    H = (X'X / 4 restricted to the mask) + ridge is at least the curvature everywhere, so
    w - H^-1 gradient never makes the gradient longer, in the norm of H^-1: from anywhere such steps
    arrive. `near` and `rough` are tried first, which are fewer steps, and cheaper ones; a problem
    that is not solved so starts again, and one that `MOST_STEPS` do not solve is left to Newton.

    Args:
        rows: (n, D), the last column the intercept's.
        shrink: (p, n) factors of a row's features, not of its intercept; None for 1.
        target: (p, outputs, D), 0 outside the mask.
        masks: (p, D), 1 or 0.
        ridges: (p,).
        w: (p, outputs, D), where to start.
        quarter: X'X / 4, (D, D).
        near: Another curvature, (D, D), below the true one in places.
        rough: The rows in float32.

    Cost: for each step two matrix products of all problems.
    """
    rounding = _rounding(1e-14, quarter, len(rows))
    enough = torch.clamp(TOLERANCE * ridges, min=rounding)
    if near is None or rough is None:
        found, missed = _descended(
            (rows,), (shrink,), target, masks, ridges, w, quarter, (enough,), MOST_STEPS
        )
        for i in torch.nonzero(missed)[:, 0].tolist():
            seen = rows.clone()
            if shrink is not None:
                seen[:, :-1] *= shrink[i][:, None]
            used = masks[i] > 0
            for o in range(w.shape[1]):
                own = _newton(seen[:, used], target[i, o, used], ridges[i], enough[i])
                found[i, o] = torch.zeros_like(w[i, o]).index_put_((used,), own)
        return found
    first = torch.clamp(enough, min=_rounding(ROUGH, quarter, len(rows)))
    shrinks = (None if shrink is None else shrink.to(rough.dtype), shrink)
    found, missed = _descended(
        (rough, rows), shrinks, target, masks, ridges, w, near, (first, enough), NEAR_STEPS
    )
    if bool(missed.any()):
        shrink = None if shrink is None else shrink[missed]
        found[missed] = minimised(
            rows, shrink, target[missed], masks[missed], ridges[missed], w[missed], quarter
        )
    return found


def _descended(
    rows: tuple[Tensor, ...],
    shrinks: tuple[Tensor | None, ...],
    target: Tensor,
    masks: Tensor,
    ridges: Tensor,
    w: Tensor,
    curvature: Tensor,
    enough: tuple[Tensor, ...],
    most: int,
) -> tuple[Tensor, Tensor]:
    """Return where steps lead, (p, outputs, D), and which problems have no minimiser yet, (p,).

    Rows, shrinks and how short a gradient has to be, `enough`, (p,), come once for each precision:
    the next one takes over when most gradients are short enough, or after `ROUGH_STEPS`. The
    curvature is H without its ridge, before it is restricted; the others are as of `minimised`.
    """
    steps = _Steps(w, _root(masks, curvature, ridges))
    result, left = w.clone(), torch.arange(len(w), device=w.device)
    missed = torch.ones_like(left, dtype=torch.bool)
    stage, last = 0, len(rows) - 1
    for count in range(most):
        gradient = _gradient(rows[stage], shrinks[stage], w) - target
        gradient = gradient * masks[:, None] + ridges[:, None, None] * w
        done = (gradient.norm(dim=2) <= enough[stage][:, None]).all(dim=1)
        result[left], missed[left] = w, ~done
        if stage == last and bool(done.all()):
            break
        if stage < last and (int(done.sum()) * 2 > len(done) or count == ROUGH_STEPS):
            stage += 1
            steps.compare_anew()  # what the next precision says of the same place may be longer
        elif stage == last and int(done.sum()) * 8 > len(done):
            kept = ~done
            shrinks = tuple(None if each is None else each[kept] for each in shrinks)
            enough = tuple(each[kept] for each in enough)
            left, gradient, target, masks, ridges = (
                each[kept] for each in (left, gradient, target, masks, ridges)
            )
            w = w[kept]
            steps.keep(kept)
        w = steps.after(w, gradient)
    return result, missed


class _Steps:
    """Steps that are the best combination of the last ones, were the objective quadratic.

    One is replaced by the last one's own, w - H^-1 gradient, if the gradient grew.

    Source: Anderson 1965; Walker and Ni 2011.
    """

    def __init__(self, w: Tensor, root: Tensor):
        p, outputs, width = w.shape
        self.root, self.count = root, 0
        self.changes = w.new_zeros(p, outputs, MEMORY, width)  # of gradients, in the norm of H^-1
        self.moves = torch.zeros_like(self.changes)  # of where safe steps lead
        self.merit = w.new_full((p, outputs), math.inf)
        self.lead = self.whitened = w

    def compare_anew(self) -> None:
        """Take the next gradient, however long it is."""
        self.merit = torch.full_like(self.merit, math.inf)

    def keep(self, kept: Tensor) -> None:
        """Forget all problems but those."""
        for name in ("root", "changes", "moves", "merit", "lead", "whitened"):
            setattr(self, name, getattr(self, name)[kept])

    def after(self, w: Tensor, gradient: Tensor) -> Tensor:
        """Return where to go from w, by its gradient."""
        count, changes, moves = self.count, self.changes, self.moves
        new = gradient @ self.root.transpose(1, 2)
        new_lead, length = w - new @ self.root, (new * new).sum(dim=2)
        worse = ~(length <= self.merit)
        if count:
            changes[:, :, count % MEMORY] = new - self.whitened
            moves[:, :, count % MEMORY] = new_lead - self.lead
        if bool(worse.any()):
            changes[worse] = 0.0
            new = torch.where(worse[..., None], self.whitened, new)
            new_lead = torch.where(worse[..., None], self.lead, new_lead)
            # After a safe step any length will do: if it grew, that was rounding.
            length = torch.where(worse, math.inf, length)
        self.whitened, self.lead, self.merit, self.count = new, new_lead, length, count + 1
        shares = _shares(changes[:, :, : count + 1], new)
        return new_lead - (shares[:, :, None] @ moves[:, :, : count + 1])[:, :, 0]


def _root(masks: Tensor, curvature: Tensor, ridges: Tensor) -> Tensor:
    """Return a root of H^-1, root' root, for each mask, (p, D, D)."""
    bound = masks[:, :, None] * masks[:, None]
    bound *= curvature
    bound.diagonal(dim1=1, dim2=2).add_(ridges[:, None] * masks + (1 - masks))
    eye = torch.eye(masks.shape[1], dtype=masks.dtype, device=masks.device)
    return torch.linalg.solve_triangular(torch.linalg.cholesky_ex(bound).L, eye, upper=False)


def _newton(rows: Tensor, target: Tensor, ridge: Tensor, enough: Tensor) -> Tensor:
    """Return one problem's minimiser by Newton's method, each step halved until it helps.

    A strictly convex objective and exact curvature: it arrives from anywhere, however different the
    features' sizes are and however small the ridge. Rows (n, c) and target (c,) are of the features
    that are used.
    """

    def slopes(w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        z = rows @ w
        gradient = torch.sigmoid(z) @ rows - target + ridge * w
        loss = torch.nn.functional.softplus(z).sum() - w @ target + ridge / 2 * (w @ w)
        return z, gradient, loss

    w = torch.zeros_like(target)
    z, gradient, loss = slopes(w)
    for _ in range(MOST_NEWTON):
        if bool(gradient.norm() <= enough):
            break
        curvature = (rows * (torch.sigmoid(z) * torch.sigmoid(-z))[:, None]).T @ rows
        curvature.diagonal().add_(ridge)
        step = torch.linalg.solve(curvature, gradient)
        helps, length, new, value = False, 2.0, gradient, loss
        while not helps and length > LEAST_STEP:
            length /= 2
            z, new, value = slopes(w - length * step)
            # Near the minimum the loss is all rounding, and the gradient tells.
            gains = value <= loss - 1e-4 * length * (gradient @ step)
            helps = bool(gains | (new.norm() <= gradient.norm() / 2))
        w, gradient, loss = w - length * step, new, value
    return w


def _shares(changes: Tensor, gradient: Tensor) -> Tensor:
    """Return which combination of earlier changes comes nearest to a gradient, (p, outputs, m).

    Least squares for each model, the changes scaled to length 1; those that are 0 stay out.
    """
    products = changes @ changes.transpose(2, 3)
    squares = products.diagonal(dim1=2, dim2=3)
    empty = squares == 0
    sizes = torch.where(empty, 1.0, squares).sqrt()
    scaled = products / (sizes[..., None] * sizes[:, :, None])
    scaled.diagonal(dim1=2, dim2=3).add_(1e-12 + empty.to(changes.dtype))
    along = (changes @ gradient[..., None])[..., 0] / sizes
    return torch.linalg.solve(scaled, along) / sizes


def _gradient(rows: Tensor, shrink: Tensor | None, w: Tensor) -> Tensor:
    """Return the sum over records of sigmoid(z_i) times the row that gave z_i, (p, outputs, D)."""
    p, outputs, width = w.shape
    kind, w = w.dtype, w.to(rows.dtype)
    features, found = w[..., :-1].reshape(p * outputs, width - 1), torch.zeros_like(w)
    for start in range(0, len(rows), ROWS):
        part = rows[start : start + ROWS]
        if shrink is None:
            chances = torch.sigmoid_(w.reshape(-1, width) @ part.T)
            found += (chances @ part).view(p, outputs, width)
            continue
        own = shrink[:, None, start : start + ROWS]
        z = (features @ part[:, :-1].T).view(p, outputs, -1)
        chances = z.mul_(own).add_(w[..., -1:] * part[:, -1]).sigmoid_()
        found[..., -1] += chances @ part[:, -1]
        chances = chances.mul_(own).reshape(-1, len(part))
        found[..., :-1] += (chances @ part[:, :-1]).view(p, outputs, width - 1)
    return found.to(kind)
