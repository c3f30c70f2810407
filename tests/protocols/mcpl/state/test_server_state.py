"""`server.state(Model)`: a state for plain tools. Clients need to know nothing of MCPL, hosts see one feature set."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from defserve import Server, State, UsageError
from defserve.auth import StaticTokens
from defserve.client import Client, Mcpl
from defserve.protocols.mcpl.state.states import StateOptions
from defserve.server.options import StateFields
from defserve.testing import SyncClient
from tests import asgi
from tests.forking.spawning import spawn
from tests.raw import ERAS, raw

pytestmark = pytest.mark.anyio


class Notebook(BaseModel):
    notes: list[str] = []


def notes_server(name: str = "notes", **options: Any) -> Server:
    server = Server(name, "1", **options)
    notebooks = server.state(Notebook)

    @server.tool
    def add_note(text: str, book: State[Notebook]) -> list[str]:
        book.notes.append(text)
        if not text:
            raise ValueError(text)
        return book.notes

    @server.tool
    async def undo(book: State[Notebook]) -> list[str]:
        *_, before, _ = [Notebook(), *[await notebooks.at(one) for one in await notebooks.checkpoints()]]
        book.notes = before.notes
        return book.notes

    @server.tool
    def unrelated() -> str:
        return "ran"

    return server


@pytest.mark.parametrize("version", ERAS)
async def test_a_plain_client_has_a_state_and_undoes_a_change(version: str):
    async with notes_server().connect(version=version) as client:
        assert await client.call("add_note", text="milk") == ["milk"]
        assert await client.call("add_note", text="tea") == ["milk", "tea"]
        assert (await client.call_raw("add_note", {"text": ""}))["isError"] is True
        assert await client.call("undo") == ["milk"]
        assert all("_meta" not in tool for tool in await client.tools())


@pytest.mark.parametrize("version", ERAS)
async def test_over_http_each_of_two_callers_has_its_own(version: str):
    auth = StaticTokens({"token-of-ann": "ann", "token-of-bob": "bob"})
    async with asgi.living(notes_server(auth=auth).asgi()) as app:
        for who in ("ann", "bob", "ann"):
            peer = asgi.Peer(app, version)
            peer.token = f"token-of-{who}"
            await peer.open()
            reply = await peer.ask("tools/call", {"name": "add_note", "arguments": {"text": who}})
    assert reply["result"]["structuredContent"] == {"result": ["ann", "ann"]}


PROGRAM = """
from pydantic import BaseModel
from defserve import Server, State

class Notebook(BaseModel):
    notes: list[str] = []

server = Server("notes", "1", store={store!r})
server.state(Notebook)

@server.tool
def add_note(text: str, book: State[Notebook]) -> list[str]:
    book.notes.append(text)
    return book.notes

server.main()
"""


async def test_over_stdio_it_outlives_the_process_and_defserve_state_shows_it(tmp_path: Path):
    store = f"sqlite:///{tmp_path / 'notes.db'}"
    (tmp_path / "notes.py").write_text(PROGRAM.format(store=store))
    kept = list[str]()
    for text, version in (("milk", ERAS[0]), ("tea", ERAS[0]), ("jam", ERAS[1]), ("oats", ERAS[1])):
        kept.append(text)
        async with Client(await spawn(tmp_path / "notes.py"), version=version) as client:
            assert await client.call("add_note", text=text) == kept
    command = [sys.executable, "-m", "defserve", "state", "list", store, "--json"]
    listed = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    assert "notes.state" in json.dumps(json.loads(listed.stdout))


def test_the_test_clients_host_rolls_back():
    with SyncClient(notes_server(), mcpl=Mcpl(audit=[])) as client:
        client.call("add_note", text="milk")
        before = client.mcpl.state("notes.state").checkpoint
        client.call("add_note", text="tea")
        assert before is not None and client.mcpl.rollback("notes.state", before).success
        assert client.call("add_note", text="jam") == ["milk", "jam"]


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("notes", {}, "notes.state"),
        ("Ann's notes", {}, "Ann-s-notes.state"),
        ("com.example.notes", {}, "com-example-notes.state"),
        ("日本", {}, "server.state"),
        ("renamed", {"namespace": "notes"}, "notes.state"),
    ],
)
def test_the_set_is_named_after_the_server(name: str, options: dict[str, Any], expected: str):
    assert Server(name, "1", **options).state(Notebook).name == expected


async def test_only_tools_that_take_the_state_belong_to_the_set_and_a_host_can_switch_them_off():
    server = notes_server()
    async with raw(server, ERAS[0], {"experimental": {"mcpl": {"version": "0.4", "featureSets": True}}}) as host:
        assert list(host.opening["capabilities"]["experimental"]["mcpl"]["featureSets"]) == ["notes.state"]
        listed = {tool["name"]: tool.get("_meta", {}) for tool in (await host.ask("tools/list"))["result"]["tools"]}
        assert {name for name, meta in listed.items() if meta.get("featureSet")} == {"add_note", "undo"}


def test_a_server_that_keeps_nothing_has_no_set():
    server = Server("plain", "1")
    assert all(extension.name != "mcpl" for extension in server.extensions)


async def test_with_strict_feature_sets_plain_clients_use_it_too():
    async with notes_server(feature_sets="strict").connect() as client:
        assert await client.call("add_note", text="milk") == ["milk"]


def test_a_second_model_is_refused_with_what_to_do():
    server = notes_server()
    with pytest.raises(UsageError, match=r"'notes.state' has a state already") as refused:
        server.state(Notebook)
    assert refused.value.fix == "put both in one model, or make another set"


def test_it_takes_every_option_that_a_state_has():
    assert set(StateFields.__annotations__) == set(StateOptions._fields)


def test_a_resource_cannot_take_it():
    server = notes_server()
    with pytest.raises(UsageError, match="only that set's tools can take"):

        @server.resource("notes://all")
        def all_notes(book: State[Notebook]) -> str: ...  # pyright: ignore[reportUnusedFunction]
