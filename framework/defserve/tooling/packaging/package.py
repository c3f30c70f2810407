"""Everything that a project publishes, built and checked together, and the commands that upload it.

Building runs other programs. The commands that upload are only named here.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from defserve.errors import UsageError
from defserve.tooling.client_settings import install_command
from defserve.tooling.packaging.privacy import classify_private_path, is_shipping_allowed, refuse_private
from defserve.tooling.packaging.project_documents import (
    ProjectFolder,
    Wheel,
    disagreements,
    make_manifest_json,
    make_server_json,
    normalize_name,
    read_wheel,
    schema_problems,
)


class BuiltPackage(NamedTuple):
    """What was built, and its problems: it can be published if there are none."""

    wheel: Wheel
    files: tuple[Path, ...]
    problems: tuple[str, ...]


def make_package(
    project: ProjectFolder, out: Path, allowed: Sequence[str] = (), begins: Callable[[str], object] = str
) -> BuiltPackage:
    """Build everything into the folder `out`. `begins` is called with what is done next.

    Raises UsageError if that fails, or if a private file or a secret is in what was built; then nothing of it is left.
    `allowed` are files that are shipped all the same. What can be built but should not be published is in `problems`.
    """
    allowed = (*project.allowed, *allowed)
    begins("Building the wheel and the sdist")
    wheel_path, sdist = build(project, out)
    wheel = read_wheel(wheel_path)
    server, manifest = make_server_json(project, wheel), make_manifest_json(project, wheel)
    problems = [
        *schema_problems(server, "server"),
        *schema_problems(manifest, "manifest"),
        *disagreements(server, manifest, wheel),
    ]
    begins("Making the MCPB bundle")
    bundle = out / f"{wheel.name}-{wheel.version}.mcpb"
    write_bundle(bundle, project.folder, manifest, lambda name: is_shipping_allowed(name, allowed))
    files = [wheel_path, sdist, bundle, _write_json(out / "server.json", server)]
    if project.target is None:
        problems.append('pyproject.toml: no server is registered; add [project.entry-points."defserve.servers"]')
    else:
        begins("Listing the tools of the wheel")
        try:
            files.append(_write_json(out / "tools.json", tools_json(wheel_path, project.target)))
        except UsageError as error:
            problems.append(str(error))
    begins("Looking for private files and secrets")
    refuse_private(project.folder, files, allowed)
    return BuiltPackage(wheel, tuple(files), tuple(problems))


def _write_json(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


# -- Wheel and sdist, built with the first builder that is installed: `build`, hatchling or uv.


LAST_LINES: Final = 20


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
    wheels, sdists = ([path for path in built if path.name.endswith(end)] for end in (".whl", ".tar.gz"))
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
        if parse_distribution_name(path.name) == normalize_name(project.name) and path.is_file():
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
    return normalize_name(name) if name and version[:1].isdigit() else None


def _has(module: str) -> bool:
    # A folder called `build` in the current folder is a namespace package, not a builder.
    spec = find_spec(module)
    return spec is not None and spec.origin is not None


# -- An MCPB bundle: a zip of the project with its manifest. The same project gives the same bytes.


EPOCH: Final = (1980, 1, 1, 0, 0, 0)
MODE: Final = 0o100644

# Never part of a bundle, like everything that is private and what `.mcpbignore` names.
LEFT_OUT: Final = (
    ".*", "__pycache__", "*.pyc", "*.pyo", "*.egg-info", "venv", "env", "node_modules", "dist", "build", "*.mcpb",
    "manifest.json",
)  # fmt: skip


def write_bundle(
    path: Path, folder: Path, manifest: dict[str, Any], is_allowed: Callable[[str], bool] = lambda _: False
) -> list[str]:
    """Write the bundle and return the names of its files. A private file is in it only if it is allowed."""
    files = sorted(
        name for name in iter_bundle_files(folder) if classify_private_path(name) is None or is_allowed(name)
    )
    draft = path.with_name(f"{path.name}.new")
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED) as archive:
        _add(archive, "manifest.json", (json.dumps(manifest, indent=2, ensure_ascii=False) + "\n").encode())
        for name in files:
            _add(archive, name, (folder / name).read_bytes())
    os.replace(draft, path)
    return ["manifest.json", *files]


def iter_bundle_files(folder: Path) -> Iterator[str]:
    """The files of a project that belong in its bundle. Links are left out, because they may point anywhere."""
    ignored = [*LEFT_OUT, *_read_ignore_patterns(folder / ".mcpbignore")]
    for where, folders, files in os.walk(folder):
        below = Path(where).relative_to(folder)
        folders[:] = [
            name
            for name in folders
            if not _matches((below / name).as_posix(), ignored) and not (Path(where) / name).is_symlink()
        ]
        for name in files:
            if not _matches((below / name).as_posix(), ignored) and not (Path(where) / name).is_symlink():
                yield (below / name).as_posix()


def _read_ignore_patterns(path: Path) -> list[str]:
    if not path.is_file():
        return []
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return [line.strip("/") for line in lines if line and not line.startswith("#")]


def _matches(path: str, patterns: Sequence[str]) -> bool:
    """A pattern without a slash matches names, one with a slash matches paths from the folder of the project."""
    name = path.rpartition("/")[2]
    return any(fnmatchcase(path if "/" in pattern else name, pattern) for pattern in patterns)


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    info = zipfile.ZipInfo(name, EPOCH)
    info.external_attr = MODE << 16
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, content)


# -- `tools.json`: the tools of the server in a built wheel. The server is only listed, not started.


TIMEOUT: Final = 60.0


def tools_json(wheel: Path, target: str) -> list[dict[str, Any]]:
    """The tools that the server at `target` in the wheel lists. Raises UsageError if that fails."""
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        # The files of the wheel are used, so that a missing file is noticed here and not by a user.
        path = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "defserve", "list", "--json", target]
        environment = {**os.environ, "PYTHONPATH": path}
        try:
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT, errors="replace"
            )
        except subprocess.TimeoutExpired:
            raise UsageError(f"the server {target} in {wheel.name} did not list its tools in {TIMEOUT:g} s") from None
    if done.returncode:
        raise UsageError(f"the server {target} in {wheel.name} cannot list its tools:\n{done.stderr.strip()}")
    return [entry(tool) for tool in json.loads(done.stdout)["tools"]]


def entry(tool: Mapping[str, Any]) -> dict[str, Any]:
    """A tool as registries list it: its arguments one by one, and its schema as it is."""
    schema: dict[str, Any] = tool.get("inputSchema") or {}
    properties: dict[str, Any] = schema.get("properties") or {}
    return {
        "name": tool["name"],
        "description": tool.get("description") or "",
        "arguments": [
            {"name": name, "type": str(about.get("type", "any")), "desc": str(about.get("description", ""))}
            for name, about in properties.items()
        ],
        "inputSchema": schema,
    }


# -- The commands that publish a package. This module does not run them.


class Upload(NamedTuple):
    """A command, what it does, and the folder to run it in."""

    about: str
    command: tuple[str, ...]
    folder: Path
    fix: str
    """How to install the program; empty if it is installed."""


def plan_uploads(package: BuiltPackage, out: Path) -> list[Upload]:
    """The uploads, in order. The registry comes last: it looks in the package index for the marker in the README."""
    built = tuple(path.name for path in package.files if path.name.endswith((".whl", ".tar.gz")))
    return [
        Upload(
            "wheel and sdist to the package index",
            _index(built),
            out,
            "" if find_spec("twine") or shutil.which("uv") else install_command("twine"),
        ),
        Upload(
            "server.json to the MCP registry",
            (shutil.which("mcp-publisher") or "mcp-publisher", "publish"),
            out,
            "" if shutil.which("mcp-publisher") else "install mcp-publisher, and log in: mcp-publisher login github",
        ),
    ]


def check_upload_programs(planned: list[Upload]) -> None:
    """Raises UsageError if a program is missing: half a release is worse than none."""
    for upload in planned:
        if upload.fix:
            raise UsageError(f"{upload.command[0]} is not installed; nothing was uploaded", fix=upload.fix)


def _index(built: tuple[str, ...]) -> tuple[str, ...]:
    if find_spec("twine") is not None:
        return (sys.executable, "-m", "twine", "upload", *built)
    if uv := shutil.which("uv"):
        return (uv, "publish", *built)
    return ("twine", "upload", *built)
