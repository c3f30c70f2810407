"""Everything that an inspector knows about one server. Panels work on it; pages show it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from defserve.errors import PeerGone
from defserve.host.client import Client
from defserve.host.fields import object_of
from defserve.host.mcpl.mcpl import Mcpl
from defserve.host.mgp.mgp import ASKING, EXTENSIONS, Mgp
from defserve.inspector.account import Account
from defserve.inspector.apps.shown import ShownApps
from defserve.inspector.apps.views import Views
from defserve.inspector.connection import EraConnection
from defserve.inspector.live.feed import LiveFeed
from defserve.inspector.live.inference import asked_person
from defserve.inspector.live.playground import Playground
from defserve.inspector.protocol import BadMessage, Json
from defserve.inspector.questions import Questions
from defserve.inspector.recording.latencies import Latencies
from defserve.inspector.recording.masking import masked_address, masked_words
from defserve.inspector.recording.recorder import Recorder
from defserve.inspector.recording.timeline import Timeline
from defserve.inspector.server_log import ServerLog
from defserve.inspector.skills import HeldSkills
from defserve.inspector.states.states import StateTrees
from defserve.inspector.target import Target
from defserve.inspector.tasks.tasks import FollowedTasks
from defserve.inspector.topic import JoinedTopic
from defserve.inspector.watches import Watches

ERAS: Final = ("handshake", "stateless")
OPEN_SECONDS: Final = 30.0
STATUS_SECONDS: Final = 1.0
MOST_EVENTS: Final = 5_000
LISTS: Final = {f"notifications/{kind}/list_changed": kind for kind in ("tools", "resources", "prompts")}
UPDATED: Final = "notifications/resources/updated"
LIFECYCLE: Final = "notifications/mgp.lifecycle"
MOST_STATES: Final = 50
LONGEST_WORD: Final = 500

Push: TypeAlias = Callable[[str, Any], object]
Notice: TypeAlias = Callable[[str, str, Json], object]
"""Called with the era, the method and the params of a notification of the server."""


class HostAudit:
    """What our own side writes into its audit trail: the newest events, for the page."""

    def __init__(self, push: Push) -> None:
        self.events: deque[Json] = deque(maxlen=MOST_EVENTS)
        self._push = push

    def append(self, event: Mapping[str, Any], *, durable: bool = False) -> None:
        self.events.append(dict(event))
        self._push("audit", dict(event))


class Inspection:
    """The state of one inspector: its target, a conversation for each era in use, the timeline, the open questions.

    Use it as a context manager. `client(era)` opens what is needed. `push` tells every page.

    granted  permission to what the person has decided about it: True, False; what is missing is asked for when a call
             needs it
    """

    def __init__(self, target: Target) -> None:
        self.target, self.recorder = target, Recorder()
        self.timeline = Timeline(self.recorder)
        self.latencies = Latencies()
        self.recorder.subscribe(self.latencies.add)
        self.questions = Questions(self.push)
        self.account = Account(target.sign_in_at, self.push, self.reopen)
        self.states = StateTrees(target.stored)
        self.live, self.playground = LiveFeed(self.push), Playground()
        self.seats: dict[int, JoinedTopic] = {}
        self.views, self.apps = Views(), ShownApps()
        self.watches, self.skills = Watches(), HeldSkills()
        self.tasks = FollowedTasks(self)
        self.granted: dict[str, bool] = {}
        self.connections: dict[str, EraConnection] = {}
        self.pages: list[Push] = []
        self.notices: list[Notice] = []
        self.lifecycle: deque[Json] = deque(maxlen=MOST_STATES)
        """States that servers have told, oldest first, each with its `era` and when it came (`at`)."""
        self.audit = HostAudit(self.push)
        self.server_log = ServerLog(target.audit)
        self._first: EraConnection | None = None
        self._status: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Inspection:
        self._first = self._connection(self.target.era)
        self._status = asyncio.create_task(self._tell_status(), name="defserve.inspector status")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.cancel()
        await self.tasks.aclose()
        await self.account.aclose()
        for connection in self._known():
            await connection.aclose()
        self.recorder.close()

    # -- conversations -----------------------------------------------------------------------------------

    async def client(self, era: str | None = None) -> Client:
        """The client that speaks an era; without one, that of the first conversation. It is opened if it is not yet.

        Raises PeerGone while the server is away, PeerError if it refuses this era.
        """
        return await self.connection(era).client()

    def connection(self, era: str | None = None) -> EraConnection:
        """The conversation of an era; without one, the first."""
        assert self._first is not None, "the inspection has not begun"
        if not era or era == self._first.era:
            return self._first
        if era not in ERAS:
            raise BadMessage(f"unknown era {era!r}", fix=f"use one of {', '.join(ERAS)}")
        if era not in self.connections:
            self.connections[era] = self._connection(era)
        return self.connections[era]

    def failed(self, era: str | None, error: BaseException) -> None:
        """A request ended with an error. If the server is gone, its conversation is opened anew."""
        if isinstance(error, PeerGone):
            self.connection(era).lost(error)

    def reopen(self) -> None:
        """Open every conversation anew."""
        for connection in self._known():
            connection.reopen()

    @property
    def open_clients(self) -> list[Client]:
        """The client of each conversation that is open."""
        return [client for each in self._known() if (client := each.client_now) is not None]

    def _known(self) -> list[EraConnection]:
        return list({id(each): each for each in (*self.connections.values(), self._first) if each}.values())

    def _connection(self, era: str) -> EraConnection:
        return EraConnection(era, self.target, self.recorder, self._options, self._changed)

    def _options(self, connection: EraConnection) -> dict[str, Any]:
        """The options of a client: a host that offers everything, and asks the person at the page."""
        questions = self.questions

        def era() -> str:
            return connection.era

        async def confirm(tool: str, arguments: Json, security: Json) -> bool:
            return await questions.confirm(era(), tool, arguments, security)

        async def approve(permission: str, risk: str, server: str) -> bool | None:
            if permission in self.granted:
                return self.granted[permission]
            # Nobody is asked before there is something to see: a call that needs it asks again.
            if connection.state != "open":
                return None
            decided = await questions.permit(era(), permission, risk, server)
            if decided is not None:
                self.granted[permission] = decided
            return decided

        def heard(method: str, params: Json) -> None:
            self._heard(era(), method, params)

        # What the server refuses is worth seeing, so our own side judges no arguments.
        guard: dict[str, Any] = {"confirm": confirm, "validators": {"*": "none"}, "retry": False, "audit": self.audit}
        mgp = Mgp("interactive", approve, extensions=(*EXTENSIONS, *ASKING, "discovery"), **guard)
        return {
            "answers": questions.answers(era),
            # Without a session roots are asked for each time, and there is nothing to tell of.
            "capabilities": {} if connection.era == "stateless" else {"roots": {"listChanged": True}},
            "apps": True,
            "mgp": mgp,
            "mcpl": Mcpl(
                {"disabled": sorted(self.live.off)},
                version=self.live.offered,
                scopes=self.live.scopes,
                approve=lambda elevation: self.live.scope(era(), elevation),
                on_event=lambda event: self.live.event(era(), event),
                on_message=lambda message: self.live.message(era(), message),
                on_state=lambda change: self.states.heard(era(), change),
                model=asked_person(self.live, era, questions.sampler(era)),
                audit=self.audit,
            ),
            "timeout": OPEN_SECONDS,
            "log_level": "debug",
            "on_notification": heard,
        }

    def _changed(self, connection: EraConnection) -> None:
        if connection.era:
            self.connections.setdefault(connection.era, connection)
        if connection.state in ("open", "refused"):
            self.account.look_soon()
        self.push("connection", self.told(connection))

    def told(self, connection: EraConnection) -> Json:
        """A conversation for the page: its state, and what the server says about itself while it is open."""
        return {**connection.wire(), **server_of(connection.client_now)}

    def _heard(self, era: str, method: str, params: Json) -> None:
        if (kind := LISTS.get(method)) is not None:
            self.push("changed", {"era": era, "kind": kind})
        elif method == UPDATED:
            self.push("updated", {"era": era, "uri": params.get("uri")})
        elif method == LIFECYCLE:
            self._told_state(era, params)
        for tell in tuple(self.notices):
            tell(era, method, params)

    def _told_state(self, era: str, params: Json) -> None:
        names = ("server_id", "previous_state", "new_state", "reason", "timestamp")
        told = {name: value[:LONGEST_WORD] for name in names if isinstance(value := params.get(name), str)}
        self.lifecycle.append({**told, "era": era, "at": time.time()})
        self.push("lifecycle", self.lifecycle[-1])

    # -- pages -------------------------------------------------------------------------------------------

    def push(self, topic: str, data: Any) -> None:
        """Tell every page. Pages get pushes in batches, every 100 ms."""
        for tell in tuple(self.pages):
            tell(topic, data)

    async def _tell_status(self) -> None:
        last: Json = {}
        while True:
            await asyncio.sleep(STATUS_SECONDS)
            figures = self.recorder.figures()
            if figures != last and self.pages:
                last = figures
                self.push("status", figures)

    def hello(self) -> Json:
        """What a page is told first."""
        assert self._first is not None
        target = self.target
        return {
            "target": {
                "address": masked_address(target.address, target.words),
                "words": masked_words(target.words),
                "tracebacks": target.tracebacks,
                "signs_in": bool(target.sign_in_at),
            },
            "account": self.account.wire(),
            "connections": [self.told(each) for each in self.connections.values()] or [self.told(self._first)],
            "era": self._first.era,
            "questions": self.questions.open,
            "status": self.recorder.figures(),
            "now": time.time(),
        }


def server_of(client: Client | None) -> Json:
    """What a server says about itself: name, version, the versions of its protocols, its instructions."""
    if client is None:
        return {}
    speaks = [["MCP", client.version]]
    if client.mgp is not None and client.mgp.version:
        speaks.append(["MGP", client.mgp.version])
    if client.mcpl is not None and client.mcpl.version:
        speaks.append(["MCPL", str(client.mcpl.version)])
    offers: Sequence[str] = sorted(object_of(client.capabilities))
    told: Json = {"server": client.server_info, "speaks": speaks, "offers": offers}
    return {**told, "instructions": client.instructions} if client.instructions else told
