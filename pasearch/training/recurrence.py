"""The steps of an LSTM, forward and backward, in closed form: what autograd would do, in place.

    z_t = p_t + h_(t-1) R                    i, f, g, o: sigmoid, sigmoid, tanh, sigmoid of z_t
    c_t = f c_(t-1) + i g                    h_t = o tanh(c_t)

Backward, from the last step to the first, e_t being the gradient with respect to h_t:

    e_t = d_t + dz_(t+1) R^T                 dc_t = e_t o (1 - tanh(c_t)^2) + f_(t+1) dc_(t+1)
    do = e_t tanh(c_t),   di = dc_t g,   df = dc_t c_(t-1),   dg = dc_t i

and dz_t through the gates' own derivatives. Few operations a step, on rooms made once.

Source: Hochreiter and Schmidhuber 1997; Gers et al. 2000.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from pasearch.spaces.modules import sigmoid_

_sigmoid_back = torch.ops.aten.sigmoid_backward
_tanh_back = torch.ops.aten.tanh_backward


class Recurrence(torch.autograd.Function):
    """From p, (batch, steps, 4 units), and R, (units, 4 units), to h, (batch, steps, units).

    Only p has a gradient.
    """

    @staticmethod
    def forward(ctx: Any, projected: Tensor, recurrent: Tensor) -> Tensor:
        """Go through the steps, and keep the gates and memories."""
        # Steps first, so that each lies together; a copy, which is overwritten.
        gates = projected.transpose(0, 1).clone(memory_format=torch.contiguous_format)
        steps, batch, units = *gates.shape[:2], len(recurrent)
        states, memories, bent = gates.new_empty(3, steps, batch, units)
        state = memory = gates.new_zeros(batch, units)
        for step, z in enumerate(gates):
            z.addmm_(state, recurrent)
            i, f, g, o = z.split(units, dim=1)
            sigmoid_(z[:, : 2 * units])
            g.tanh_()
            sigmoid_(o)
            memory = torch.mul(f, memory, out=memories[step]).addcmul_(i, g)
            torch.tanh(memory, out=bent[step])
            state = torch.mul(o, bent[step], out=states[step])
        ctx.save_for_backward(gates, memories, bent, recurrent)
        return states.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Go back through the steps."""
        gates, memories, bent, recurrent = ctx.saved_tensors
        steps, batch, units = bent.shape
        back = recurrent.T.contiguous()
        found = torch.empty_like(gates)
        of_memory, start, room, later = gates.new_zeros(4, batch, units)
        asked = gradients[0].transpose(0, 1)
        for step in range(steps - 1, -1, -1):
            of_state = asked[step]
            if step + 1 < steps:
                of_state = torch.addmm(of_state, found[step + 1], back, out=later)
            i, f, g, o = gates[step].split(units, dim=1)
            to_i, to_f, to_g, to_o = found[step].split(units, dim=1)
            of_memory += _tanh_back(torch.mul(of_state, o, out=room), bent[step])
            before = memories[step - 1] if step else start
            _sigmoid_back.grad_input(torch.mul(of_memory, g, out=room), i, grad_input=to_i)
            _sigmoid_back.grad_input(torch.mul(of_memory, before, out=room), f, grad_input=to_f)
            _tanh_back.grad_input(torch.mul(of_memory, i, out=room), g, grad_input=to_g)
            _sigmoid_back.grad_input(torch.mul(of_state, bent[step], out=room), o, grad_input=to_o)
            of_memory *= f
        return found.transpose(0, 1), None
