"""The Security panel of the inspector in a real browser."""

from __future__ import annotations

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from defserve.errors import DefserveError
from tests.inspector.guarded import audited, guarded, target

from .accessibility import serious
from .inspecting import InspectorBeside, inspector_of

if TYPE_CHECKING:
    from .chromium import Browser

pytestmark = pytest.mark.browser

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
FITS = "document.documentElement.scrollWidth <= innerWidth && document.documentElement.scrollHeight <= innerHeight"
LOOKS = ((360, 780, "light"), (768, 900, "dark"), (1440, 900, "light"), (1440, 900, "dark"))
ROWS = "[...document.querySelectorAll('.sec-audit .vrow')]"
VERDICT = "document.querySelector('.verdict').textContent"


def so_it_is(permission: str) -> str:
    """What the table says of a permission, at its end."""
    return (
        f"[...document.querySelectorAll('.perms tbody tr')].find(row => row.innerText.includes({permission!r}))"
        "?.lastElementChild.innerText"
    )


def say(browser: Browser, permission: str, word: str) -> None:
    browser.page(
        f"[...document.querySelectorAll('.perms tbody tr')].find(row => row.innerText.includes({permission!r}))"
        f".querySelectorAll('[role=radio]').forEach(each => each.innerText === {word!r} && each.click()) || true"
    )


class Calling:
    """A call that another thread waits for."""

    def __init__(self, inspector: InspectorBeside, tool: str, **arguments: Any) -> None:
        self.outcome: Any = None

        def work() -> None:
            try:
                self.outcome = inspector.call(tool, **arguments)
            except DefserveError as error:
                self.outcome = error

        self._thread = threading.Thread(target=work)
        self._thread.start()

    def result(self) -> Any:
        self._thread.join(30)
        return self.outcome


@contextmanager
def inspector_in(browser: Browser, *given: Any) -> Generator[InspectorBeside]:
    with inspector_of(target(*given)) as inspector:
        yield inspector
        assert browser.complaints() == []
        assert [each for each in browser.asked() if not each.startswith(inspector.origin)] == []
        browser.open("about:blank")


def test_permissions_confirmation_access_and_the_chain(browser: Browser, tmp_path: Path):
    with audited(tmp_path) as log, inspector_in(browser, guarded(log), "handshake", log) as inspector:
        browser.look(1440, 900)
        browser.open(inspector.url + "#security")
        assert browser.page(f"{so_it_is('network.outbound')} === 'asked with the next call'")
        say(browser, "network.outbound", "Grant")
        assert browser.page(f"{so_it_is('network.outbound')} === 'granted'")
        # What is denied is refused with the next call, and the layers say where.
        say(browser, "filesystem.read", "Deny")
        assert browser.page(f"{so_it_is('filesystem.read')} === 'denied by you'")
        assert "filesystem.read: denied" in str(Calling(inspector, "survey").result())
        assert browser.page("document.querySelector('.layers')?.innerText.includes('stopped here: permission_denied')")
        # A dangerous call asks for its permission, then for a yes. Esc denies.
        say(browser, "com.example.vents", "Grant")
        assert browser.page(f"{so_it_is('com.example.vents')} === 'granted'")
        denied = Calling(inspector, "open_vents", vent=2, percent=40)
        assert browser.page("document.querySelector('[role=alertdialog] h2')?.textContent.includes('open_vents')")
        assert browser.page("document.activeElement.textContent.startsWith('Deny')")
        assert browser.page("document.querySelector('.sec-left').innerText.includes('somebody has to say yes')")
        browser.key("Escape")
        assert isinstance(denied.result(), DefserveError)
        allowed = Calling(inspector, "open_vents", vent=2, percent=40)
        assert browser.page("!!document.querySelector('[role=alertdialog]')")
        browser.press("[role=alertdialog] .btn.danger")
        assert allowed.result() == "vent 2 is open by 40 %"
        assert browser.page("document.querySelectorAll('.layers .ok').length === 5")
        # The chain, checked by its key.
        assert browser.page(f"{ROWS}.length > 4 && {ROWS}.some(row => row.innerText.includes('TOOL_EXECUTED'))")
        browser.key("v")
        assert browser.page(f"{VERDICT}.includes('The chain is whole.')")
        # Entries of access.
        browser.page("document.querySelector('.asks input').focus() || true")
        browser.type("agent.helper")
        browser.key("Tab")
        browser.type("survey")
        browser.key("Enter")
        assert browser.page("document.querySelector('.sec-left').innerText.includes('the default')")
        browser.press(".asks .btn:nth-of-type(3)")
        assert browser.page("document.querySelector('.sec-left').innerText.includes('entry for this tool, by local')")
        assert browser.page("document.querySelector('.sec-left').innerText.includes('healthy')")
        for width, height, scheme in LOOKS:
            browser.look(width, height, scheme)
            browser.open(inspector.url + "#security")
            assert browser.page(f"document.documentElement.dataset.theme === {scheme!r}")
            assert browser.page(f"{so_it_is('network.outbound')} === 'granted'")
            assert browser.page(FITS), width
            assert serious(browser) == []
            if width == 1440 and os.environ.get("DEFSERVE_PICTURES"):
                browser.page("document.querySelector('.asks input').focus() || true")
                browser.type("agent.helper")
                browser.key("Tab")
                browser.type("survey")
                browser.key("Enter")
                assert browser.page("document.querySelector('.sec-left').innerText.includes('entry for this tool')")
                waiting = Calling(inspector, "open_vents", vent=2, percent=40) if scheme == "dark" else None
                assert waiting is None or browser.page("!!document.querySelector('[role=alertdialog]')")
                browser.shot(PICTURES / f"inspector-security{'-dark' if scheme == 'dark' else ''}.png")
                if waiting is not None:
                    browser.key("Escape")
                    waiting.result()
