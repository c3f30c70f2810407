"""What a kernel remembers beside its file, and what several kernels of one file share.

The digests of tools, who was granted what, and what operators decided are in one file, made when there is something to
remember. Several kernels may serve one mgp.toml, so each change is made to what the file says at that moment, under a
lock, and the file is replaced whole. `refresh` reads what others did.

With `[kernel.group]`, kernels on any number of machines stand behind one address, and all of this is in their store.
Each server of the file that is a process then runs at one kernel, its owner, which holds a lease in the store. The
others use it over a link (`shared_processes.py`). When the owner dies its lease ends, and the next one who needs the
server becomes its owner.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from defserve.base.concurrency import BackgroundTasks, wait_for_shared
from defserve.base.redaction import get_logger
from defserve.client.replies import Json
from defserve.core.extension import Extension
from defserve.core.json_values import is_array, is_object
from defserve.errors import PeerGone, Refused, UsageError
from defserve.kernel.kernel_extension import read_file_stamp
from defserve.proxying.channel import MAIN_PROCESS_KEY
from defserve.proxying.conversations import MAX_CHANNELS
from defserve.proxying.targets import Command
from defserve.stores.files import hold_file_lock, replace_file

if TYPE_CHECKING:
    from defserve.client.link import ClientLink
    from defserve.kernel.kernel import Kernel
    from defserve.kernel.shared_processes import ProcessSeat, SharedProcess
    from defserve.stores.identity import ServerIdentity, ServerStore
    from defserve.stores.store import Lease

T = TypeVar("T")

log = get_logger("kernel")


VERSION: Final = 1
MAX_STATE_BYTES: Final = 64 * 1024 * 1024


@dataclass(slots=True)
class KernelState:
    """`pins` are digests by server and tool, `definitions` what they are digests of. `access` are entries by server,
    `permissions` the decisions of operators by server and permission. `servers` are the orders of operators to all
    kernels of a group: whether a server is `stopped`, and how often it was `restarted`."""

    pins: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    access: dict[str, list[dict[str, Any]]] = field(default_factory=dict[str, list[dict[str, Any]]])
    definitions: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict[str, dict[str, dict[str, Any]]])
    permissions: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict[str, dict[str, dict[str, Any]]])
    servers: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])


class StateFile:
    """`known` is what the file said last. Nobody else changes it: give `update` what to change. Raises UsageError for
    a file that cannot be read."""

    def __init__(self, config: Path) -> None:
        self.path = config.with_suffix(".state.json")
        self.where = str(self.path)
        self._lock = Lock()
        self._stamp = read_file_stamp(self.path)
        self.known = KernelState()
        self.known = self._read_state()

    def update(self, change: Callable[[KernelState], None]) -> None:
        """Make a change to what is kept now. When it returns, the change is safe. Raises OSError if it cannot be."""
        with self._lock, hold_file_lock(self.path.with_name(f"{self.path.name}.lock")):
            try:
                state = self._read_state()
            except UsageError as error:
                raise OSError(error.problem) from None
            change(state)
            kept = {"version": VERSION, **asdict(state)}
            kept.pop("servers")  # one kernel alone remembers them
            replace_file(self.path, json.dumps(kept, indent=1, sort_keys=True).encode() + b"\n")
            self.known = state

    def refresh(self) -> bool:
        """Read what others have written meanwhile. Returns whether the file has changed. Raises UsageError."""
        with self._lock:
            if (stamp := read_file_stamp(self.path)) == self._stamp:
                return False
            self.known, self._stamp = self._read_state(), stamp
            return True

    def _read_state(self) -> KernelState:
        try:
            if self.path.stat().st_size > MAX_STATE_BYTES:
                raise ValueError
            found = json.loads(self.path.read_bytes())
        except FileNotFoundError:
            if self.known != KernelState():
                log.warning("%s was removed: the pins, access and permissions that were kept there are gone", self.path)
            return KernelState()
        except (OSError, ValueError, RecursionError):
            found = None
        if is_object(found) and found.pop("version", None) == VERSION and _is_sound(found):
            return KernelState(**{name: found[name] for name in KernelState.__slots__ if name in found})
        raise UsageError(
            f"{self.path} cannot be read, or is not what a kernel of this version writes",
            fix="restore it; or remove it, and approve tools and grant access anew",
        )


def _is_sound(found: dict[str, Any]) -> bool:
    pins, access = found.get("pins"), found.get("access")
    return (
        is_object(pins)
        and all(is_object(each) and all(isinstance(text, str) for text in each.values()) for each in pins.values())
        and is_object(access)
        and all(is_array(each) and all(map(is_object, each)) for each in access.values())
        and all(_is_table(found.get(name, {})) for name in ("definitions", "permissions"))
    )


def _is_table(found: Any) -> bool:
    """Objects by server and name."""
    return is_object(found) and all(is_object(each) and all(map(is_object, each.values())) for each in found.values())


# -- The same in the store of a group, for kernels on any number of machines.


MAX_ATTEMPTS: Final = 50
STORE_SECONDS: Final = 5.0
REVISION: Final = "revision"
SECRET: Final = "kernels"
PARTS: Final = KernelState.__slots__


class SharedState(StateFile):
    """What the kernels of a group remember: a value for each part and server, and a revision that each change replaces.

    Those who decide wait for the store, on whatever thread they are. So it has a thread and connections of its own.
    `secret` is what only kernels of this store and this name know.
    """

    def __init__(self, address: str, identity: ServerIdentity) -> None:
        from defserve.stores.identity import make_server_store

        self._store: ServerStore = make_server_store(address, identity, what="the store of [kernel.group]")
        self.where = f"the store of {identity.label}"
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread, self._lock = Thread(), Lock()
        self.known = KernelState()
        self._revision: bytes = b""
        self._told: bytes = b""
        try:
            self.secret = self._run(self._load_secret())
            self._run(self._load())
        except Refused as error:
            self.close()
            raise UsageError(
                f"the store of [kernel.group] cannot be used: {error.message}", fix="start it, or correct its address"
            ) from None
        self._told = self._revision

    def update(self, change: Callable[[KernelState], None]) -> None:
        try:
            self._run(self._update(change))
        except (Refused, UsageError) as error:
            raise OSError(str(error)) from None

    def refresh(self) -> bool:
        try:
            self._run(self._load())
        except Refused as error:
            raise UsageError(f"{self.where} cannot be read: {error.message}") from None
        was, self._told = self._told, self._revision
        return was != self._told

    def close(self) -> None:
        """Give the connections and the thread back. What is known stays, and the next use connects again."""
        if (loop := self._loop) is None:
            return
        with suppress(Refused):
            self._run(self._store.close())
        self._loop = None
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join(STORE_SECONDS)
        if not loop.is_running():
            loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        from defserve.stores.store import StoreUnavailable

        with self._lock:
            if (loop := self._loop) is None:
                loop = self._loop = asyncio.new_event_loop()
                self._thread = Thread(target=loop.run_forever, name="defserve kernel state", daemon=True)
                self._thread.start()
        waiting = asyncio.run_coroutine_threadsafe(work, loop)
        try:
            return waiting.result(STORE_SECONDS)
        except TimeoutError:
            waiting.cancel()
            raise StoreUnavailable("The store does not answer") from None

    async def _load_secret(self) -> bytes:
        from defserve.stores.store import SECRETS_SPACE, StoreChange

        made = secrets.token_bytes(32)
        await self._store.change(StoreChange(SECRETS_SPACE, {SECRET: made}, (), {SECRET: None}))
        return (await self._store.get(SECRETS_SPACE, [SECRET]))[SECRET]

    async def _load(self) -> None:
        """Read all, if anything has changed. A change meanwhile is read the next time."""
        from defserve.stores.store import KERNEL_STATE_SPACE

        revision = (await self._store.get(KERNEL_STATE_SPACE, [REVISION])).get(REVISION, b"")
        if revision == self._revision:
            return
        found: dict[str, dict[str, Any]] = {part: {} for part in PARTS}
        size = 0
        try:
            async for name, value in self._store.scan(KERNEL_STATE_SPACE):
                part, _, id = name.partition(" ")
                size += len(value)
                if size > MAX_STATE_BYTES:
                    raise ValueError
                if part in found:
                    found[part][id] = json.loads(value)
        except (ValueError, RecursionError):
            found = {}
        if not _is_sound(found):
            raise UsageError(
                f"{self.where} has something that no kernel of this version writes",
                fix="restore it; or remove it, and approve tools and grant access anew",
            )
        self.known, self._revision = KernelState(**found), revision

    async def _update(self, change: Callable[[KernelState], None]) -> None:
        from defserve.stores.store import KERNEL_STATE_SPACE, StoreBusy, StoreChange

        # Not a count: a store that lost its data, or was restored, would come to a number that is known already.
        revision = str(secrets.randbits(63)).encode()
        for _ in range(MAX_ATTEMPTS):
            await self._load()
            if self._revision == revision:
                # It was written, and the answer got lost: clients of Redis then send a change again.
                return
            state, before = deepcopy(self.known), self._revision
            change(state)
            put, drop = _find_differences(self.known, state)
            if not put and not drop:
                return
            expected = {REVISION: before or None}
            if await self._store.change(StoreChange(KERNEL_STATE_SPACE, {**put, REVISION: revision}, drop, expected)):
                self.known, self._revision = state, revision
                return
        raise StoreBusy("Other kernels change this all the time")


def _find_differences(before: KernelState, now: KernelState) -> tuple[dict[str, bytes], list[str]]:
    """The values to write, and the names to remove."""
    put, drop = dict[str, bytes](), list[str]()
    for part in PARTS:
        old, new = getattr(before, part), getattr(now, part)
        put |= {f"{part} {id}": json.dumps(new[id]).encode() for id in new if old.get(id) != new[id]}
        drop += [f"{part} {id}" for id in old if id not in new]
    return put, drop


def count_ordered_restarts(orders: Json | None) -> int:
    """How often operators have had all kernels start a server again."""
    count = (orders or {}).get("restarted")
    return count if isinstance(count, int) else 0


# -- The processes of a group: which kernel has one, and how the others get to it.


OWNING_SECONDS: Final = 0.5
FINDING_SECONDS: Final = 12.0
FIND_AGAIN_SECONDS: Final = 0.2
UNUSED_SECONDS: Final = 10.0


class KernelPlace(NamedTuple):
    """A kernel that runs: the address of its link, and a name that no other one ever has."""

    kernel: str
    host: str
    port: int

    @property
    def shown(self) -> str:
        return f"{self.host}:{self.port}"

    def to_token(self) -> bytes:
        return json.dumps(self).encode()

    @classmethod
    def from_token(cls, token: bytes) -> KernelPlace:
        """Raises PeerGone for what no kernel has written."""
        try:
            kernel, host, port = json.loads(token)
            return cls(str(kernel), str(host), int(port))
        except (ValueError, TypeError, RecursionError):
            raise PeerGone("the lease of this server was not written by a kernel") from None


class SharedCommand(Command):
    """A server of the file whose process belongs to one kernel of the group. `name` has a digest of how it's started:
    kernels that were given different files share no process."""

    __slots__ = ("id", "name", "room", "overlap", "owner", "on_stderr", "_group")

    def __init__(self, group: KernelGroupMembership, id: str, room: int, overlap: bool, command: Command) -> None:
        super().__init__(
            command.program, *command.args, env=command.env, cwd=command.cwd, per=command.per, version=command.version
        )
        self._group, self.id, self.room, self.overlap = group, id, room, overlap
        launch = [self.program, self.args, sorted(self.env.items()), str(self.cwd), self.version]
        self.name = f"{id}@{group.make_digest(json.dumps(launch))}"
        self.owner: KernelPlace | None = None
        self.on_stderr: Callable[[str], None] = lambda line: None

    @property
    def is_joined(self) -> bool:
        return True

    async def link(self, on_stderr: Callable[[str], None], key: str = "") -> ClientLink:
        """Without a key it is a process of this kernel alone: it serves one session, or one call."""
        if not key:
            return await super().link(on_stderr)
        self.on_stderr = on_stderr
        return await self._group.open_seat(self, key if key == MAIN_PROCESS_KEY else self._group.make_digest(key))

    def start(self) -> Coroutine[Any, Any, Any]:
        """Start the process. Raises PeerGone."""
        return super().link(lambda line: self.on_stderr(line))


class KernelGroupMembership(Extension):
    """This kernel among those of its store. It is there before the first server starts, and until the last has ended.

    `processes` are those that this kernel owns, by the name of their command and what they are for.
    """

    name = "kernel group"

    def __init__(
        self, kernel: Kernel, state: SharedState, identity: ServerIdentity, store: str, link: tuple[str, int]
    ) -> None:
        from defserve.stores.identity import make_server_store

        self._kernel, self._state = kernel, state
        self._host, self._port = link
        self._store = make_server_store(store, identity, what="the store of [kernel.group]")
        self._link_key = identity.derive_key(state.secret, "kernel link")
        self._digest_key = identity.derive_key(state.secret, "kernel launch")
        self.place = KernelPlace("", "", 0)
        self.processes: dict[tuple[str, str], SharedProcess] = {}
        self._commands: dict[str, SharedCommand] = {}
        self._leases: dict[str, Lease] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._starting: dict[tuple[str, str], asyncio.Task[SharedProcess]] = {}
        self._tasks, self._moving = BackgroundTasks(), set[str]()

    def make_digest(self, text: str) -> str:
        """A name for a text that may have secrets."""
        return blake2b(text.encode("utf-8", "surrogatepass"), key=self._digest_key, digest_size=16).hexdigest()

    def find_owner(self, target: object) -> KernelPlace | None:
        """The kernel that has the process of a target, as far as this one knows."""
        return target.owner if isinstance(target, SharedCommand) else None

    def share_command(self, id: str, room: int, overlap: bool, command: Command) -> SharedCommand:
        """A command of the file, as one that all kernels use."""
        shared = SharedCommand(self, id, room, overlap, command)
        # What was started otherwise before is known as long as its processes run.
        self._commands = {name: one for name, one in self._commands.items() if one.id != id or name in self._leases}
        self._commands[shared.name] = shared
        return shared

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None]:
        from defserve.kernel.shared_processes import ProcessSeatServer

        server = ProcessSeatServer(self._link_key, self._give_seat)
        try:
            async with server.listen(self._host, self._port) as port:
                self.place = KernelPlace(secrets.token_hex(8), self._host, port)
                try:
                    yield
                finally:
                    leases, self._leases = self._leases, {}
                    # First, so that others can be owners when they are asked to move.
                    await asyncio.gather(*(lease.release() for lease in leases.values()), return_exceptions=True)
                    await server.move_seats(self._kernel.config.settings.drain_secs)
        finally:
            # Also if it is cancelled while others move: no process is left behind.
            processes = tuple(self.processes.values())
            await asyncio.gather(*(process.aclose() for process in processes), return_exceptions=True)
            self._tasks.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._store.close()
            await asyncio.to_thread(self._state.close)

    # -- seats ---------------------------------------------------------------------------------------------

    async def open_seat(self, command: SharedCommand, key: str) -> ClientLink:
        """A seat at a process, wherever it is. Raises PeerGone if there is none to be had in time."""
        from defserve.kernel.shared_processes import OwnerGone, RemoteProcessSeat

        loop = asyncio.get_running_loop()
        deadline = loop.time() + FINDING_SECONDS
        key = f"{count_ordered_restarts(self._state.known.servers.get(command.id))} {key}"
        while True:
            command.owner = owner = await self._find_owner(command.name)
            if owner == self.place:
                return await self._sit_down(command, key)
            request = {"id": owner.kernel, "command": command.name, "key": key}
            try:
                return await RemoteProcessSeat.connect(
                    (owner.host, owner.port), self._link_key, request, lambda: self._move_soon(command.id)
                )
            except OwnerGone:
                if loop.time() > deadline:
                    raise
            # If it is dead, its lease ends soon.
            await asyncio.sleep(FIND_AGAIN_SECONDS)

    async def _find_owner(self, name: str) -> KernelPlace:
        """Who has the processes of this name: if nobody does, this kernel does from now on. Raises PeerGone."""
        from defserve.stores.store import Lease, StoreBusy

        async with self._locks.setdefault(name, asyncio.Lock()):
            if name in self._leases:
                return self.place
            lease = Lease(self._store, f"kernel process {name}", self.place.to_token())
            try:
                while (holder := await lease.find_holder()) in (None, self.place.to_token()):
                    with suppress(StoreBusy):
                        await lease.acquire(OWNING_SECONDS)
                        lease.on_lost = lambda: self._on_lease_lost(name, lease)
                        self._leases[name] = lease
                        return self.place
            except Refused as error:
                raise PeerGone(f"nobody knows which kernel runs this server: {error.message}") from None
            return KernelPlace.from_token(holder or b"")

    async def _give_seat(self, request: Json) -> ProcessSeat:
        """The seat that another kernel asks for."""
        from defserve.kernel.shared_processes import OwnerGone

        name, key = request.get("command"), request.get("key")
        command = self._commands.get(name) if isinstance(name, str) else None
        if command is None or command.name not in self._leases or not isinstance(key, str):
            raise OwnerGone("this kernel does not run that server")
        if request.get("id") != self.place.kernel:
            raise OwnerGone("another kernel was meant, which has gone")
        return await self._sit_down(command, key)

    async def _sit_down(self, command: SharedCommand, key: str) -> ProcessSeat:
        """A seat at a process of this kernel, which is started if there is none."""
        # A kernel that has not read of a restart yet means the process that was started since.
        since = [
            one
            for one in (*self.processes, *self._starting)
            if one[0] == command.name and one[1].partition(" ")[2] == key.partition(" ")[2]
        ]
        place = max([(command.name, key), *since], key=_read_restarts)
        if (process := self.processes.get(place)) is None:
            if (starting := self._starting.get(place)) is None:
                starting = self._starting[place] = self._tasks.start(self._start_process(command, place))
                starting.add_done_callback(lambda done: self._starting.pop(place, None))
            # Others may wait for the same one.
            process = await wait_for_shared(starting)
        return process.add_seat()

    async def _start_process(self, command: SharedCommand, place: tuple[str, str]) -> SharedProcess:
        from defserve.kernel.shared_processes import SharedProcess

        if sum(name == command.name for name, _ in self.processes) > MAX_CHANNELS:
            raise PeerGone(f"all of its {MAX_CHANNELS} processes are in use, at all kernels together")
        if not command.overlap:
            # Only those from before the restart: callers with keys have a process each.
            old = [
                one
                for other, one in self.processes.items()
                if other[0] == command.name and _read_restarts(other) < _read_restarts(place)
            ]
            await asyncio.gather(*(one.aclose() for one in old))
        link = await command.start()
        process = self.processes[place] = SharedProcess(link, command.room, lambda: self._on_process_ended(place))
        asyncio.get_running_loop().call_later(UNUSED_SECONDS, self._end_if_unused, process)
        return process

    def _end_if_unused(self, process: SharedProcess) -> None:
        """Who asked for a process may have given up before it had started."""
        if not process.seats and not process.is_retired:
            self._tasks.start(process.aclose())

    def _on_process_ended(self, place: tuple[str, str]) -> None:
        """A process takes no more seats. Who owns none of its kind any more owns the server no more."""
        self.processes.pop(place, None)
        is_used = any(name == place[0] for name, _ in (*self.processes, *self._starting))
        if not is_used and (lease := self._leases.pop(place[0], None)):
            self._tasks.start(lease.release())

    def _on_lease_lost(self, name: str, lease: Lease) -> None:
        """Another kernel took this one for dead: it starts the server, so this one's processes of it end."""
        if self._leases.get(name) is lease:
            log.warning("server %r now runs at another kernel: this one did not reach the store in time", name)
            del self._leases[name]
            for (own, _), process in tuple(self.processes.items()):
                if own == name:
                    self._tasks.start(process.aclose())

    def _move_soon(self, id: str) -> None:
        """The owner of a server is about to leave."""
        if id not in self._moving:
            self._moving.add(id)
            self._tasks.start(self._move(id))

    async def _move(self, id: str) -> None:
        try:
            await self._kernel.renew_server(id, "its kernel ends")
        finally:
            self._moving.discard(id)


def _read_restarts(place: tuple[str, str]) -> int:
    """How many restarts were ordered before whoever asked for this process."""
    count = place[1].partition(" ")[0]
    return int(count) if count.isdecimal() else 0


def parse_link_address(text: str) -> tuple[str, int]:
    """The host and port of a link. Raises UsageError for one that other kernels could not reach."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdecimal() or int(port) > 65535 or host in EVERY_ADDRESS:
        raise UsageError(
            f"link = {text!r} in [kernel.group] is not an address at which other kernels reach this one",
            fix='write host and port, such as link = "10.0.0.5:8300" or link = "${POD_IP}:8300"',
        )
    return host, int(port)


EVERY_ADDRESS: Final = ("0.0.0.0", "::", "*")
