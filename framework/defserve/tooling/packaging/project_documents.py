"""A project, its wheel, and the documents about it: `server.json` and `manifest.json`, with the problems in them.

The wheel decides name, version, README and scripts, because the wheel is what gets published.
"""

from __future__ import annotations

import json
import re
import tomllib
import zipfile
from collections.abc import Iterator, Mapping
from configparser import ConfigParser
from email.parser import BytesParser
from email.policy import compat32
from pathlib import Path
from typing import Any, Final, NamedTuple

from defserve.client.targets import ENTRY_POINT_GROUP
from defserve.core.json_values import as_list, is_array, is_object
from defserve.errors import UsageError
from defserve.protocols.mcp.server_card import (
    PackageMetadata,
    ServerProfile,
    find_registry_name_in_readme,
    make_server_profile,
)

SCHEMA: Final = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
MAX_META_BYTES: Final = 4096
NO_INFO: Final[Mapping[str, Any]] = {}

Document = dict[str, Any]


def make_server_json(project: ProjectFolder, wheel: Wheel, info: Mapping[str, Any] = NO_INFO) -> Document:
    """The document for the MCP registry. `info` is what the server in the wheel says about itself (`serverInfo`)."""
    if (own := project.document("server.json")) is not None:
        return own
    package = {"registryType": "pypi", "identifier": wheel.name, "version": wheel.version, "runtimeHint": "uvx"}
    members = describe_package(project, wheel, info).shared_members
    return {"$schema": SCHEMA, **members, "packages": [{**package, "transport": {"type": "stdio"}}]}


def make_manifest_json(project: ProjectFolder, wheel: Wheel, info: Mapping[str, Any] = NO_INFO) -> Document:
    """The document for a client that opens the bundle. `info` is as for `make_server_json`."""
    if (own := project.document("manifest.json")) is not None:
        return own
    profile = describe_package(project, wheel, info)
    authors: list[dict[str, str]] = project.about.get("authors") or []
    script = next(iter(wheel.scripts), wheel.name)
    optional = {
        "display_name": profile.title,
        "long_description": profile.details,
        "homepage": profile.website_url,
        "repository": {"type": "git", "url": profile.repository_url} if profile.repository_url else {},
        "icon": next((icon["src"] for icon in profile.icons), ""),
    }
    return {
        "manifest_version": "0.4",
        "name": wheel.name,
        "version": profile.version,
        "description": profile.description,
        **{member: value for member, value in optional.items() if value},
        "author": {"name": (authors[0].get("name") if authors else None) or "unknown"},
        "server": {
            "type": "uv",
            "entry_point": "pyproject.toml",
            "mcp_config": {"command": "uv", "args": ["run", "--directory", "${__dirname}", script]},
        },
        "tools_generated": True,
        "compatibility": {
            "platforms": ["darwin", "linux", "win32"],
            "runtimes": {"python": str(project.about.get("requires-python") or ">=3.11")},
        },
    }


def describe_package(project: ProjectFolder, wheel: Wheel, info: Mapping[str, Any] = NO_INFO) -> ServerProfile:
    """The profile from which the documents are made. The wheel decides the version."""
    package = PackageMetadata(wheel.summary, wheel.readme, project.about.get("urls"))
    return make_server_profile({"name": wheel.name, **info, "version": wheel.version}, package)


class PackageProblem(NamedTuple):
    """Why a package should not be published, and what to change."""

    problem: str
    fix: str

    def __str__(self) -> str:
        return f"{self.problem}\n  fix: {self.fix}"


def iter_document_schema_problems(document: Document, schema: str) -> Iterator[PackageProblem]:
    """Where a document breaks its schema (`server` or `manifest`)."""
    from jsonschema import Draft202012Validator

    rules: Mapping[str, Any] = json.loads(Path(__file__).with_name(f"{schema}.schema.json").read_text(encoding="utf-8"))
    validator: Any = Draft202012Validator(rules)
    fix = f"change it in {schema}.json; without that file in the project, one is made for you"
    # An empty name means that the README has no marker; `iter_document_disagreements` reports that.
    found = (error for error in validator.iter_errors(document) if (error.json_path, error.instance) != ("$.name", ""))
    for error in sorted(found, key=lambda error: error.json_path):
        yield PackageProblem(f"{schema}.json: {error.json_path.removeprefix('$.')}: {error.message}", fix)
    meta: Any = document.get("_meta") if schema == "server" else None
    if meta and len(json.dumps(meta)) > MAX_META_BYTES:
        yield PackageProblem(f"{schema}.json: _meta: larger than {MAX_META_BYTES} bytes", "shorten it")


def iter_document_disagreements(server: Document, manifest: Document, wheel: Wheel) -> Iterator[PackageProblem]:
    """Where the documents, the README and the wheel disagree."""
    marker, name = find_registry_name_in_readme(wheel.readme), server.get("name")
    fix = f"put this line into the README: <!-- mcp-name: {name or 'io.github.USER/NAME'} -->"
    if marker is None:
        yield PackageProblem("README: no marker: the registry does not know whose package it is", fix)
    elif marker != name:
        problem = f"README: the marker says mcp-name: {marker}, but server.json says {name!r}"
        yield PackageProblem(problem, f"write the same name into both; {fix}")
    for place, document in (("server.json", server), ("manifest.json", manifest)):
        if document.get("version") != wheel.version:
            yield _make_version_problem(f"{place}: version", document.get("version"), wheel)
    for package in filter(is_object, as_list(server.get("packages") or [])):
        if package.get("registryType") != "pypi":
            continue
        if normalize_distribution_name(str(package.get("identifier"))) != normalize_distribution_name(wheel.name):
            problem = f"identifier is {package.get('identifier')!r}, but the wheel is {wheel.name!r}"
            yield PackageProblem(f"server.json: packages: {problem}", f'write there "identifier": "{wheel.name}"')
        if package.get("version") != wheel.version:
            yield _make_version_problem("server.json: packages: version", package.get("version"), wheel)
    if wheel.name not in wheel.scripts and normalize_distribution_name(wheel.name) not in wheel.scripts:
        problem = f"`uvx {wheel.name}` fails: no script in [project.scripts] is called {wheel.name!r}"
        script = next(iter(wheel.scripts.values()), "notes_mcp.server:server.main")
        yield PackageProblem(f"pyproject.toml: {problem}", f'add there: {wheel.name} = "{script}"')


