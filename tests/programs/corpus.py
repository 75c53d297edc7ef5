"""The correct programs, all of which must verify."""

from __future__ import annotations

from collections.abc import Iterator

from tests.programs import data_parallel, gpt2, llama, mlp, torch_transformer
from tests.programs.case import Case


def programs(degree: int, data_parallel: int = 1) -> Iterator[Case]:
    """Every family at one degree of tensor parallelism, inside of an axis ``dp`` where ``data_parallel`` exceeds 1."""
    yield mlp.case(degree, data_parallel=data_parallel)
    yield mlp.case(degree, data_parallel=data_parallel, bias=False, activation="gelu")
    yield mlp.residual_case(degree, data_parallel=data_parallel)
    for sequence_parallel in (True, False):
        for tied in (True, False):
            yield torch_transformer.case(
                degree, data_parallel=data_parallel, sequence_parallel=sequence_parallel, tied=tied
            )
    yield torch_transformer.case(degree, data_parallel=data_parallel, layers=2)
    yield llama.block_case(degree, data_parallel=data_parallel)
    yield llama.case(degree, data_parallel=data_parallel)
    yield llama.case(degree, data_parallel=data_parallel, layers=2)
    yield gpt2.case(degree, data_parallel=data_parallel)
    yield gpt2.case(degree, data_parallel=data_parallel, layers=2)


DEFAULT: tuple[Case, ...] = (
    *programs(2),
    mlp.case(8),
    torch_transformer.case(4),
    llama.case(8),
    llama.block_case(4),
    gpt2.case(4),
    llama.case(2, data_parallel=2),
    torch_transformer.case(4, data_parallel=2, sequence_parallel=False),
    *data_parallel.programs().values(),
)
"""What every run of the tests verifies."""

SWEEP: tuple[Case, ...] = tuple(
    case
    for degree, data_parallel in ((4, 1), (8, 1), (2, 2), (4, 2))
    for case in programs(degree, data_parallel)
    if case.name not in {known.name for known in DEFAULT}
) + tuple(data_parallel.more_programs())
"""The remaining degrees and meshes."""
