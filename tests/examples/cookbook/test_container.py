from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from defserve.testing import SyncClient
from tests.examples.cookbook.dockerfile import Image, carried_out
from tests.examples.cookbook.pages import PROGRAMS
from tests.waiting import wait_until


@contextmanager
def started(image: Image, log: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The container: its command as the Dockerfile has it, but on loopback and at a port that is free."""
    command = [word.replace("0.0.0.0:8000", "127.0.0.1:0") for word in (*image.entrypoint, *image.command)]
    with log.open("w") as said:
        process = subprocess.Popen(command, cwd=image.folder, env=image.variables, stderr=said)
    try:
        wait_until(lambda: "serving on" in log.read_text() or process.poll() is not None)
        port = re.search(r"127\.0\.0\.1:(\d+)", log.read_text())
        assert port is not None, log.read_text()
        yield process, int(port[1])
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_the_steps_of_the_dockerfile_make_a_server_that_is_well_and_stops_when_told(tmp_path: Path):
    image = carried_out(PROGRAMS / "container" / "Dockerfile", tmp_path)
    assert image.user != "root"
    assert image.ports == [8000]
    with started(image, tmp_path / "log") as (process, port):
        with SyncClient(f"http://localhost:{port}/mcp", "stateless") as client:
            assert client.call("greet", name="Ada") == "Good day, Ada!"
        check = [word.replace("8000", str(port)) for word in image.healthcheck]
        assert subprocess.run(check, cwd=image.folder, env=image.variables).returncode == 0
        process.terminate()
        assert process.wait(30) == 0
