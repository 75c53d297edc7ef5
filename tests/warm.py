"""Interpreters that have imported torch already, for tests that start processes.

``python()`` is the path of an executable that takes the words which ``python`` takes. It asks a server, one for each process
of tests, for a fork of an interpreter that has imported torch and what else verifycompile needs, which takes seconds;
the fork runs the program as Python does, with the arguments, environment, folder and streams of whoever called, and so
do the processes that it starts by ``sys.executable``. Nothing of verifycompile is imported there, and torch is found by
the first import of it, so that what torch does at the end of its own import, such as loading backends, is done when and
as it would be. Where an option, an open file besides the streams, or a variable of the environment that torch or Python
read while they are imported, is not that of the server, a new interpreter is started.
"""

from __future__ import annotations

import atexit
import functools
import gc
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import pathlib
import py_compile
import re
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

IMPORTED = (  # nothing that starts a thread, as egglog does: a fork would never end waiting for it
    "functorch.compile",
    "torch._dynamo.backends.debugging",
    "torch._dynamo.backends.distributed",
    "torch._export.db.logging",
    "torch._inductor.compile_fx",
    "torch.distributed.fsdp",
    "torch.distributed.launcher.api",
    "torch.distributed.tensor.debug",
    "torch.distributed.tensor.parallel",
    "torch.export._leakage_detection_utils",
    "torch.testing._internal.composite_compliance",
    "z3",
)
READ_BY_IMPORTS = r"PYTHON(?!PATH$)|TORCH_(LOGS|TRACE|SHOW)|TORCHDYNAMO|TORCHINDUCTOR_(?!CACHE_DIR$)|PYTORCH_|OMP_|MKL_"
FILE = "<frozen warm>"
"""What frames of this module, which lie below those of a program, say of their file: they are none of the user's code."""
CLIENT = """#!{executable} -SE
import contextlib, json, os, re, signal, socket, struct, sys
words = sys.argv[1:]
while words and words[0] in ("-u", "-W"):
    words = words[1 if words[0] == "-u" else 2 :]
read = {{name: value for name, value in os.environ.items() if re.match({names!r}, name)}}
given = [place for place in map(int, os.listdir("/proc/self/fd")) if place > 3]  # 3 is that of the list itself
if not words or words[0][0] == "-" and words[0] not in ("-m", "-c") or given or read != {read!r}:
    os.execv({executable!r}, [{executable!r}, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    text = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
    socket.send_fds(server, [struct.pack("q", len(text))], [0, 1, 2])
    server.sendall(text)
    answers = server.makefile()
    process = int(answers.readline())
    def forward(number, _):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, number)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, forward)
    status = int(answers.readline())
if status < 0:
    os.kill(os.getpid(), -status)
sys.exit(status)
"""


