"""Clients of the asking server: the official one on a real process and our own in memory, driven from plain tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import mcp_types as types
from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client as OfficialClient
from mcp import StdioServerParameters, stdio_client

from defserve.client import Accept, Answers, Cancel, Client, Decline
from tests.forking.spawning import quick_arguments
from tests.protocols.mcp.asking.asking_server import server

SERVER = Path(__file__).with_name("asking_server.py")
ERAS = {"handshake": "2025-11-25", "stateless": "2026-07-28"}

Json = dict[str, Any]


class Person:
    """Who is asked. `says` answers by message: a value for a lone field, a dict, "decline" or "cancel".

    `fills` does it by the form instead, where it is given.
    """

    def __init__(self) -> None:
        self.asked: list[Json] = []
        self.says: Callable[[str], Any] = lambda message: "decline"
        self.fills: Callable[[Json], Any] | None = None
        self.writes: Json = {"role": "assistant", "content": {"type": "text", "text": "Roses"}, "model": "bard"}
        self.roots: list[Json] = [{"uri": "file:///home", "name": "home"}]

    @property
    def messages(self) -> list[str]:
        return [question.get("message", question["method"]) for question in self.asked]

    def answer(self, method: str, params: Json) -> Json:
        """The result of one question of the server's, as it goes on the wire."""
        self.asked.append({"method": method, **params})
        if method == "sampling/createMessage":
            return self.writes
        if method == "roots/list":
            return {"roots": self.roots}
        said = self.fills(params["requestedSchema"]) if self.fills else self.says(params["message"])
        if said in ("accept", "decline", "cancel"):
            return {"action": said}
        return {"action": "accept", "content": said if isinstance(said, dict) else {"value": said}}


class Asker(Protocol):
    """One open client. Results are as they came."""

    person: Person
    stateless: bool

    def result(self, tool: str, **arguments: Any) -> Json: ...
    def read(self, uri: str) -> str: ...
    def prompt(self, name: str, **arguments: str) -> str: ...


def text(result: Json) -> str:
    assert not result.get("isError"), result
    return "".join(block["text"] for block in result["content"])


def items(result: Json) -> list[str]:
    """A list, which older versions carry as text only."""
    return json.loads(text(result))


def says(answers: dict[str, Any]) -> Callable[[str], Any]:
    return lambda message: answers[message]


class Official:
    """The official client on a process of the asking server."""

    def __init__(self, portal: BlockingPortal, client: OfficialClient, person: Person, stateless: bool) -> None:
        self._portal, self._client, self.person, self.stateless = portal, client, person, stateless

    def result(self, tool: str, **arguments: Any) -> Json:
        return _plain(self._portal.call(self._client.call_tool, tool, arguments))

    def read(self, uri: str) -> str:
        return _plain(self._portal.call(self._client.read_resource, uri))["contents"][0]["text"]

    def prompt(self, name: str, **arguments: str) -> str:
        return _plain(self._portal.call(self._client.get_prompt, name, arguments))["messages"][0]["content"]["text"]


class Ours:
    """Our own client on the asking server in memory."""

    def __init__(self, portal: BlockingPortal, client: Client, person: Person) -> None:
        self._portal, self._client, self.person, self.stateless = portal, client, person, client.stateless

    def result(self, tool: str, **arguments: Any) -> Json:
        return self._portal.call(self._client.call_raw, tool, arguments)

    def read(self, uri: str) -> str:
        return self._portal.call(self._client.read_text, uri)

    def prompt(self, name: str, **arguments: str) -> str:
        found = self._portal.call(lambda: self._client.prompt(name, **arguments))
        return found["messages"][0]["content"]["text"]


def official_client(person: Person | None, era: str, **options: Any) -> OfficialClient:
    """A client that offers to ask `person`, or nothing at all."""
    here = os.pathsep.join(path for path in sys.path if path)
    process = StdioServerParameters(command=sys.executable, args=quick_arguments(SERVER), env={"PYTHONPATH": here})
    if person is not None:
        options |= {
            "elicitation_callback": _asks(person, "elicitation/create", types.ElicitResult),
            "sampling_callback": _asks(person, "sampling/createMessage", types.CreateMessageResult),
            "list_roots_callback": _asks(person, "roots/list", types.ListRootsResult),
        }
    transport = stdio_client(process, errlog=subprocess.DEVNULL)  # type: ignore[arg-type]
    return OfficialClient(transport, mode="legacy" if era == "handshake" else ERAS[era], **options)


def _asks(person: Person, method: str, kind: Any) -> Any:
    async def callback(context: Any, params: Any = None) -> Any:
        from anyio import to_thread

        asked = _plain(params) if params is not None else {}
        return kind.model_validate(await to_thread.run_sync(person.answer, method, asked))

    return callback


@contextmanager
def official(era: str, **options: Any) -> Iterator[Official]:
    person = Person()
    with start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(official_client(person, era, **options)) as client:
            assert client.protocol_version == ERAS[era]
            yield Official(portal, client, person, era == "stateless")


@contextmanager
def ours(era: str) -> Iterator[Ours]:
    person = Person()

    def ask(message: str, schema: Json) -> Any:
        answer = person.answer("elicitation/create", {"message": message, "requestedSchema": schema})
        decisions = {"accept": Accept, "decline": Decline, "cancel": Cancel}
        return answer.get("content", decisions[answer["action"]])

    def ask_url(message: str, url: str) -> Any:
        answer = person.answer("elicitation/create", {"mode": "url", "message": message, "url": url})
        return {"accept": Accept, "decline": Decline, "cancel": Cancel}[answer["action"]]

    answers = Answers(
        ask=_in_thread(ask),
        ask_url=_in_thread(ask_url),
        sample=_in_thread(lambda params: person.answer("sampling/createMessage", params)),
        roots=lambda: person.answer("roots/list", {})["roots"],
    )
    with start_blocking_portal() as portal:
        with portal.wrap_async_context_manager(server.connect(version=ERAS[era], answers=answers)) as client:
            yield Ours(portal, client, person)


def _in_thread(function: Callable[..., Any]) -> Callable[..., Any]:
    """A person who thinks must not hold up the server, which shares the loop."""

    async def run(*args: Any) -> Any:
        from anyio import to_thread

        return await to_thread.run_sync(function, *args)

    return run


def _plain(model: Any) -> Json:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)
