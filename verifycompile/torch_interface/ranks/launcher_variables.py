"""The environment variables in which launchers tell a process its rank, and how many processes there are."""

from __future__ import annotations

_RANK_VARIABLES = frozenset(
    {"RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "NODE_RANK", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"}
    | {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_NODE_RANK", "PMI_RANK", "PMIX_RANK"}
    | {"MPI_LOCALRANKID", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_RANK", "PALS_RANKID", "PALS_LOCAL_RANKID"}
    | {"FLUX_TASK_RANK", "FLUX_TASK_LOCAL_ID", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK", "HOROVOD_RANK"}
)
_DEGREE_VARIABLES = frozenset(
    {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "NNODES", "NPROC_PER_NODE", "PMI_SIZE"}
    | {"SLURM_NTASKS", "SLURM_NPROCS", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", "OMPI_COMM_WORLD_SIZE"}
    | {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"}
    | {"FLUX_JOB_SIZE", "JSM_NAMESPACE_SIZE", "HOROVOD_SIZE", "NUM_NODES"}
)
"""In which torch's, Slurm's, PALS's, Flux's, Horovod's and the MPI launchers tell a process its place in the job."""


def is_rank_variable(name: str) -> bool:
    """Whether launchers tell a process its number in the environment variable ``name``."""
    return name in _RANK_VARIABLES


def is_degree_variable(name: str) -> bool:
    """Whether launchers tell a process in the environment variable ``name`` how many there are."""
    return name in _DEGREE_VARIABLES
