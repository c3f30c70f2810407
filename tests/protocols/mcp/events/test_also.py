"""One declaration feeds MCP events, a channel of MGP and the hosts of a feature set of MCPL."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from defserve import Server
from defserve.client import Client, Mcpl, Mgp
from defserve.errors import UsageError
from tests.protocols.mcp.events.repositories import Push

pytestmark = pytest.mark.anyio


def make_fed_server(**options: Any) -> Server:
    server = Server("git", "1", experimental=["events"])
    channel = server.event_channel("com.example.pushed")
    watch = server.feature_set("git.watch", "Tells of pushes")

    @server.event(also=[channel, watch], **options)
    def pushed(repository: str, branch: str | None = None) -> Push:
        """Somebody pushed commits."""
        ...  # noqa: PIE790  (type checkers want it)

    return server


def _events_of(host: Client) -> AsyncIterator[Any]:
    assert host.mcpl is not None
    return host.mcpl.events()


async def test_sessions_of_three_protocols_hear_of_one_emission():
    server = make_fed_server()
    async with (
        server.connect() as plain,
        server.connect("2025-11-25", mgp=Mgp(audit=[])) as program,
        server.connect("2025-11-25", mcpl=Mcpl()) as host,
        plain.listen_events("pushed", repository="x") as stream,
        program.subscribe_events(["com.example.*"]) as channel,
    ):
        id = await server.emit_event("pushed", Push(commits=3), repository="x", branch="main")
        assert ((await anext(stream)).data, stream.cursor is not None) == ({"commits": 3}, True)
        assert (await anext(channel)).data == {"repository": "x", "branch": "main", "commits": 3}
        pushed = await anext(_events_of(host))
        assert (pushed.id, pushed.origin) == (id, {"event": "pushed"})
        text = 'Somebody pushed commits.\n{"repository": "x", "branch": "main", "commits": 3}'
        assert [getattr(block, "text", None) for block in pushed.content] == [text]


async def test_events_are_pushed_in_the_order_in_which_they_are_emitted():
    server = make_fed_server()
    async with server.connect("2025-11-25", mcpl=Mcpl()) as host:
        sent = [await server.emit_event("pushed", Push(commits=n), repository="x") for n in range(20)]
        heard = _events_of(host)
        assert [(await anext(heard)).id for _ in sent] == sent


async def test_a_host_that_has_switched_the_set_off_is_not_told():
    server, told = make_fed_server(), list[Any]()
    off = Mcpl(feature_sets={"disabled": ["git.watch"]}, on_event=told.append)
    async with server.connect("2025-11-25", mcpl=off), server.connect("2025-11-25", mcpl=Mcpl()) as other:
        for number in range(2):
            await server.emit_event("pushed", Push(commits=number), repository="x")
        heard = _events_of(other)
        assert len([await anext(heard) for _ in range(2)]) == 2
    assert told == []


async def test_a_value_that_does_not_fit_a_typed_channel_is_logged_and_still_an_event(
    caplog: pytest.LogCaptureFixture,
):
    server = Server("git", "1", experimental=["events"])
    channel = server.event_channel("com.example.pushed", int)
    server.event(also=[channel])(_declared)
    async with server.connect() as client, client.listen_events("_declared") as stream:
        await server.emit_event(_declared, Push(commits=1))
        assert (await anext(stream)).data == {"commits": 1}
    assert "does not fit channel com.example.pushed" in caplog.text


def _declared() -> Push: ...


def test_a_channel_that_is_open_to_more_callers_than_the_event_is_refused():
    server = Server("git", "1", experimental=["events"])
    channel = server.event_channel("com.example.pushed", scopes="git:read")
    server.event(also=[channel], scopes=["git:read"])(_declared)
    with pytest.raises(UsageError, match=r"open to callers without the scope 'git:write'"):
        server.event(also=[channel], name="other", scopes=["git:read", "git:write"])(_declared)


def test_an_event_with_scopes_is_not_pushed_to_every_host():
    server = Server("git", "1", experimental=["events"])
    watch = server.feature_set("git.watch", "Tells of pushes")
    with pytest.raises(UsageError, match=r"pushes to every host"):
        server.event(also=[watch], scopes=["git:read"])(_declared)


def test_a_source_feeds_nobody_else():
    server = Server("git", "1", experimental=["events"])
    channel = server.event_channel("com.example.ticked")
    with pytest.raises(UsageError, match=r"not for a source"):
        server.event(also=[channel])(_source)


async def _source() -> AsyncIterator[Push]:
    yield Push(commits=1)


def test_only_channels_and_feature_sets_can_be_fed():
    server = Server("git", "1", experimental=["events"])
    with pytest.raises(UsageError, match=r"neither a channel nor a feature set"):
        server.event(also=["com.example.pushed"])(_declared)  # pyright: ignore[reportArgumentType]
