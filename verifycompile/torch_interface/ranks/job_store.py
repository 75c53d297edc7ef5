"""The key-value store that the processes of one job share."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed import distributed_c10d

from verifycompile.torch_interface.ranks.acting_rank import is_pretended

Store = dist.Store


def job_store() -> Store | None:
    """The store of the default process group; None outside of a job, and where one process plays all of its ranks."""
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
        return None
    if is_pretended():
        return None
    return distributed_c10d._get_default_store()
