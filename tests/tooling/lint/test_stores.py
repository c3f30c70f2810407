"""`defserve check --store`: the rules of stores that a program can check."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from defserve import Server, safe
from defserve.tooling.lint.store_rules import (
    STORE_CHECKS,
    STORE_RULE_SETS,
    ProjectFile,
    Submission,
    build_submission,
    find_store_problems,
)
from defserve.tooling.project_template import create_project, load_template_questions
from tests.rows import for_each_row
from tests.tooling.lint.reading import read, wire

HINTS = {"readOnlyHint": True, "destructiveHint": False, "openWorldHint": False}
GOOD: dict[str, Any] = {"name": "find", "title": "Find", "annotations": HINTS}
VIEW = {"uri": "ui://shop/view", "name": "view", "mimeType": "text/html;profile=mcp-app"}


def taking(**properties: Any) -> dict[str, Any]:
    return {"inputSchema": {"type": "object", "properties": properties}}


def broken(submission: Submission, store: str) -> list[str]:
    return [one.rule for one in find_store_problems(submission, store)]


def stores_that_refuse(rule: str, tool: dict[str, Any]) -> list[str]:
    submission = Submission(wire({**GOOD, **tool}))
    return [store for store in STORE_RULE_SETS if rule in broken(submission, store)]


@for_each_row(
    ("tool", "rule", "stores"),
    [
        ({"title": ""}, "store-title", "anthropic cowork"),
        ({"title": "", "annotations": {**HINTS, "title": "Find"}}, "store-title", ""),
        ({"annotations": {}}, "store-hint", "anthropic cowork"),
        ({"annotations": {"readOnlyHint": True}}, "store-hint", ""),
        ({"annotations": {"readOnlyHint": True}}, "store-hints", "openai"),
        ({"annotations": {**HINTS, "openWorldHint": "no"}}, "store-hints", "openai"),
        ({"annotations": {**HINTS, "destructiveHint": True}}, "store-contradiction", "anthropic openai cowork"),
        ({"name": "f" * 65}, "store-name", "anthropic"),
        (taking(method={"enum": ["get", "post"]}), "store-methods", "anthropic"),
        (taking(method={"enum": ["get", "head"]}), "store-methods", ""),
        ({"description": "Finds things. You must call it first."}, "store-orders", "anthropic"),
        ({"name": "transfer_funds"}, "store-unwanted", "anthropic"),
        ({"description": "Makes a text to image request."}, "store-unwanted", "anthropic"),
        ({"outputSchema": {"type": "object", "properties": {"trace_id": {}}}}, "store-ids", "openai"),
        (taking(chat_history={"type": "string"}), "store-transcripts", "openai"),
        (taking(latitude={"type": "number"}), "store-location", "openai"),
        ({"_meta": {"openai/toolInvocation/invoking": "a" * 65}}, "store-keys", "openai"),
        ({"_meta": {"openai/fileParams": ["file"]}}, "store-keys", "openai"),
        ({"_meta": {"openai/visibility": "hidden"}}, "store-keys", "openai"),
        ({"_meta": {"openai/widgetAccessible": 1}}, "store-keys", "openai"),
        ({"securitySchemes": [{"type": "noauth"}]}, "store-keys", "openai"),
    ],
    ids=str,
)
def test_a_tool_breaks_the_rules_of_the_stores_that_have_them(tool: dict[str, Any], rule: str, stores: str):
    assert stores_that_refuse(rule, tool) == stores.split()


@for_each_row(
    ("ui", "meta", "rules"),
    [
        ({"domain": "https://shop.example"}, {}, []),
        ({}, {"openai/widgetDomain": "https://shop.example"}, []),
        ({}, {}, ["store-view-domain"]),
        ({"domain": "d", "csp": {"connectDomains": ["https://*.example"]}}, {}, ["store-view-csp"]),
        ({"domain": "d", "csp": {"resourceDomains": ["http://a.example"]}}, {}, ["store-view-csp"]),
        ({"domain": "d", "csp": {"frameDomains": ["https://a.example"]}}, {}, ["store-view-frames"]),
    ],
    ids=str,
)
def test_views_have_a_domain_and_an_exact_policy(ui: dict[str, Any], meta: dict[str, Any], rules: list[str]):
    from defserve.tooling.lint.definitions import ItemDefinition, ServerDefinitions

    view = ItemDefinition("resource", "view", {**VIEW, "_meta": {"ui": ui, **meta}})
    assert broken(Submission(ServerDefinitions((view,))), "openai") == rules


@for_each_row(
    ("info", "rules"),
    [
        ({"name": "shop", "websiteUrl": "https://shop.example"}, []),
        ({"name": "a" * 31}, ["store-listing"]),
        ({"name": "shop", "icons": [{"src": "https://a.example/i.png", "sizes": ["32x32"]}]}, ["store-listing"]),
        ({"name": "shop", "icons": [{"src": "https://a.example/i.png", "sizes": ["64x48"]}]}, ["store-listing"]),
        ({"name": "shop", "icons": [{"src": "http://a.example/i.png"}]}, ["store-links"]),
        ({"name": "shop", "websiteUrl": "http://shop.example"}, ["store-links"]),
    ],
    ids=str,
)
def test_what_a_server_says_of_itself_fits_the_form(info: dict[str, Any], rules: list[str]):
    assert broken(Submission(wire(GOOD, serverInfo=info)), "openai") == rules


DOCUMENT: dict[str, Any] = {
    "$schema": "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json",
    "name": "io.github.me/shop",
    "description": "A shop.",
    "version": "1.0.0",
}


def of_registry(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Where a document breaks a rule of the registry, and what is wrong."""
    file = ProjectFile("server.json", json.dumps(document, indent=2), document)
    found = find_store_problems(Submission(wire(GOOD), registry=file), "registry")
    return [(one.finding.where, one.finding.problem) for one in found]


