"""The way back from the issuer: a loopback address, or what a person types."""

from __future__ import annotations

import asyncio
import webbrowser
from urllib.parse import urlsplit

import pytest

from defserve.client import SignInError
from defserve.client.signin.browser import BrowserRedirect, open_browser

pytestmark = pytest.mark.anyio


async def ask(uri: str, target: str, method: str = "GET") -> str:
    parts = urlsplit(uri)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(f"{method} {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    return answer


def is_ours(location: str) -> bool:
    return "state=mine" in location


async def test_only_the_answer_to_this_attempt_is_taken() -> None:
    opened: list[str] = []
    async with BrowserRedirect(opens=lambda url: bool(opened.append(url)) or True).open("") as visit:
        visiting = asyncio.create_task(visit.visit("https://issuer.example/authorize", is_ours))
        assert urlsplit(visit.uri).hostname == "127.0.0.1"
        for target in ("/callback?code=c&state=theirs", "/favicon.ico", "/callback", "//evil/callback?state=mine"):
            assert "404" in (await ask(visit.uri, target)).partition("\r\n")[0]
        assert "404" in (await ask(visit.uri, "/callback?state=mine", "POST")).partition("\r\n")[0]
        assert "404" in await ask(visit.uri, "no")
        assert not visiting.done()
        page = await ask(visit.uri, "/callback?code=<script>&state=mine")
        assert "200 OK" in page and "no-store" in page and "<script>" not in page and "default-src 'none'" in page
        assert await visiting == visit.uri + "?code=<script>&state=mine"
        assert "404" in (await ask(visit.uri, "/callback?code=other&state=mine")).partition("\r\n")[0]
    assert opened == ["https://issuer.example/authorize"]


async def test_the_page_says_that_a_sign_in_was_refused_and_why() -> None:
    refused = "/callback?error=access_denied&error_description=%3Cb%3Eeve%3C%2Fb%3E+may+not.&state=mine"
    for target, said in (
        (refused, "&lt;b&gt;eve&lt;/b&gt; may not"),
        ("/callback?error=no_luck&state=mine", "no_luck"),
    ):
        async with BrowserRedirect(opens=lambda url: True).open("") as visit:
            visiting = asyncio.create_task(visit.visit("https://issuer.example/authorize", is_ours))
            page = await ask(visit.uri, target)
            assert f"You are not signed in</h1><p>The sign-in was refused: {said}. Your terminal says more." in page
            assert "Back to" not in page
            await visiting


async def test_the_port_of_before_is_taken_again_if_it_is_free() -> None:
    async with BrowserRedirect().open("") as first:
        async with BrowserRedirect().open(first.uri) as second:
            assert second.uri != first.uri
        with pytest.raises(SignInError, match="is taken"):
            async with BrowserRedirect(port=urlsplit(first.uri).port or 0).open(""):
                raise AssertionError
    async with BrowserRedirect().open(first.uri) as again:
        assert again.uri == first.uri
    async with BrowserRedirect().open("http://127.0.0.1:junk/callback") as other:
        assert other.uri


async def test_an_address_with_a_mark_is_another_one() -> None:
    async with BrowserRedirect(opens=lambda url: True).open("", "abc") as visit:
        assert visit.uri.endswith("/callback/abc")
        visiting = asyncio.create_task(visit.visit("https://issuer.example/authorize", is_ours))
        assert "404" in await ask(visit.uri, "/callback?code=c&state=mine")
        assert "200" in await ask(visit.uri, "/callback/abc?code=c&state=mine")
        assert await visiting == visit.uri + "?code=c&state=mine"


async def test_an_address_can_be_typed_and_a_wrong_one_is_asked_for_again() -> None:
    shown: list[str] = []
    told: list[bool] = []
    lines = ["", "https://elsewhere/?state=theirs", " http://127.0.0.1:1/callback?code=c&state=mine\n"]

    async def typed(is_again: bool) -> str:
        told.append(is_again)
        return lines.pop(0)

    redirect = BrowserRedirect(opens=lambda url: False, show=shown.append, typed=typed)
    async with redirect.open("") as visit:
        assert await visit.visit("https://issuer.example/", is_ours) == "http://127.0.0.1:1/callback?code=c&state=mine"
    assert shown == ["https://issuer.example/"] and told == [False, True, True]


async def test_nobody_comes() -> None:
    async def nobody(is_again: bool) -> str:
        raise EOFError

    async with BrowserRedirect(opens=lambda url: True, typed=nobody, seconds=0.05).open("") as visit:
        with pytest.raises(SignInError, match="nobody signed in"):
            await visit.visit("https://issuer.example/", is_ours)
    async with BrowserRedirect(opens=lambda url: False).open("") as visit:
        with pytest.raises(SignInError, match="no browser on this machine"):
            await visit.visit("https://issuer.example/", is_ours)


def test_a_browser_needs_a_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("sys.platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(webbrowser, "open", lambda url: bool(opened.append(url)) or True)
    assert not open_browser("https://issuer.example/") and not opened
    monkeypatch.setenv("DISPLAY", ":0")
    assert open_browser("https://issuer.example/") and opened

    def fail(url: str) -> bool:
        raise webbrowser.Error

    monkeypatch.setattr(webbrowser, "open", fail)
    assert not open_browser("https://issuer.example/")
