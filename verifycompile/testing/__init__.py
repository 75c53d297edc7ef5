"""For test suites: a proof as an assertion, meshes without a cluster, and a few real processes."""

from verifycompile.testing.assertions import assert_refines
from verifycompile.testing.groups import fake_group, fake_mesh, over_meshes
from verifycompile.testing.processes import RankError, run_on_ranks

__all__ = ["RankError", "assert_refines", "fake_group", "fake_mesh", "over_meshes", "run_on_ranks"]
