"""Requests to issuers: no redirects, bounded in bytes and time. Nothing but the standard library is needed."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

Fetch = Callable[[str], Awaitable[bytes]]
"""Gives the bytes of the document at a URL, or raises."""

LARGEST: Final = 256 * 1024
TIMEOUT: Final = 5.0


class IssuerUnavailable(Exception):
    """An issuer does not answer, or not as it must. It says nothing about the token that it was asked about."""


class HttpRequest(NamedTuple):
    """A GET, or the POST of a form or of a body."""

    url: str
    form: Mapping[str, str] | None = None
    headers: Mapping[str, str] = {}
    body: bytes | None = None


class HttpAnswer(NamedTuple):
    """The status, headers with names in lower case (those of one name joined with commas), and the body."""

    status: int
    headers: Mapping[str, str]
    body: bytes


Send = Callable[[HttpRequest], Awaitable[HttpAnswer]]
"""Sends a request to an issuer. Raises OSError, TimeoutError or ValueError if there is no whole answer."""


async def send(request: HttpRequest) -> HttpAnswer:
    """The answer, whatever its status. Raises OSError (also for a body that is too long or too slow)."""
    import anyio.to_thread

    # Unlike asyncio's threads, these do not delay the end of the program.
    return await anyio.to_thread.run_sync(_exchange, request, abandon_on_cancel=True)


async def download(url: str) -> bytes:
    """GET a small document."""
    answer = await send(HttpRequest(url))
    if answer.status != 200:
        raise OSError(f"it answered with status {answer.status}")
    return answer.body


def _exchange(request: HttpRequest) -> HttpAnswer:
    from http.client import HTTPException
    from urllib.error import URLError

    try:
        return _answer(request)
    except URLError as error:
        raise OSError(str(error.reason)) from None
    except HTTPException as error:
        raise OSError(f"what it answers is not HTTP: {type(error).__name__}") from None


def _answer(request: HttpRequest) -> HttpAnswer:
    from urllib.error import HTTPError
    from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

    class NoRedirects(HTTPRedirectHandler):
        """Only the address itself was checked, not where it redirects to."""

        def redirect_request(self, *args: Any, **kwargs: Any) -> None:
            return None

    if not request.url.startswith(("https:", "http:")):
        raise ValueError("only http and https are fetched")
    # http is for this machine only, so no proxy may carry it elsewhere.
    opener = build_opener(NoRedirects, *([ProxyHandler({})] if request.url.startswith("http:") else []))
    data = urlencode(request.form).encode() if request.form is not None else request.body
    deadline = time.monotonic() + TIMEOUT
    headers = {"Accept": "application/json", "User-Agent": "defserve", **request.headers}
    try:
        response = opener.open(Request(request.url, data, headers), timeout=TIMEOUT)
    except HTTPError as error:
        response = error
    body = bytearray()
    with response:
        while len(body) <= LARGEST and (chunk := response.read1(LARGEST)):
            body += chunk
            if time.monotonic() > deadline:
                raise TimeoutError("the answer came too slowly")
    if len(body) > LARGEST:
        raise OSError(f"the answer is larger than {LARGEST} bytes")
    values = {name.lower(): response.headers.get_all(name, ()) for name in response.headers}
    return HttpAnswer(response.status or 0, {name: ", ".join(found) for name, found in values.items()}, bytes(body))
