"""Definitions for rules to look at: of a server, or of tools as they are listed."""

from __future__ import annotations

from typing import Any

from defserve import Server
from defserve.tooling.lint.definitions import Definitions, of_wire
from defserve.tooling.lint.rules import Complaint, complaints, of_server
from defserve.tooling.listing import ServerListing, server_listing


def read(server: Server) -> Definitions:
    found = server_listing(server.composition)
    assert found is not None
    return of_server(server, found)


def wire(*tools: dict[str, Any], **more: Any) -> Definitions:
    """Tools as a stranger's server lists them; what a good one has is filled in."""
    good = {"description": "Does one thing, and well.", "inputSchema": {"type": "object"}}
    return of_wire(ServerListing({"serverInfo": {}, **more}, [{**good, **tool} for tool in tools], [], [], []))


def broken(found: Definitions) -> list[str]:
    """The rules that are broken, each as often as it is."""
    return [complaint.rule for complaint in complaints(found)]


def only(found: Definitions, rule: str) -> list[Complaint]:
    return [complaint for complaint in complaints(found) if complaint.rule == rule]
