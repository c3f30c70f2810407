"""The workflows of a project: what GitHub makes of them, as far as that can be known without it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from defserve.tooling.project_template import create_project
from tests.tooling.scaffold.workflows import commands, workflows


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return create_project({}, tmp_path_factory.mktemp("project")).folder


def jobs(project: Path) -> list[dict[str, Any]]:
    return [job for workflow in workflows(project).values() for job in workflow["jobs"].values()]


def test_every_workflow_has_jobs_with_steps_that_do_one_thing(project: Path):
    assert list(workflows(project)) == ["ci", "release"]
    for job in jobs(project):
        assert job["runs-on"] and job["steps"]
        assert all(("run" in step) != ("uses" in step) for step in job["steps"])


def test_actions_are_pinned_to_a_commit(project: Path):
    used = [step["uses"] for job in jobs(project) for step in job["steps"] if "uses" in step]
    assert used and all(re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", action) for action in used)


def test_nothing_from_outside_is_pasted_into_a_command(project: Path):
    for job in jobs(project):
        assert not any("${{" in step.get("run", "") for step in job["steps"])


def test_rights_are_given_to_jobs_that_need_them_only(project: Path):
    assert all(workflow["permissions"] == {"contents": "read"} for workflow in workflows(project).values())
    release = workflows(project)["release"]["jobs"]
    assert {name for name, job in release.items() if job.get("permissions", {}).get("id-token")} == {"pypi", "registry"}


def test_jobs_wait_for_jobs_that_exist_and_take_what_those_left(project: Path):
    release = workflows(project)["release"]["jobs"]
    assert [job.get("needs") for job in release.values()] == [None, "build", "pypi"]
    left, taken = (
        next(step["with"] for step in release[job]["steps"] if action in step.get("uses", ""))
        for job, action in (("build", "upload-artifact"), ("pypi", "download-artifact"))
    )
    assert left == taken == {"name": "dist", "path": "dist/"}


def test_every_python_that_defserve_supports_is_tried(project: Path):
    tried = workflows(project)["ci"]["jobs"]["check"]["strategy"]["matrix"]["python"]
    assert tried == ["3.11", "3.12", "3.13", "3.14"]


def test_the_readme_says_to_run_what_is_run_there(project: Path):
    readme = (project / "README.md").read_text("utf-8")
    for command in commands(project, "ci", "check"):
        assert command.removesuffix(" --out release") in readme
