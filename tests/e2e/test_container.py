"""The Dockerfile of a project, carried out without Docker: what it copies is installed, started and asked for its
health."""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path

import anyio
import pytest

from defserve.tooling.scaffold.creating import create
from tests.tooling.scaffold.dockerfiles import instructions, the
from tests.tooling.scaffold.packages import Environment, run

pytestmark = [pytest.mark.e2e, pytest.mark.anyio]


async def test_what_it_copies_is_installed_and_healthy_when_it_serves(tmp_path: Path, user: Environment):
    project = create({"project_name": "Boxed"}, tmp_path).folder
    image = tmp_path / "app"
    copy(project, image)
    install, made_user = the("RUN", project).text.split(" && ")
    assert install.startswith("pip install ") and made_user.startswith("useradd ")
    run(*user.pip, *install.replace('"', "").split()[1:], "-q", cwd=image, env=user.environ)

    (script,) = the("ENTRYPOINT", project).words
    port = free_port()
    on = ["--on", f"http://0.0.0.0:{port}/mcp", "--allow-host", "tools.example.com"]
    async with await anyio.open_process([user.bin / script, *on], stdin=subprocess.DEVNULL) as serving:
        assert serving.stderr is not None
        assert (await serving.stderr.receive()).startswith(b"serving on ")
        assert healthy(project, user, serving.pid, port)
        assert not healthy(project, user, serving.pid, free_port())
        serving.terminate()
    async with await anyio.open_process([user.bin / script], stdin=subprocess.PIPE) as speaking:
        assert healthy(project, user, speaking.pid, free_port())
        speaking.terminate()


def copy(project: Path, image: Path) -> None:
    image.mkdir()
    for *sources, to in (each.words for each in instructions(project) if each.name == "COPY"):
        for source in sources:
            found, target = project / source, (image / to).resolve()
            shutil.copytree(found, target) if found.is_dir() else shutil.copy(found, target)


def healthy(project: Path, environment: Environment, process: int, port: int) -> bool:
    """What the health check says of a process that is not the first one, on a port of its own."""
    command = the("HEALTHCHECK", project).text.removeprefix("CMD ")
    command = command.replace("/proc/1/", f"/proc/{process}/").replace("8000", str(port))
    return subprocess.run(["sh", "-c", command], env=environment.environ, capture_output=True).returncode == 0


def free_port() -> int:
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return it.getsockname()[1]
