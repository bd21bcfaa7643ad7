"""The step that a careful expert writes by hand for one network, in plain torch.

Weights, gradient and noise have one flat buffer each. A record's norm is in closed form, and the
sum of clipped gradients one product a layer, which is written into the flat gradient. Dense
networks need no autograd at all; for the others it gives the gradients of the layers' outputs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from peers import Made, Setting
from rows import CLIP, RATE
from torch import Tensor, nn
from torch.nn import functional

Sums = Callable[[Tensor, Tensor], object]
"""From a batch: writes the sum of clipped gradients into the flat gradient."""


class Flat:
    """The weights of a network as views of one vector, and the same of their gradient."""

    def __init__(self, network: nn.Module):
        parameters = [p.detach() for p in network.parameters()]
        self.weights = torch.cat([p.flatten() for p in parameters])
        self.gradient, self.noise = torch.zeros_like(self.weights), torch.zeros_like(self.weights)
        sizes, shapes = [p.numel() for p in parameters], [p.shape for p in parameters]
        split = lambda flat: [  # noqa: E731
            part.view(shape) for part, shape in zip(flat.split(sizes), shapes, strict=True)
        ]
        self.parameters, self.sums = split(self.weights), split(self.gradient)


def step_of(s: Setting) -> Made:
    """Return the step."""
    network = s.row.network().to(s.device)
    flat = Flat(network)
    sums = {"dense": dense, "cnn": cnn, "lstm": lstm}[s.row.kind](flat, s)

    @torch.no_grad()
    def step() -> None:
        sums(*s.at(s.poisson()))
        flat.noise.normal_()
        flat.gradient.add_(flat.noise, alpha=s.sigma * CLIP)
        flat.weights.add_(flat.gradient, alpha=-RATE / s.batch)

    return step, lambda: s.loaded(flat.parameters)


def clipped(squares: Tensor) -> Tensor:
    """Return each record's factor, from its squared norm."""
    return (CLIP / (squares.sqrt() + 1e-6)).clamp_(max=1.0)


