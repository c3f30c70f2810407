"""Everything that an inspector knows about one server. Panels work on it; pages show it.

Beside it: what a verb of a panel is, the resources that are watched, the skills that are looked at, the audit log.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from pydantic_core import to_json

from defserve.base.peer_bounds import RecentItems
from defserve.client.client import Client
from defserve.client.mcpl.options import Mcpl
from defserve.client.mgp.peer import CALLBACK_EXTENSIONS, OFFERED_MGP_EXTENSIONS, Mgp
from defserve.client.replies import Json as JsonObject
from defserve.client.replies import object_or_empty, string_or_none
from defserve.client.skills import CheckedEntry, LoadedSkill, UnverifiedSkill
from defserve.core.json_values import is_object
from defserve.errors import PeerError, PeerGone, UsageError
from defserve.inspector.app_views import ShownApps, ViewDocumentServer
from defserve.inspector.era_connection import (
    EraConnection,
    InspectionTarget,
    InspectorSignIn,
    ReloadStatus,
    get_client_era,
)
from defserve.inspector.followed_events import FollowedEvents
from defserve.inspector.followed_tasks import FollowedTasks
from defserve.inspector.joined_topic import JoinedTopic
from defserve.inspector.kept_calls import CURRENT_CALL, KeptCalls
from defserve.inspector.live_feed import LiveFeed, TryoutConversation, make_person_model
from defserve.inspector.protocol import BadMessage, Json, PageRequest
from defserve.inspector.questions import Questions
from defserve.inspector.recording.masking import mask_address, mask_command_words
from defserve.inspector.recording.recorder import Recorder
from defserve.inspector.recording.timeline import Latencies, SharedTimeline
from defserve.inspector.state_trees import StateTrees
from defserve.protocols.mcp.skill_files import SKILL_MANIFEST_FILENAME
from defserve.protocols.mgp.audit import ReadableAuditLog
from defserve.stores.audit.chain import iter_numbered_lines, parse_log_line
from defserve.tooling.listing import ServerListing

if TYPE_CHECKING:
    from defserve.inspector.target_process import TargetProcess

ERA_NAMES: Final = ("handshake", "stateless")
OPEN_SECONDS: Final = 30.0
STATUS_SECONDS: Final = 1.0
MAX_EVENTS: Final = 5_000
LISTS: Final = {f"notifications/{kind}/list_changed": kind for kind in ("tools", "resources", "prompts")}
LIFECYCLE: Final = "notifications/mgp.lifecycle"
MAX_STATES: Final = 50
MAX_WORD_LENGTH: Final = 500

Push: TypeAlias = Callable[[str, Any], object]
Notice: TypeAlias = Callable[[str, str, Json], object]
"""Called with the era, the method and the params of a notification of the server."""


class FirstListing(NamedTuple):
    """What a server listed when it was first asked, and when that was."""

    listed: ServerListing
    at: float


class HostAudit:
    """What our own side writes into its audit trail: the newest events, for the page."""

    def __init__(self, push: Push) -> None:
        self.events: RecentItems[Json] = RecentItems(MAX_EVENTS)
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

    def __init__(self, target: InspectionTarget) -> None:
        self.target, self.recorder = target, target.saved.recorder if target.saved is not None else Recorder()
        self.timeline = SharedTimeline(self.recorder)
        self.latencies = Latencies()
        for entry in self.recorder.get_messages(0, self.recorder.count):
            self.latencies.add(entry)
        self.recorder.subscribe(self.latencies.add)
        self.questions = Questions(self.push)
        self.account = InspectorSignIn(target.sign_in_at, self.push, self.reopen)
        self.states = StateTrees(target.stored, target.saved.trees if target.saved is not None else ())
        self.live, self.playground = LiveFeed(self.push), TryoutConversation()
        self.seats: dict[int, JoinedTopic] = {}
        self.views, self.apps = ViewDocumentServer(), ShownApps()
        self.watches, self.skills = Watches(), HeldSkills()
        self.events = FollowedEvents(self.push)
        self.tasks, self.calls = FollowedTasks(self), KeptCalls(self)
        if target.saved is not None:
            self.calls.restore_calls()
        self.first_listings: dict[str, FirstListing] = {}
        """What was listed first in each era, for Compare."""
        self.granted: dict[str, bool] = {}
        self.connections: dict[str, EraConnection] = {}
        self.pages: list[Push] = []
        self.notices: list[Notice] = []
        self.lifecycle: deque[Json] = deque(maxlen=MAX_STATES)
        """States that servers have told, oldest first, each with its `era` and when it came (`at`)."""
        self.audit = HostAudit(self.push)
        self.server_log = ServerAuditLog(target.audit, target.process)
        self.build = target.build or ReloadStatus()
        self._first: EraConnection | None = None
        self._status: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Inspection:
        if self.target.process is not None:
            self.target.process.on_exit.append(self._on_process_exit)
        self.build.on_change.append(self._on_build_changed)
        self._first = self._connection(self.target.era)
        self._status = asyncio.create_task(self._tell_status(), name="defserve.inspector status")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.cancel()
        self.build.on_change.remove(self._on_build_changed)
        await self.calls.aclose()
        await self.tasks.aclose()
        await self.events.aclose()
        await self.account.aclose()
        for connection in self._list_connections():
            await connection.aclose()
        if self.target.process is not None:
            await self.target.process.stop()
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
        if era not in ERA_NAMES:
            raise BadMessage(f"unknown era {era!r}", fix=f"use one of {', '.join(ERA_NAMES)}")
        if era not in self.connections:
            self.connections[era] = self._connection(era)
        return self.connections[era]

    def on_request_failed(self, era: str | None, error: BaseException) -> None:
        """A request ended with an error. If the server is gone, its conversation is reopened."""
        if isinstance(error, PeerGone):
            self.connection(era).on_server_gone(error)

    async def restart_process(self) -> None:
        """Start the server again. If its process runs, it is ended first, also one that hangs."""
        if (process := self.target.process) is None:
            self.reopen()
            return
        await process.stop()
        for connection in self._list_connections():
            connection.retry()

    def _on_build_changed(self) -> None:
        self.push("build", self.build.problem)

    def _on_process_exit(self, reason: PeerGone) -> None:
        for connection in self._list_connections():
            connection.on_server_gone(reason)

    def reopen(self) -> None:
        """Reopen every conversation."""
        for connection in self._list_connections():
            connection.reopen()

    @property
    def connected_clients(self) -> list[Client]:
        """The client of each conversation that is open."""
        return [client for each in self._list_connections() if (client := each.connected_client) is not None]

    def _list_connections(self) -> list[EraConnection]:
        return list({id(each): each for each in (*self.connections.values(), self._first) if each}.values())

    def _connection(self, era: str) -> EraConnection:
        # What is said to a file is no part of the session that it holds.
        recorder = self.recorder if self.target.saved is None else Recorder()
        return EraConnection(era, self.target, recorder, self._options, self._on_connection_changed)

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
            call = CURRENT_CALL.get()
            about = {"tool": call.tool, "arguments": call.arguments} if call is not None else {}
            decided = await questions.permit(era(), permission, risk, server, **about)
            if decided is not None:
                self.granted[permission] = decided
            return decided

        def heard(method: str, params: Json) -> None:
            self._heard(era(), method, params)

        # What the server refuses is worth seeing, so our own side judges no arguments.
        guard: dict[str, Any] = {"confirm": confirm, "validators": {"*": "none"}, "retry": False, "audit": self.audit}
        mgp = Mgp(
            "interactive", approve, extensions=(*OFFERED_MGP_EXTENSIONS, *CALLBACK_EXTENSIONS, "discovery"), **guard
        )
        return {
            "answers": questions.make_client_answers(era),
            # Without a session roots are asked for each time, and there is nothing to tell of.
            "capabilities": {} if connection.era == "stateless" else {"roots": {"listChanged": True}},
            "apps": True,
            "mgp": mgp,
            "mcpl": Mcpl(
                {"disabled": sorted(self.live.off)},
                version=self.live.offered,
                scopes=self.live.scopes,
                approve=lambda elevation: self.live.ask_for_scope(era(), elevation),
                on_event=lambda event: self.live.receive_event(era(), event),
                on_message=lambda message: self.live.receive_message(era(), message),
                on_state=lambda change: self.states.record_change(era(), change),
                model=make_person_model(self.live, era, questions.make_sampler(era)),
                audit=self.audit,
            ),
            "timeout": OPEN_SECONDS,
            "log_level": "debug",
            "on_notification": heard,
        }

    def _on_connection_changed(self, connection: EraConnection) -> None:
        if connection.era:
            self.connections.setdefault(connection.era, connection)
        if connection.state in ("open", "refused"):
            self.account.schedule_refresh()
        self.push("connection", self.describe_connection(connection))

    def describe_connection(self, connection: EraConnection) -> Json:
        """A conversation for the page: its state, and what the server says about itself while it is open."""
        return {**connection.to_wire(), **server_of(connection.connected_client)}

    def _heard(self, era: str, method: str, params: Json) -> None:
        if (kind := LISTS.get(method)) is not None:
            self.push("changed", {"era": era, "kind": kind})
        elif method == "notifications/resources/updated":
            self.push("updated", {"era": era, "uri": params.get("uri")})
        elif method == LIFECYCLE:
            names = ("server_id", "previous_state", "new_state", "reason", "timestamp")
            told = {name: value[:MAX_WORD_LENGTH] for name in names if isinstance(value := params.get(name), str)}
            self.lifecycle.append({**told, "era": era, "at": time.time()})
            self.push("lifecycle", self.lifecycle[-1])
        for tell in tuple(self.notices):
            tell(era, method, params)

    # -- pages -------------------------------------------------------------------------------------------

    def push(self, topic: str, data: Any) -> None:
        """Tell every page. Pages get pushes in batches, every 100 ms."""
        for tell in tuple(self.pages):
            tell(topic, data)

    async def _tell_status(self) -> None:
        last: Json = {}
        while True:
            await asyncio.sleep(STATUS_SECONDS)
            figures = self.recorder.make_status_figures()
            if figures != last and self.pages:
                last = figures
                self.push("status", figures)

    def hello(self) -> Json:
        """What a page is told first."""
        assert self._first is not None
        target = self.target
        return {
            "target": {
                "address": mask_address(target.address, target.words),
                "words": mask_command_words(target.words),
                "tracebacks": target.tracebacks,
                "signs_in": bool(target.sign_in_at),
                "starts": target.starts,
                "saved": target.saved.to_wire() if target.saved is not None else None,
            },
            "account": self.account.to_wire(),
            "connections": [self.describe_connection(each) for each in self.connections.values()]
            or [self.describe_connection(self._first)],
            "era": self._first.era,
            "questions": self.questions.waiting,
            "status": self.recorder.make_status_figures(),
            "build": self.build.problem,
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
    offers: Sequence[str] = sorted(object_or_empty(client.capabilities))
    told: Json = {"server": client.server_info, "speaks": speaks, "offers": offers}
    return {**told, "instructions": client.instructions} if client.instructions else told


# -- What a verb is, and how it asks the server.


PageRequestHandler: TypeAlias = Callable[[Inspection, PageRequest], Awaitable[Any]]


def get_request_era(request: PageRequest) -> str | None:
    """The era that a request is about; None stands for the first conversation."""
    return request.get_text("era", "") or None


@asynccontextmanager
async def use_era_client(inspection: Inspection, request: PageRequest) -> AsyncGenerator[Client]:
    """The client of the era that a request is about. If the server is gone, it is connected to again."""
    era = get_request_era(request)
    client = await inspection.client(era)
    try:
        yield client
    except PeerError as error:
        inspection.on_request_failed(era, error)
        raise


# -- The resources that the person watches. A new conversation with the server watches them again.


MAX_WATCHED_RESOURCES: Final = 100


class Watches:
    """The watched URIs of each era, and the client that was asked to report them."""

    def __init__(self) -> None:
        self._uris: dict[str, set[str]] = {}
        self._clients: dict[str, Client] = {}

    async def renew_watches(self, client: Client) -> list[str]:
        """What is watched in the era of a client. If it is a new client, the server is asked again first."""
        uris = self._of(client)
        era = get_client_era(client)
        if self._clients.get(era) is not client:
            self._clients[era] = client
            for uri in sorted(uris):
                try:
                    await client.subscribe(uri)
                except PeerError:
                    uris.discard(uri)  # it is no longer there
        return sorted(uris)

    async def watch_resource(self, client: Client, uri: str) -> None:
        """Have changes of a resource reported. Raises PeerError if the server does not do that."""
        await self.renew_watches(client)
        uris = self._of(client)
        if uri in uris:
            return
        if len(uris) >= MAX_WATCHED_RESOURCES:
            raise BadMessage(f"{MAX_WATCHED_RESOURCES} resources are watched already", fix="stop watching some of them")
        await client.subscribe(uri)
        uris.add(uri)

    async def unwatch_resource(self, client: Client, uri: str) -> None:
        """Watch a resource no longer."""
        if uri in await self.renew_watches(client):
            self._of(client).discard(uri)
            await client.unsubscribe(uri)

    def _of(self, client: Client) -> set[str]:
        return self._uris.setdefault(get_client_era(client), set())


# -- The skills that the person looks at: each entry as it was listed, with which everything read later is compared.


MAX_SKILLS: Final = 1_000
MAX_LOADED_SKILLS: Final = 16
MAX_BYTES: Final = 16 * 1024 * 1024
MAX_FRONTMATTER_BYTES: Final = 64 * 1024
MAX_TEXT_LENGTH: Final = 2_000


class HeldSkills:
    """The entries of each era, as listed last. Reading compares with them, not with what the server says later."""

    def __init__(self) -> None:
        self._entries: dict[str, dict[str, JsonObject]] = {}
        self._loaded: dict[tuple[str, str], tuple[Client, LoadedSkill]] = {}

    def store_skills(self, era: str, entries: list[JsonObject]) -> list[JsonObject]:
        """Keep a new list, and what the page is told of each skill. What goes beyond the limits is left out."""
        held, told, size = dict[str, JsonObject](), list[JsonObject](), 0
        for entry in entries[:MAX_SKILLS]:
            about = describe_skill(entry)
            size += len(to_json(about, inf_nan_mode="null"))
            if size > MAX_BYTES:
                break
            held[str(entry.get("uri"))] = entry
            told.append(about)
        self._entries[era] = held
        self._loaded = {key: loaded for key, loaded in self._loaded.items() if key[0] != era}
        return told

    async def load_skill(self, client: Client, era: str, uri: str) -> LoadedSkill:
        """A listed skill whose `SKILL.md` was read. Raises UnverifiedSkill if it differs from its entry."""
        known = self._loaded.get((era, uri))
        if known is not None and known[0] is client:
            return known[1]
        entry = self._entries.get(era, {}).get(uri)
        if entry is None:
            raise BadMessage("this skill is not in the list any more", fix="list the skills again")
        skill = await client.load_skill(entry)
        self._loaded[era, uri] = client, skill
        if len(self._loaded) > MAX_LOADED_SKILLS:
            del self._loaded[next(iter(self._loaded))]
        return skill

    def forget_skill_text(self, era: str, uri: str) -> None:
        """Read its `SKILL.md` again the next time."""
        self._loaded.pop((era, uri), None)


def describe_skill(entry: JsonObject) -> JsonObject:
    """A skill for the page. One whose entry cannot be verified has `refused`, and no files."""
    frontmatter = object_or_empty(entry.get("frontmatter"))
    is_short = len(to_json(frontmatter, inf_nan_mode="null")) <= MAX_FRONTMATTER_BYTES
    told: JsonObject = {
        "uri": (string_or_none(entry.get("uri")) or "")[:MAX_TEXT_LENGTH],
        "name": (string_or_none(frontmatter.get("name")) or "")[:MAX_TEXT_LENGTH],
        "about": (string_or_none(frontmatter.get("description")) or "")[:MAX_TEXT_LENGTH],
        "frontmatter": frontmatter if is_short else None,
        "files": [],
        "fingerprint": None,
        "refused": None,
    }
    try:
        checked = CheckedEntry(entry)
    except UnverifiedSkill as error:
        return {**told, "refused": error.message[:MAX_TEXT_LENGTH]}
    files = sorted(checked.files.values(), key=lambda file: (file.path != SKILL_MANIFEST_FILENAME, file.path))
    return {**told, "files": [file._asdict() for file in files], "fingerprint": checked.fingerprint}


# -- The audit log of the server, where the inspector can read it: the newest lines with their MACs, and a verdict.


MAX_LINES: Final = 500
ELSEWHERE: Final = "the server runs elsewhere, and MGP has no request that checks a chain: that is done beside the log"
MAX_LINE_BYTES: Final = 4_096
"""A longer line is shown without its details."""


class ServerAuditLog:
    """`find` gives the log; None if the server has none, or it is out of reach. Reading it takes a thread."""

    def __init__(
        self, find: Callable[[], ReadableAuditLog | None] | None, process: TargetProcess | None = None
    ) -> None:
        self._find, self._process = find, process

    @property
    def is_elsewhere(self) -> bool:
        """Whether the inspector does not run the server, so that its log can never be read."""
        return self._find is None and self._process is None

    async def fetch_lines(self) -> Json | None:
        """Like `list_newest_lines`, where the server is."""
        return await (
            asyncio.to_thread(self.list_newest_lines) if self._process is None else self._process.ask("audit.lines", [])
        )

    async def check_chain(self) -> Json:
        """Like `verify`, where the server is."""
        return await (
            asyncio.to_thread(self.verify) if self._process is None else self._process.ask("audit.verify", [])
        )

    def list_newest_lines(self) -> Json | None:
        """`{"name", "lines"}`, newest first; None if there is no log to read. Lines are not checked: `verify` does."""
        if (log := self._log) is None:
            return None
        last = log.last_seq  # what waits is written first
        if (path := getattr(log, "path", None)) is not None:
            return {"name": Path(path).name, "lines": _newest(Path(path))}
        page = log.replay(max(1, last - MAX_LINES + 1), None, MAX_LINES)
        found = [_line(event.get("seq"), event, None) for event in page.events]
        return {"name": type(log).__name__, "lines": found[::-1]}

    def verify(self) -> Json:
        """Check the whole chain. Raises UsageError if there is no log to read."""
        if (log := self._log) is None:
            if self.is_elsewhere:
                raise UsageError(ELSEWHERE, fix="there: defserve audit verify FILE, or defserve kernel audit --verify")
            raise UsageError("there is no audit log to verify", fix='give the server one: Server(audit="audit.jsonl")')
        began = time.perf_counter()
        return {**log.verify()._asdict(), "ms": (time.perf_counter() - began) * 1000, "at": time.time()}

    @property
    def _log(self) -> ReadableAuditLog | None:
        return self._find() if self._find is not None else None


def _newest(path: Path) -> list[Json]:
    try:
        with path.open("rb") as file:
            kept = deque(iter_numbered_lines(file), MAX_LINES)
    except FileNotFoundError:
        return []
    return [_parse_record_line(number, line) for number, line in reversed(kept)]


def _parse_record_line(number: int, raw: bytes) -> Json:
    """A line as the page shows it, genuine or not."""
    whole = parse_log_line(raw) or {}
    body = whole.get("event") if "event" in whole else whole.get("log")
    if not is_object(body):
        return {"line": number, "type": "not a record", "odd": True}
    if len(raw) > MAX_LINE_BYTES:
        body = {name: value for name, value in body.items() if name != "details"}
    mac: Any = whole.get("mac")
    return _line(number, body, mac if isinstance(mac, str) else None)


def _line(number: Any, body: Json, mac: str | None) -> Json:
    return {"line": number, "type": str(body.get("event_type") or body.get("type", "")), "event": body, "mac": mac}
