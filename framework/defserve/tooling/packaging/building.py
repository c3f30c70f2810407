"""Wheel and sdist, built with the first builder that is installed: `build`, hatchling or uv."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from defserve.errors import UsageError
from defserve.tooling.installing import install_command
from defserve.tooling.packaging.project import ProjectFolder, normalized

LAST_LINES: Final = 20
ENDINGS: Final = (".whl", ".tar.gz")


def build(project: ProjectFolder, out: Path) -> tuple[Path, Path]:
    """Build into the folder `out` and return the wheel and the sdist. Older builds of this project are deleted."""
    command = build_command(project, out)
    out.mkdir(parents=True, exist_ok=True)
    for old in find_built(project, out):
        old.unlink()
    done = subprocess.run(command, cwd=project.folder, capture_output=True, text=True, errors="replace")
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).strip().splitlines()[-LAST_LINES:])
        raise UsageError(f"building failed: {' '.join(command)}\n{tail}")
    built = list(find_built(project, out))
    wheels, sdists = ([path for path in built if path.name.endswith(end)] for end in ENDINGS)
    if len(wheels) != 1 or len(sdists) != 1:
        raise UsageError(f"{' '.join(command)} made {len(wheels)} wheels and {len(sdists)} sdists in {out}")
    return wheels[0], sdists[0]


def build_command(project: ProjectFolder, out: Path) -> list[str]:
    """The command of the first builder that is installed. Raises UsageError if there is none."""
    backend = project.backend.partition(".")[0]
    if _has("build"):
        # If the backend is installed, it is used, and nothing is downloaded.
        isolation = ["--no-isolation"] if _has(backend) else []
        return [sys.executable, "-m", "build", "--outdir", str(out), *isolation, str(project.folder)]
    if backend == "hatchling" and _has("hatchling"):
        return [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    if uv := shutil.which("uv"):
        return [uv, "build", "--out-dir", str(out), str(project.folder)]
    raise UsageError("no program to build a wheel is installed", fix=install_command("defserve[dev]"))


def find_built(project: ProjectFolder, out: Path) -> Iterator[Path]:
    """The wheels and sdists of this project; the folder may hold others."""
    for path in sorted(out.iterdir()):
        if parse_distribution_name(path.name) == normalized(project.name) and path.is_file():
            yield path


def parse_distribution_name(file: str) -> str | None:
    """The name of the project that a wheel or sdist belongs to, as indexes compare it. None: it is neither.

    A name begins like many others: `notes-server-1.0.tar.gz` is no build of `notes`. So the file name is taken apart
    from its end, as the formats say, and is not compared by its beginning.
    """
    if file.endswith(".whl"):
        parts = file.removesuffix(".whl").split("-")
        is_wheel = len(parts) == 5 or (len(parts) == 6 and parts[2][:1].isdigit())
        name, version = parts[:2] if is_wheel else ("", "")
    elif file.endswith(".tar.gz"):
        name, _, version = file.removesuffix(".tar.gz").rpartition("-")
    else:
        return None
    return normalized(name) if name and version[:1].isdigit() else None


def _has(module: str) -> bool:
    # A folder called `build` in the current folder is a namespace package, not a builder.
    spec = find_spec(module)
    return spec is not None and spec.origin is not None
