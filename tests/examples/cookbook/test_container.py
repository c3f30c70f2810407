from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from defserve.testing import SyncClient
from tests.examples.cookbook.dockerfile import carried_out
from tests.examples.cookbook.pages import PROGRAMS
from tests.examples.cookbook.served import started


@pytest.mark.slow
def test_the_steps_of_the_dockerfile_make_a_server_that_is_well_and_stops_when_told(tmp_path: Path):
    image = carried_out(PROGRAMS / "container" / "Dockerfile", tmp_path)
    assert image.user != "root"
    assert image.ports == [8000]
    with started((*image.entrypoint, *image.command), image.folder, image.variables, tmp_path / "log") as (
        process,
        port,
    ):
        with SyncClient(f"http://localhost:{port}/mcp", "stateless") as client:
            assert client.call("greet", name="Ada") == "Good day, Ada!"
        check = [word.replace("8000", str(port)) for word in image.healthcheck]
        assert subprocess.run(check, cwd=image.folder, env=image.variables).returncode == 0
        process.terminate()
        assert process.wait(30) == 0
