from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from defserve.errors import UsageError
from defserve.gateway.policy import (
    Admission,
    GatewayLimits,
    is_participant_name,
    is_topic_name,
    load_gateway_config,
    parse_config,
)
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

FILE = """
profile = "response-only"
topics = ["demo", "ops-*"]
matching = "reference"
allowed_hosts = ["gateway.example.com"]

[profiles]
monitor = ["mcp/request:*/list"]

[participants.alice]
token_env = "ALICE_TOKEN"
profile = "full"

[participants.bob]
token_file = "bob.token"
capabilities = ["chat"]
topics = ["ops-1"]
routing = "directed"

[participants.carol]
token = "t-carol"

[participants.watch]
token = "t-watch"
profile = "monitor"

[admins.root]
token = "t-root"

[limits]
message = 65536
rate = 5
"""


@pytest.mark.req("MCPX-5.1", "MCPX-4.1p")
async def test_a_file_says_who_is_who(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("ALICE_TOKEN", "t-alice")
    (tmp_path / "bob.token").write_text("t-bob\n")
    (tmp_path / "gateway.toml").write_text(FILE)
    config = load_gateway_config(tmp_path / "gateway.toml")
    admit = config.policy.admit
    assert await admit("t-alice", "demo") == Admission("alice", ("mcp/*", "chat"))
    assert await admit("t-bob", "ops-1") == Admission("bob", ("chat",), "directed")
    assert await admit("t-carol", "ops-2") == Admission("carol", ("mcp/response:*", "mcp/reject", "chat"))
    assert await admit("t-watch", "demo") == Admission("watch", ("mcp/request:*/list",))
    for token, topic in (("t-bob", "ops-2"), ("t-alice", "other"), ("t-root", "demo"), ("", "demo"), (None, "demo")):
        assert await admit(token, topic) is None
    assert config.admins is not None and config.strict
    assert (config.limits, config.allowed_hosts) == (GatewayLimits(message=65536, rate=5), ("gateway.example.com",))


ONE: dict[str, Any] = {"a": {"token": "t"}}


@for_each_row(
    ("table", "problem"),
    [
        ({}, "lets nobody in"),
        ({"participants": ONE, "topic": []}, "'topic', which is not a setting"),
        ({"participants": []}, "participants must be a table"),
        ({"participants": {"a": {}}}, "participants.a needs one token"),
        ({"participants": {"a": {"token": "t", "token_env": "T"}}}, "participants.a needs one token"),
        ({"participants": {"a": {"token": "not a token"}}}, "cannot be sent as a bearer token"),
        ({"participants": {"a": {"token_env": "NOT_SET_ANYWHERE"}}}, "the variable NOT_SET_ANYWHERE is not set"),
        ({"participants": {"a": {"token_file": "nowhere"}}}, "nowhere cannot be read"),
        ({"participants": {**ONE, "b": {"token": "t"}}}, "participants.b has the token of a"),
        ({"participants": {"a": {"token": "t", "profile": "king"}}}, "there is no profile 'king'"),
        ({"participants": {"a": {"token": "t", "profile": "full", "capabilities": []}}}, "both a profile"),
        ({"participants": {"a": {"token": "t", "capabilities": "chat"}}}, "capabilities must be a list of strings"),
        ({"participants": {"a": {"token": "t", "routing": "some"}}}, "routing cannot be 'some'"),
        ({"participants": {"a": {"token": "t", "rights": []}}}, "'rights', which is not a setting"),
        ({"participants": {"system:gateway": {"token": "t"}}}, "cannot be called 'system:gateway'"),
        ({"participants": {"a b": {"token": "t"}}}, "cannot be called 'a b'"),
        ({"participants": ONE, "limits": {"rate": 0}}, "limit rate cannot be 0"),
        ({"participants": ONE, "limits": {"message": "1 MB"}}, "limit message cannot be '1 MB'"),
        ({"participants": ONE, "limits": {"message": True}}, "limit message cannot be True"),
        ({"participants": ONE, "limits": {"speed": 1}}, "'speed', which is not a setting"),
        ({"participants": ONE, "matching": "fuzzy"}, "matching cannot be 'fuzzy'"),
        ({"participants": ONE, "profile": "king"}, "there is no profile 'king'"),
        ({"participants": ONE, "jwt": {"issuer": "https://x"}}, "jwt has no audience"),
    ],
)
def test_a_mistake_in_it_is_named(table: dict[str, Any], problem: str):
    with pytest.raises(UsageError, match=problem):
        parse_config(table)


def test_the_file_is_named_with_what_is_wrong_in_it(tmp_path: Path):
    file = tmp_path / "gateway.toml"
    with pytest.raises(UsageError, match="cannot be read"):
        load_gateway_config(file)
    file.write_text("= 1")
    with pytest.raises(UsageError, match="gateway.toml is not TOML"):
        load_gateway_config(file)
    file.write_text("colour = 1")
    with pytest.raises(UsageError, match="gateway.toml: the file has 'colour'"):
        load_gateway_config(file)


def test_a_misspelt_setting_is_met_with_a_suggestion():
    with pytest.raises(UsageError) as caught:
        parse_config({"participants": {"a": {"token": "t", "profil": "full"}}})
    assert caught.value.fix == "did you mean 'profile'?"


@for_each_row("name", ["demo", "a.b-c_~9", "x" * 128])
def test_topics_have_plain_names(name: str):
    assert is_topic_name(name)


@for_each_row("name", ["", "a b", "../x", "-a", "x" * 129, "é", "a\n", "a:b", "*"])
def test_and_no_others(name: str):
    assert not is_topic_name(name)


@for_each_row("name", ["", "system:gateway", "system:x", "local", "a b", "a\n", "x" * 257, "anonymous:1"])
def test_nobody_may_pass_for_the_gateway_or_break_a_log(name: str):
    assert not is_participant_name(name)
