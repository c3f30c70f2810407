"""A browser whose user signs in and allows everything. The argument is the address to open.

It prints where it was sent in the end: the client's own address. With `--visit` it goes there too.
"""

from __future__ import annotations

import asyncio
import sys
import time
from urllib.parse import parse_qs, urlsplit

import httpx2

from tests.auth.browsing import browse

VISIT_SECONDS = 30


def visit(url: str) -> None:
    """Go to the client, which may begin to listen a little later."""
    ends = time.monotonic() + VISIT_SECONDS
    while True:
        try:
            print(httpx2.get(url, trust_env=False, timeout=VISIT_SECONDS).text)
            return
        except httpx2.ConnectError:
            if time.monotonic() > ends:
                raise
            time.sleep(0.1)


def main(words: list[str]) -> None:
    url = words[-1]
    back = asyncio.run(browse(url, parse_qs(urlsplit(url).query)["redirect_uri"][0]))
    print(back, flush=True)
    if "--visit" in words:
        visit(back)


main(sys.argv[1:])
