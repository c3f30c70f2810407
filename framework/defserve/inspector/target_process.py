"""A server file in a process of its own, which may crash, hang or flood its output while the inspector goes on.

One pipe carries every conversation: a line is the number of a channel, a space, and a message. Channel 0 is for what
the inspector asks about the server itself (`SERVER_QUESTIONS`), and for what the process reports: tracebacks, and the
stages of calls. Whatever the author's code prints goes to stderr, of which the last lines are kept to say why it ended.

A process that has ended is started again by a person, never by itself: so a server that crashes when it starts does so
once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from pydantic_core import from_json, to_json

from defserve.base.concurrency import BackgroundTasks, wait_for_shared
from defserve.base.peer_bounds import RecentItems
from defserve.base.redaction import get_logger
from defserve.base.search_path import add_author_import_folder
from defserve.client.replies import TruncatedMessage, object_or_empty
from defserve.client.targets import is_file_target
from defserve.errors import DefserveError, PeerGone, UsageError
from defserve.inspector.call_timer import CallTimer, stamp_message
from defserve.inspector.recording.masking import mask_text
from defserve.inspector.waterfalls import ServerWaterfall, parse_waterfall
from defserve.protocols.mcpl.extension import MCPL
from defserve.protocols.mcpl.state.section import StateSection
from defserve.protocols.mgp.audit import ReadableAuditLog, find_readable_log
from defserve.protocols.mgp.extension import MGP
from defserve.serve.lifespans import connect_in_memory, enter_lifespans
from defserve.stores.checkpoints.checkpoint_tree import Checkpoint, CheckpointGone, CheckpointTree, TreeKey
from defserve.tooling.loading import load_package, load_without_serving, print_load_error

if TYPE_CHECKING:
    from defserve.client.links.stdio import ProcessLink
    from defserve.core.call import Call
    from defserve.inspector.inspection import ServerAuditLog
    from defserve.inspector.state_trees import StoredState
    from defserve.server.server import Server

Json: TypeAlias = dict[str, Any]

MAX_LAST_LINES: Final = 40
MAX_LAST_LINES_BYTES: Final = 256 * 1024
MAX_TRACEBACKS: Final = 50
MAX_WATERFALLS: Final = 50
MAX_ID_LENGTH: Final = 128
MAX_CHANNEL_BYTES: Final = 64 * 1024 * 1024
MAX_UNREAD_MESSAGES: Final = 1_000
"""Messages that wait for one conversation. Then the process has to wait."""
START_SECONDS = 120.0
ENDING_SECONDS = 5.0
REPORTS: Final = 0
"""The channel of questions and reports."""


class TargetProcess:
    """The process of one server, started when the first conversation needs it.

    states   feature set to what is known of its state, as the process has told
    on_exit  called with the reason when the process has ended
    """

    def __init__(self, target: str, *, is_package: bool = False) -> None:
        self.target, self._is_package = target, is_package
        self.states: dict[str, Json] = {}
        self.on_exit: list[Callable[[PeerGone], object]] = []
        self._run: ProcessRun | None = None
        self._starting = asyncio.Lock()

    @asynccontextmanager
    async def open_link(self) -> AsyncGenerator[Channel]:
        """One more conversation with the server. Raises PeerGone, with its last lines, if it does not start."""
        run = await self._start_if_ended()
        channel = run.open_channel()
        try:
            yield channel
        finally:
            run.close_channel(channel)

    async def ask(self, question: str, arguments: list[Any]) -> Any:
        """Ask the process about its server. Raises PeerGone if it does not run, UsageError as the question does."""
        if self._run is None or self._run.ended is not None:
            raise PeerGone(f"{self.target} does not run")
        return await self._run.ask(question, arguments)

    def find_state(self, feature_set: str) -> StoredState | None:
        """The state of a feature set, read through the process."""
        from defserve.inspector.state_trees import StoredState

        facts = self.states.get(feature_set)

        async def open_trees() -> ProcessTrees:
            return ProcessTrees(feature_set, self.ask)

        return StoredState(open_trees, facts) if facts is not None else None

    def find_traceback_by_error_id(self, text: str) -> str | None:
        """The traceback of an error whose id is in a text that a caller was told."""
        found = self._run.tracebacks if self._run is not None else ()
        return next((each for id, each in reversed(found) if f"(id {id})" in text), None)

    def find_waterfall(self, request: str) -> ServerWaterfall | None:
        """The stages of a call that was just answered, as the process has measured them."""
        found = self._run.waterfalls if self._run is not None else ()
        return next((each for id, each in reversed(found) if id == request), None)

    @property
    def exit(self) -> Json | None:
        """How the process ended: its `code`, the last `lines` that it wrote, and whether it had `started`."""
        return self._run.exit if self._run is not None else None

    async def stop(self) -> None:
        """End the process, by force if it hangs."""
        async with self._starting:
            if self._run is not None:
                await self._run.stop()

    async def _start_if_ended(self) -> ProcessRun:
        async with self._starting:
            if self._run is None or self._run.ended is not None:
                self._run = await ProcessRun.start(self.target, self._is_package, self._on_exit)
            run = self._run
        report = await run.wait_until_ready()
        self.states = object_or_empty(report.get("states"))
        return run

    def _on_exit(self, reason: PeerGone) -> None:
        for tell in tuple(self.on_exit):
            tell(reason)


class ProcessRun:
    """The process from its start to its end. Then `ended` says why, and `exit` how."""

    def __init__(self, target: str, on_exit: Callable[[PeerGone], object]) -> None:
        self.ended: PeerGone | None = None
        self.exit: Json | None = None
        self.tracebacks: RecentItems[tuple[str, str]] = RecentItems(MAX_TRACEBACKS)
        self.waterfalls: RecentItems[tuple[str, ServerWaterfall]] = RecentItems(MAX_WATERFALLS)
        self._target, self._on_exit = target, on_exit
        self._lines: RecentItems[str] = RecentItems(MAX_LAST_LINES, MAX_LAST_LINES_BYTES)
        self._channels: dict[int, Channel] = {}
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._numbers = iter(range(1, 2**53))
        self._ready: asyncio.Future[Json] = asyncio.get_running_loop().create_future()
        self._has_started = self._is_stopped = False
        self._link: ProcessLink
        self._reading: asyncio.Task[None]

    @classmethod
    async def start(cls, target: str, is_package: bool, on_exit: Callable[[PeerGone], object]) -> ProcessRun:
        # Not at the top: the process with the server starts in half the time without what only the inspector needs.
        from defserve.client.links.stdio import ProcessLink

        run = cls(target, on_exit)
        plan = json.dumps({"target": target, "is_package": is_package})  # not every path is UTF-8
        # Without bytecode: Python would use the old one after an edit in the same second that keeps the size. Without
        # the current folder: it is an author's, and the process adds it where it may not shadow libraries.
        arguments = ("-B", "-P", "-m", "defserve.inspector.target_process", plan)
        run._link = await ProcessLink.spawn(
            sys.executable, arguments, echo=True, on_stderr=run._lines.append, ends_with_us=True
        )
        run._reading = asyncio.create_task(run._read(), name="defserve.inspector process")
        return run

    async def wait_until_ready(self) -> Json:
        """What the process tells of its server once it is loaded. Raises PeerGone if it ends before, or hangs."""
        try:
            async with asyncio.timeout(START_SECONDS):
                return await wait_for_shared(self._ready)
        except TimeoutError:
            await self.stop()
            raise PeerGone(f"{self._target} did not start within {START_SECONDS:g} s") from None

    def open_channel(self) -> Channel:
        channel = Channel(next(self._numbers), self._send)
        self._channels[channel.number] = channel
        self._report({"open": channel.number})
        return channel

    def close_channel(self, channel: Channel) -> None:
        if self._channels.pop(channel.number, None) is not None:
            self._report({"close": channel.number})

    async def ask(self, question: str, arguments: list[Any]) -> Any:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        try:
            await self._send(REPORTS, to_json({"ask": number, "question": question, "with": arguments}))
            return await answer
        finally:
            del self._answers[number]

    async def stop(self) -> None:
        """End it, by force if it hangs."""
        self._is_stopped = self.ended is None
        self._reading.cancel()
        await asyncio.gather(self._reading, return_exceptions=True)

    async def _send(self, channel: int, message: bytes) -> None:
        if self.ended is not None:
            raise _copy(self.ended)
        try:
            await self._link.send(b"%d %s" % (channel, message))
        except PeerGone:
            await asyncio.wait([self._reading], timeout=ENDING_SECONDS)  # it knows how the process ended
            if self.ended is None:
                raise
            raise _copy(self.ended) from None

    def _report(self, report: Json) -> None:
        # What does not fit into the pipe is buffered, and a process that has ended needs no report.
        if self.ended is None and (waits := self._link.write(b"%d %s" % (REPORTS, to_json(report)))) is not None:
            task = asyncio.ensure_future(waits)
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _read(self) -> None:
        try:
            while (line := await self._link.receive()) is not None:
                await self._take(line)
        except PeerGone:
            pass
        finally:
            await self._link.aclose()  # also one that closed its output and goes on
            self._end(self._describe_exit(self._link.returncode))

    async def _take(self, line: bytes) -> None:
        number, _, message = line.partition(b" ")
        if not number.isdigit():
            return
        is_cut = isinstance(line, TruncatedMessage)
        if int(number) == REPORTS:
            self._take_report(_parse_cut_report(message) if is_cut else object_or_empty(from_json(message)))
        elif (channel := self._channels.get(int(number))) is not None:
            if is_cut:
                cut = TruncatedMessage(message)
                cut.limit, message = line.limit, cut
            await channel.deliver(message)

    def _take_report(self, report: Json) -> None:
        if "ready" in report and not self._ready.done():
            self._has_started = True
            self._ready.set_result(object_or_empty(report["ready"]))
        elif "closed" in report and (channel := self._channels.pop(report["closed"], None)) is not None:
            channel.end(PeerGone("the server ended the conversation"))
        elif "traceback" in report:
            self.tracebacks.append((str(report["id"]), mask_text(str(report["traceback"]))))
        elif "waterfall" in report:
            with suppress(ValueError):
                self.waterfalls.append((str(report["request"])[:MAX_ID_LENGTH], _parse_server_waterfall(report)))
        elif (answer := self._answers.get(report.get("answer", 0))) is not None and not answer.done():
            if "error" in report:
                answer.set_exception(_parse_question_error(report["error"]))
            else:
                answer.set_result(report.get("value"))

    def _end(self, reason: PeerGone) -> None:
        self.ended = reason
        if not self._ready.done():
            self._ready.set_exception(reason)
            self._ready.exception()  # read here, in case nobody waits for it
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(reason)
                answer.exception()  # the same: writing the question may have failed
        for channel in self._channels.values():
            channel.end(reason)
        self._channels.clear()
        self._on_exit(reason)

    def _describe_exit(self, code: int | None) -> PeerGone:
        lines = mask_text("\n".join(self._lines)).split("\n") if self._lines else []
        self.exit = {"code": None if self._is_stopped else code, "lines": lines, "started": self._has_started}
        name = os.path.basename(self._target)
        return PeerGone(f"{name} {'was ended' if self._is_stopped else describe_exit_code(code)}")


def describe_exit_code(code: int | None) -> str:
    """`exited with 3`, or the name of the signal."""
    if code is None:
        return "closed its output"
    if code >= 0:
        return f"exited with {code}"
    with suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


def _parse_cut_report(message: bytes) -> Json:
    """The beginning of a report that was too long. If it is an answer, it is an error."""
    begin = message.partition(b"\0")[0].decode(errors="ignore")
    report = object_or_empty(from_json(begin, allow_partial="trailing-strings"))
    return {**report, "error": {"message": "the answer of the server's process is too long"}}


def _parse_server_waterfall(report: Json) -> ServerWaterfall:
    began = report.get("began")
    return ServerWaterfall(began if isinstance(began, float) else 0.0, parse_waterfall(report["waterfall"]))


class Channel:
    """A `ClientLink` to the server in the process: one conversation."""

    def __init__(self, number: int, send: Callable[[int, bytes], Awaitable[None]]) -> None:
        self.number = number
        self._send = send
        self._unread: RecentItems[bytes] = RecentItems(MAX_UNREAD_MESSAGES, MAX_CHANNEL_BYTES, len)
        self._is_closed, self._ended = False, None
        self._news, self._room = asyncio.Event(), asyncio.Event()

    async def send(self, message: bytes) -> None:
        await self._send(self.number, message)

    async def receive(self) -> bytes | None:
        """The next message; None once it is closed. Raises PeerGone if the process has ended."""
        while not self._unread:
            if self._ended is not None:
                raise _copy(self._ended)
            if self._is_closed:
                return None
            self._news.clear()
            await self._news.wait()
        self._room.set()
        return self._unread.popleft()

    async def aclose(self) -> None:
        self._is_closed = True
        self._unread.clear()
        self._news.set()
        self._room.set()

    async def deliver(self, message: bytes) -> None:
        """Hand a message over, when there is room for it."""
        while self._unread and not self._unread.has_room(len(message)) and not self._is_closed:
            self._room.clear()
            await self._room.wait()
        if not self._is_closed:
            self._unread.append(message)
            self._news.set()

    def end(self, reason: PeerGone) -> None:
        """The server has left. What it said before can still be received."""
        self._ended = reason
        self._news.set()


def _copy(reason: PeerGone) -> PeerGone:
    """One for each who is told: an exception collects the frames that it passes."""
    return PeerGone(reason.message)


# -- What the inspector asks about the server itself. The process answers, or this process if the server runs here.


async def explain_target_call(server: Server, caller: str, tool: str, scopes: list[str]) -> Json:
    """Whether a caller may call a tool, step by step, as `defserve why` says it."""
    from defserve.server.call_decision import explain_call, resolve_named_caller

    found = await resolve_named_caller(server, caller, scopes=scopes or None)
    return {"caller": found.title, **(await explain_call(server, found, tool)).describe()}


def find_audit_log(server: Server) -> ReadableAuditLog | None:
    """The audit log of a server, if it is one that can be read again."""
    guards = (each for each in server.extensions if isinstance(each, MGP))
    return next((found for each in guards if (found := find_readable_log(each.audit.sinks)) is not None), None)


def find_state_section(server: Server) -> StateSection | None:
    """The states of a server."""
    live = next((each for each in server.extensions if isinstance(each, MCPL)), None)
    return MCPL.state.get_existing_section(live) if live is not None else None


def _audit_log_of(server: Server) -> ServerAuditLog:
    from defserve.inspector.inspection import ServerAuditLog

    return ServerAuditLog(lambda: find_audit_log(server))


async def _read_audit(server: Server) -> Json | None:
    return await asyncio.to_thread(_audit_log_of(server).list_newest_lines)


async def _verify_audit(server: Server) -> Json:
    return await asyncio.to_thread(_audit_log_of(server).verify)


def _describe_states(server: Server) -> Json:
    """What is known of the store of each feature set that has one."""
    section = find_state_section(server)
    if section is None or not (names := [each.name for each in section]):
        return {}
    from defserve.inspector.state_trees import make_state_finder

    find = make_state_finder(section)
    return {name: state.facts for name in names if (state := find(name)) is not None}


async def _read_state(server: Server, feature_set: str, read: str, *names: str) -> Any:
    """What `ProcessTrees` reads: a method of the store of a feature set, and the owner and checkpoint it is about."""
    states = next((each for each in find_state_section(server) or () if each.name == feature_set), None)
    if states is None or read not in TREE_READS:
        raise UsageError(f"the server keeps no state {feature_set!r}")
    key = (TreeKey(feature_set, names[0]),) if names else ()
    return await getattr(await states.trees(), read)(*key, *names[1:])


TREE_READS: Final = ("list_trees", "load_tree", "get_checkpoint", "list_checkpoints", "load_content")
SERVER_QUESTIONS: Final[Mapping[str, Callable[..., Awaitable[Any]]]] = {
    "why": explain_target_call,
    "audit.lines": _read_audit,
    "audit.verify": _verify_audit,
    "state": _read_state,
}


class ProcessTrees:
    """The checkpoints of a feature set, as its `CheckpointStore` in the process reads them."""

    def __init__(self, feature_set: str, ask: Callable[[str, list[Any]], Awaitable[Any]]) -> None:
        self._feature_set, self._ask = feature_set, ask

    async def list_trees(self) -> list[TreeKey]:
        return [TreeKey(*each) for each in await self._read("list_trees")]

    async def load_tree(self, key: TreeKey) -> CheckpointTree:
        return CheckpointTree(*await self._read("load_tree", key.owner))

    async def get_checkpoint(self, key: TreeKey, id: str) -> Checkpoint:
        return Checkpoint(*await self._read("get_checkpoint", key.owner, id))

    async def list_checkpoints(self, key: TreeKey) -> list[Checkpoint]:
        return [Checkpoint(*each) for each in await self._read("list_checkpoints", key.owner)]

    async def load_content(self, key: TreeKey, id: str) -> Any:
        return await self._read("load_content", key.owner, id)

    async def _read(self, read: str, *names: str) -> Any:
        return await self._ask("state", [self._feature_set, read, *names])


def _describe_question_error(error: Exception) -> Json:
    if isinstance(error, CheckpointGone):
        return {"checkpoint": object_or_empty(error.data).get("checkpoint")}
    return {"message": str(error) if isinstance(error, DefserveError) else f"{type(error).__name__}: {error}"}


def _parse_question_error(told: Any) -> DefserveError:
    about = object_or_empty(told)
    return CheckpointGone(str(about["checkpoint"])) if "checkpoint" in about else UsageError(str(about.get("message")))


# -- The process: it loads the server, serves the conversations, and answers the questions.


FAILED_TO_START: Final = 1
END_SECONDS: Final = 5.0
"""How long a server that hangs may go on after the inspector has left."""


class PipeWriter:
    """The end of the pipe to the inspector. Any thread may write a line; one that nobody reads ends the process."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._turn = descriptor, threading.Lock()

    def write(self, channel: int, message: bytes) -> None:
        line = b"%d %s\n" % (channel, message)
        with self._turn:
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except OSError:
                os._exit(0)

    def report(self, report: Json) -> None:
        self.write(REPORTS, to_json(report, fallback=str, inf_nan_mode="null"))


