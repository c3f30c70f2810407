from __future__ import annotations

import pytest

from defserve.client import Mcpl
from defserve.live import Turn
from defserve.testing import SyncClient

pytestmark = [pytest.mark.eras("handshake"), pytest.mark.serves(mcpl=Mcpl(audit=[]))]


def recalled(client: SyncClient, message: str | None) -> list[tuple[str, str]]:
    found = client.mcpl.before_inference(Turn(inference_id="i", conversation_id="c", user_message=message))
    return [(one.position, getattr(part, "text", "")) for one in found for part in one.content]


def test_what_was_remembered_is_read_by_the_model_when_it_matters(client: SyncClient):
    assert client.call("remember", fact="Alice drinks green tea.") == "Facts stored: 1"
    assert client.call("remember", fact="The office is in Oslo.") == "Facts stored: 2"
    assert client.call("remember", fact="The office is in Oslo.") == "Facts stored: 2"
    ((position, text),) = recalled(client, "What does Alice like?")
    assert position == "beforeUser"
    assert text == "Facts that the user asked to remember:\n- Alice drinks green tea."
    assert recalled(client, "Any news?") == recalled(client, None) == []


def test_what_was_forgotten_is_not(client: SyncClient):
    client.call("remember", fact="Alice drinks green tea.")
    assert client.call("forget", words="GREEN TEA") == "1 forgotten"
    assert recalled(client, "What does Alice like?") == []
