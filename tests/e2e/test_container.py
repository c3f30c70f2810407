"""The Dockerfile of a project, carried out without Docker: what it copies is installed, started and asked for its
health."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import anyio
import pytest

from defserve.tooling.project_template import create_project
from tests.tooling.scaffold.dockerfiles import instructions, the
from tests.tooling.scaffold.packages import Environment, run

pytestmark = [pytest.mark.e2e, pytest.mark.anyio, pytest.mark.slow]
# Programs of the system listen on such ports, if any: here there are none.
NOBODY = "1"


async def test_what_it_copies_is_installed_and_healthy_when_it_serves(tmp_path: Path, user: Environment):
    project = create_project({"project_name": "Boxed"}, tmp_path).folder
    image = tmp_path / "app"
    copy(project, image)
    install, made_user = the("RUN", project).text.split(" && ")
    assert install.startswith("pip install ") and made_user.startswith("useradd ")
    run(*user.pip, *install.replace('"', "").split()[1:], "-q", cwd=image, env=user.environ)

    (script,) = the("ENTRYPOINT", project).words
    on = ["--on", "http://0.0.0.0:0/mcp", "--allow-host", "tools.example.com"]
    async with await anyio.open_process([user.bin / script, *on], stdin=subprocess.DEVNULL) as serving:
        assert serving.stderr is not None
        line = (await serving.stderr.receive()).decode()
        assert line.startswith("serving on ")
        (port,) = re.findall(r":(\d+)/mcp", line)
        assert healthy(project, user, serving.pid, port)
        assert not healthy(project, user, serving.pid, NOBODY)
        serving.terminate()
    async with await anyio.open_process([user.bin / script], stdin=subprocess.PIPE) as speaking:
        assert healthy(project, user, speaking.pid, NOBODY)
        speaking.terminate()


def copy(project: Path, image: Path) -> None:
    image.mkdir()
    for *sources, to in (each.words for each in instructions(project) if each.name == "COPY"):
        for source in sources:
            found, target = project / source, (image / to).resolve()
            shutil.copytree(found, target) if found.is_dir() else shutil.copy(found, target)


def healthy(project: Path, environment: Environment, process: int, port: str) -> bool:
    """What the health check says of a process that is not the first one, on a port of its own."""
    command = the("HEALTHCHECK", project).text.removeprefix("CMD ")
    command = command.replace("/proc/1/", f"/proc/{process}/").replace("8000", port)
    return subprocess.run(["sh", "-c", command], env=environment.environ, capture_output=True).returncode == 0