class ServedProcess:
    """Serves one server to the inspector, until the pipe ends."""

    def __init__(self, server: Server, writer: PipeWriter) -> None:
        self._server, self._writer = server, writer
        self._peers: dict[int, asyncio.Queue[bytes | None]] = {}
        self._tasks = BackgroundTasks()

    async def serve(self, descriptor: int) -> None:
        get_logger().addFilter(self._report_traceback)
        ended = asyncio.Event()
        async with enter_lifespans(self._server.composition):
            self._writer.report({"ready": {"states": _describe_states(self._server)}})
            read_lines(descriptor, self._take, ended.set)
            await ended.wait()
            self._tasks.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def report_waterfall(self, call: Call, measured: ServerWaterfall) -> None:
        """Tell the stages of a call, before its answer."""
        stages = measured.waterfall.to_wire()
        self._writer.report({"request": str(call.id)[:MAX_ID_LENGTH], "began": measured.began, "waterfall": stages})

    def _take(self, line: bytes, arrived: float) -> None:
        number, _, message = line.partition(b" ")
        if int(number) == REPORTS:
            self._take_report(from_json(message))
        elif (unread := self._peers.get(int(number))) is not None:
            unread.put_nowait(stamp_message(message, arrived))

    def _take_report(self, report: Json) -> None:
        if "open" in report:
            self._peers[report["open"]] = asyncio.Queue()
            self._tasks.start(self._converse(report["open"]), name="defserve.inspector conversation")
        elif "close" in report and (unread := self._peers.get(report["close"])) is not None:
            unread.put_nowait(None)
        elif "ask" in report:
            self._tasks.start(self._answer(report), name="defserve.inspector question")

    async def _converse(self, number: int) -> None:
        unread = self._peers[number]
        try:
            async with connect_in_memory(self._server.composition) as peer:

                async def pass_on() -> None:
                    while (message := await peer.receive()) is not None:
                        self._writer.write(number, message)
                    unread.put_nowait(None)

                passing = asyncio.create_task(pass_on(), name="defserve.inspector answers")
                try:
                    while (message := await unread.get()) is not None:
                        await peer.send(message)
                finally:
                    passing.cancel()
                    await asyncio.gather(passing, peer.aclose(), return_exceptions=True)
        finally:
            del self._peers[number]
            self._writer.report({"closed": number})

    async def _answer(self, report: Json) -> None:
        try:
            value = await SERVER_QUESTIONS[report["question"]](self._server, *report["with"])
            self._writer.report({"answer": report["ask"], "value": value})
        except Exception as error:
            self._writer.report({"answer": report["ask"], "error": _describe_question_error(error)})

    def _report_traceback(self, record: logging.LogRecord) -> bool:
        if (id := getattr(record, "error_id", None)) is not None:
            self._writer.report({"id": id, "traceback": f"{record.getMessage()}\n{record.exc_text}"})
        return True


