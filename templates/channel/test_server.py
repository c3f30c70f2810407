import pytest
from defserve.client import Mcpl
from defserve.testing import SyncClient

SERVER = "{{ cookiecutter.package_name }}.server:server"


@pytest.mark.serves(SERVER)
def test_what_is_posted_is_in_the_transcript(client: SyncClient) -> None:
    client.call("post", author="Ada", text="Hello")
    assert client.call("transcript", last=1) == ["Ada: Hello"]


@pytest.mark.serves(SERVER, mcpl=Mcpl())
@pytest.mark.eras("handshake")
def test_a_host_hears_what_is_posted(client: SyncClient) -> None:
    client.call("post", author="Ada", text="Is anybody there?")
    message = client.mcpl.next_message()
    assert message.channel_id == "chat:lobby"
    assert message.author is not None and message.author.name == "Ada"


@pytest.mark.serves(SERVER, mcpl=Mcpl())
def test_the_model_talks_in_the_room(client: SyncClient) -> None:
    client.mcpl.refresh_channels()
    delivery = client.mcpl.publish("chat:lobby", "I am.")
    assert delivery is not None and delivery.delivered
    assert client.call("transcript", last=1) == ["model: I am."]
