from __future__ import annotations

import asyncio
import posixpath
import re
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from defserve import Context, Server, UsageError
from defserve.auth.principals import Principal
from defserve.core.messages import Notification, Request
from defserve.protocols.mcpl.peers import Peer
from defserve.protocols.mcpl.policies import POLICY_META_KEY
from defserve.protocols.mcpl.scopes import MAX_APPROVALS, Scope, normalize_label
from tests.protocols.mcpl.hosts import SILENCE, Host, HostError, hosting
from tests.raw import ERAS, HANDSHAKE, STATELESS, text_of, turns
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

HOME = PurePosixPath("/project/a")
LISTS = {"files.edit": {"whitelist": ["/project/**", "/tmp/**"], "blacklist": ["**/.env", "**/secrets/**"]}}


def editor() -> Server:
    server = Server("files", "1")
    edit = server.feature_set("files.edit", "Edit files on the filesystem", scoped=True)

    @edit.tool(scope=lambda path: path)
    async def edit_file(path: str, ctx: Context, mode: str = "append") -> str:
        assert ctx.scope is not None
        return f"{mode} {ctx.scope.label} {dict(ctx.scope.payload or {})}"

    @edit.tool(scope=lambda room, topic: Scope(f"{room}/{topic}", {"room": room}))
    def post(room: str, topic: str = "general", ctx: Context | None = None) -> str:
        assert ctx is not None and ctx.scope is not None
        return f"{ctx.scope.label} {dict(ctx.scope.payload or {})}"

    @server.tool
    def unscoped(ctx: Context) -> bool:
        return ctx.scope is None

    return server


async def edited(host: Host, path: str, **more: Any) -> str:
    """What the tool says, or why it was not let."""
    result = await host.call("edit_file", {"path": path}, **more)
    if result.get("isError"):
        error = result["_meta"]["dev.defserve/error"]
        assert error["error_type"] == "scope_denied" and error["featureSet"] == "files.edit"
        return error["reason"]
    return text_of(result)


async def listed(host: Host) -> None:
    if host.version != STATELESS:
        await host.update(enabled=["files.edit"], scopes=LISTS)


def carried(host: Host) -> dict[str, Any]:
    """The policy of a host that has no session to keep it."""
    return {"_meta": {POLICY_META_KEY: {"scopes": LISTS}}} if host.version == STATELESS else {}


# -- lists -----------------------------------------------------------------------------------------------


@pytest.mark.req("MCPL-7.1")
async def test_a_scoped_set_says_so():
    async with hosting(editor()) as host:
        assert host.advertised["featureSets"]["files.edit"] == {
            "description": "Edit files on the filesystem",
            "uses": ["tools"],
            "scoped": True,
        }


@pytest.mark.req("MCPL-7.2")
@for_each_row("version", ERAS)
@for_each_row(
    ("path", "label"),
    [
        ("/project/a.ts", "/project/a.ts"),
        ("/project/a/../b.ts", "/project/b.ts"),
        ("/project//./a", "/project/a"),
        ("/etc/../project/a", "/project/a"),
        ("/../tmp/x", "/tmp/x"),
    ],
)
async def test_what_the_whitelist_covers_runs(version: str, path: str, label: str):
    async with hosting(editor(), version) as host:
        await listed(host)
        assert await edited(host, path, **carried(host)) == f"append {label} {{'path': '{path}'}}"
        assert host.asked == []


@pytest.mark.req("MCPL-7.2")
@for_each_row("version", ERAS)
@for_each_row(
    "path",
    ["/project/.env", "/project/x/../.env", "/project/secrets/key", "/project/secrets", "/tmp/secrets//key", ".env"],
)
async def test_the_blacklist_comes_first_and_is_not_discussed(version: str, path: str):
    async with hosting(editor(), version, answers={"scope/elevate": {"approved": True}}) as host:
        await listed(host)
        assert await edited(host, path, **carried(host)) == "the host forbids it"
        assert host.asked == []


@for_each_row("path", ["", "/project/a\nb", "/project/\x00", "/project/\u202etxt.exe", "/project/" + "a" * 1100])
@for_each_row("mcpl", [{"version": "0.4"}, None])
async def test_a_label_that_cannot_be_shown_is_refused(path: str, mcpl: Any):
    async with hosting(editor(), mcpl=mcpl) as host:
        if mcpl:
            await listed(host)
        assert "printable text" in await edited(host, path)