def errors(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the gradient of the cross entropy with respect to the outputs."""
    found = outputs.softmax(dim=1)
    return found.scatter_add_(1, y[:, None], found.new_full((len(y), 1), -1.0))


def squares_of(a: Tensor, d: Tensor) -> Tensor:
    """Return the squared norms of a linear layer's gradients, its bias included."""
    return (a.square().sum(dim=1) + 1.0) * d.square().sum(dim=1)


def summed(a: Tensor, d: Tensor, weight: Tensor, bias: Tensor) -> None:
    """Write the sum of a linear layer's weighted gradients."""
    torch.mm(d.T, a, out=weight)
    torch.sum(d, 0, out=bias)


BENT = {
    "tanh": (torch.tanh_, lambda d, h: d.mul_(1.0 - h * h)),
    "relu": (torch.relu_, lambda d, h: d.mul_(h > 0)),
    "sigmoid": (torch.sigmoid_, lambda d, h: d.mul_(h * (1.0 - h))),
}
"""In place, and a gradient of what came out times the derivative, from what came out."""


def dense(flat: Flat, s: Setting) -> Sums:
    """Layers whose derivatives follow from what comes out: no autograd, and a mask for dropout."""
    hidden = s.row.architecture.layers
    rates = [each.dropout for each in hidden]
    ways = [BENT[each.activation] for each in hidden]
    layers = list(zip(flat.parameters[::2], flat.parameters[1::2], strict=True))
    places = list(zip(flat.sums[::2], flat.sums[1::2], strict=True))

    def sums(x: Tensor, y: Tensor) -> None:
        inputs, bent, masks = [x], [], []
        for (weight, bias), rate, (bend, _) in zip(layers, rates, ways, strict=False):
            bent.append(bend(torch.addmm(bias, inputs[-1], weight.T)))
            masks.append(torch.empty_like(bent[-1]).bernoulli_(1.0 - rate) if rate else None)
            inputs.append(bent[-1] * masks[-1].div_(1.0 - rate) if rate else bent[-1])
        weight, bias = layers[-1]
        d = errors(torch.addmm(bias, inputs[-1], weight.T), y)
        outputs = [d]
        for place in range(len(layers) - 1, 0, -1):
            d = d @ layers[place][0]
            d = d if masks[place - 1] is None else d.mul_(masks[place - 1])
            d = ways[place - 1][1](d, bent[place - 1])
            outputs.append(d)
        outputs.reverse()
        squares = sum(squares_of(a, d) for a, d in zip(inputs, outputs, strict=True))
        factors = clipped(squares)[:, None]  # pyright: ignore[reportArgumentType]
        for a, d, (of_weight, of_bias) in zip(inputs, outputs, places, strict=True):
            summed(a, d.mul_(factors), of_weight, of_bias)

    return sums


def cnn(flat: Flat, s: Setting) -> Sums:
    """Table XXVI's network: gradients of the small convolutions are formed from patches."""
    first, first_bias, second, second_bias, third, third_bias, last, last_bias = flat.parameters

    def formed(a: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        return torch.bmm(d, a.transpose(1, 2)).flatten(1), d.sum(dim=2)

    def sums(x: Tensor, y: Tensor) -> None:
        with torch.enable_grad():
            images = functional.max_pool2d(x[:, None], 2)
            one = functional.conv2d(images, first, first_bias).requires_grad_()
            between = functional.max_pool2d(functional.relu(one), 2)
            two = functional.conv2d(between, second, second_bias, padding=1)
            wide = functional.relu(two).flatten(1)
            three = functional.linear(wide, third, third_bias)
            narrow = functional.relu(three)
            outputs = functional.linear(narrow, last, last_bias)
        d4 = errors(outputs.detach(), y)
        d1, d2, d3 = torch.autograd.grad(outputs, [one, two, three], d4)
        of_one = formed(functional.unfold(images, 5), d1.flatten(2))
        of_two = formed(functional.unfold(between.detach(), 3, padding=1), d2.flatten(2))
        wide, narrow = wide.detach(), narrow.detach()
        squares = squares_of(wide, d3) + squares_of(narrow, d4)
        for each in (*of_one, *of_two):
            squares += each.square().sum(dim=1)
        factors = clipped(squares)
        for each, place in zip((*of_one, *of_two), flat.sums, strict=False):
            torch.mv(each.T, factors, out=place.view(-1))
        summed(wide, d3.mul_(factors[:, None]), flat.sums[4], flat.sums[5])
        summed(narrow, d4.mul_(factors[:, None]), flat.sums[6], flat.sums[7])

    return sums


def lstm(flat: Flat, s: Setting) -> Sums:
    """One pass, in which the gates' sums z_t are kept: their gradients make norms and sums."""
    weight, bias, last, last_bias = flat.parameters
    units, width = len(bias) // 4, s.row.shape[1]

    def sums(x: Tensor, y: Tensor) -> None:
        with torch.enable_grad():
            projected = functional.linear(x, weight[:, :width], bias).requires_grad_()
            recurrent = weight[:, width:].T
            h = c = x.new_zeros(len(x), units)
            before = []
            for z in projected.unbind(1):
                before.append(h)
                i, f, g, o = torch.addmm(z, h, recurrent).chunk(4, dim=1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
            outputs = functional.linear(h, last, last_bias)
        d2 = errors(outputs.detach(), y)
        (d1,) = torch.autograd.grad(outputs, [projected], d2)
        a = torch.cat((x, torch.stack([each.detach() for each in before], dim=1)), dim=2)
        h = h.detach()
        grams = (a @ a.transpose(1, 2) + 1.0) * (d1 @ d1.transpose(1, 2))
        factors = clipped(grams.sum(dim=(1, 2)).clamp_(min=0.0) + squares_of(h, d2))
        d1 = d1.mul_(factors[:, None, None]).flatten(0, 1)
        summed(a.flatten(0, 1), d1, flat.sums[0], flat.sums[1])
        summed(h, d2.mul_(factors[:, None]), flat.sums[2], flat.sums[3])

    return sums
