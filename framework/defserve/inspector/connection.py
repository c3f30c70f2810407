"""The conversation with the server in one era: opened when it is first used, and again when the server comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Literal, TypeAlias

from defserve.errors import DefserveError, PeerError, PeerGone
from defserve.host.client import Client
from defserve.host.fields import object_of
from defserve.inspector.protocol import Json, error_of
from defserve.inspector.recording.link import observed
from defserve.inspector.recording.masking import masked_address
from defserve.inspector.recording.recorder import Recorder
from defserve.inspector.target import Target
from defserve.wire.messages import INTERNAL_ERROR

State: TypeAlias = Literal["opening", "open", "lost", "refused", "closed"]
"""`refused`: the server is there, and does not want this conversation (it does not speak the era, or needs a token)."""

PAUSES: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
PROVEN_SECONDS: Final = 5.0
"""A conversation that lasted as long was a good one: the next pause is the shortest again."""


class EraConnection:
    """One era. With the era "" the newest that both speak is agreed on, and `era` says which it was.

    `options` makes the options of the client, anew for every conversation. `changed` is told of every change of state.
    """

    def __init__(
        self,
        era: str,
        target: Target,
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
        self._keeper = asyncio.create_task(self._keep(), name=f"defserve.inspector {era or 'first'} era")

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
    def client_now(self) -> Client | None:
        """The client, if the conversation is open."""
        return self._client

    def retry(self) -> None:
        """Try now, rather than when the pause is over."""
        self._again.set()

    def lost(self, reason: PeerGone) -> None:
        """A request found that the server is gone."""
        if self._client is not None:  # else it is known, or the request was of an earlier conversation
            self._gone = reason
            self._ended.set()

    def reopen(self) -> None:
        """End the conversation and begin another at once, with the options of now."""
        if self._client is not None:
            self._client, self._is_wanted_anew = None, True
            self._settled.clear()
            self._ended.set()
        else:
            self.retry()

    def wire(self) -> Json:
        """The state for the page."""
        told: Json = {"era": self.era, "state": self.state}
        if self.error is not None:
            told |= self.error
        return told if self.next is None else {**told, "next": self.next}

    async def aclose(self) -> None:
        self._keeper.cancel()
        await asyncio.gather(self._keeper, return_exceptions=True)
        self._say("closed")
        self._settled.set()

    async def _keep(self) -> None:
        tries = 0
        while True:
            began = asyncio.get_running_loop().time()
            self._ended.clear()
            self._gone = None
            self._again.clear()
            try:
                await self._converse()
                if self._is_wanted_anew:
                    self._is_wanted_anew = False
                    self._say("opening")
                    continue
                error: DefserveError = self._gone or PeerGone("the server went away")
            except DefserveError as failed:
                error = failed
            except Exception as failed:
                error = PeerGone(f"the conversation failed: {type(failed).__name__}: {failed}")
            self._client = None
            lasted = asyncio.get_running_loop().time() - began
            is_away = isinstance(error, PeerGone)
            tries = 0 if lasted > PROVEN_SECONDS else tries
            pause = PAUSES[min(tries, len(PAUSES) - 1)] if is_away else None
            tries += 1
            self._say("lost" if is_away else "refused", self._told(error), pause)
            self._settled.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._again.wait()
            self._settled.clear()
            self._say("opening", self.error)

    def _told(self, error: DefserveError) -> Json:
        """The error, for the page. Who signs in at a terminal is signed in here too, at the next try."""
        told = error_of(error)
        if "challenge" in object_of(told.get("data")):
            address = masked_address(self._target.address, self._target.words)
            here = "sign in here, or at a terminal" if self._target.sign_in_at else "sign in at a terminal"
            told.setdefault("fix", f"{here}: defserve login {address}; then try again")
        return told

    async def _converse(self) -> None:
        """Open a conversation, and return when the server has left."""
        async with self._target.link() as bare:
            link = observed(bare, self._recorder, self.era)
            async with Client(link, version=self.era or None, **self._options(self)) as client:
                self.era = link.era = "stateless" if client.stateless else "handshake"
                self._recorder.agree(self.era)
                self._client = client
                self._say("open")
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

    def _say(self, state: State, error: Json | None = None, pause: float | None = None) -> None:
        self.state, self.error, self.next = state, error, pause
        self._changed(self)


async def _news(client: Client) -> None:
    """Listen until the server leaves. Raises PeerError if it does not let anyone listen."""
    offered = client.capabilities
    async with client.listen(
        tools="tools" in offered, prompts="prompts" in offered, resources="resources" in offered
    ) as news:
        async for _ in news:
            pass
