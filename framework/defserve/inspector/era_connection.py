"""The conversation with the server in one era, recorded; what is inspected; and who is signed in.

A conversation is opened when it is first used, and again when the server comes back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from defserve.base.backoff import Backoff
from defserve.base.concurrency import BackgroundTasks
from defserve.client.client import Client
from defserve.client.link import (
    ClientLink,
    ExchangingLink,
    LostRequest,
    MessageHandler,
    PushingLink,
    ReopenableLink,
    has_stored_sign_in,
)
from defserve.client.links.endpoint import HttpExchange
from defserve.client.links.http import HttpLink
from defserve.client.replies import object_or_empty
from defserve.core.messages import INTERNAL_ERROR, Message, Reply, Request, RequestId, encode
from defserve.errors import DefserveError, PeerError, PeerGone, UsageError
from defserve.inspector.kernels import KernelOverSocket
from defserve.inspector.protocol import BadMessage, Json, describe_error_for_page
from defserve.inspector.recording.masking import mask_address, mask_text
from defserve.inspector.recording.recorder import Direction, RecordedExchange, RecordedMessage, Recorder
from defserve.inspector.state_trees import FindStoredState
from defserve.protocols.mgp.audit import ReadableAuditLog

if TYPE_CHECKING:
    from defserve.inspector.session_files import SavedSession
    from defserve.inspector.target_process import TargetProcess
    from defserve.server.server import Server


@dataclass(frozen=True, slots=True)
class InspectionTarget:
    """A server that can be connected to any number of times.

    address  where it is, in words for the status line: a URL, a command, a file
    words    how a `defserve` command names it: `("server.py",)`, or `("--", "node", "server.js")`
    link     opens one more connection. The client closes the link; the block ends what carried it.
    era      the era of the first conversation; "" agrees on the newest
    kernel   how its operator reaches it, if it is a kernel of this user
    stored   finds the checkpoints of its feature sets in a store, if that can be read
    audit    gives its audit log, if that can be read; asked for when it is first looked at
    sign_in_at  the address that a person can sign in to; "" if there is none, or if credentials were given
    tracebacks  a sentence that says where the tracebacks of its errors are; "" if that is unknown
    server   the server itself, if it runs in this process
    process  the process of a server file, which the inspector runs
    starts   whether connecting starts a process: one that has ended is started again by a person, never by itself
    build    what becomes of its newest version, if somebody reloads it
    saved    the session of a file, which stands in for a server: there is nothing to call
    """

    address: str
    words: tuple[str, ...]
    link: Callable[[], AbstractAsyncContextManager[ClientLink]]
    era: str = ""
    stored: FindStoredState | None = None
    kernel: KernelOverSocket | None = None
    audit: Callable[[], ReadableAuditLog | None] | None = None
    sign_in_at: str = ""
    tracebacks: str = ""
    server: Server | None = None
    process: TargetProcess | None = None
    starts: bool = False
    build: ReloadStatus | None = None
    saved: SavedSession | None = None


MAX_BUILD_LINES: Final = 40


class ReloadStatus:
    """Why the newest version of a server that is reloaded does not start; `problem` is None while it serves."""

    def __init__(self) -> None:
        self.problem: Json | None = None
        self.on_change: list[Callable[[], object]] = []

    def report_problem(self, where: str, text: str, lines: Sequence[str] = (), *, is_serving: bool) -> None:
        """Where it is, what it is, and the lines that led there. `is_serving`: the old version still does."""
        shown = [mask_text(line) for line in lines[-MAX_BUILD_LINES:]]
        self._set_problem({"where": mask_text(where), "text": mask_text(text), "lines": shown, "serving": is_serving})

    def clear_problem(self) -> None:
        """The newest version serves."""
        self._set_problem(None)

    def _set_problem(self, problem: Json | None) -> None:
        if problem != self.problem:
            self.problem = problem
            for tell in tuple(self.on_change):
                tell()


# -- The conversation with the server in one era: opened when it is first used, and again when the server comes back.


State: TypeAlias = Literal["opening", "open", "lost", "exited", "refused", "closed"]
"""`refused`: the server is there, and does not want this conversation (it does not speak the era, or needs a token).
`exited`: its process has ended, and a person may start it again."""

MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.5, 15.0
PROVEN_SECONDS: Final = 5.0
"""A conversation that lasted as long was a good one: the next pause is the shortest again."""


class EraConnection:
    """One era. With the era "" the newest that both speak is agreed on, and `era` says which it was.

    `options` makes the options of the client, for each conversation. `changed` is told of every change of state.
    """

    def __init__(
        self,
        era: str,
        target: InspectionTarget,
        recorder: Recorder,
        options: Callable[[EraConnection], dict[str, Any]],
        changed: Callable[[EraConnection], object],
    ) -> None:
        self.era = era
        self.state: State = "opening"
        self.error: Json | None = None
        """Why it is not open."""
        self.next: float | None = None
        """Seconds until the next try."""
        self._target, self._recorder, self._options, self._changed = target, recorder, options, changed
        self._client: Client | None = None
        self._gone: PeerGone | None = None
        self._is_wanted_anew = False
        self._settled = asyncio.Event()
        self._again = asyncio.Event()
        self._ended = asyncio.Event()
        self._keeper = asyncio.create_task(self._keep_connected(), name=f"defserve.inspector {era or 'first'} era")

    async def client(self) -> Client:
        """The client, as soon as it is open. Raises PeerError with the reason if the server is away or refuses."""
        await self._settled.wait()
        if self._client is None:
            error = self.error or {"message": "the conversation is closed"}
            kind = PeerError if self.state == "refused" else PeerGone
            fix = f"\n  fix: {error['fix']}" if "fix" in error else ""
            raise kind(error["message"] + fix, code=error.get("code", INTERNAL_ERROR), data=error.get("data"))
        return self._client

    @property
    def connected_client(self) -> Client | None:
        """The client, if the conversation is open."""
        return self._client

    def retry(self) -> None:
        """Try now, rather than when the pause is over. Who wants the client waits for that."""
        if self._client is None:
            self._settled.clear()
        self._again.set()

    def on_server_gone(self, reason: PeerGone) -> None:
        """A request found that the server is gone."""
        if self._client is not None:  # else it is known, or the request was of an earlier conversation
            self._gone, self._client = reason, None
            self._settled.clear()
            self._ended.set()

    def reopen(self) -> None:
        """End the conversation and begin another at once, with the options of now."""
        if self._client is not None:
            self._client, self._is_wanted_anew = None, True
            self._settled.clear()
            self._ended.set()
        else:
            self.retry()

    def to_wire(self) -> Json:
        """The state for the page."""
        told: Json = {"era": self.era, "state": self.state}
        if self.error is not None:
            told |= self.error
        return told if self.next is None else {**told, "next": self.next}

    async def aclose(self) -> None:
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)
        self._set_state("closed")
        self._settled.set()

    async def _keep_connected(self) -> None:
        backoff = Backoff(MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        while True:
            began = asyncio.get_running_loop().time()
            self._ended.clear()
            self._gone, self._is_wanted_anew = None, False
            self._again.clear()
            try:
                await self._converse()
                if self._is_wanted_anew:
                    self._set_state("opening")
                    continue
                error: DefserveError = self._gone or PeerGone("the server went away")
            except DefserveError as failed:
                error = failed
            except Exception as failed:
                error = PeerGone(f"the conversation failed: {type(failed).__name__}: {failed}")
            self._client = None
            is_away = isinstance(error, PeerGone)
            if asyncio.get_running_loop().time() - began > PROVEN_SECONDS:
                backoff.reset()
            wait = backoff.next_wait()
            state: State = "refused" if not is_away else "exited" if self._target.starts else "lost"
            pause = wait if state == "lost" else None
            self._set_state(state, self._describe_error(error), pause)
            if not self._again.is_set():
                self._settled.set()
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._again.wait()
            self._settled.clear()
            self._set_state("opening", self.error)

    def _describe_error(self, error: DefserveError) -> Json:
        """The error, for the page. Signing in at a terminal counts here too, at the next try."""
        told = describe_error_for_page(error)
        if (process := self._target.process) is not None and process.exit is not None:
            told["exit"] = process.exit
        if "challenge" in object_or_empty(told.get("data")):
            address = mask_address(self._target.address, self._target.words)
            here = "sign in here, or at a terminal" if self._target.sign_in_at else "sign in at a terminal"
            told.setdefault("fix", f"{here}: defserve login {address}; then try again")
        return told

    async def _converse(self) -> None:
        """Open a conversation, and return when the server has left."""
        async with self._target.link() as bare:
            link = observe_link(bare, self._recorder, self.era)
            async with Client(link, version=self.era or None, **self._options(self)) as client:
                self.era = link.era = get_client_era(client)
                self._recorder.assign_era(self.era)
                self._client = client
                self._set_state("open")
                self._settled.set()
                try:
                    await self._listen(client)
                finally:
                    self._client = None

    async def _listen(self, client: Client) -> None:
        """Wait until the server has left. Its news come meanwhile, by the way of all notifications."""
        listening = asyncio.create_task(_news(client), name="defserve.inspector news")
        ended = asyncio.create_task(self._ended.wait())
        try:
            await asyncio.wait((listening, ended), return_when=asyncio.FIRST_COMPLETED)
            if listening.done() and not ended.done():
                try:
                    listening.result()
                except PeerGone:
                    raise
                except PeerError:
                    await ended  # it has no such stream; the next request finds out
        finally:
            for task in (listening, ended):
                task.cancel()
            await asyncio.gather(listening, ended, return_exceptions=True)

    def _set_state(self, state: State, error: Json | None = None, pause: float | None = None) -> None:
        self.state, self.error, self.next = state, error, pause
        self._changed(self)


def get_client_era(client: Client) -> str:
    return "stateless" if client.stateless else "handshake"


async def _news(client: Client) -> None:
    """Listen until the server leaves or ends the stream. Raises PeerError if it does not let anyone listen."""
    offered = client.capabilities
    async with client.listen(
        tools="tools" in offered, prompts="prompts" in offered, resources="resources" in offered
    ) as news:
        try:
            async for _ in news:
                pass
        except PeerGone:
            raise
        except PeerError:
            return


# -- A link that records what passes through it. It stands between a client and the link that it was given.
#
# So a client that is not observed has nothing to pay, and every transport is recorded in the same way.


def observe_link(link: ClientLink, recorder: Recorder, era: str) -> ObservedLink:
    """The same link for a client, recorded. `era` can be set later, when it is known."""
    if isinstance(link, ExchangingLink):
        return ObservedExchanges(link, recorder, era)
    if isinstance(link, PushingLink) and isinstance(link, ReopenableLink):
        return ObservedPipe(link, link, recorder, era)
    return ObservedLink(link, recorder, era)


class ObservedLink:
    """Any link. `era` is written into each entry."""

    def __init__(self, link: ClientLink, recorder: Recorder, era: str) -> None:
        self._link, self._recorder, self.era = link, recorder, era

    async def send(self, message: bytes) -> None:
        self._record("sent", message)
        await self._link.send(message)

    async def receive(self) -> bytes | LostRequest | None:
        try:
            came = await self._link.receive()
        except PeerGone as error:
            self._lost_all(error)
            raise
        if isinstance(came, bytes):
            self._record("received", came)
        elif came is not None:
            self._lost(came.id, came.error)
        return came

    async def aclose(self) -> None:
        await self._link.aclose()

    def _record(self, direction: Direction, message: bytes) -> RecordedMessage:
        return self._recorder.append(self.era, direction, message)

    def _lost(self, id: RequestId, error: PeerError) -> None:
        """An answer that never came, as an answer that says why."""
        self._record("received", encode({"id": id, "error": {"code": error.code, "message": error.message}}))

    def _lost_all(self, error: PeerGone) -> None:
        """The server has left: nothing that is under way will be answered."""
        for id in self._recorder.list_pending(self.era):
            self._lost(id, error)


class ObservedPipe(ObservedLink):
    """A child process: it hands out messages the moment they come, and can be started again."""

    def __init__(self, link: PushingLink, again: ReopenableLink, recorder: Recorder, era: str) -> None:
        super().__init__(link, recorder, era)
        self._pipe, self._again = link, again

    def write(self, message: bytes) -> Awaitable[None] | None:
        self._record("sent", message)
        return self._pipe.write(message)

    def push(self, take: Callable[[bytes], None], gone: Callable[[PeerGone], None]) -> None:
        def came(message: bytes) -> None:
            self._record("received", message)
            take(message)

        def left(reason: PeerGone) -> None:
            self._lost_all(reason)
            gone(reason)

        self._pipe.push(came, left)

    async def reopen(self) -> None:
        await self._again.reopen()


class ObservedExchanges(ObservedLink):
    """A link on which every request has an exchange of its own (HTTP). Its headers are recorded too."""

    def __init__(self, link: ExchangingLink, recorder: Recorder, era: str) -> None:
        super().__init__(link, recorder, era)
        self._exchanging = link
        self._carried: dict[int, int] = {}
        if isinstance(link, HttpLink):
            link.watch(self._on_exchange)

    @property
    def on_session_lost(self) -> Callable[[], object] | None:
        return self._exchanging.on_session_lost

    @on_session_lost.setter
    def on_session_lost(self, told: Callable[[], object] | None) -> None:
        self._exchanging.on_session_lost = told

    @property
    def session_id(self) -> str | None:
        return self._exchanging.session_id

    def forget_session(self) -> None:
        self._exchanging.forget_session()

    async def send(self, message: bytes) -> None:
        key = self._carry(message)
        try:
            await self._link.send(message)
        finally:
            self._carried.pop(key, None)

    async def send_request(self, request: Request, message: bytes, hear: MessageHandler) -> Reply:
        async def heard(said: Message, data: bytes) -> None:
            self._record("received", data)
            await hear(said, data)

        key = self._carry(message)
        try:
            reply = await self._exchanging.send_request(request, message, heard)
        except PeerError as error:
            self._lost(request.id, error)
            raise
        finally:
            self._carried.pop(key, None)
        outcome = {"result": reply.result} if reply.error is None else {"error": reply.error}
        self._record("received", encode({"jsonrpc": "2.0", "id": reply.id, **outcome}))
        return reply

    def _carry(self, message: bytes) -> int:
        """Record a message. The exchange that carries it is found by the very bytes."""
        self._carried[id(message)] = self._record("sent", message).seq
        return id(message)

    def _on_exchange(self, exchange: HttpExchange) -> None:
        seq = self._carried.get(id(exchange.content))
        if seq is not None:
            response = exchange.response
            self._recorder.attach(
                seq,
                RecordedExchange(
                    exchange.method,
                    exchange.address,
                    exchange.headers,
                    response.status,
                    dict(response.headers),
                    time.time(),
                ),
            )


# -- Who is signed in to the server, and signing in and out from the page. The tokens are those of `defserve login`.
#
# A page gets the address to open, the issuer's name, scopes and reasons: never a code, a verifier or a token.


AccountState: TypeAlias = Literal["idle", "starting", "waiting", "done", "failed", "cancelled"]
"""`starting`: the issuer is looked for. `waiting`: for the person, who has an `address` to open."""

TOPIC: Final = "account"
SECONDS = 600.0
"""How long a person may take."""


class InspectorSignIn:
    """One attempt to sign in at a time, for all pages. After it, and after signing out, `reopen` is called."""

    def __init__(self, url: str, push: Callable[[str, Any], object], reopen: Callable[[], object]) -> None:
        self._url, self._push, self._reopen = url, push, reopen
        self._attempt: asyncio.Task[None] | None = None
        self._looks = BackgroundTasks()
        self._one_look = asyncio.Lock()
        self._told: Json = {"state": "idle"}
        self._kept: Json | None = None
        self._has_news = asyncio.Event()

    def to_wire(self) -> Json:
        """For the page: how far the attempt is, and `kept`: issuer and scopes of what this person has."""
        return {**self._told, "kept": self._kept}

    async def sign_in(self, scopes: Sequence[str]) -> Json:
        """Begin, or join what is under way. What is told once there is an address to open, or it has ended."""
        if not self._url:
            raise BadMessage("there is nothing to sign in to here", fix="inspect an http address, without --token")
        if self._attempt is None or self._attempt.done():
            self._has_news = asyncio.Event()
            self._set_state("starting", scopes=list(scopes))
            self._attempt = asyncio.create_task(self._try(scopes), name="defserve.inspector signing in")
        await self._has_news.wait()
        return self.to_wire()

    async def cancel(self) -> Json:
        """Give up what is under way."""
        if self._attempt is not None and not self._attempt.done():
            self._attempt.cancel()
            await asyncio.gather(self._attempt, return_exceptions=True)
            if self._told["state"] in ("starting", "waiting"):
                self._report("cancelled")
            self.schedule_refresh()  # it may have come too late
        return self.to_wire()

    async def sign_out(self) -> str:
        """Revoke the tokens and forget them. What was not possible at the issuer; empty if all was."""
        from defserve.client.signin.authorizer import sign_out

        await self.cancel()
        if not self._url:
            raise BadMessage("nobody is signed in here")
        try:
            return await sign_out(self._url)
        finally:
            self._told = {"state": "idle"}
            await self._look()
            self._reopen()

    def schedule_refresh(self) -> None:
        """A conversation was opened or refused: tokens may have come, or ended."""
        if self._url:
            self._looks.start(self._look(), name="defserve.inspector account")

    async def aclose(self) -> None:
        await self.cancel()
        await asyncio.gather(*self._looks, return_exceptions=True)

    async def _try(self, scopes: Sequence[str]) -> None:
        from defserve.client.signin.authorizer import sign_in
        from defserve.client.signin.browser import BrowserRedirect

        # The page opens the address: the browser that shows it may not be the one of this system.
        redirect = BrowserRedirect(
            opens=lambda address: False,
            show=lambda address: self._report("waiting", address=address),
            back_to="the inspector",
            seconds=SECONDS,
        )
        try:
            await sign_in(self._url, redirect, scopes=scopes)
        except Exception as error:
            self._report("failed", **describe_error_for_page(error))
            return
        self._report("done")
        self._reopen()
        self.schedule_refresh()

    def _report(self, state: AccountState, **about: Any) -> None:
        """Tell how the attempt goes on, also whoever waits for its address or its end."""
        self._set_state(state, scopes=self._told["scopes"], **about)
        self._has_news.set()

    def _set_state(self, state: AccountState, **about: Any) -> None:
        self._told = {"state": state, **about}
        self._push(TOPIC, self.to_wire())

    async def _look(self) -> None:
        async with self._one_look:  # the last to look has the last word
            kept = await asyncio.to_thread(_read_stored_sign_in, self._url)
            if kept != self._kept:
                self._kept = kept
                self._push(TOPIC, self.to_wire())


def _read_stored_sign_in(url: str) -> Json | None:
    if not has_stored_sign_in(url):
        return None
    from defserve.client.signin.credentials import get_user_credential_store

    try:
        credential = get_user_credential_store().load_credential(url)
    except UsageError:
        return None
    if credential is None or credential.tokens is None:
        return None
    return {"issuer": credential.issuer.issuer, "scopes": list(credential.tokens.scopes)}
