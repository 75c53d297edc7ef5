"""Scripts of a user, run by torch's launcher on two gloo processes of this machine under the flag."""

from __future__ import annotations

import os
import pathlib
import socket
import subprocess

from tests.warm import python

SCRIPTS = pathlib.Path(__file__).parent / "scripts"


def launched(script: str, *arguments: str, flag: str = "1") -> subprocess.CompletedProcess[str]:
    """What ``torchrun --nproc-per-node 2 SCRIPT ARGUMENTS...`` prints and ends with."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    launcher = [python(), "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(port)]
    return subprocess.run(
        [*launcher, str(SCRIPTS / script), *arguments],
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "VERIFYCOMPILE": flag},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def told(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What verifycompile says on the terminal: the lines of all ranks, without their prefix."""
    lines = done.stderr.splitlines()
    return [line.removeprefix("verifycompile: ") for line in lines if line.startswith("verifycompile: ")]