def iter_version_disagreements(version: str, wheel: Wheel) -> Iterator[PackageProblem]:
    """Whether the server tells clients another version than that of its wheel."""
    if version != wheel.version:
        problem = f"the server says that its version is {version!r}, but the wheel has {wheel.version!r}"
        fix = 'leave the version out of Server("…"): it is that of the wheel then; or write the same into both'
        yield PackageProblem(problem, fix)


def _make_version_problem(place: str, version: object, wheel: Wheel) -> PackageProblem:
    problem = f"{place} is {version!r}, but the wheel has {wheel.version!r}"
    return PackageProblem(problem, f'write there "{wheel.version}", or change the version in pyproject.toml')


# -- A project folder, as its `pyproject.toml` describes it.


class ProjectFolder(NamedTuple):
    """A project. `about` is its table `[project]`."""

    folder: Path
    about: dict[str, Any]
    backend: str
    allowed: tuple[str, ...] = ()
    """`allow` in `[tool.defserve.package]`: files that are shipped though they look private."""

    @property
    def name(self) -> str:
        return str(self.about["name"])

    @property
    def target(self) -> str | None:
        """The server that the project registers: `module:object`."""
        servers: dict[str, str] = self.about.get("entry-points", {}).get(ENTRY_POINT_GROUP, {})
        return next(iter(servers.values()), None)

    def document(self, name: str) -> dict[str, Any] | None:
        """A JSON document of the project, or None. Raises UsageError if it is broken."""
        path = self.folder / name
        if not path.is_file():
            return None
        try:
            value: Any = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UsageError(f"{name} is not JSON: {error}", where=str(path)) from None
        if not is_object(value):
            raise UsageError(f"{name} is not an object", where=str(path), fix="write {…} there, or remove the file")
        return value


def read_project(folder: str | Path) -> ProjectFolder:
    """Raises UsageError if the folder has no project."""
    path = Path(folder).resolve() / "pyproject.toml"
    try:
        whole = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(
            f"there is no project in {path.parent}",
            fix="name a folder with a pyproject.toml; `defserve new` creates one",
        ) from None
    except ValueError as error:
        raise UsageError(f"pyproject.toml is broken: {error}", where=str(path)) from None
    about: Any = whole.get("project")
    if not is_object(about) or not isinstance(about.get("name"), str):
        raise UsageError(
            "pyproject.toml has no [project] with a name", where=str(path), fix='write [project] and name = "…" there'
        )
    building = whole.get("build-system", {})
    if not is_object(building):
        raise UsageError("build-system of pyproject.toml is not a table", where=str(path))
    backend = str(building.get("build-backend", "setuptools.build_meta"))
    return ProjectFolder(path.parent, about, backend, _read_allow_patterns(whole, path))


def _read_allow_patterns(whole: Mapping[str, Any], path: Path) -> tuple[str, ...]:
    found: Any = whole.get("tool", {})
    for name in ("defserve", "package", "allow"):
        found = found.get(name) if is_object(found) else None
    patterns = as_list(found or [])
    if not is_array(found or []) or not all(isinstance(pattern, str) for pattern in patterns):
        raise UsageError(
            "[tool.defserve.package] allow is not a list of paths",
            where=str(path),
            fix='write, for example, allow = ["tests/data/*.pem"]',
        )
    return tuple(map(str, patterns))


def normalize_distribution_name(name: str) -> str:
    """The name of a distribution as indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


# -- The metadata of a wheel. It decides name, version, README and scripts, because the wheel is what gets published.


NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,127}")


class Wheel(NamedTuple):
    """A wheel. `scripts` are the console scripts by name, `readme` is the long description."""

    path: Path
    name: str
    version: str
    summary: str
    readme: str
    scripts: dict[str, str]


def read_wheel(path: Path) -> Wheel:
    """Raises UsageError for a file that is not a wheel."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
            message = BytesParser(policy=compat32).parsebytes(archive.read(metadata))
            entries = next((name for name in names if name.endswith(".dist-info/entry_points.txt")), None)
            text = archive.read(entries).decode() if entries else ""
    except (zipfile.BadZipFile, StopIteration, OSError):
        raise UsageError(f"{path} is not a wheel") from None
    for field in ("Name", "Version"):
        # They become part of file names.
        if not NAME.fullmatch(str(message[field])):
            raise UsageError(
                f"{path.name} gives itself the {field.lower()} {str(message[field])[:60]!r}",
                fix="use letters, digits, dots, - and _, as package indexes do",
            )
    scripts = ConfigParser(delimiters=("=",), interpolation=None)
    scripts.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
    scripts.read_string(text)
    readme = message.get_payload(decode=True)
    return Wheel(
        path,
        str(message["Name"]),
        str(message["Version"]),
        str(message.get("Summary", "")),
        readme.decode("utf-8", "replace") if isinstance(readme, bytes) else "",
        dict(scripts["console_scripts"]) if scripts.has_section("console_scripts") else {},
    )
