"""What is made of each template passes its own tests and checks at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from defserve.tooling.project_template import create_project, load_template_questions
from tests.effort import thinned
from tests.tooling.scaffold.packages import ROOT, run

BODIES = list(load_template_questions().choices("body"))


@pytest.fixture(scope="session")
def projects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of each template, all in one folder."""
    folder = tmp_path_factory.mktemp("projects")
    for body in BODIES:
        create_project({"project_name": name_of(body), "body": body}, folder)
    return folder


def name_of(body: str) -> str:
    # One word: mypy sees all projects at once, and takes their folders for packages.
    return body.replace("-", "") + "server"


def checking(projects: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT / "framework"), "MYPY_CACHE_DIR": str(projects / ".mypy_cache")}


def test_ruff_is_content_with_all(projects: Path):
    # Each has settings of its own, which ruff finds.
    run(sys.executable, "-m", "ruff", "check", "--no-cache", ".", cwd=projects)
    run(sys.executable, "-m", "ruff", "format", "--no-cache", "--check", ".", cwd=projects)


@pytest.mark.slow
@pytest.mark.parametrize("body", thinned(BODIES, 4))
def test_its_tests_pass(projects: Path, body: str):
    project = projects / name_of(body)
    told = run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", cwd=project, env=checking(projects))
    assert " passed" in told and "skipped" not in told


# Several runs of mypy: on a busy machine they take more than the usual minute.
@pytest.mark.timeout(300)
@pytest.mark.e2e
@pytest.mark.slow
def test_mypy_is_content_with_all(projects: Path):
    run(
        sys.executable, "-m", "mypy", "--strict", "--explicit-package-bases", "--namespace-packages", ".",
        cwd=projects, env=checking(projects),
    )  # fmt: skip


@pytest.mark.e2e
def test_pyright_is_content_with_all(projects: Path):
    settings = projects / "pyrightconfig.json"
    settings.write_text('{"include": ["*"], "typeCheckingMode": "strict"}', encoding="utf-8")
    run(sys.executable, "-m", "pyright", "--pythonpath", sys.executable, cwd=projects)
