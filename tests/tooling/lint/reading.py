"""Definitions for rules to look at: of a server, or of tools as they are listed."""

from __future__ import annotations

from typing import Any

from defserve import Server
from defserve.tooling.lint.definitions import ServerDefinitions, read_listed_definitions
from defserve.tooling.lint.rules import RuleFinding, read_server_definitions, run_lint_rules
from defserve.tooling.listing import ServerListing, server_listing


def read(server: Server) -> ServerDefinitions:
    found = server_listing(server.composition)
    assert found is not None
    return read_server_definitions(server, found)


def wire(*tools: dict[str, Any], **more: Any) -> ServerDefinitions:
    """Tools as a stranger's server lists them; what a good one has is filled in."""
    good = {"description": "Does one thing, and well.", "inputSchema": {"type": "object"}}
    return read_listed_definitions(
        ServerListing({"serverInfo": {}, **more}, [{**good, **tool} for tool in tools], [], [], [])
    )


def broken(found: ServerDefinitions) -> list[str]:
    """The rules that are broken, each as often as it is."""
    return [complaint.rule for complaint in run_lint_rules(found)]


def only(found: ServerDefinitions, rule: str) -> list[RuleFinding]:
    return [complaint for complaint in run_lint_rules(found) if complaint.rule == rule]
