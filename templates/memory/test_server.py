import time

import pytest
from defserve.client import Mcpl
from defserve.live import Turn
from defserve.testing import SyncClient

pytestmark = pytest.mark.serves("{{ cookiecutter.package_name }}.server:server", mcpl=Mcpl())


def test_what_was_remembered_is_recalled(client: SyncClient) -> None:
    client.call("remember", fact="Ada prefers green tea")
    client.call("remember", fact="Ada prefers green tea")
    assert client.call("recall", about="Which tea is green?") == ["Ada prefers green tea"]
    assert client.call("recall", about="coffee") == []


def test_the_model_is_reminded_before_it_answers(client: SyncClient) -> None:
    client.call("remember", fact="The reactor is on floor nine")
    (injection,) = client.mcpl.before_inference(Turn(inference_id="i1", user_message="Where is the reactor?"))
    assert injection.namespace == "memory"
    assert "floor nine" in str(injection.content)
    assert client.mcpl.before_inference(Turn(inference_id="i2", user_message="Hi")) == []


def test_what_people_say_is_learned(client: SyncClient) -> None:
    turn = Turn(inference_id="i3", user_message=f"Please remember that {client.version} means lemons.")
    client.mcpl.after_inference(turn, "I will.")
    wait_until_known(client, client.version)


def wait_until_known(client: SyncClient, fact: str) -> None:
    """Hosts do not wait for hooks that only look."""
    deadline = time.monotonic() + 5
    while not any(fact in known for known in client.call("recall", about="lemons")):
        assert time.monotonic() < deadline, f"{fact!r} was not learned"
