"""server.json and manifest.json, made or the project's own, against their schemas, the README and the wheel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from defserve.protocols.mcp.server_card import find_registry_name_in_readme
from defserve.tooling.packaging.project_documents import (
    Wheel,
    iter_document_disagreements,
    iter_document_schema_problems,
    iter_version_disagreements,
    make_manifest_json,
    make_server_json,
    read_project,
)
from tests.rows import for_each_row
from tests.tooling.packaging.projects import README

NAME = "io.github.ann/weather-mcp"
WHEEL = Wheel(Path("w.whl"), "weather-mcp", "1.2.0", "The weather", README, {"weather-mcp": "weather_mcp:server.main"})


def server(**members: Any) -> dict[str, Any]:
    package = {"registryType": "pypi", "identifier": "weather-mcp", "version": "1.2.0", "transport": {"type": "stdio"}}
    return {
        "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
        "name": NAME,
        "description": "The weather",
        "version": "1.2.0",
        "packages": [package],
        **members,
    }


def manifest(**members: Any) -> dict[str, Any]:
    config = {"command": "uv", "args": ["run"]}
    return {
        "manifest_version": "0.4",
        "name": "weather-mcp",
        "version": "1.2.0",
        "description": "The weather",
        "author": {"name": "Ann"},
        "server": {"type": "uv", "entry_point": "x.py", "mcp_config": config},
        **members,
    }


def test_what_is_made_fits_and_agrees(project: Path) -> None:
    found = read_project(project)
    made = make_server_json(found, WHEEL), make_manifest_json(found, WHEEL)
    assert [
        *iter_document_schema_problems(made[0], "server"),
        *iter_document_schema_problems(made[1], "manifest"),
        *iter_document_disagreements(*made, WHEEL),
    ] == []
    assert made[0]["name"] == NAME
    assert made[0]["repository"] == {"url": "https://github.com/ann/weather-mcp", "source": "github"}
    assert made[1]["author"] == {"name": "Ann"}


def test_everything_documented_is_allowed() -> None:
    argument = {"type": "named", "name": "--units", "default": "metric"}
    place = {"type": "positional", "valueHint": "dir", "format": "filepath"}
    variable = {"name": "API_KEY", "description": "…", "isRequired": True, "isSecret": True}
    package = {
        "registryType": "pypi", "identifier": "w", "version": "1", "runtimeHint": "uvx", "transport": {"type": "stdio"},
        "packageArguments": [argument, place], "environmentVariables": [variable],
    }  # fmt: skip
    image = {"registryType": "oci", "identifier": "images.example.com/u/x:1.0.0", "transport": {"type": "stdio"}}
    remote = {
        "type": "streamable-http", "url": "https://{tenant}.example.com/mcp",
        "variables": {"tenant": {"isRequired": True}}, "headers": [{"name": "X", "isSecret": True}],
    }  # fmt: skip
    icon = {"src": "https://e.com/i.png", "mimeType": "image/png", "sizes": ["48x48"], "theme": "light"}
    whole = server(
        title="Weather", websiteUrl="https://e.com", packages=[package, image], remotes=[remote], icons=[icon],
        repository={"url": "https://github.com/u/w", "source": "github", "id": "", "subfolder": ""},
        _meta={"io.modelcontextprotocol.registry/publisher-provided": {"a": 1}},
    )  # fmt: skip
    assert list(iter_document_schema_problems(whole, "server")) == []


@for_each_row(
    ("members", "where"),
    [
        ({"name": "weather"}, "name"),
        ({"description": "x" * 101}, "description"),
        ({"version": "latest"}, "version"),
        ({"version": "^1.0"}, "version"),
        ({"version": "1.x"}, "version"),
        ({"website_url": "https://e.com"}, "website_url"),
        ({"packages": [{"registryType": "pypi", "identifier": "w", "version": "1"}]}, "transport"),
        ({"packages": [{**server()["packages"][0], "transport": {"type": "ws", "url": "x"}}]}, "transport"),
        ({"packages": [{**server()["packages"][0], "registryType": "mcpb"}]}, "fileSha256"),
        ({"remotes": [{"type": "stdio", "url": "https://e.com"}]}, "remotes"),
        ({"_meta": {"dev.defserve": {}}}, "_meta"),
        ({"_meta": {"io.modelcontextprotocol.registry/publisher-provided": {"a": "x" * 5000}}}, "_meta"),
    ],
)
def test_a_server_json_that_the_registry_would_refuse_is_found(members: dict[str, Any], where: str) -> None:
    (problem,) = iter_document_schema_problems(server(**members), "server")
    assert problem.problem.startswith("server.json: ") and where in problem.problem and problem.fix


def test_a_readme_without_a_marker_is_the_only_problem(project: Path) -> None:
    bare = WHEEL._replace(readme="# Weather")
    made = make_server_json(read_project(project), bare)
    (problem,) = [*iter_document_schema_problems(made, "server"), *iter_document_disagreements(made, manifest(), bare)]
    assert problem.problem.startswith("README: no marker")
    assert problem.fix == "put this line into the README: <!-- mcp-name: io.github.USER/NAME -->"


@for_each_row(
    ("members", "where"),
    [
        ({"author": {}}, "author"),
        ({"manifest_version": "0.3"}, "server.type"),
        ({"server": {"type": "uv", "entry_point": "x.py"}}, "mcp_config"),
        ({"displayName": "x"}, "displayName"),
        ({"user_config": {"k": {"type": "secret", "title": "K", "description": "k"}}}, "user_config"),
        ({"compatibility": {"platforms": ["macos"]}}, "compatibility"),
    ],
)
def test_a_manifest_that_clients_would_refuse_is_found(members: dict[str, Any], where: str) -> None:
    (problem,) = iter_document_schema_problems(manifest(**members), "manifest")
    assert problem.problem.startswith("manifest.json: ") and where in problem.problem and problem.fix


@for_each_row(
    ("one", "other", "wheel", "said"),
    [
        ({"name": "io.github.ann/other"}, {}, {}, "README: the marker says mcp-name: io.github.ann/weather-mcp"),
        ({"version": "1.2.1"}, {}, {}, "server.json: version is '1.2.1', but the wheel has '1.2.0'"),
        ({}, {"version": "2"}, {}, "manifest.json: version is '2'"),
        (
            {},
            {},
            {"readme": "# Weather"},
            "put this line into the README: <!-- mcp-name: io.github.ann/weather-mcp -->",
        ),
        ({}, {}, {"scripts": {"weather": "x:y"}}, "pyproject.toml: `uvx weather-mcp` fails"),
        ({"packages": [{**server()["packages"][0], "identifier": "w"}]}, {}, {}, "identifier is 'w'"),
        ({"packages": [{**server()["packages"][0], "version": "1"}]}, {}, {}, "packages: version is '1'"),
    ],
)
def test_what_does_not_agree_is_found(one: Any, other: Any, wheel: Any, said: str) -> None:
    (problem,) = iter_document_disagreements(server(**one), manifest(**other), WHEEL._replace(**wheel))
    assert said in str(problem) and problem.fix


def test_a_server_that_tells_another_version_than_its_wheel_is_found() -> None:
    assert list(iter_version_disagreements("1.2.0", WHEEL)) == []
    (problem,) = iter_version_disagreements("1.0.0", WHEEL)
    assert problem.problem == "the server says that its version is '1.0.0', but the wheel has '1.2.0'"
    assert problem.fix.startswith("leave the version out of Server(")


@for_each_row(
    ("readme", "name"),
    [
        ("<!-- mcp-name: io.github.a/b -->", "io.github.a/b"),
        ("<!--mcp-name: io.github.a/b-->", "io.github.a/b"),
        ("x\nmcp-name: io.github.a/b\ny", "io.github.a/b"),
        ("mcp-name: io.github.a/b.", "io.github.a/b."),
        ("# b", None),
    ],
)
def test_the_marker_is_read_as_the_registry_reads_it(readme: str, name: str | None) -> None:
    assert find_registry_name_in_readme(readme) == name
