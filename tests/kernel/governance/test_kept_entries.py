"""Entries of mgp.state.json that cannot be read: nobody may do more because of one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from defserve.kernel.kernel import Kernel
from defserve.protocols.mgp.access import AccessPolicy, Entry

EVE: dict[str, Any] = {"entry_type": "server_grant", "agent_id": "eve", "permission": "deny"}
EVES_TOOL: dict[str, Any] = {**EVE, "entry_type": "tool_grant", "tool_name": "act"}
MAY: dict[str, Any] = {**EVE, "permission": "allow"}
FRIEND: dict[str, Any] = {**MAY, "agent_id": "friend"}
NO_TIME = {"expires_at": "tomorrow"}


def kernel_with(folder: Path, *entries: dict[str, Any], default: str = "opt-out") -> Kernel:
    path = folder / "mgp.toml"
    head = f'[kernel]\nadmins = ["alice"]\ndefault_policy = "{default}"\n'
    path.write_text(f'{head}[[servers]]\nid = "a"\ncommand = "none"\nenabled = false\n')
    kept = {"version": 1, "pins": {}, "access": {"a": entries}}
    path.with_suffix(".state.json").write_text(json.dumps(kept))
    return Kernel.load(path)


def policy_of(kernel: Kernel) -> AccessPolicy:
    access = kernel.governance.access
    assert access is not None
    policy = access.find_policy("a")
    assert policy is not None
    return policy


def allowed(kernel: Kernel) -> list[str]:
    """Who may do what, of an agent with an entry, one with another and one with none."""
    access, policy = kernel.governance.access, policy_of(kernel)
    assert access is not None
    return [
        f"{agent} {tool or 'server'}"
        for agent in ("eve", "friend", "nobody")
        for tool in (None, "act", "look")
        if policy.decide(agent, tool, access.clock()).permission == "allow"
    ]


FRIENDS = ["friend server", "friend act", "friend look"]
OTHERS = [*FRIENDS, "nobody server", "nobody act", "nobody look"]


@pytest.mark.parametrize(
    ("entry", "left"),
    [
        ({**EVE, **NO_TIME}, OTHERS),
        ({**EVE, "expires_at": 7}, OTHERS),
        ({**EVE, "granted_by": ""}, OTHERS),
        ({**EVE, "later": "version"}, OTHERS),
        ({**EVE, "permission": "Deny"}, OTHERS),
        ({"entry_type": "server_grant", "agent_id": "eve", "permision": "deny"}, OTHERS),
        ({**EVE, "entry_type": "group_grant"}, OTHERS),
        ({**EVES_TOOL, **NO_TIME}, ["eve server", "eve look", *OTHERS]),
        ({**EVES_TOOL, "tool_name": 7}, OTHERS),
        ({**EVES_TOOL, "tool_name": None}, OTHERS),
        ({**EVE, "tool_name": "act"}, OTHERS),
        # Whom it denies is not known: all who have no entry of their own.
        ({**EVE, "agent_id": ["eve"]}, FRIENDS),
        ({"entry_type": "server_grant", "permission": "deny"}, FRIENDS),
        ({}, FRIENDS),
        ({**EVES_TOOL, "agent_id": 7}, ["eve server", "eve look", *[one for one in OTHERS if "act" not in one]]),
        # What allows is left out.
        ({**MAY, **NO_TIME}, ["eve server", "eve act", "eve look", *OTHERS]),
        ({**MAY, "agent_id": 7}, ["eve server", "eve act", "eve look", *OTHERS]),
    ],
    ids=lambda value: json.dumps(value)[:60] if isinstance(value, dict) else "",
)
def test_an_entry_that_cannot_be_read_denies_what_it_may_have_denied(
    tmp_path: Path, entry: dict[str, Any], left: list[str]
) -> None:
    for entries in ((entry, FRIEND), (FRIEND, entry)):
        assert allowed(kernel_with(tmp_path, *entries)) == left


def test_a_grant_that_cannot_be_read_opens_nothing(tmp_path: Path) -> None:
    kernel = kernel_with(tmp_path, {**MAY, **NO_TIME}, {**MAY, "agent_id": 7}, {}, FRIEND, default="opt-in")
    assert allowed(kernel) == FRIENDS


def test_a_denial_of_an_unknown_tool_outweighs_what_the_agent_was_granted(tmp_path: Path) -> None:
    for entries in (({**EVES_TOOL, "tool_name": 7}, MAY), (MAY, {**EVES_TOOL, "tool_name": 7})):
        assert allowed(kernel_with(tmp_path, *entries)) == OTHERS


def test_operators_see_and_replace_what_cannot_be_read(tmp_path: Path) -> None:
    kernel = kernel_with(tmp_path, {**EVE, **NO_TIME}, {}, {**EVE, "agent_id": "bob", "tool_name": "act"})
    policy = policy_of(kernel)
    assert {(one.agent_id, one.tool_name) for one in policy.entries()} == {
        ("eve", None),
        ("(unreadable)", None),
        ("bob", None),
        ("bob", "act"),
    }
    policy.grant(Entry("server_grant", "eve"))
    policy.grant(Entry("tool_grant", "bob", "act"))
    assert policy.revoke("(unreadable)") is not None
    again = policy_of(Kernel.load(tmp_path / "mgp.toml")).entries()
    assert {(one.agent_id, one.tool_name, one.permission) for one in again} == {
        ("eve", None, "allow"),
        ("bob", "act", "allow"),
        ("bob", None, "deny"),
    }


def test_a_decision_about_a_permission_that_cannot_be_read_denies_it(tmp_path: Path) -> None:
    kernel = kernel_with(tmp_path)
    needs = {"network.outbound": {"decision": "Denied"}, "shell.execute": {}, "memory.read": {"decision": "approved"}}
    kept = {"version": 1, "pins": {}, "access": {}, "permissions": {"a": needs}}
    (tmp_path / "mgp.state.json").write_text(json.dumps(kept))
    kernel = Kernel.load(tmp_path / "mgp.toml")
    found = kernel.governance.permissions.list_statuses_for_server("a", None, [*needs, "memory.write"])
    assert [one.decision for one in found.values()] == ["denied", "denied", "approved", "approved"]
