"""A network class as a search space: residual blocks with layer normalisation."""

from typing import Literal

import torch
from torch import nn

import pasearch


class Residual(nn.Module):
    """Dense layer with normalisation, residual layers, output layer."""

    def __init__(self, width: int = 64, depth: Literal[1, 2, 3] = 1, outputs: int = 2):
        super().__init__()
        self.first = nn.Sequential(nn.Flatten(), nn.LazyLinear(width), nn.LayerNorm(width))
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.last = nn.Linear(width, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.first(x)
        for block in self.blocks:
            h = h + torch.tanh(block(h))
        return self.last(h)


if __name__ == "__main__":
    space = pasearch.module_space(Residual, width=(32, 64), learning_rate_scale=(0.5, 1.0))
    print(pasearch.search_architecture("digits", budget=pasearch.Budget(2.0), space=space))
