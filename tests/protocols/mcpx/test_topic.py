"""One participant's view of its topic, from frames alone; and that no frame at all can break it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.protocols.mcpx.envelope import MessageKind, find_kind_mismatch, parse_kind
from defserve.protocols.mcpx.extension import TopicCarrier
from defserve.protocols.mcpx.topic import MAX_COUNTED_PARTICIPANTS, Presence, SpoofedMessage, TopicView, Welcome
from tests.rows import for_each_row

Json = dict[str, Any]


def frame(kind: str, payload: Any, sender: str = "ann", **fields: Any) -> bytes:
    about = {"protocol": "mcpx/v0.1", "id": "e1", "from": sender, "kind": kind, "payload": payload}
    return json.dumps(about | fields).encode()


def gateway(kind: str, payload: Any) -> bytes:
    return frame(kind, payload, "system:gateway")


WELCOME = gateway(
    "system/welcome",
    {"you": {"id": "me", "capabilities": ["mcp/*", "chat"]}, "participants": [{"id": "ann", "capabilities": ["chat"]}]},
)


def welcomed() -> TopicView:
    topic = TopicView()
    assert isinstance(topic.read_frame(WELCOME), Welcome)
    return topic


@pytest.mark.req("MCPX-3.5.1", "MCPX-8.2")
def test_nothing_counts_before_the_welcome_which_says_who_we_are():
    topic = TopicView()
    assert topic.read_frame(frame("chat", {"text": "hi"})) is None and not topic.is_welcomed
    join: Json = {"event": "join", "participant": {"id": "me", "capabilities": []}}
    topic.read_frame(gateway("system/presence", join))  # our own, which the reference sends first
    heard = topic.read_frame(WELCOME)
    assert isinstance(heard, Welcome) and not heard.again
    assert topic.me == "me" and topic.capabilities.patterns == ("mcp/*", "chat") and list(topic.participants) == ["ann"]


@pytest.mark.req("MCPX-3.4", "MCPX-8.2")
def test_presence_is_followed():
    topic = welcomed()
    joined = topic.read_frame(
        gateway("system/presence", {"event": "join", "participant": {"id": "bob", "capabilities": ["x"]}})
    )
    assert isinstance(joined, Presence) and joined.joined and topic.participants["bob"].patterns == ("x",)
    left = topic.read_frame(gateway("system/presence", {"event": "leave", "participant": {"id": "ann"}}))
    assert isinstance(left, Presence) and not left.joined and list(topic.participants) == ["bob"]


def test_our_own_words_come_back_and_mean_nothing():
    assert welcomed().read_frame(frame("chat", {"text": "hi"}, "me")) is None


@for_each_row(
    ("kind", "payload"),
    [
        ("system/welcome", {}),
        ("system/welcome", {"you": {"id": ""}}),
        ("system/presence", {"event": "wave", "participant": {"id": "x"}}),
        ("system/presence", {"event": "join"}),
    ],
)
def test_a_gateway_that_makes_no_sense_changes_nothing(kind: str, payload: Json):
    topic = welcomed()
    assert topic.read_frame(gateway(kind, payload)) is None and topic.misbehaviour == {"?": 1}
    assert topic.me == "me" and list(topic.participants) == ["ann"]


@for_each_row("sender", ["ann", "systematic", "system2:gateway"])
def test_who_is_not_the_gateway_does_not_speak_for_it(sender: str):
    topic = welcomed()
    topic.read_frame(frame("system/welcome", {"you": {"id": "x"}}, sender))
    assert topic.me == "me" and topic.misbehaviour == {sender: 1}


@pytest.mark.req("MCPX-4.3r")
def test_every_misdeed_is_counted_and_told_and_the_count_is_bounded():
    told: list[tuple[str, str]] = []
    topic = TopicView(misbehaved=lambda who, why: told.append((who, why)))
    topic.read_frame(WELCOME)
    lie = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "rm"}}
    assert isinstance(topic.read_frame(frame("mcp/request:tools/call:ls", lie)), SpoofedMessage)
    assert topic.misbehaviour == {"ann": 1} and told[0][0] == "ann" and "'rm'" in told[0][1]
    for number in range(MAX_COUNTED_PARTICIPANTS + 10):
        topic.count_ignored_message(f"p{number}", "x")
    assert len(topic.misbehaviour) == MAX_COUNTED_PARTICIPANTS


@pytest.mark.req("MCPX-4.3")
@given(
    method=st.sampled_from(["tools/call", "tools/list", "resources/read"]),
    context=st.text(max_size=4),
    said=st.sampled_from(["tools/call", "tools/list", "resources/read"]),
    about=st.text(max_size=4),
)
def test_a_kind_passes_only_if_its_method_and_context_are_those_of_the_payload(
    method: str, context: str, said: str, about: str
):
    field = {"tools/call": "name", "resources/read": "uri"}.get(said)
    payload = {"jsonrpc": "2.0", "id": 1, "method": said, "params": {field: about} if field else {}}
    kind = MessageKind("mcp/request", method, context)
    truthful = method == said and (not context or (field is not None and context == about))
    assert (find_kind_mismatch(kind, payload) is None) == truthful


NAMES = (
    "you", "id", "capabilities", "participants", "event", "participant", "method", "params", "name", "jsonrpc",
    "result", "error", "text", "format", "code", "message", "uri",
)  # fmt: skip
scraps = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=3),
    max_leaves=6,
)
KINDS = (
    "system/welcome", "system/presence", "system/error", "system", "presence", "chat", "mcp/request", "acme",
    "mcp/request:tools/call", "mcp/response:tools/call", "mcp/proposal:tools/call", "mcp/request:initialize",
)  # fmt: skip


@pytest.mark.slow
@given(
    frames=st.lists(
        st.tuples(
            st.sampled_from(KINDS),
            st.dictionaries(st.sampled_from(NAMES), scraps, max_size=5),
            st.sampled_from(["ann", "me", "system:gateway"]),
            st.booleans(),
            st.none() | st.sampled_from(["e1", "x"]),
        ),
        max_size=5,
    )
)
def test_no_frame_breaks_a_participant(frames: list[tuple[str, Json, str, bool, str | None]]):
    carrier = TopicCarrier()
    carrier.topic.read_frame(WELCOME)
    for kind, payload, sender, truthful, about in frames:
        if truthful and (parts := parse_kind(kind)) is not None and parts.method:
            payload |= {"jsonrpc": "2.0", "method": parts.method}
        carrier.unwrap(frame(kind, payload, sender, correlation_id=about, to=["me"]))