async def test_a_wildcard_gives_several_sets_their_lists():
    async with hosting(editor()) as host:
        await host.update(scopes={"files.*": {"whitelist": ["/project/*"]}})
        assert (await edited(host, "/project/a")).startswith("append")


@given(st.text("/.ab", min_size=1, max_size=20).map(lambda rest: f"/{rest}"))
def test_an_absolute_label_is_resolved_as_a_path_is(path: str):
    assert normalize_label(path) == re.sub("^/+", "/", posixpath.normpath(path))


@given(st.text("/.ab:", max_size=20))
@example("/./:///")
def test_a_resolved_label_has_nothing_left_to_resolve(label: str):
    resolved = normalize_label(label)
    assert normalize_label(resolved) == resolved
    if "/" in resolved.partition("://")[2] or "://" not in resolved:
        assert "/../" not in resolved.lstrip("./") and "/./" not in resolved


@for_each_row(
    ("label", "resolved"),
    [
        ("#general", "#general"),
        ("/project/../secret://x", "/secret:/x"),
        ("discord:acme/../evil", "evil"),
        ("https://host//a/./b", "https://host/a/b"),
        ("file:///etc/../project", "file:///project"),
        ("a/../../b", "../b"),
        ("..", ".."),
        ("a/", "a"),
    ],
)
def test_labels_that_are_not_absolute_are_resolved_too(label: str, resolved: str):
    assert normalize_label(label) == resolved


# -- asking ----------------------------------------------------------------------------------------------


@pytest.mark.req("MCPL-7.3", "MCPL-7.4", "MCPL-7.5")
async def test_what_is_on_no_list_is_asked_for():
    def enriched(message: Any) -> Any:
        return {"approved": True, "payload": {**message["params"]["scope"]["payload"], "inode": 7}}

    async with hosting(editor(), answers={"scope/elevate": enriched}) as host:
        await listed(host)
        assert await edited(host, "/etc/hosts") == "append /etc/hosts {'path': '/etc/hosts', 'inode': 7}"
        assert host.list_requested_uris("scope/elevate") == [
            {"featureSet": "files.edit", "scope": {"label": "/etc/hosts", "payload": {"path": "/etc/hosts"}}}
        ]


async def test_a_scope_may_have_a_payload_of_its_own():
    async with hosting(editor(), answers={"scope/elevate": {"approved": True}}) as host:
        assert text_of(await host.call("post", {"room": "acme"})) == "acme/general {'room': 'acme'}"
        assert host.list_requested_uris("scope/elevate")[0]["scope"] == {
            "label": "acme/general",
            "payload": {"room": "acme"},
        }


@pytest.mark.req("MCPL-7.5")
@for_each_row(
    ("answer", "reason"),
    [
        ({"approved": False, "reason": "not on Sundays"}, "not on Sundays"),
        ({"approved": False}, "the host did not approve"),
        ({"approved": "true"}, "the host did not approve"),
        ({}, "the host did not approve"),
        ([], "the host did not approve"),
        (HostError(-32601, "Method not found"), "the host could not be asked (Method not found)"),
        ({"approved": True, "payload": {"path": "/etc/shadow"}}, "the payload of the host does not fit it"),
    ],
    ids=str,
)
async def test_what_is_not_approved_is_a_refusal_that_the_model_reads(answer: Any, reason: str):
    async with hosting(editor(), answers={"scope/elevate": answer}) as host:
        await listed(host)
        assert await edited(host, "/etc/hosts") == reason
        result = await host.call("edit_file", {"path": "/etc/hosts"})
        assert result["isError"] and text_of(result) == f"not permitted in '/etc/hosts': {reason}"


@for_each_row(
    ("payload", "fits"),
    [
        ({"room": "acme", "id": 7}, True),
        ({"id": 7}, True),
        ({"room": "evil"}, False),
        ({"room": "acme", "topic": "general"}, True),
        ({"room": "acme", "topic": "secret"}, False),
        ({"room": "acme", "topic": "x/../general"}, True),
        ({"room": "acme", "topic": {"no": "text"}}, False),
    ],
    ids=str,
)
async def test_an_approved_payload_is_held_against_the_label(payload: dict[str, Any], fits: bool):
    async with hosting(editor(), answers={"scope/elevate": {"approved": True, "payload": payload}}) as host:
        result = await host.call("post", {"room": "acme"})
        assert result.get("isError", False) is not fits


