"""What a person reads who says yes: all that the yes sends, and nothing that somebody else made up."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import defserve
from defserve.client.topic_client import ProposalText
from defserve.errors import UsageError
from defserve.protocols.mcpx.envelope import GATEWAY_SENDER, Envelope
from defserve.protocols.mcpx.participant import Participant, ProposalNotPending
from defserve.protocols.mcpx.proposals import REQUEST_MEMBERS, Proposal, Proposals, build_fulfilment_params
from defserve.protocols.mgp.permissions import MAX_ARGUMENTS, SHOWN_HEAD_LENGTH
from tests.rows import for_each_row

HERE = ("me", "payments")
names = st.sampled_from(["method", "name", "arguments", "token", "password", "_meta", "a\nb", "x"]) | st.text(
    max_size=8
)
texts = st.text(max_size=30)
values = st.recursive(
    st.none() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)


def proposing(params: dict[str, Any], method: str = "tools/call", to: tuple[str, ...] = ("payments",)) -> Proposal:
    return Proposal("p", "guest-1", to, method, params, created=0)


def read(proposal: Proposal) -> list[str]:
    return str(ProposalText(proposal, HERE)).split("\n")


@given(arguments=st.dictionaries(names, values, max_size=6))
def test_each_argument_has_a_line_of_its_own_and_its_name_hides_nothing(arguments: dict[str, Any]):
    first, *lines = read(proposing({"name": "pay", "arguments": arguments}))
    assert first == "guest-1 proposes to payments: tools/call pay"
    assert len(lines) == len(arguments)
    for (name, value), line in zip(arguments.items(), lines, strict=True):
        if str(value).isascii() and str(value).isprintable() and name.isascii() and name.isprintable():
            assert line == f"  {name}: {value}"


@given(
    method=st.sampled_from([*REQUEST_MEMBERS, "ping", "x/y"]) | texts, params=st.dictionaries(names, values, max_size=5)
)
def test_what_a_yes_sends_is_what_is_shown(method: str, params: dict[str, Any]):
    proposal = proposing(params, method)
    text = ProposalText(proposal, HERE)
    try:
        sent = build_fulfilment_params(proposal)
    except UsageError:
        assert text.warning.startswith("a yes does nothing")
        return
    assert "_meta" not in sent and sent.items() <= params.items() and params.keys() - sent.keys() <= {"_meta"}
    assert bool(text.warning) == ("_meta" in params)
    is_call = proposal.context and sent.keys() <= {"name", "arguments"} and isinstance(sent.get("arguments"), dict)
    shown = (
        sent["arguments"]
        if is_call
        else {name: 0 for name in sent if not proposal.context or name not in ("name", "uri")}
    )
    assert len(text.lines) == len(shown)


def test_a_long_first_argument_hides_no_other_and_shows_its_own_end():
    note = f"coffee, 3 euros{'.' * 9 * SHOWN_HEAD_LENGTH}to Mallory"
    _, first, *rest = read(proposing({"name": "pay", "arguments": {"note": note, "to": "Mallory", "euros": 9998}}))
    assert first.startswith("  note: coffee") and "are not shown" in first and first.endswith("to Mallory")
    assert rest == ["  to: Mallory", "  euros: 9998"]


def test_who_hides_an_argument_behind_very_many_is_told_on():
    many = {f"a{place}": 0 for place in range(MAX_ARGUMENTS)}
    assert "1 more arguments that are not shown" in read(proposing({"name": "x", "arguments": {**many, "b": 1}}))[-1]


@for_each_row(
    "to, shown",
    [
        ((), "anyone"),
        (("payments",), "payments"),
        (('payments: {"name": "balance"}', "payments"), "payments (1 named are not here)"),
        (("payments: tools/call balance\n",), "nobody who is here (1 named are not here)"),
    ],
)
def test_only_recipients_that_are_here_are_named(to: tuple[str, ...], shown: str):
    first, *_ = read(proposing({"name": "pay", "arguments": {}}, to=to))
    assert first == f"guest-1 proposes to {shown}: tools/call pay"


def test_a_member_without_a_name_is_no_context():
    assert read(proposing({"": "balance"}, "x/y"))[1:] == ["  : balance"]


def test_a_tool_whose_name_is_a_sentence_is_quoted():
    first, *_ = read(proposing({"name": "balance\n[2] ann proposes", "arguments": {}}))
    assert first == "guest-1 proposes to payments: tools/call 'balance\\\\n[2] ann proposes'"


# -- what is sent

HOSTILE = {"dev.defserve/confirmed": True, "progressToken": 1}


@for_each_row("method", REQUEST_MEMBERS)
def test_a_proposal_with_members_that_its_method_does_not_need_is_not_done(method: str):
    params: dict[str, Any] = dict.fromkeys(REQUEST_MEMBERS[method], "x")
    assert build_fulfilment_params(proposing(params | {"_meta": HOSTILE}, method)) == params
    for extra in ("checkpoint", "state", "task", "method", "featureSet"):
        with pytest.raises(UsageError, match="in the name of who approves"):
            build_fulfilment_params(proposing(params | {extra: {}}, method))


@pytest.mark.anyio
@for_each_row("method", [*REQUEST_MEMBERS, "ping", "com.example/do"])
async def test_nothing_of_a_proposers_meta_is_sent_in_the_name_of_who_approves(method: str):
    sent: list[bytes] = []
    me = Participant()
    me.attach_gateway(sent.append)
    people: list[dict[str, Any]] = [{"id": name, "capabilities": []} for name in ("payments", "guest-1")]
    you = {"id": "me", "capabilities": ["mcp/*"]}
    me.receive_frame(Envelope("system/welcome", GATEWAY_SENDER, {"you": you, "participants": people}).encode())
    params: dict[str, Any] = dict.fromkeys(REQUEST_MEMBERS.get(method, ()), "x")
    payload = {"method": method, "params": {**params, "_meta": HOSTILE}}
    proposal = me.receive_frame(Envelope(f"mcp/proposal:{method}", "guest-1", payload, to=["payments"]).encode())
    assert isinstance(proposal, Proposal)
    with pytest.raises(Exception, match="did not answer"):
        await me.fulfil(proposal, within=0)
    (frame,) = sent
    assert json.loads(frame)["payload"]["params"] == params


def test_the_params_of_a_proposal_are_read_only_where_they_are_cleaned_or_shown():
    root = Path(defserve.__file__).parent
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if "proposal" in (source := path.read_text(encoding="utf-8")) and ".params" in source
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Attribute) and node.attr == "params" and ast.unparse(node.value).endswith("proposal")
    }
    # topic.py makes the kind of it, topic_client.py the text for a person.
    assert found == {"protocols/mcpx/proposals.py", "protocols/mcpx/topic.py", "client/topic_client.py"}


# -- ids


def test_an_id_is_not_taken_again_while_its_proposal_could_still_be_on_a_screen():
    now = [0.0]
    known = Proposals(clock=lambda: now[0], lifetime=300)

    def propose(id: str, name: str = "x" * 1_000_000) -> Proposal | None:
        return known.add(Envelope("mcp/proposal:x", "guest-1", {"method": "x", "params": {"a": name}}, id=id))

    first = propose("same", "small")
    assert first is not None
    for place in range(9):
        propose(f"f{place}")
    assert known.get("same") is None and propose("same", "evil") is None
    now[0] = 301
    again = propose("same", "evil")
    assert again is not None and again.digest != first.digest
    assert known.is_current(again) and not known.is_current(first)


def test_a_proposal_that_gave_way_cannot_be_decided_even_if_another_has_its_id():
    me = Participant()
    me.receive_frame(
        Envelope("system/welcome", GATEWAY_SENDER, {"you": {"id": "me", "capabilities": ["mcp/*"]}}).encode()
    )
    payload: dict[str, Any] = {"method": "x", "params": {}}
    old = Proposal("same", "guest-1", (), "x", {"a": 1}, created=0)
    assert isinstance(me.receive_frame(Envelope("mcp/proposal:x", "guest-1", payload, id="same").encode()), Proposal)
    with pytest.raises(ProposalNotPending, match="forgotten"):
        me.require_pending(old)