@functools.cache
def python() -> str:
    folder = tempfile.mkdtemp(prefix="warm-")
    address, executable = f"{folder}/server", pathlib.Path(folder) / "python"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    code = py_compile.compile(__file__, f"{folder}/warm.pyc", FILE, doraise=True)
    assert code is not None
    server = subprocess.Popen(
        [sys.executable, code, address],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert server.stdout is not None
    assert server.stdout.readline() == b"ready\n"
    read = {name: value for name, value in environment.items() if re.match(READ_BY_IMPORTS, name)}
    executable.write_text(CLIENT.format(executable=sys.executable, address=address, names=READ_BY_IMPORTS, read=read))
    command = executable.with_name("verifycompile")
    command.write_text(f'#!/bin/sh\nexec {executable} -m verifycompile "$@"\n')
    for file in (executable, command):
        file.chmod(0o755)

    def end() -> None:
        server.communicate()  # the server ends with its standard input
        shutil.rmtree(folder)

    atexit.register(end)
    return str(executable)


def serve(address: str) -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    assert len(list(pathlib.Path("/proc/self/task").iterdir())) == 1
    gc.collect()
    gc.freeze()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    woken, waker = os.pipe()
    os.set_blocking(waker, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    os.write(1, b"ready\n")
    callers: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([0, woken, listener, *callers.values()], [], [])
        for process in [process for process, caller in callers.items() if caller in ready or 0 in ready]:
            os.kill(process, signal.SIGKILL)  # nobody waits for it any more
            callers.pop(process).close()
        if 0 in ready:
            return
        if woken in ready:
            os.read(woken, 1 << 16)
            _tell_ends(callers)
        if listener in ready:
            caller, _ = listener.accept()
            size, streams, _, _ = socket.recv_fds(caller, 8, 3)
            with caller.makefile("rb") as said:
                words, variables, folder = json.loads(said.read(struct.unpack("q", size)[0]))
            process = os.fork()
            if process == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for place, stream in enumerate(streams):
                    os.dup2(stream, place)
                for open_file in (listener, caller, *callers.values()):
                    open_file.close()
                for descriptor in (woken, waker, *streams):
                    os.close(descriptor)
                os._exit(_run(words, variables, folder, str(pathlib.Path(address).with_name("python"))))
            for stream in streams:
                os.close(stream)
            caller.sendall(f"{process}\n".encode())
            callers[process] = caller


def _tell_ends(callers: dict[int, socket.socket]) -> None:
    while True:
        try:
            process, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if process == 0:
            return
        if process in callers:
            with callers.pop(process) as caller:
                caller.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())


class _FirstImportOfTorch(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self) -> None:
        self.torch: Any = sys.modules.pop("torch")
        self.spec = self.torch.__spec__

    def find_spec(self, fullname: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        return importlib.machinery.ModuleSpec(fullname, self) if fullname == "torch" else None

    def create_module(self, _: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return self.torch

    def exec_module(self, module: types.ModuleType) -> None:
        sys.meta_path.remove(self)
        if self.torch._is_device_backend_autoload_enabled():
            self.torch._import_device_backends()
        module.__spec__ = self.spec
        # What Dynamo reads when it is imported, after what loads of backends have set.
        self.torch._dynamo.config.debug_backend_override = os.environ.get("TORCH_COMPILE_OVERRIDE_BACKENDS", "")


def _run(words: Sequence[str], variables: Mapping[str, str], folder: str, executable: str) -> int:
    """The exit status. Modules are not taken down, which takes as long as importing them."""
    behind = sys.path[1 + len(_entries(os.environ)) :]
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    while words[0] in ("-u", "-W"):
        if words[0] == "-u":
            sys.stdout.reconfigure(write_through=True)  # type: ignore[union-attr]
            words = words[1:]
        else:
            warnings.simplefilter(words[1])  # type: ignore[arg-type]
            words = words[2:]
    is_file = words[0] not in ("-m", "-c")
    first = str(pathlib.Path(words[0]).resolve().parent) if is_file else "" if words[0] == "-c" else folder
    sys.executable = executable
    sys.path[:] = [first, *_entries(os.environ), *behind]
    sys.argv[:] = words if is_file else words[1:] if words[0] == "-m" else ["-c", *words[2:]]
    sys.meta_path.insert(0, _FirstImportOfTorch())
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    status = 0
    try:
        if is_file:
            runpy.run_path(words[0], run_name="__main__")
        elif words[0] == "-m":
            runpy.run_module(words[1], run_name="__main__", alter_sys=True)
        else:
            exec(words[1], vars(main))
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 0 if error.code is None else 1
        if isinstance(error.code, str):
            sys.stderr.write(f"{error.code}\n")
    except BaseException as error:  # noqa: BLE001 - shown as Python shows it, without the frames of this module
        status, trace = 1, error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in (FILE, "<frozen runpy>"):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    threading._shutdown()  # type: ignore[attr-defined] - waits for threads and runs what they registered
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status


def _entries(variables: Mapping[str, str]) -> list[str]:
    return [entry for entry in variables.get("PYTHONPATH", "").split(os.pathsep) if entry]


if __name__ == "__main__":
    serve(sys.argv[1])
