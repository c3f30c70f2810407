"""`python -m tests.forking.forker SOCKET` imports the framework once, then forks a process for each script asked for.

It is `launcher.py` or `processes.py` that asks. Ends with its standard input.
"""

from __future__ import annotations

import gc
import marshal
import os
import runpy
import select
import signal
import socket
import sys
from importlib import import_module

# Between them they import whatever an ordinary server does.
IMPORTED = (
    "asyncio",
    "pydantic",
    "jsonschema",
    "uvicorn",
    "defserve.serve.stdio",
    "defserve.serve.network",
    "examples.everything",
    "examples.notes",
)


def receive(launcher: socket.socket) -> tuple[list[str], str, dict[str, str]]:
    """What to run, where and with which environment; its streams are then those of this process."""
    head, streams, _, _ = socket.recv_fds(launcher, 4, 3)
    job = b""
    while len(job) < int.from_bytes(head, "big"):
        job += launcher.recv(1 << 20)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    return marshal.loads(job)


def watch(pid: int, launcher: socket.socket) -> None:
    """Tell the launcher which process it is and how it ends; without its launcher it has no reason to run."""
    launcher.send(pid.to_bytes(4, "big"))
    for stream in (0, 1, 2):
        os.close(stream)
    ended = os.pidfd_open(pid)
    if ended not in select.select([ended, launcher], [], [])[0]:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    try:
        launcher.send(status.to_bytes(2, "big"))
    except OSError:
        pass
    os._exit(0)


def next_script(listening: socket.socket) -> list[str]:
    """Returns, in a process of its own, the command line of a script to run there; never returns in this one."""
    while select.select([sys.stdin, listening], [], [])[0] == [listening]:
        launcher, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            argv, folder, environment = receive(launcher)
            if pid := os.fork():
                watch(pid, launcher)
            launcher.close()
            os.setsid()
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environment)
            for name in [each for each in sys.modules if each.startswith("examples.")]:
                del sys.modules[name]  # one may have read the environment; what it imports stays
            return argv
        launcher.close()
    os._exit(0)


def main(address: str) -> None:
    for module in IMPORTED:
        import_module(module)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody here waits for a child
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen(100)
        gc.freeze()
        print("ready", flush=True)
        sys.argv = next_script(listening)
    more = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:1] = [os.path.dirname(sys.argv[0]), *more]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1])
