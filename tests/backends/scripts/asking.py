"""Asks about a wrong program itself, in a process that checks all frames as well."""

import torch
from torch import nn

import verifycompile
from verifycompile.testing import fake_mesh


class Scaled(nn.Module):
    def __init__(self, by: float) -> None:
        super().__init__()
        self.weight, self.by = nn.Parameter(torch.ones(4, 4)), by

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight * self.by


with fake_mesh({"tp": 2}) as mesh:
    asked = {"args": (torch.ones(2, 4),), "spec": Scaled(1.0), "mesh": mesh}
    print(verifycompile.verify(Scaled(2.0), **asked).verdict)
    print(verifycompile.cross_check(Scaled(2.0), **asked).verdict)