def read_lines(descriptor: int, take: Callable[[bytes, float], object], ended: Callable[[], object]) -> None:
    """Call `take` on this loop with each line and when it came. After the last one `ended` is called.

    A loop that hangs is left.
    """
    loop = asyncio.get_running_loop()

    def read() -> None:
        with os.fdopen(descriptor, "rb") as pipe, suppress(RuntimeError):  # the loop has ended
            for line in pipe:
                loop.call_soon_threadsafe(take, line[:-1], time.perf_counter())
            loop.call_soon_threadsafe(ended)
        time.sleep(END_SECONDS)
        os._exit(0)

    threading.Thread(target=read, daemon=True, name="defserve.inspector pipe").start()


def claim_pipes() -> tuple[int, int]:
    """Our ends of the pipes. What the author's code prints goes to stderr from now on, and it has nothing to read."""
    reads, writes = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - for as long as the process runs
    return reads, writes


def main(argument: str) -> int:
    """Load the server and serve it. A server that cannot be loaded or started leaves its traceback on stderr."""
    plan = json.loads(argument)
    reads, writes = claim_pipes()
    target = plan["target"]
    if not is_file_target(target):
        add_author_import_folder(os.getcwd())
    try:
        server = (load_package if plan["is_package"] else load_without_serving)(target)
        served = ServedProcess(server, PipeWriter(writes))
        with CallTimer(served.report_waterfall):
            asyncio.run(served.serve(reads))
    except UsageError as error:
        print_load_error(error)
        return FAILED_TO_START
    return 0


if __name__ == "__main__":
    # The author's module sees an empty command line.
    *_, given = sys.argv
    del sys.argv[1:]
    sys.exit(main(given))