@pytest.mark.req("MCPL-7.6")
async def test_an_approval_holds_until_the_host_changes_its_mind():
    answer = {"approved": True, "payload": {"inode": 7}}
    async with hosting(editor(), answers={"scope/elevate": answer}) as host:
        await listed(host)
        for _ in range(3):
            assert "'inode': 7" in await edited(host, "/etc/hosts")
        assert len(host.asked) == 1
        await edited(host, "/etc/passwd")
        assert len(host.asked) == 2
        await listed(host)
        assert "'inode': 7" in await edited(host, "/etc/hosts")
        assert len(host.asked) == 3


async def test_an_approval_is_for_one_payload():
    async with hosting(editor(), answers={"scope/elevate": {"approved": True}}) as host:
        for room, topic in (("a", "b/c"), ("a/b", "c"), ("a", "b/c")):
            assert text_of(await host.call("post", {"room": room, "topic": topic})).startswith("a/b/c")
        assert [asked["scope"]["payload"] for asked in host.list_requested_uris("scope/elevate")] == [
            {"room": "a"},
            {"room": "a/b"},
        ]


async def test_remembered_approvals_are_bounded():
    server = editor()
    async with hosting(server, answers={"scope/elevate": {"approved": True}}) as host:
        await edited(host, "/a")
        (session,) = server.composition.sessions
        assert session.terms is not None
        approved = session.terms.states["mcpl"].policy.approved
        approved.update({("files.edit", f"/{n}", b""): {} for n in range(MAX_APPROVALS)})
        size = len(approved)
        assert (await edited(host, "/b")).startswith("append")
        assert len(approved) == size


@for_each_row(
    ("update", "refused"),
    [
        ({"scopes": {"files.edit": {"blacklist": ["/etc/**"]}}}, "scope_denied"),
        ({"disabled": ["files.*"]}, -32001),
        ({"scopes": {"files.edit": {"whitelist": ["/x"]}}}, None),
    ],
    ids=str,
)
async def test_a_host_may_change_its_mind_while_it_is_asked(update: dict[str, Any], refused: Any):
    async with hosting(editor(), answers={"scope/elevate": SILENCE}) as host:
        await listed(host)
        pending = asyncio.create_task(host.ask("tools/call", {"name": "edit_file", "arguments": {"path": "/etc/x"}}))
        await host.until_asked("scope/elevate")
        (question,) = host.asked
        await host.update(**update)
        await host.send({"jsonrpc": "2.0", "id": question["id"], "result": {"approved": True}})
        reply = await pending
        if refused == -32001:
            assert reply["error"]["code"] == -32001
        else:
            error = reply["result"].get("_meta", {}).get("dev.defserve/error", {})
            assert error.get("error_type") == refused


@for_each_row(("answer", "said"), [(True, "append /etc/hosts"), (False, "the user did not approve")])
async def test_without_sessions_a_person_is_asked(answer: bool, said: str):
    async with hosting(editor(), STATELESS, capabilities={"elicitation": {"form": {}}}) as host:
        params = {"name": "edit_file", "arguments": {"path": "/etc/hosts"}, **carried(host)}
        first = (await host.ask("tools/call", params))["result"]
        assert first["resultType"] == "input_required"
        ((key, question),) = first["inputRequests"].items()
        assert question["params"]["message"] == "Allow edit_file (files.edit) to act on /etc/hosts?"
        answers = {key: {"action": "accept", "content": {"value": answer}}}
        again = {**params, "inputResponses": answers, "requestState": first["requestState"]}
        assert said in text_of((await host.ask("tools/call", again))["result"])


async def test_without_anybody_to_ask_it_is_refused():
    async with hosting(editor(), STATELESS) as host:
        assert "nobody can be asked" in await edited(host, "/etc/hosts", **carried(host))


# -- tags ------------------------------------------------------------------------------------------------


@pytest.mark.req("MCPL-7.7")
@for_each_row("version", ERAS)
async def test_a_call_may_be_tagged_with_its_scope(version: str):
    async with hosting(editor(), version) as host:
        await listed(host)
        tag = {"label": "/project/main.ts", "payload": {"path": "/project/main.ts", "inode": 7}}
        said = await edited(host, "/project/main.ts", scope=tag, **carried(host))
        assert said == "append /project/main.ts {'path': '/project/main.ts', 'inode': 7}"
        for wrong in ({"label": "/project/other.ts"}, {}, {"label": 1}):
            assert "another scope" in await edited(host, "/project/main.ts", scope=wrong, **carried(host))
        tag["payload"] = {"path": "/etc/shadow"}
        assert "does not fit" in await edited(host, "/project/main.ts", scope=tag, **carried(host))


