"""A new project has a suite with a recording, and its CI replays it: pytest collects it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from defserve.tooling.project_template import create_project, load_template_questions
from tests.tooling.evals.template_recordings import RECORDING, ROOT

pytestmark = pytest.mark.usefixtures("forked")

BODIES = tuple(load_template_questions().choices("body"))


@pytest.mark.parametrize(
    "body", [pytest.param(body, marks=[pytest.mark.slow] * (body != "minimal")) for body in BODIES]
)
def test_a_new_project_replays_its_suite(body: str, tmp_path: Path) -> None:
    project = create_project({"project_name": "Any Name", "body": body}, tmp_path).folder
    paths = os.pathsep.join([str(project / "src"), str(ROOT / "framework")])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/tools.eval.yaml"],
        cwd=project,
        env={**os.environ, "PYTHONPATH": paths, "CI": "true"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (
        f"{done.stdout}\npython -m tests.tooling.evals.template_recordings writes the recordings"
    )


@pytest.mark.parametrize("body", BODIES)
def test_a_recording_that_no_model_made_says_so(body: str) -> None:
    head = json.loads((ROOT / "templates" / body / RECORDING).read_text(encoding="utf-8").splitlines()[0])
    assert (head["dialect"], head["model"]) == ("chat", "scripted")
    assert "no model was asked" in (ROOT / "templates" / body / "tools.eval.yaml").read_text(encoding="utf-8")