def package(**more: Any) -> dict[str, Any]:
    made = {"registryType": "pypi", "identifier": "shop", "version": "1.0.0", "transport": {"type": "stdio"}}
    return {**DOCUMENT, "packages": [{**made, **more}]}


@for_each_row(
    ("document", "line", "problem"),
    [
        ({**DOCUMENT, "name": "shop"}, 3, "not namespace/name"),
        ({**DOCUMENT, "version": "latest"}, 5, "not one version"),
        ({**DOCUMENT, "version": "^1.0"}, 5, "not one version"),
        ({**DOCUMENT, "version": "1.x"}, 5, "not one version"),
        ({**DOCUMENT, "websiteUrl": "http://a.example"}, 6, "not https"),
        ({**DOCUMENT, "_meta": {"mine": 1}}, 7, "only io.modelcontextprotocol.registry/publisher-provided"),
        (package(transport={"type": "stdio", "url": "https://a.example"}), 13, "stdio has a url"),
        (package(registryType="mcpb"), 8, "no fileSha256"),
        (package(packageArguments=[{"type": "named", "name": "--a <b>"}]), 17, "in its name"),
        (package(version=">=1"), 10, "not one version"),
    ],
    ids=str,
)
def test_the_registry_names_the_line_in_server_json(document: dict[str, Any], line: int, problem: str):
    found = of_registry(document)
    assert any(where == f"server.json:{line}" and problem in text for where, text in found), found


def test_a_good_document_breaks_no_rule_of_the_registry():
    assert of_registry(package()) == []


def test_a_bundle_needs_a_privacy_policy_and_a_section_about_it():
    readme = ProjectFile("README.md", "# Shop\n", {})
    manifest = ProjectFile("manifest.json", "{}", {})
    rules = broken(Submission(wire(GOOD), manifest=manifest, readme=readme), "anthropic")
    assert rules == ["store-privacy", "store-privacy"]
    told = ProjectFile("manifest.json", "", {"privacy_policies": ["https://a.example/privacy"]})
    readme = ProjectFile("README.md", "# Shop\n\n## Our privacy policy\n", {})
    assert broken(Submission(wire(GOOD), manifest=told, readme=readme), "anthropic") == []


def test_a_marked_tool_with_a_title_says_all_that_stores_want():
    server = Server("shop", "1")

    @server.tool(title="Find")
    @safe
    def find(text: str) -> str:
        """Find things."""
        return text

    submission = build_submission(read(server))
    assert [rule for store in ("anthropic", "openai", "cowork") for rule in broken(submission, store)] == []


def test_every_rule_belongs_to_a_store():
    assert {rule for rules in STORE_RULE_SETS.values() for rule in rules} == STORE_CHECKS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("body", list(load_template_questions().choices("body")))
def test_every_template_passes_the_rules_of_every_store(body: str, tmp_path: Path):
    project = create_project({"project_name": "Corner Shop", "body": body}, tmp_path)
    words = [word for store in STORE_RULE_SETS for word in ("--store", store)]
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "500", "PYTHONPATH": str(project.folder / "src")}
    command = [sys.executable, "-m", "defserve", "check", "-m", project.answers["package_name"], *words]
    ran = subprocess.run(
        command, cwd=project.folder, capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
