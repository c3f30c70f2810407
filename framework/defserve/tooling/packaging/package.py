"""Everything that a project publishes, built and checked together."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from defserve.errors import UsageError
from defserve.tooling.packaging.building import build
from defserve.tooling.packaging.bundle import write_bundle
from defserve.tooling.packaging.documents import disagreements, manifest_json, schema_problems, server_json
from defserve.tooling.packaging.privacy import is_allowed, refuse_private
from defserve.tooling.packaging.project import ProjectFolder
from defserve.tooling.packaging.tools_json import tools_json
from defserve.tooling.packaging.wheel import Wheel, read_wheel


class Package(NamedTuple):
    """What was built, and its problems: it can be published if there are none."""

    wheel: Wheel
    files: tuple[Path, ...]
    problems: tuple[str, ...]


def make_package(
    project: ProjectFolder, out: Path, allowed: Sequence[str] = (), begins: Callable[[str], object] = str
) -> Package:
    """Build everything into the folder `out`. `begins` is called with what is done next.

    Raises UsageError if that fails, or if a private file or a secret is in what was built; then nothing of it is left.
    `allowed` are files that are shipped all the same. What can be built but should not be published is in `problems`.
    """
    allowed = (*project.allowed, *allowed)
    begins("Building the wheel and the sdist")
    wheel_path, sdist = build(project, out)
    wheel = read_wheel(wheel_path)
    server, manifest = server_json(project, wheel), manifest_json(project, wheel)
    problems = [
        *schema_problems(server, "server"),
        *schema_problems(manifest, "manifest"),
        *disagreements(server, manifest, wheel),
    ]
    begins("Making the MCPB bundle")
    bundle = out / f"{wheel.name}-{wheel.version}.mcpb"
    write_bundle(bundle, project.folder, manifest, lambda name: is_allowed(name, allowed))
    files = [wheel_path, sdist, bundle, _written(out / "server.json", server)]
    if project.target is None:
        problems.append('pyproject.toml: no server is registered; add [project.entry-points."defserve.servers"]')
    else:
        begins("Listing the tools of the wheel")
        try:
            files.append(_written(out / "tools.json", tools_json(wheel_path, project.target)))
        except UsageError as error:
            problems.append(str(error))
    begins("Looking for private files and secrets")
    refuse_private(project.folder, files, allowed)
    return Package(wheel, tuple(files), tuple(problems))


def _written(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
