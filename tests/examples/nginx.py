"""A real nginx of this user, with the configuration of an example, at a port that was bound before it started."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

needs_nginx = pytest.mark.skipif(shutil.which("nginx") is None, reason="there is no nginx (apt-get install nginx)")


@contextmanager
def nginx(folder: Path, config: Path, changes: Mapping[str, str]) -> Generator[str]:
    """Where it listens, instead of at port 80. `changes` replace texts of the file, each of which has to be there.

    nginx takes over sockets that the variable names.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        written = config.read_text()
        here = {"listen 80;": f"listen 127.0.0.1:{port};", "http {": f"http {{ access_log off; {_folders(folder)}"}
        for before, after in {**here, **changes}.items():
            assert before in written, f"{before!r} is not in {config}"
            written = written.replace(before, after)
        (folder / "nginx.conf").write_text(f"daemon off; pid {folder}/nginx.pid; {_user()}\n{written}")
        command = ["nginx", "-e", str(folder / "nginx.log"), "-p", str(folder), "-c", str(folder / "nginx.conf")]
        inherited = {**os.environ, "NGINX": f"{listener.fileno()};"}
        with subprocess.Popen(command, env=inherited, pass_fds=[listener.fileno()]) as process:
            try:
                yield f"http://127.0.0.1:{port}"
            finally:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(10)
                process.kill()


def _folders(folder: Path) -> str:
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    return " ".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)


def _user() -> str:
    return "user root;" if os.geteuid() == 0 else ""
