"""Back from the issuer to this process: a browser of this machine opens a loopback address, or somebody types it.

Who waits for a person listens on a loopback address alone, and takes only the answer to its own attempt.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from html import escape
from typing import Final, TypeAlias
from urllib.parse import parse_qsl, urlsplit

from defserve.client.signin.fetching import SignInError

HOST: Final = "127.0.0.1"
PATH: Final = "/callback"
SECONDS = 600.0
"""How long a person may take."""
READ_SECONDS: Final = 10.0
MAX_HEAD_BYTES: Final = 32 * 1024

Typed: TypeAlias = Callable[[bool], Awaitable[str]]

_PAGE: Final = """<!doctype html><html lang="en"><meta charset="utf-8"><title>defserve</title>
<body style="font: 18px system-ui; margin: 20vh auto; max-width: 28em"><h1>{title}</h1><p>{text}</p></body></html>"""
_DONE: Final = "You can close this page."
_REFUSED: Final = "The sign-in was refused: {reason}. {back_to} says more. You can close this page."
MAX_REASON_LENGTH: Final = 300
_OTHER: Final = _PAGE.format(title="Nothing here", text="This page belongs to a sign-in, and this address is not it.")
_HEAD: Final = (
    "HTTP/1.1 {status}\r\nContent-Type: text/html; charset=utf-8\r\nContent-Length: {length}\r\nConnection: close\r\n"
    "Cache-Control: no-store\r\nReferrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\n"
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'\r\n\r\n"
)


class BrowserRedirect:
    """Opens the issuer's page in a browser, and listens on a loopback port for the way back.

    opens    called with the address; whether a browser was opened. By default the system's own is
    show     called with the address, so that a person can open it by hand
    typed    gives what a person types: the address that their browser, perhaps on another machine, was sent to.
             It is told whether what was typed before was something else
    back_to  where the person goes on afterwards, as the page at the end calls it
    port     the port to listen on; by default whichever is free. Some issuers want one that they know
    """

    def __init__(
        self,
        *,
        opens: Callable[[str], bool] | None = None,
        show: Callable[[str], object] | None = None,
        typed: Typed | None = None,
        back_to: str = "your terminal",
        port: int = 0,
        seconds: float = SECONDS,
    ) -> None:
        self._opens, self._show, self._typed = opens or open_browser, show, typed
        self._back_to, self._port, self._seconds = back_to, port, seconds

    @asynccontextmanager
    async def open(self, preferred: str, mark: str = "") -> AsyncGenerator[LoopbackVisit]:
        """See `Redirect`."""
        visit = LoopbackVisit(self._opens, self._show, self._typed, self._seconds, self._back_to)
        server = await self._listen(visit, preferred)
        path = f"{PATH}/{mark}" if mark else PATH
        visit.uri = f"http://{HOST}:{server.sockets[0].getsockname()[1]}{path}"
        try:
            yield visit
        finally:
            server.close()

    async def _listen(self, visit: LoopbackVisit, preferred: str) -> asyncio.Server:
        """On the port that is wanted, else on the one that is registered, else on any."""
        registered = 0
        with suppress(ValueError):
            registered = urlsplit(preferred).port or 0
        for port in (self._port,) if self._port else (registered, 0):
            with suppress(OSError):
                return await asyncio.start_server(visit.answer, HOST, port, limit=MAX_HEAD_BYTES)
        raise SignInError(f"port {self._port} of this machine is taken", fix="use another one, or none")


class LoopbackVisit:
    """See `Visit`. Several requests may come; the first that is the answer counts."""

    def __init__(
        self,
        opens: Callable[[str], bool],
        show: Callable[[str], object] | None,
        typed: Typed | None,
        seconds: float,
        back_to: str,
    ) -> None:
        self.uri, self._back_to = "", back_to
        self._opens, self._show, self._typed, self._seconds = opens, show, typed, seconds
        self._location: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._is_answer: Callable[[str], bool] = lambda location: False

    async def visit(self, url: str, is_answer: Callable[[str], bool]) -> str:
        self._is_answer = is_answer
        if self._show is not None:
            self._show(url)
        if not (await asyncio.to_thread(self._opens, url)) and self._show is None and self._typed is None:
            raise SignInError("there is no browser on this machine to sign in with", fix="run `defserve login URL`")
        typing = asyncio.create_task(self._read_typed()) if self._typed else None
        try:
            async with asyncio.timeout(self._seconds):
                return await self._location
        except TimeoutError:
            raise SignInError(f"nobody signed in within {self._seconds / 60:g} minutes", fix="sign in again") from None
        finally:
            if typing is not None:
                typing.cancel()

    async def _read_typed(self) -> None:
        assert self._typed is not None
        is_again = False
        while not self._location.done():
            try:
                location = (await self._typed(is_again)).strip()
            except (EOFError, OSError):
                return  # nobody types; the browser may still come
            is_again = not self._accept_location(location)

    def _accept_location(self, location: str) -> bool:
        if self._is_answer(location) and not self._location.done():
            self._location.set_result(location)
            return True
        return False

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request to the loopback address."""
        try:
            async with asyncio.timeout(READ_SECONDS):
                method, target, *_ = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split(" ", 2)
                is_ours = method == "GET" and target.partition("?")[0] == urlsplit(self.uri).path
                taken = is_ours and self._accept_location(self.uri + target[len(urlsplit(self.uri).path) :])
                page = (_format_answer_page(target, self._back_to) if taken else _OTHER).encode()
                status = "200 OK" if taken else "404 Not Found"
                writer.write(_HEAD.format(status=status, length=len(page)).encode() + page)
                await writer.drain()
        except (ValueError, OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()


def _format_answer_page(target: str, back_to: str) -> str:
    """The page at the end of a sign-in. What the issuer says is shown as text, and not at any length."""
    answer = dict(parse_qsl(urlsplit(target).query))
    if "error" not in answer:
        return _PAGE.format(title=f"Back to {back_to}", text=_DONE)
    reason = escape((answer.get("error_description") or answer["error"])[:MAX_REASON_LENGTH].strip(" ."))
    text = _REFUSED.format(reason=reason, back_to=back_to[:1].upper() + back_to[1:])
    return _PAGE.format(title="You are not signed in", text=text)


def has_browser() -> bool:
    """Whether a page can be opened on this machine. A text browser in this terminal does not count."""
    return not sys.platform.startswith("linux") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")))


def open_browser(url: str) -> bool:
    """Open a page in the system's browser. Whether there is one."""
    if not has_browser():
        return False
    import webbrowser

    try:
        return webbrowser.open(url)
    except webbrowser.Error:
        return False
