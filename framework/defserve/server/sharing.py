"""Several processes as one server: the link to the others, and what they share beside their sessions.

How it works: a feature that nobody shares knows nothing of it. It has a field for who counts, keeps or passes on for
all processes, and the field is None. `shared_news.py` brings changes to sessions. Below, MGP's access entries and
events and MCPL's hosts are connected.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, cast

from defserve.base.redaction import get_logger
from defserve.core.composition import Composition
from defserve.core.extension import Extension
from defserve.errors import Refused
from defserve.protocols.mcp.authorization import Authorization
from defserve.protocols.mcp.subscriptions import Subscriptions
from defserve.protocols.mgp.extension import MGP
from defserve.serve.http.streamable import StreamableEndpoint
from defserve.server.shared_news import (
    KIND,
    WORKER,
    SessionUpdatePublisher,
    UpdateFields,
    UpdateHandlers,
    share_list_changes,
)
from defserve.stores.identity import NAMESPACE_VARIABLE as NAMESPACE_VARIABLE
from defserve.stores.shared.shared_tables import OnceWork, SharedOnceRunner, SharedRates, SharedTable
from defserve.stores.shared.worker_link import SharedStoreLink
from defserve.stores.store import StoreUnavailable

if TYPE_CHECKING:
    from defserve.core.session import Session
    from defserve.protocols.mcpl.extension import MCPL
    from defserve.protocols.mgp.access import AccessPolicy, Entry
    from defserve.protocols.mgp.events import MgpEvent
    from defserve.serve.http.redis_sessions import RedisLogs
    from defserve.stores.identity import ServerIdentity


log = get_logger()


class ProcessSharing(Extension):
    """The link is up while the server serves, if something is shared through it."""

    name = "sharing"

    def __init__(self, address: str, identity: ServerIdentity) -> None:
        self.link, self._identity, self._is_used = SharedStoreLink(address, identity), identity, False

    def share_endpoint(
        self, composition: Composition, subscriptions: Subscriptions, endpoint: StreamableEndpoint
    ) -> None:
        """Share the sessions of an endpoint, what they are told, and what extensions count and keep."""
        # A process may have several endpoints. Only the first one tells those whom only this process knows.
        news = SessionUpdatePublisher(self.link, cast("RedisLogs", endpoint.logs), is_first=not self._is_used)
        share_list_changes(news, subscriptions)
        for extension in composition.extensions:
            if isinstance(extension, Authorization):
                extension.counter = SharedRates(self.link)
            elif isinstance(extension, MGP):
                self._share_security(news, extension, subscriptions)
            elif extension.name == "mcpl" and news.is_first:
                SharedHosts(news, cast("MCPL", extension))
        self._is_used = True

    def _share_security(self, news: SessionUpdatePublisher, mgp: MGP, subscriptions: Subscriptions) -> None:
        share_events(news, mgp)
        if mgp.access is not None and news.is_first:
            SharedAccessEntries(self.link, mgp.access.policy, subscriptions)

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        if not self._is_used:
            yield
            return
        if self._identity.source == "name":
            log.warning(
                "what this server shares through Redis is kept under its name, %s; a second deployment of that name in "
                "the same Redis needs a namespace of its own: set %s, or Server(namespace=…)",
                *(self._identity.value, NAMESPACE_VARIABLE),
            )
        await self.link.start()
        try:
            yield
        finally:
            await self.link.stop()


def find_process_sharing(composition: Composition) -> ProcessSharing | None:
    """What a server shares with other processes, if it does."""
    return next((each for each in composition.extensions if isinstance(each, ProcessSharing)), None)


# -- Features that hold in all processes: MGP's access entries and events, and MCPL's hosts.


INSTANTS = ("granted_at", "expires_at")

# The clocks of machines differ.
SLACK: Final = timedelta(hours=1)
MAX_DROPPED_ENTRIES: Final = 1000


class SharedAccessEntries:
    """The decisions of a policy that were made while it was served. Each change, by whomever, reloads the policy.

    When `store_entry` or `remove` returns in a thread, the change is safe. An entry that was removed is kept as None if
    it would come back otherwise.
    """

    def __init__(self, link: SharedStoreLink, policy: AccessPolicy, subscriptions: Subscriptions) -> None:
        def reload() -> None:
            # The process that decided tells all sessions that their lists have changed.
            with subscriptions.suppress_sharing():
                policy.reload()

        self._table, self._policy = SharedTable(link, "access", reload), policy
        policy.share_entries(self)

    def check(self) -> None:
        """Raises Refused until it is known what the others have decided."""
        if not self._table.is_loaded:
            raise StoreUnavailable("The store cannot be reached: who may use what is not known yet")

    def decisions(self) -> Iterable[tuple[str, str | None, Entry | None]]:
        """Each agent and tool (None: the server) that was decided about, and the entry. None: it was removed."""
        for name, value in self._table.values.items():
            agent, tool = json.loads(name)
            yield agent, tool, _entry(json.loads(value))

    def store_entry(self, entry: Entry) -> None:
        written = asdict(entry) | {name: _text(getattr(entry, name)) for name in INSTANTS}
        self._table.set_value(
            json.dumps([entry.agent_id, entry.tool_name]),
            json.dumps(written),
            is_restrictive=entry.permission == "deny",
            dropped=self._find_expired(),
        )

    def remove(self, entry: Entry) -> None:
        name, is_declared = [entry.agent_id, entry.tool_name], self._policy.is_declared(entry.agent_id, entry.tool_name)
        self._table.set_value(json.dumps(name), json.dumps(None) if is_declared else "", is_restrictive=True)

    def _find_expired(self) -> dict[str, str]:
        """Entries that say nothing any more, as they are in the table."""
        instant, found = datetime.now(UTC) - SLACK, dict[str, str]()
        for name, value in self._table.values.items():
            entry = _entry(json.loads(value))
            if entry is None or entry.holds(instant) or self._policy.is_declared(entry.agent_id, entry.tool_name):
                continue
            found[name] = value
            if len(found) == MAX_DROPPED_ENTRIES:
                break
        return found


def _text(instant: datetime | None) -> str | None:
    return instant.isoformat() if instant is not None else None


def _entry(written: Any) -> Entry | None:
    if written is None:
        return None
    given: dict[str, Any] = {**written}
    for name in INSTANTS:
        given[name] = datetime.fromisoformat(given[name]) if given[name] is not None else None
    from defserve.protocols.mgp.access import Entry

    return Entry(**given)


# -- MGP's events: emitted in one process, they reach the subscribers of all, and all remember the latest.


EVENT = "mgp event"
MAX_EVENT_BYTES = 1024 * 1024
"""A larger event stays in its process."""


def share_events(news: SessionUpdatePublisher, mgp: MGP) -> None:
    """Send events to the sessions of all processes. The section of `mgp` is made when it is first needed."""

    def share(event: MgpEvent) -> bool:
        to = event.encode_audience()
        return (
            to is not None
            and event.size <= MAX_EVENT_BYTES
            and news.publish(EVENT, e=json.dumps([*event.to_json_value(), to]))
        )

    def parse_event(fields: UpdateFields) -> MgpEvent | None:
        return mgp.events.decode_event(json.loads(fields["e"]), news.find_session)

    def note(session: Session, name: str, value: str) -> bool:
        return news.record_with_delivery(session, f"kept:{mgp.name}:{name}", value)

    def deliver(sessions: list[Session], fields: UpdateFields) -> None:
        if (event := parse_event(fields)) is not None:
            mgp.events.deliver_shared_event(event, sessions, note)

    def find_concerned(fields: UpdateFields) -> list[Session] | None:
        return None

    def others(fields: UpdateFields, is_own: bool) -> None:
        if (event := parse_event(fields)) is not None:
            mgp.events.deliver_event_locally(event, is_own=is_own)

    def lost(session: Session) -> None:
        """The next event shows the gap by its number."""

    news.add_update_handlers(EVENT, UpdateHandlers(deliver, others, lost, find_concerned))
    if news.is_first:
        mgp.share_events = share


# -- MCPL's hosts in other processes: those of a principal are found, and what is for everyone reaches them.


VERB = "mcpl"
MAX_HOST_BYTES = 4 * 1024 * 1024
"""What is longer stays in its process."""
MAX_TASKS = 4096


class SharedHosts:
    """The hosts that other processes serve."""

    def __init__(self, news: SessionUpdatePublisher, mcpl: MCPL) -> None:
        self._news, self._mcpl = news, mcpl
        self._tasks: set[asyncio.Task[None]] = set()
        self._once = SharedOnceRunner(news.link)
        news.link.add_receiver(VERB, self._on_verb)
        news.missed[VERB] = self._receive
        mcpl.server.others = self

    async def load_host_sessions(self, principal: str) -> None:
        """Get to know the sessions of a principal. While the store is away, only those are known that were."""
        if self._news.link.is_on_loop and self._news.link.is_up:
            try:
                await self._news.sessions.load_principal_sessions(principal)
            except Refused as error:
                get_logger().warning("sessions of %s cannot be looked for: %s", principal, error)

    async def run_once(self, session: Session, key: str, work: OnceWork) -> str:
        """What came of `work`, which one process does for this session and key. The bool that it gives: keep it.

        Raises TimedOut if another one does it, and its host has not answered in the time that a host has.
        """
        if session.sharer is None:
            return (await work())[0]
        limits = session.composition.limits
        return await self._once.run_once(f"{session.sharer.id}\n{key}", limits.idle, work, limits.callback)

    def publish(self, verb: str, value: Any) -> None:
        """Have the others do this for the sessions that they own. `MCPL.deliver_published` gets it there."""
        written = json.dumps(value)
        if len(written) > MAX_HOST_BYTES:
            get_logger().warning("%s: too long to be told to other processes", verb)
        else:
            self._news.link.publish_update(KIND, VERB, "v", verb, "d", written)

    def _on_verb(self, fields: UpdateFields, id: str) -> None:
        if fields[WORKER].decode() == self._news.link.worker:
            return
        if len(self._tasks) >= MAX_TASKS:
            get_logger().warning(
                "what another process says to everyone is lost: hosts have not answered %d others", MAX_TASKS
            )
        else:
            self._receive(None, fields, self._news.link.handled_news)

    def _receive(self, only: Session | None, fields: UpdateFields, before: str) -> asyncio.Task[None]:
        """Tell one session, or all that this process owns. A new owner may tell again what the one before has told.

        Hosts know events and messages by their ids.
        """
        # The next news must not wait for hosts that answer slowly.
        task = asyncio.create_task(self._mcpl.deliver_published(fields["v"].decode(), json.loads(fields["d"]), only))
        self._tasks.add(task)
        self._news.link.unfinished[task] = before
        task.add_done_callback(self._note_end)
        return task

    def _note_end(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._news.link.unfinished.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            get_logger().warning("what another process says to everyone is lost: %s", error)
