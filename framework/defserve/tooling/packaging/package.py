"""Everything that a project publishes, built and checked together, and the commands that upload it.

Building runs other programs. The commands that upload are only named here.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from typing import Any, Final, NamedTuple

from defserve.client.targets import ENTRY_POINT_GROUP
from defserve.errors import UsageError
from defserve.tooling.client_settings import format_install_command
from defserve.tooling.packaging.privacy import classify_private_path, is_shipping_allowed, reject_private_files
from defserve.tooling.packaging.project_documents import (
    PackageProblem,
    ProjectFolder,
    Wheel,
    iter_document_disagreements,
    iter_document_schema_problems,
    iter_version_disagreements,
    make_manifest_json,
    make_server_json,
    normalize_distribution_name,
    read_wheel,
)


class BuiltPackage(NamedTuple):
    """What was built, and its problems: it can be published if there are none."""

    wheel: Wheel
    files: tuple[Path, ...]
    problems: tuple[PackageProblem, ...]


def build_artefacts(
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
    begins("Trying the server and the commands of the wheel")
    problems, info, tools = list[PackageProblem](), dict[str, Any](), list[Path]()
    with unpack_wheel(wheel_path) as installed:
        problems += check_scripts(wheel, installed)
        if project.target is None:
            problems.append(NO_SERVER)
        else:
            try:
                listing = list_server(installed, project.target)
            except UsageError as error:
                problems.append(PackageProblem(error.problem, error.fix))
            else:
                info = listing["server"]
                tools = [_write_json(out / "tools.json", [make_registry_entry(tool) for tool in listing["tools"]])]
                problems += iter_version_disagreements(info["version"], wheel)
    begins("Making server.json and the MCPB bundle")
    server, manifest = make_server_json(project, wheel, info), make_manifest_json(project, wheel, info)
    problems += iter_document_schema_problems(server, "server")
    problems += iter_document_schema_problems(manifest, "manifest")
    problems += iter_document_disagreements(server, manifest, wheel)
    bundle = out / f"{wheel.name}-{wheel.version}.mcpb"
    write_bundle(bundle, project.folder, manifest, lambda name: is_shipping_allowed(name, allowed))
    files = [wheel_path, sdist, bundle, _write_json(out / "server.json", server), *tools]
    begins("Looking for private files and secrets")
    reject_private_files(project.folder, files, allowed)
    return BuiltPackage(wheel, tuple(files), tuple(problems))


def _write_json(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


# -- Wheel and sdist, built with the first builder that is installed: `build`, hatchling or uv.


LAST_LINES: Final = 20
NO_ISOLATION: Final = "--no-isolation"
UNMET: Final = re.compile("(?:Unmet|Missing) dependencies")


def build(project: ProjectFolder, out: Path) -> tuple[Path, Path]:
    """Build into the folder `out` and return the wheel and the sdist. Older builds of this project are deleted."""
    command = build_command(project, out)
    out.mkdir(parents=True, exist_ok=True)
    code, log = _run_build(command, project, out)
    unmet = find_unmet_requirements(log) if code and NO_ISOLATION in command else []
    if unmet:
        # The backend is installed, and what it needs for this project is not: an environment of its own has it.
        command.remove(NO_ISOLATION)
        code, log = _run_build(command, project, out)
    if code:
        tail = "\n".join(log.strip().splitlines()[-LAST_LINES:])
        fix = f"correct what these lines name; {shlex.join(command)} shows all of them"
        if unmet:
            fix = format_install_command(*unmet)
        raise UsageError(f"building failed: {shlex.join(command)}\n{tail}", fix=fix)
    built = list(find_built(project, out))
    wheels, sdists = ([path for path in built if path.name.endswith(end)] for end in (".whl", ".tar.gz"))
    if len(wheels) != 1 or len(sdists) != 1:
        raise UsageError(
            f"{shlex.join(command)} made {len(wheels)} wheels and {len(sdists)} sdists in {out}",
            fix="set up [build-system] in pyproject.toml so that it makes one of each",
        )
    return wheels[0], sdists[0]


def _run_build(command: Sequence[str], project: ProjectFolder, out: Path) -> tuple[int, str]:
    """The exit code, and what was printed."""
    for old in list(find_built(project, out)):
        old.unlink()
    done = subprocess.run(command, cwd=project.folder, capture_output=True, text=True, errors="replace")
    return done.returncode, done.stdout + done.stderr


def find_unmet_requirements(log: str) -> list[str]:
    """What `build` says is not installed: the lines that are indented least, below its message."""
    lines = iter(log.splitlines())
    if not any(UNMET.search(line) for line in lines):
        return []
    named = [line.expandtabs(4) for line in takewhile(lambda line: line[:1].isspace(), lines)]
    indent = min((len(line) - len(line.lstrip()) for line in named), default=0)
    return [line.strip() for line in named if not line[indent].isspace()]


def build_command(project: ProjectFolder, out: Path) -> list[str]:
    """The command of the first builder that is installed. Raises UsageError if there is none."""
    backend = project.backend.partition(".")[0]
    if _has("build"):
        # If the backend is installed, it is used, and nothing is downloaded.
        isolation = [NO_ISOLATION] if _has(backend) else []
        return [sys.executable, "-m", "build", "--outdir", str(out), *isolation, str(project.folder)]
    if backend == "hatchling" and _has("hatchling"):
        return [sys.executable, "-m", "hatchling", "build", "-d", str(out)]
    if uv := shutil.which("uv"):
        return [uv, "build", "--out-dir", str(out), str(project.folder)]
    raise UsageError("no program to build a wheel is installed", fix=format_install_command("defserve[dev]"))


def find_built(project: ProjectFolder, out: Path) -> Iterator[Path]:
    """The wheels and sdists of this project; the folder may hold others."""
    for path in sorted(out.iterdir()):
        if parse_distribution_name(path.name) == normalize_distribution_name(project.name) and path.is_file():
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
    return normalize_distribution_name(name) if name and version[:1].isdigit() else None


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


# -- What the wheel does where it is installed: its server is listed, and its commands are loaded. Nothing is started.


TIMEOUT: Final = 60.0
LOAD_SCRIPT: Final = """
import sys
from importlib.metadata import EntryPoint
if not callable(EntryPoint("", sys.argv[1], "").load()):
    raise TypeError("it is not a function")