async def test_a_scope_tag_is_not_an_approval():
    async with hosting(editor(), answers={"scope/elevate": {"approved": False}}) as host:
        await listed(host)
        assert await edited(host, "/etc/hosts", scope={"label": "/etc/hosts"}) == "the host did not approve"


# -- hosts without MCPL ----------------------------------------------------------------------------------


@pytest.mark.req("MCPL-3.2")
@for_each_row("version", [*HANDSHAKE, STATELESS])
async def test_a_plain_host_has_no_lists_and_its_tools_run(version: str):
    async with hosting(editor(), version, mcpl=None) as host:
        said = await edited(host, "/etc//hosts", scope={"label": "ignored"})
        assert said == "append /etc/hosts {'path': '/etc//hosts'}"
        assert host.asked == []
        assert text_of(await host.call("unscoped")) == "true"


# -- declaring -------------------------------------------------------------------------------------------


def test_a_scope_takes_what_its_tool_takes():
    edit = Server("files", "1").feature_set("files.edit", "Edit", scoped=True)
    with pytest.raises(UsageError, match="takes 'file', which the tool does not"):

        @edit.tool(scope=lambda file: file)
        def edit_file(path: str) -> str:
            return path


def test_only_a_scoped_set_has_scopes():
    edit = Server("files", "1").feature_set("files.edit", "Edit")
    with pytest.raises(UsageError, match="scoped=True"):
        edit.tool(scope=lambda path: path)


async def test_arguments_reach_the_scope_as_the_tool_has_them():
    server = Server("files", "1")
    edit = server.feature_set("files.edit", "Edit", scoped=True)

    @edit.tool(scope=lambda path: str(path.parent))
    def edit_file(path: PurePosixPath = HOME) -> str:
        return path.name

    async with hosting(server, answers={"scope/elevate": {"approved": True}}) as host:
        await host.update(scopes={"files.edit": {"whitelist": ["/project"]}})
        assert text_of(await host.call("edit_file")) == "a"
        assert text_of(await host.call("edit_file", {"path": "/etc/hosts"})) == "hosts"
        assert host.list_requested_uris("scope/elevate")[0]["scope"] == {
            "label": "/etc",
            "payload": {"path": "/etc/hosts"},
        }


async def test_a_scope_that_gives_no_label_fails_the_call():
    server = Server("files", "1")
    edit = server.feature_set("files.edit", "Edit", scoped=True)

    @edit.tool(scope=lambda path: None)
    def edit_file(path: str) -> str:
        return path

    async with hosting(server) as host:
        result = await host.call("edit_file", {"path": "/x"})
        await turns()
        assert result["isError"] and "internal error" in text_of(result)


# -- several credentials of one principal ----------------------------------------------------------------


async def test_an_approval_holds_for_the_key_it_was_given_to():
    server = editor()
    async with hosting(server, answers={"scope/elevate": {"approved": True}}) as host:
        await listed(host)
        (session,) = server.composition.sessions
        for key, asked in (("one", 1), ("one", 1), ("two", 2), ("two", 2)):
            session.identity = Principal("alice", credential=key)
            await edited(host, "/elsewhere/a")
            assert len(host.list_requested_uris("scope/elevate")) == asked


@for_each_row("as_request", [False, True])
async def test_the_policy_of_a_session_is_changed_with_the_rights_of_who_opened_it(as_request: bool):
    server = editor()
    weak, strong = Principal("alice", credential="weak"), Principal("alice", frozenset({"all"}), credential="strong")
    update: Any = {"enabled": [], "disabled": ["files.edit"]}
    async with hosting(server) as host:
        await listed(host)
        (session,) = server.composition.sessions
        session.identity, policy = strong, Peer(session).policy
        session.outlet = lambda message: None  # the host has not sent these messages
        for sender, enabled in ((weak, True), (strong, False)):
            message = Request(99, "featureSets/update", update, {})
            session.feed_message(message if as_request else Notification(message.method, update, {}), None, sender)
            await turns()
            assert policy.is_enabled("files.edit") is enabled
