from __future__ import annotations

import asyncio

import pytest

from defserve import Server, UsageError
from defserve.protocols.mcp.asking.round_trips import InvalidState
from defserve.protocols.mcp.asking.server_secret import SECRET_VARIABLE, ServerSecret
from tests.rows import for_each_row


@for_each_row("secret", ["short", b"fifteen bytes.."])
def test_a_secret_too_short_is_refused_where_it_is_given(secret: str | bytes):
    with pytest.raises(UsageError, match=r"Server\(secret=…\) has \d+ bytes, at least 16 are needed"):
        Server("weak", secret=secret)


def test_a_secret_of_the_environment_is_checked_when_it_is_first_needed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(SECRET_VARIABLE, "short")
    with pytest.raises(UsageError, match="DEFSERVE_SECRET has 5 bytes"):
        ServerSecret(None).get_sealer(is_local=True)


def test_the_secret_that_is_given_goes_before_the_environments(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(SECRET_VARIABLE, "the environment's own secret")
    state = ServerSecret("the secret that is given").get_sealer(is_local=True).seal("x", binding=b"")
    opening = ServerSecret(b"the secret that is given").get_sealer(is_local=True).open(state, binding=b"")
    assert asyncio.run(opening) == "x"


def test_without_any_secret_every_process_has_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    state = ServerSecret(None).get_sealer(is_local=True).seal("x", binding=b"")
    with pytest.raises(InvalidState):
        asyncio.run(ServerSecret(None).get_sealer(is_local=True).open(state, binding=b""))


def test_a_key_that_ends_with_the_process_is_warned_of_once_and_only_for_the_network(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    secret = ServerSecret(None)
    secret.get_sealer(is_local=True)
    assert caplog.messages == []
    for _ in range(2):
        secret.get_sealer(is_local=False)
    assert [SECRET_VARIABLE in message for message in caplog.messages] == [True]


def test_a_key_that_lasts_is_no_reason_to_warn(caplog: pytest.LogCaptureFixture):
    ServerSecret("the secret that is given").get_sealer(is_local=False)
    assert caplog.messages == []


def test_a_key_that_a_group_of_workers_shares_is_no_reason_to_warn(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.delenv(SECRET_VARIABLE, raising=False)
    secret = ServerSecret(None)
    secret.of_group = b"the key of all the workers"
    secret.get_sealer(is_local=False)
    assert caplog.messages == []