"""
NO_SERVER: Final = PackageProblem(
    "pyproject.toml: no server is registered",
    'add [project.entry-points."defserve.servers"] with a line such as notes = "notes_mcp.server:server"',
)


@contextmanager
def unpack_wheel(wheel: Path) -> Generator[Path]:
    """A folder with the files of the wheel and nothing else, so that a missing file is noticed here and not by a user.

    Its name is that of a folder with installed packages: there a server without a version has that of the wheel.
    """
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent, "site-packages")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        yield folder


def list_server(installed: Path, target: str) -> dict[str, Any]:
    """What `defserve list --json` says of the server at `target`. Raises UsageError if that fails."""
    fix = f'correct the server, or its line in [project.entry-points."{ENTRY_POINT_GROUP}"]'
    try:
        done = _run_python(installed, "-m", "defserve", "list", "--json", target)
    except subprocess.TimeoutExpired:
        raise UsageError(f"the server {target} in the wheel did not list its tools in {TIMEOUT:g} s", fix=fix) from None
    if done.returncode:
        raise UsageError(f"the server {target} in the wheel cannot list its tools:\n{done.stderr.strip()}", fix=fix)
    return json.loads(done.stdout)


def check_scripts(wheel: Wheel, installed: Path) -> Iterator[PackageProblem]:
    """The commands of the wheel that would fail at once: their module or function is not there."""
    for name, value in wheel.scripts.items():
        try:
            done = _run_python(installed, "-c", LOAD_SCRIPT, value)
        except subprocess.TimeoutExpired:
            cause = f"it was not loaded in {TIMEOUT:g} s"
        else:
            if not done.returncode:
                continue
            cause = (done.stderr.strip().splitlines() or ["it cannot be loaded"])[-1]
        yield PackageProblem(
            f"pyproject.toml: the command {name} of the wheel fails: {value}: {cause}",
            f'correct its line in [project.scripts], such as {name} = "notes_mcp.server:server.main", '
            "or put the missing file into the wheel",
        )


def _run_python(installed: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with the files of the wheel in front of everything that is installed. Raises TimeoutExpired."""
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=installed,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        errors="replace",
    )


def make_registry_entry(tool: Mapping[str, Any]) -> dict[str, Any]:
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
            "" if find_spec("twine") or shutil.which("uv") else format_install_command("twine"),
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
