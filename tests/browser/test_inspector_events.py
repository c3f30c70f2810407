"""The Events panel of the inspector in a real browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from defserve import Context, Server
from defserve.server import EventSettings
from tests.protocols.mcp.events.repositories import Push

from .accessibility import serious
from .inspecting import ROWS, inspector_in, looks, open_at, target_of

if TYPE_CHECKING:
    from .chromium import Browser

pytestmark = pytest.mark.browser

SHOWN = "document.querySelector('.t-res').innerText"
FORM = "document.querySelector('.t-form').innerText"


def telling(*, allow_loopback: bool = True) -> Server:
    """A server that pushes by itself as soon as somebody follows a repository."""
    server = Server("git", "1", experimental=[EventSettings(allow_loopback=allow_loopback)])

    @server.event
    def pushed(repository: str) -> Push:
        """Somebody pushed commits."""
        ...  # noqa: PIE790  (type checkers want it)

    @server.event(delivery=["poll"])
    def merged(repository: str) -> Push:
        """Somebody merged a branch."""
        ...  # noqa: PIE790

    @server.tool
    async def push(ctx: Context, repository: str = "site") -> str:
        return await ctx.emit_event(pushed, Push(commits=7), repository=repository)

    return server


def follow(browser: Browser, way: str) -> None:
    """By keys, once the way is chosen."""
    browser.page("document.querySelector('#event-repository').focus() || true")
    browser.key("Control+a")
    browser.type("site")
    browser.page(
        "[...document.querySelectorAll('.t-form [role=radio], .t-form .seg button')]"
        f".find(each => each.textContent === {way!r}).click() || true"
    )
    browser.key("Control+Enter")


def test_an_event_is_followed_by_stream_and_by_webhook(browser: Browser):
    server = telling()
    with inspector_in(browser, target_of(server)) as inspector:
        open_at(browser, inspector, "events", "stateless")
        assert browser.page(f"{ROWS} === 2 && {FORM}.includes('Somebody pushed commits.')")
        assert browser.page(f"{SHOWN}.includes('Nothing is followed')")
        follow(browser, "Stream")
        assert browser.page(f"{SHOWN}.includes('Nothing has come yet')")
        follow(browser, "Webhook")
        assert browser.page(f"{SHOWN}.includes('verification') && {SHOWN}.includes('signature good')")
        server.emit_event_soon("pushed", Push(commits=7), repository="site")
        assert browser.page(f"{SHOWN}.split('\"commits\": 7').length === 3")
        assert serious(browser) == []
        browser.press("[aria-label='Stop webhook 2']")
        assert browser.page(f"{SHOWN}.includes('webhook, ended')")
        # What came is still there after a reload.
        browser.open(inspector.url + "#events")
        assert browser.page(f"{SHOWN}.split('\"commits\": 7').length === 3")


def test_a_server_that_refuses_the_address_says_why(browser: Browser):
    with inspector_in(browser, target_of(telling(allow_loopback=False))) as inspector:
        open_at(browser, inspector, "events", "stateless")
        assert browser.page(f"{ROWS} === 2")
        follow(browser, "Webhook")
        assert browser.page(f"{FORM}.includes('It cannot be followed.') && {FORM}.includes('public https address')")


def test_a_server_without_events_has_an_empty_panel(browser: Browser):
    with inspector_in(browser, target_of(Server("plain", "1"))) as inspector:
        open_at(browser, inspector, "events", ready="true")
        assert browser.page("document.querySelector('.t-list')?.innerText.includes('offers no MCP Events')")


@pytest.mark.slow
def test_events_fit_every_window_in_both_themes(browser: Browser):
    with inspector_in(browser, target_of(telling())) as inspector:
        for look in looks(browser, f"{inspector.url}#events", f"{ROWS} === 2"):
            look.fits()
            browser.press(".t-list [role=option][id$='-0']")
            follow(browser, "Webhook")
            assert browser.page(f"{SHOWN}.includes('signature good')")
            look.is_fine()
            look.picture("events")
