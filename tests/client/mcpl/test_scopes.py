"""Scopes as the host judges them: forbidden, allowed, or somebody is asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve.client import Answers, Elevation, Mcpl
from defserve.protocols.mcpl.scopes import Scope
from defserve.protocols.mcpl.vocabulary import ScopeDenied
from tests.client.mcpl.scripted import MEMORY, Json, LiveServer, Trail, hosting, live_server
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

BLOCK: Json = {
    **MEMORY,
    "featureSets": {"files.edit": {"description": "Edit files", "uses": ["tools"], "scoped": True}},
}
SCOPES = {"files.edit": {"whitelist": ["/project/**", "/tmp/**"], "blacklist": ["**/.env", "**/secrets/**"]}}


async def elevate(server: LiveServer, label: str, **payload: Any) -> Json:
    scope = {"label": label, "payload": payload} if payload else {"label": label}
    return await server.ask("scope/elevate", {"featureSet": "files.edit", "scope": scope})


@pytest.mark.req("MCPL-7.6")
@for_each_row(
    ("label", "approved", "asked"),
    [
        ("/project/main.py", True, False),
        ("/project/.env", False, False),
        ("/project/secrets/key", False, False),
        ("/etc/hosts", True, True),
        ("/etc/passwd", False, True),
        ("/project/../etc/passwd", False, True),
        ("/tmp/./../project/a/../.env", False, False),
    ],
)
async def test_the_blacklist_denies_the_whitelist_approves_and_else_somebody_is_asked(
    label: str, approved: bool, asked: bool
):
    elevations: list[Elevation] = []

    def approve(elevation: Elevation) -> bool:
        elevations.append(elevation)
        return elevation.label == "/etc/hosts"

    server = live_server(BLOCK)
    async with hosting(server, Mcpl(scopes=SCOPES, approve=approve, audit=[])):
        result = (await elevate(server, label, path=label))["result"]
    assert result["approved"] is approved
    assert result.get("payload") == ({"path": label} if approved else None)
    assert ("reason" in result) is not approved
    assert elevations == ([Elevation("memory", "files.edit", label, {"path": label})] if asked else [])


async def test_a_host_may_enrich_the_payload():
    server = live_server(BLOCK)
    async with hosting(server, Mcpl(approve=lambda e: {**e.payload, "inode": 7}, audit=[])):
        result = (await elevate(server, "/etc/hosts", mode="append"))["result"]
    assert result == {"approved": True, "payload": {"mode": "append", "inode": 7}}


@for_each_row("enriched", [False, True])
async def test_the_approval_of_a_large_payload_is_not_remembered(enriched: bool):
    asked: list[str] = []

    def approve(elevation: Elevation) -> Any:
        asked.append(elevation.label)
        return {**elevation.payload, "inode": 7} if enriched else True

    server = live_server(BLOCK)
    async with hosting(server, Mcpl(approve=approve, audit=[])):
        for size in (100, 100, 100_000, 100_000):
            assert (await elevate(server, f"/etc/{size}", text="x" * size))["result"]["approved"] is True
    assert asked == ["/etc/100", "/etc/100000", "/etc/100000"]


@pytest.mark.req("MCPL-7.6")
async def test_what_was_approved_is_not_asked_again_until_the_policy_changes():
    asked: list[str] = []

    def approve(elevation: Elevation) -> bool:
        asked.append(str(elevation.payload))
        return elevation.label != "/etc/passwd"

    server = live_server(BLOCK)
    async with hosting(server, Mcpl(approve=approve, audit=[])) as mcpl:
        for _ in range(3):
            await elevate(server, "/etc/hosts", mode="append")
        assert len(asked) == 1
        await elevate(server, "/etc/hosts", mode="delete")  # the label is the same, the deed is not
        assert len(asked) == 2
        await mcpl.update(scopes={"files.edit": {"blacklist": ["/etc/*"]}})
        assert (await elevate(server, "/etc/hosts", mode="append"))["result"]["approved"] is False
        await mcpl.update(scopes={"files.edit": {}})
        await elevate(server, "/etc/hosts", mode="append")
        assert len(asked) == 3
        await elevate(server, "/etc/passwd")
        await elevate(server, "/etc/passwd")
        assert len(asked) == 5  # a denial is not kept: people change their minds


async def test_a_policy_that_changes_while_somebody_thinks_counts():
    asked, answered = asyncio.Event(), asyncio.Event()

    async def approve(elevation: Elevation) -> bool:
        asked.set()
        await answered.wait()
        return True

    server = live_server(BLOCK)
    async with hosting(server, Mcpl(approve=approve, audit=[])) as mcpl:
        elevating = asyncio.create_task(elevate(server, "/etc/hosts"))
        await asked.wait()
        await mcpl.update(scopes={"files.edit": {"blacklist": ["/etc/**"]}})
        answered.set()
        assert (await elevating)["result"]["approved"] is False


async def test_without_a_function_the_person_is_asked_and_without_one_it_is_denied():
    questions: list[str] = []

    def ask(message: str, schema: Any) -> Any:
        questions.append(message)
        return {"approved": True}

    server = live_server(BLOCK)
    async with hosting(server, answers=Answers(ask=ask)):
        assert (await elevate(server, "/etc/hosts"))["result"]["approved"] is True
    assert questions == ["Allow memory (files.edit) to act on /etc/hosts?"]
    server = live_server(BLOCK)
    async with hosting(server):
        assert (await elevate(server, "/etc/hosts"))["result"] == {"approved": False, "reason": "nobody approved it"}


@pytest.mark.req("MCPL-6.6")
@for_each_row(("name", "code"), [("files.edit", -32001), ("files.unheard", -32003), (None, -32602)])
async def test_a_set_that_is_off_or_unknown_cannot_be_elevated(name: Any, code: int):
    server = live_server(BLOCK)
    async with hosting(server, Mcpl([], approve=lambda _: True, audit=[])):
        reply = await server.ask("scope/elevate", {"featureSet": name, "scope": {"label": "/etc/hosts"}})
    assert reply["error"]["code"] == code


@for_each_row("scope", [None, {}, {"label": ""}, {"label": "a\nb"}, {"label": "a", "payload": 3}])
async def test_a_broken_scope_is_invalid(scope: Any):
    server = live_server(BLOCK)
    async with hosting(server, Mcpl(approve=lambda _: True, audit=[])):
        reply = await server.ask("scope/elevate", {"featureSet": "files.edit", "scope": scope})
    assert reply["error"]["code"] == -32602


@pytest.mark.req("MCPL-13.2")
async def test_the_audit_log_tells_of_denials():
    trail, server = Trail(), live_server(BLOCK)
    async with hosting(server, Mcpl(scopes=SCOPES, audit=trail)):
        await elevate(server, "/project/a")
        await elevate(server, "/project/.env")
    assert [record["outcome"] for record in trail.of("scope/elevate")] == ["success", "refused"]


async def test_a_scoped_tool_is_called_with_its_scope_unless_that_is_forbidden():
    tool = {"name": "edit", "inputSchema": {"type": "object"}, "_meta": {"featureSet": "files.edit"}}
    content = [{"type": "text", "text": "edited"}]
    server = live_server(BLOCK, {"tools/list": {"tools": [tool]}, "tools/call": {"content": content}})
    async with hosting(server, Mcpl(scopes=SCOPES, audit=[])) as mcpl:
        assert await mcpl.call("edit", Scope("/project/a", {"path": "/project/a"}), path="/project/a") == "edited"
        with pytest.raises(ScopeDenied):
            await mcpl.call("edit", "/project/x/../.env")
    assert server.asked("tools/call") == [
        {
            "name": "edit",
            "arguments": {"path": "/project/a"},
            "scope": {"label": "/project/a", "payload": {"path": "/project/a"}},
        }
    ]
