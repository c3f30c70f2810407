"""The workflows and hooks of this repository: what would fail on GitHub and can be known without it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from tests.rows import for_each_row

ROOT = Path(__file__).parents[2]
WORKFLOWS = {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in (ROOT / ".github/workflows").glob("*.yml")}
JOBS: dict[str, dict[str, Any]] = {
    f"{name}.{job}": told for name, workflow in WORKFLOWS.items() for job, told in workflow["jobs"].items()
}
TARGETS = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


def steps(job: str, key: str) -> list[str]:
    return [step[key] for step in JOBS[job]["steps"] if key in step]


def test_there_is_one_for_changes_one_for_releases_and_one_for_the_docs() -> None:
    assert sorted(WORKFLOWS) == ["ci", "docs", "release"]


@for_each_row("job", JOBS)
def test_each_step_runs_a_command_or_uses_a_pinned_action(job: str) -> None:
    assert JOBS[job]["runs-on"]
    assert all(("run" in step) != ("uses" in step) for step in JOBS[job]["steps"])
    for action in steps(job, "uses"):
        assert re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", action)


@for_each_row("job", JOBS)
def test_nothing_from_outside_is_pasted_into_a_command(job: str) -> None:
    assert not any("${{" in command for command in steps(job, "run"))


@for_each_row("job", JOBS)
def test_what_a_job_runs_is_there(job: str) -> None:
    text = "\n".join(steps(job, "run"))
    named = {target for line in re.findall(r"^make (.*)$", text, re.MULTILINE) for target in line.split()}
    assert named <= TARGETS
    for path in re.findall(r"\btests/[\w/.-]+\.py\b", text):
        assert (ROOT / path).exists(), path
    for module in re.findall(r"-m (tests\.[\w.]+)", text):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists(), module


def test_rights_are_given_to_jobs_that_need_them_only() -> None:
    assert all(workflow["permissions"] == {"contents": "read"} for workflow in WORKFLOWS.values())
    given = {name: job["permissions"] for name, job in JOBS.items() if "permissions" in job}
    assert given == {"release.pypi": {"id-token": "write"}, "release.github": {"contents": "write"}}
    assert JOBS["release.pypi"]["environment"] == "pypi"


def test_a_release_is_what_the_tests_saw() -> None:
    jobs = WORKFLOWS["release"]["jobs"]
    assert [job.get("needs") for job in jobs.values()] == [None, "build", "pypi"]
    (publish,) = [step for step in jobs["pypi"]["steps"] if "pypi-publish" in step["uses"]]
    assert publish["with"] == {"attestations": True}


def test_every_python_and_system_that_we_name_is_tried() -> None:
    matrix = JOBS["ci.test"]["strategy"]["matrix"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = re.findall(r":: (3\.\d+)$", "\n".join(project["classifiers"]), re.MULTILINE)
    assert matrix == {"os": ["ubuntu-latest", "macos-latest", "windows-latest"], "python": named}


def test_the_hooks_use_the_tools_of_the_project() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))
    assert [repo["repo"] for repo in config["repos"]] == ["local"]
    hooks = {hook["id"]: hook for hook in config["repos"][0]["hooks"]}
    assert list(hooks) == ["ruff", "ruff-format", "pyright", "layers", "changelog"]
    assert all(hook["language"] == "system" and hook["entry"].startswith(".venv/bin/") for hook in hooks.values())
