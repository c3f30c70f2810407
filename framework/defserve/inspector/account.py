"""Who is signed in to the server, and signing in and out from the page. The tokens are those of `defserve login`.

A page gets the address to open, the issuer's name, scopes and reasons: never a code, a verifier or a token.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, TypeAlias

from defserve.base.background import BackgroundTasks
from defserve.errors import UsageError
from defserve.host.signin.keeping.places import is_kept
from defserve.inspector.protocol import BadMessage, Json, error_of

State: TypeAlias = Literal["idle", "starting", "waiting", "done", "failed", "cancelled"]
"""`starting`: the issuer is looked for. `waiting`: for the person, who has an `address` to open."""

TOPIC: Final = "account"
SECONDS = 600.0
"""How long a person may take."""


class Account:
    """One attempt to sign in at a time, for all pages. After it, and after signing out, `reopen` is called."""

    def __init__(self, url: str, push: Callable[[str, Any], object], reopen: Callable[[], object]) -> None:
        self._url, self._push, self._reopen = url, push, reopen
        self._attempt: asyncio.Task[None] | None = None
        self._looks = BackgroundTasks()
        self._one_look = asyncio.Lock()
        self._told: Json = {"state": "idle"}
        self._kept: Json | None = None
        self._has_news = asyncio.Event()

    def wire(self) -> Json:
        """For the page: how far the attempt is, and `kept`: issuer and scopes of what this person has."""
        return {**self._told, "kept": self._kept}

    async def sign_in(self, scopes: Sequence[str]) -> Json:
        """Begin, or join what is under way. What is told once there is an address to open, or it has ended."""
        if not self._url:
            raise BadMessage("there is nothing to sign in to here", fix="inspect an http address, without --token")
        if self._attempt is None or self._attempt.done():
            self._has_news = asyncio.Event()
            self._say("starting", scopes=list(scopes))
            self._attempt = asyncio.create_task(self._try(scopes), name="defserve.inspector signing in")
        await self._has_news.wait()
        return self.wire()

    async def cancel(self) -> Json:
        """Give up what is under way."""
        if self._attempt is not None and not self._attempt.done():
            self._attempt.cancel()
            await asyncio.gather(self._attempt, return_exceptions=True)
            if self._told["state"] in ("starting", "waiting"):
                self._end("cancelled")
            self.look_soon()  # it may have come too late
        return self.wire()

    async def sign_out(self) -> str:
        """Revoke the tokens and forget them. What was not possible at the issuer; empty if all was."""
        from defserve.host.signin.account import sign_out

        await self.cancel()
        if not self._url:
            raise BadMessage("nobody is signed in here")
        try:
            return await sign_out(self._url)
        finally:
            self._told = {"state": "idle"}
            await self._look()
            self._reopen()

    def look_soon(self) -> None:
        """A conversation was opened or refused: tokens may have come, or ended."""
        if self._url:
            self._looks.start(self._look(), name="defserve.inspector account")

    async def aclose(self) -> None:
        await self.cancel()
        await asyncio.gather(*self._looks, return_exceptions=True)

    async def _try(self, scopes: Sequence[str]) -> None:
        from defserve.host.signin.account import sign_in
        from defserve.host.signin.redirects.browser import Browser

        # The page opens the address: the browser that shows it may not be the one of this system.
        redirect = Browser(opens=lambda address: False, show=self._show, back_to="the inspector", seconds=SECONDS)
        try:
            await sign_in(self._url, redirect, scopes=scopes)
        except Exception as error:
            self._end("failed", **error_of(error))
            return
        self._end("done")
        self._reopen()
        self.look_soon()

    def _show(self, address: str) -> None:
        self._say("waiting", address=address, scopes=self._told["scopes"])
        self._has_news.set()

    def _end(self, state: State, **about: Any) -> None:
        self._say(state, scopes=self._told["scopes"], **about)
        self._has_news.set()

    def _say(self, state: State, **about: Any) -> None:
        self._told = {"state": state, **about}
        self._push(TOPIC, self.wire())

    async def _look(self) -> None:
        async with self._one_look:  # the last to look has the last word
            kept = await asyncio.to_thread(_kept, self._url)
            if kept != self._kept:
                self._kept = kept
                self._push(TOPIC, self.wire())


def _kept(url: str) -> Json | None:
    if not is_kept(url):
        return None
    from defserve.host.signin.keeping.files import user_store

    try:
        credential = user_store().read(url)
    except UsageError:
        return None
    if credential is None or credential.tokens is None:
        return None
    return {"issuer": credential.issuer.issuer, "scopes": list(credential.tokens.scopes)}
