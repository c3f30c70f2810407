"""The workflows of a project, read as GitHub reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(".github/workflows")


def workflows(project: Path) -> dict[str, dict[str, Any]]:
    """Each workflow of a project, by the name of its file."""
    return {path.stem: yaml.safe_load(path.read_text("utf-8")) for path in sorted((project / FOLDER).glob("*.yml"))}


def commands(project: Path, workflow: str, job: str) -> list[str]:
    """What the steps of a job run, in their order."""
    return [step["run"] for step in workflows(project)[workflow]["jobs"][job]["steps"] if "run" in step]
