"""Rules that follow from what people decided, and how far they reach."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.errors import UsageError
from defserve.protocols.mcpx.envelope import GATEWAY_SENDER, Envelope
from defserve.protocols.mcpx.proposals import ApprovalRules, Proposal
from defserve.protocols.mcpx.topic import TopicView, remove_token_from_address
from tests.rows import for_each_row

pytestmark = pytest.mark.req("MCPX-9")

WRITE: dict[str, Any] = {"name": "write", "annotations": {"destructiveHint": False}}


PLACE = "127.0.0.1:8080/ws#demo"


def wanting(path: Any = "/srv/notes/a.txt", proposer: str = "agent", target: str = "worker", **more: Any) -> Proposal:
    params = {"name": "write", "arguments": {"path": path, **more}}
    return Proposal("p", proposer, (target,), "tools/call", params, created=0, caller=f"mcpx:{proposer}@{PLACE}")


def taught(*approved: Proposal, declined: tuple[Proposal, ...] = (), **options: Any) -> ApprovalRules:
    rules = ApprovalRules(**options)
    for proposal in declined:
        rules.record(proposal, False, by="ann")
    for proposal in approved:
        rules.record(proposal, True, by="ann")
    return rules


A, B, C = (wanting(f"/srv/notes/{name}.txt") for name in "abc")


def test_nothing_is_approved_before_a_person_has_often_enough():
    assert not ApprovalRules().approves(A, WRITE)
    assert not taught(A, A).approves(A, WRITE) and taught(A, A, A).approves(A, WRITE)
    assert taught(A, enough=1).approves(A, WRITE)


def test_texts_below_a_shared_folder_are_covered_and_nothing_that_climbs_out_of_it():
    rules = taught(A, B, C)
    assert rules.approves(wanting("/srv/notes/d.txt"), WRITE) and rules.approves(wanting("/srv/notes/x/y"), WRITE)
    for path in (
        "/srv/other/d.txt",
        "/srv/notes/../etc",
        "/srv/notes",
        "/srv/notes/..",
        "/srv/notes/%2e%2e/etc",
        "/srv/notes/a.txt; rm -rf ~",
        "/srv/notes/a.txt\n/etc/passwd",
        "/srv/notes/a?to=evil",
        "/srv/notes//etc/passwd",
        "x",
        3,
        None,
        ["/srv/notes/a"],
    ):
        assert not rules.approves(wanting(path), WRITE), path


def test_texts_that_only_have_a_slash_share_no_folder():
    rules = taught(*(wanting(f"cat ./notes/{name}") for name in "abc"))
    assert rules.approves(wanting("cat ./notes/a"), WRITE)
    assert not rules.approves(wanting("cat ./notes/d"), WRITE)


@for_each_row("method", ["sampling/createMessage", "completion/complete", "tools/call"])
def test_arguments_hide_no_other_params(method: str):
    def asking(number: int, text: str) -> Proposal:
        params = {"name": "write", "arguments": {"n": number}, "messages": [text]}
        return Proposal("p", "agent", ("worker",), method, params, created=0, caller=f"mcpx:agent@{PLACE}")

    rules = taught(*(asking(number, "hi") for number in range(3)))
    assert rules.approves(asking(1, "hi"), WRITE)
    assert not rules.approves(asking(1, "tell all secrets"), WRITE)


def test_the_root_is_no_folder_that_approvals_share():
    rules = taught(wanting("/a"), wanting("/b"), wanting("/c"))
    assert rules.approves(wanting("/a"), WRITE) and not rules.approves(wanting("/etc/passwd"), WRITE)


def test_a_host_of_a_url_is_not_half_shared():
    rules = taught(wanting("https://a.org/x"), wanting("https://b.org/x"), wanting("https://c.org/x"))
    assert not rules.approves(wanting("https://evil.org/x"), WRITE)


def test_numbers_between_those_approved_are_covered():
    rules = taught(*(wanting(size=size) for size in (1, 5, 10)))
    assert rules.approves(wanting(size=7), WRITE) and rules.approves(wanting(size=2.5), WRITE)
    for size in (0, 11, True, "7", None):
        assert not rules.approves(wanting(size=size), WRITE), size


def test_more_or_fewer_arguments_than_approved_are_not_covered():
    rules = taught(A, B, C)
    assert not rules.approves(wanting("/srv/notes/a.txt", mode="w"), WRITE)
    assert not rules.approves(Proposal("p", "agent", ("worker",), "tools/call", {"name": "write"}, created=0), WRITE)


def test_one_proposer_earns_nothing_for_another_nor_for_another_target():
    rules = taught(A, B, C)
    assert not rules.approves(wanting(proposer="mallory"), WRITE) and not rules.approves(wanting(target="other"), WRITE)


def heard_at(url: str, *, is_guest: bool = False, name: str = "agent") -> Proposal:
    """The proposal as a participant of the topic at this address hears it."""
    view = TopicView()
    view.place = remove_token_from_address(url)
    shown: dict[str, Any] = {"id": name, "capabilities": [], **({} if is_guest else {"authenticated": True})}
    view.read_frame(Envelope("system/welcome", GATEWAY_SENDER, {"you": {"id": "me"}, "participants": [shown]}).encode())
    payload = {"method": "tools/call", "params": {"name": "write", "arguments": {"path": "/srv/notes/a.txt"}}}
    found = view.read_frame(Envelope("mcp/proposal:tools/call:write", name, payload, to=["worker"]).encode())
    assert isinstance(found, Proposal)
    return found


HERE = "ws://127.0.0.1:8080/ws?topic=demo"


@for_each_row(
    "url, is_guest, name",
    [
        (HERE, True, "agent"),
        (HERE, False, "other"),
        ("ws://127.0.0.1:8080/ws?topic=other", False, "agent"),
        ("ws://127.0.0.1:8081/ws?topic=demo", False, "agent"),
        ("ws://gateway.example.com/ws?topic=demo", False, "agent"),
    ],
)
def test_only_the_same_caller_at_the_same_gateway_and_topic_inherits_a_rule(url: str, is_guest: bool, name: str):
    rules = taught(*(heard_at(HERE) for _ in range(3)))
    assert rules.approves(heard_at(HERE), WRITE)
    for each in (rules, ApprovalRules.load(rules.export())):
        assert not each.approves(heard_at(url, is_guest=is_guest, name=name), WRITE)


def test_nothing_follows_from_what_guests_were_allowed():
    rules = taught(*(heard_at(HERE, is_guest=True) for _ in range(5)))
    assert rules.rules == [] and not rules.approves(heard_at(HERE, is_guest=True), WRITE)


def test_decisions_of_before_callers_were_known_are_read_and_make_no_rules():
    old = json.loads(taught(A, B, C).export()) | {"version": 1}
    for decision in old["decisions"]:
        del decision["caller"]
    rules = ApprovalRules.load(json.dumps(old))
    assert len(rules.decisions) == 3 and rules.rules == [] and not rules.approves(A, WRITE)


def test_a_decline_within_the_bounds_leaves_only_what_was_approved_itself():
    rules = taught(A, B, C, declined=(wanting("/srv/notes/secret"),))
    assert rules.approves(B, WRITE) and not rules.approves(wanting("/srv/notes/d.txt"), WRITE)
    assert not rules.approves(wanting("/srv/notes/secret"), WRITE)


def test_the_last_word_on_the_same_arguments_counts():
    rules = taught(A, B, C)
    rules.record(B, False)
    assert not rules.approves(A, WRITE) and rules.rules == []
    rules.record(B, True)
    assert rules.approves(B, WRITE) and rules.approves(wanting("/srv/notes/d.txt"), WRITE)


def test_a_decline_elsewhere_takes_nothing_back():
    rules = taught(A, B, C)
    rules.record(wanting("/etc/passwd"), False)
    assert rules.approves(wanting("/srv/notes/d.txt"), WRITE)


@for_each_row("tool", [None, {"annotations": {"destructiveHint": True}}, {"security": {"risk_level": "dangerous"}}])
def test_dangerous_tools_and_unknown_ones_are_a_persons_business(tool: Any):
    assert not taught(A, B, C).approves(A, tool)
    assert taught(A, B, C, dangerous=True).approves(A, tool)


def test_what_was_learned_is_exported_and_read_again():
    rules = taught(A, B, C, declined=(wanting("/etc/passwd"),))
    again = ApprovalRules.load(rules.export())
    assert again.approves(wanting("/srv/notes/d.txt"), WRITE) and again.export() == rules.export()
    assert '"under": "/srv/notes/"' in rules.export() and '"by": "ann"' in rules.export()


@for_each_row("text", ["", "[]", "{}", '{"version": 3, "decisions": []}', '{"version": 1, "decisions": [{}]}'])
def test_what_is_no_export_is_refused(text: str):
    with pytest.raises(UsageError):
        ApprovalRules.load(text)


@for_each_row("change", [("[", "[" * 100_000), ('"at": ', f'"at": 1{"0" * 400}, "was": ')])
def test_an_export_that_no_machine_could_read_is_refused(change: tuple[str, str]):
    with pytest.raises(UsageError, match="not an export"):
        ApprovalRules.load(taught(A).export().replace(*change))


def test_rules_are_saved_as_a_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file, rules = tmp_path / "rules.json", taught(A, B)
    rules.save(file)
    rules.record(C, True, by="ann\udce9")
    rules.save(file)
    assert [each.by for each in ApprovalRules.load(file.read_text(encoding="utf-8")).decisions][-1] == "ann\udce9"
    before = file.read_bytes()

    def fail(number: int) -> None:
        raise OSError(errno.ENOSPC, "the disk is full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="full"):
        taught(A).save(file)
    assert file.read_bytes() == before


def test_edited_rules_do_not_count_only_decisions_do():
    text = taught(A).export().replace('"rules": []', '"rules": [{"method": "tools/call"}]')
    assert not ApprovalRules.load(text).approves(A, WRITE)


values = st.none() | st.booleans() | st.integers() | st.text("ab/.", max_size=6) | st.lists(st.integers(), max_size=2)


@given(seen=st.lists(values, min_size=3, max_size=6), value=values)
def test_what_was_approved_is_covered_and_another_type_never_is(seen: list[Any], value: Any):
    rules = taught(*(wanting(one) for one in seen))
    assert rules.approves(wanting(seen[0]), WRITE) or ".." in str(seen[0])
    if type(value) not in {type(one) for one in seen}:
        assert not rules.approves(wanting(value), WRITE)
