from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from defserve.client import Mcpl
from defserve.testing import SyncClient
from tests.waiting import DEADLINE

pytestmark = [pytest.mark.eras("handshake"), pytest.mark.serves(mcpl=Mcpl(audit=[]))]


class Chat:
    """The chat, with one place in it, which the connector takes."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listening.getsockname())
        self._joined = threading.Event()
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def _accept(self) -> None:
        self._listening.settimeout(30)
        self.connection, _ = self._listening.accept()
        self.connection.settimeout(30)
        self._lines = self.connection.makefile("rb")
        self._joined.set()

    def write(self, line: str) -> None:
        assert self._joined.wait(30)
        self.connection.sendall(f"{line}\n".encode())

    def read(self) -> str:
        return self._lines.readline().decode()

    def close(self) -> None:
        self._thread.join()
        for one in (self._lines, self.connection, self._listening):
            one.close()


@pytest.fixture
def chat(monkeypatch: pytest.MonkeyPatch) -> Iterator[Chat]:
    made = Chat()
    monkeypatch.setenv("CHAT_ADDRESS", made.address)
    yield made
    made.close()


def test_the_host_hears_the_room_and_the_room_hears_the_host(chat: Chat, client: SyncClient):
    assert [channel.id for channel in client.mcpl.refresh_channels()] == ["chat:room"]
    chat.write("Ada: Is anybody there?")
    message = client.mcpl.next_message(within=DEADLINE)
    assert (message.channel_id, message.author.name) == ("chat:room", "Ada")
    assert [getattr(part, "text", "") for part in message.content] == ["Is anybody there?"]
    client.mcpl.publish("chat:room", "Yes,\nI am.")
    assert chat.read() == "Yes, I am.\n"
