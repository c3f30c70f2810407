import pytest
from defserve.client import Mcpl
from defserve.live import Turn
from defserve.testing import SyncClient

pytestmark = pytest.mark.serves("{{ cookiecutter.package_name }}.server:server", mcpl=Mcpl())

TURN = Turn(inference_id="i1", user_message="What is the key?")


def test_a_text_is_redacted(client: SyncClient) -> None:
    assert client.call("redact", text="Write to ada@example.org") == "Write to [REDACTED]"


def test_an_answer_with_a_secret_is_rewritten(client: SyncClient) -> None:
    reviewed = client.mcpl.after_inference(TURN, "It is sk-1234567890abcdef.")
    assert reviewed.text == "It is [REDACTED]."


def test_any_other_answer_stays_as_it_is(client: SyncClient) -> None:
    assert client.mcpl.after_inference(TURN, "I do not know.").text == "I do not know."
