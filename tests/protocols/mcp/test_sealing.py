from __future__ import annotations

import pytest

from defserve import Server, UsageError
from defserve.protocols.mcp.request_state import InvalidState
from defserve.protocols.mcp.sealing import VARIABLE, Sealing


@pytest.mark.parametrize("secret", ["short", b"fifteen bytes.."])
def test_a_secret_too_short_is_refused_where_it_is_given(secret: str | bytes):
    with pytest.raises(UsageError, match=r"Server\(secret=…\) has \d+ bytes, at least 16 are needed"):
        Server("weak", secret=secret)


def test_a_secret_of_the_environment_is_checked_when_it_is_first_needed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(VARIABLE, "short")
    with pytest.raises(UsageError, match="DEFSERVE_SECRET has 5 bytes"):
        _ = Sealing(None).sealer


def test_the_secret_that_is_given_goes_before_the_environments(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(VARIABLE, "the environment's own secret")
    state = Sealing("the secret that is given").sealer.seal("x", binding=b"")
    assert Sealing(b"the secret that is given").sealer.open(state, binding=b"") == "x"


def test_without_any_secret_every_process_has_its_own(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    state = Sealing(None).sealer.seal("x", binding=b"")
    with pytest.raises(InvalidState):
        Sealing(None).sealer.open(state, binding=b"")
