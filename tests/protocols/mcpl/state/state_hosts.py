"""Servers with a state, and hosts of any identity that call them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from pydantic import BaseModel

from defserve import Server, State, ToolError
from defserve.auth.principals import LOCAL_PRINCIPAL, Principal
from defserve.protocols.mcpl.feature_sets import FeatureSet
from defserve.state import Checkpoint, States
from tests.protocols.mcpl.hosts import Host, Json, hosting
from tests.raw import HANDSHAKE

SET = "notes.edit"


class Note(BaseModel):
    id: int
    text: str


class Notebook(BaseModel):
    notes: list[Note] = []
    title: str = ""


class Notes:
    """A server that keeps notebooks. `gate` holds back the tool `slow`; `entered` says that it runs."""

    def __init__(self, server: Server | None = None, **options: Any) -> None:
        self.server = server or Server("notes", "1")
        self.set: FeatureSet = self.server.feature_set(SET, "Manage notes")
        self.states: States[Notebook] = self.set.state(Notebook, **options)
        self.gate, self.entered = asyncio.Event(), asyncio.Event()
        self.undone: list[Checkpoint] = []
        self._declare()

    def _declare(self) -> None:
        @self.set.tool
        def add_note(text: str, book: State[Notebook]) -> str:
            book.notes.append(Note(id=len(book.notes) + 1, text=text))
            return "Note added"

        @self.set.tool
        def list_notes(book: State[Notebook]) -> list[str]:
            return [note.text for note in book.notes]

        @self.set.tool
        async def fail(book: State[Notebook]) -> str:
            book.notes.clear()
            raise ToolError("no")

        @self.set.tool
        async def slow(text: str, book: State[Notebook]) -> str:
            book.notes.append(Note(id=len(book.notes) + 1, text=text))
            self.entered.set()
            await self.gate.wait()
            return "at last"


@asynccontextmanager
async def host_as(
    server: Server, who: Principal = LOCAL_PRINCIPAL, version: str = HANDSHAKE[-1], **how: Any
) -> AsyncGenerator[Host]:
    """A host that the transport has authenticated as `who`."""
    before = set(server.composition.sessions)
    async with hosting(server, version, opened=False, **how) as host:
        (session,) = set(server.composition.sessions) - before
        session.identity = who
        await host.open()
        yield host


def notes_of(result: Json) -> Any:
    """What `list_notes` says."""
    assert not result.get("isError"), result
    return json.loads(result["content"][0]["text"])


def refusal(result: Json) -> tuple[str, str]:
    """The symbol of a refusal, and what the model reads."""
    assert result["isError"], result
    return result["_meta"]["dev.defserve/error"]["error_type"], result["content"][0]["text"]


async def roll_back(host: Host, checkpoint: str, name: str = SET) -> Json:
    return await host.ask("state/rollback", {"featureSet": name, "checkpoint": checkpoint})
