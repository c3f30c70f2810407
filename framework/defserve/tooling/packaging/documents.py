"""`server.json` and `manifest.json`: the project's own, or made from the wheel; and the problems in them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from defserve.tooling.packaging.project import ProjectFolder, marker_in, normalized
from defserve.tooling.packaging.wheel import Wheel
from defserve.wire.jsonvalue import as_list, is_object

SCHEMA: Final = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"
MOST_META: Final = 4096
HERE: Final = Path(__file__).parent

Document = dict[str, Any]


def server_json(project: ProjectFolder, wheel: Wheel) -> Document:
    """The document for the MCP registry."""
    if (own := project.document("server.json")) is not None:
        return own
    made: Document = {
        "$schema": SCHEMA,
        "name": marker_in(wheel.readme) or "",
        "description": (wheel.summary or wheel.name)[:100],
        "version": wheel.version,
    }
    repository = _url(project, "repository", "source")
    if repository.startswith("https://github.com/"):
        made["repository"] = {"url": repository, "source": "github"}
    package = {"registryType": "pypi", "identifier": wheel.name, "version": wheel.version, "runtimeHint": "uvx"}
    return {**made, "packages": [{**package, "transport": {"type": "stdio"}}]}


def manifest_json(project: ProjectFolder, wheel: Wheel) -> Document:
    """The document for a client that opens the bundle."""
    if (own := project.document("manifest.json")) is not None:
        return own
    authors: list[dict[str, str]] = project.about.get("authors") or []
    script = next(iter(wheel.scripts), wheel.name)
    return {
        "manifest_version": "0.4",
        "name": wheel.name,
        "version": wheel.version,
        "description": wheel.summary or wheel.name,
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


def schema_problems(document: Document, schema: str) -> Iterator[str]:
    """Where a document breaks its schema (`server` or `manifest`), one line each."""
    from jsonschema import Draft202012Validator

    rules: Mapping[str, Any] = json.loads((HERE / f"{schema}.schema.json").read_text(encoding="utf-8"))
    validator: Any = Draft202012Validator(rules)
    # An empty name means that the README has no marker; `disagreements` reports that.
    found = (error for error in validator.iter_errors(document) if (error.json_path, error.instance) != ("$.name", ""))
    for error in sorted(found, key=lambda error: error.json_path):
        yield f"{schema}.json: {error.json_path.removeprefix('$.')}: {error.message}"
    meta: Any = document.get("_meta") if schema == "server" else None
    if meta and len(json.dumps(meta)) > MOST_META:
        yield f"{schema}.json: _meta: larger than {MOST_META} bytes"


def disagreements(server: Document, manifest: Document, wheel: Wheel) -> Iterator[str]:
    """Where the documents, the README and the wheel disagree, one line each."""
    marker = marker_in(wheel.readme)
    if marker is None:
        yield f"README: no marker; add: <!-- mcp-name: {server.get('name') or 'io.github.USER/NAME'} -->"
    elif marker != server.get("name"):
        yield f"README: the marker says mcp-name: {marker}, but server.json says {server.get('name')!r}"
    for name, document in (("server.json", server), ("manifest.json", manifest)):
        if document.get("version") != wheel.version:
            yield f"{name}: version is {document.get('version')!r}, but the wheel has {wheel.version!r}"
    for package in filter(is_object, as_list(server.get("packages") or [])):
        if package.get("registryType") != "pypi":
            continue
        if normalized(str(package.get("identifier"))) != normalized(wheel.name):
            yield f"server.json: packages: identifier is {package.get('identifier')!r}, but the wheel is {wheel.name!r}"
        if package.get("version") != wheel.version:
            yield f"server.json: packages: version is {package.get('version')!r}, but the wheel has {wheel.version!r}"
    if wheel.name not in wheel.scripts and normalized(wheel.name) not in wheel.scripts:
        yield f"pyproject.toml: `uvx {wheel.name}` fails: no script in [project.scripts] is called {wheel.name!r}"


def _url(project: ProjectFolder, *names: str) -> str:
    urls: dict[str, str] = project.about.get("urls") or {}
    return next((url for label, url in urls.items() if label.lower() in names), "")
