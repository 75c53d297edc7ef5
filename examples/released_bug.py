"""A bug in torch 2.13.0 that the tool found: a running sum of a DTensor along a dimension counted from the end.

    python examples/released_bug.py          # verified: `cumsum(1)` gathers the mask first
    python examples/released_bug.py --bug    # refused: `cumsum(-1)`, the same dimension, does not

Position numbers of padded sequences are made by a running sum over the mask, in many published models by this very
line. With the mask sharded over the sequence every rank begins to count anew, and DTensor calls the result sharded.
``docs/found.md`` shows the difference by torch alone.
"""

from __future__ import annotations

import argparse
import sys

import torch
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import verifycompile
from verifycompile.testing import fake_mesh

DEGREE = 2


def positions(mask: torch.Tensor) -> torch.Tensor:
    return mask.cumsum(1) - 1


def positions_from_the_end(mask: torch.Tensor) -> torch.Tensor:
    return mask.cumsum(-1) - 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bug", action="store_true", help="count the dimension from the end")
    arguments = parser.parse_args()
    program = positions_from_the_end if arguments.bug else positions
    with fake_mesh({"sp": DEGREE}) as mesh:
        mask: DTensor = distribute_tensor(torch.ones(2, 8, dtype=torch.int64), mesh, [Shard(1)])
        report = verifycompile.verify(program, (mask,))
    print(report)
    return 0 if report else 1


if __name__ == "__main__":
    sys.exit(main())
