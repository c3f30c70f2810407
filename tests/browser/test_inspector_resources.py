"""The Resources and Prompts panels of the inspector in a real browser."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from defserve import Server
from defserve.inspector.inspection import Inspection
from defserve.inspector.target import Target
from defserve.runner.memory import serving
from tests.inspector.library import library

from .accessibility import serious
from .inspecting import FITS, PICTURES, InspectorBeside, inspector_of

if TYPE_CHECKING:
    from .chromium import Browser

pytestmark = pytest.mark.browser

FORM, RESULT = "document.querySelector('.t-form')?.innerText", "document.querySelector('.t-res')?.innerText"
LOOKS = ((360, 780, "light"), (360, 780, "dark"), (768, 900, "light"), (1440, 900, "dark"), (1440, 900, "light"))
ROWS = "document.querySelectorAll('.t-list [role=option]').length"
SUGGESTED = (
    "[...document.querySelectorAll('.suggested:not([hidden]) [role=option]')].map(each => each.textContent).join()"
)


@pytest.fixture(scope="module")
def inspector() -> Iterator[InspectorBeside]:
    server = library()
    with inspector_of(
        Target("library.py", ("library.py",), lambda: serving(server.composition), "stateless")
    ) as beside:
        yield beside


@pytest.fixture(autouse=True)
def quiet(browser: Browser, inspector: InspectorBeside) -> Iterator[None]:
    yield
    assert browser.complaints() == []
    origins = (inspector.origin, "data:", "http://127.0.0.1:")
    assert [each for each in browser.asked() if not each.startswith(origins)] == []
    browser.open("about:blank")


def open_at(browser: Browser, inspector: InspectorBeside, place: str, era: str = "stateless") -> None:
    browser.look(1440, 900)
    browser.open(f"{inspector.url}#{place}")
    assert browser.page(f"{ROWS} > 1")
    if era == "handshake":
        browser.key("e")
        assert browser.page("document.querySelector('.top .seg .on')?.textContent === 'Handshake'")
        assert browser.page(f"{ROWS} > 1")


def choose(browser: Browser, uri: str) -> None:
    browser.page(f"(location.hash = '#resources/' + encodeURIComponent({uri!r})) && true")
    assert browser.page(f"document.querySelector('.uriline code')?.textContent === {uri!r}")


@pytest.mark.parametrize("era", ["handshake", "stateless"])
def test_contents_are_shown_as_what_they_are(browser: Browser, inspector: InspectorBeside, era: str):
    open_at(browser, inspector, "resources", era)
    choose(browser, "library://hours")
    # What looks like markup stays text.
    assert browser.page(f"{FORM}.includes('9 to 5') && {FORM}.includes('<script>alert(1)</script>')")
    choose(browser, "library://stats")
    assert browser.page(f"{FORM}.includes('\"books\": 2')")
    choose(browser, "library://plan.png")
    assert browser.page("document.querySelector('.t-form img')?.naturalWidth === 520")
    choose(browser, "library://backup")
    assert browser.page(f"{FORM}.includes('application/zip, 2.0 kB')")
    assert serious(browser) == []


@pytest.mark.parametrize("era", ["handshake", "stateless"])
def test_a_watched_resource_shows_its_changes(browser: Browser, inspector: InspectorBeside, era: str):
    open_at(browser, inspector, "resources", era)
    choose(browser, "library://count")
    assert browser.page(f"{FORM}.includes('read at')")
    browser.press(".t-form [role=switch]")
    assert browser.page("document.querySelector('.t-form [role=switch]').getAttribute('aria-checked') === 'true'")
    assert browser.page("document.querySelector('.t-list').innerText.includes('watched')")

    async def lend(inspection: Inspection) -> int:
        return await (await inspection.client(era)).call("lend")

    lent = inspector.run(lend)
    assert browser.page(
        f"{FORM}.includes('changed 1 time') && document.querySelector('.json')?.textContent.trim() === '{lent}'"
    )
    browser.press(".t-form [role=switch]")
    assert browser.page("document.querySelector('.t-form [role=switch]').getAttribute('aria-checked') === 'false'")


def test_by_keys_alone_a_template_is_found_completed_and_read(browser: Browser, inspector: InspectorBeside):
    open_at(browser, inspector, "tools")
    browser.key("g", "r")
    assert browser.page(f"{ROWS} === 6 && !!document.querySelector('.p-resources')")
    browser.key("/")
    browser.type("page of")
    assert browser.page(f"{ROWS} === 1")
    browser.key("Enter")
    assert browser.page("document.querySelector('#var-title') && (document.querySelector('#var-title').focus(), true)")
    assert browser.page(f"{SUGGESTED} === 'emma,ulysses'")
    assert serious(browser) == []
    browser.type("u")
    assert browser.page(f"{SUGGESTED} === 'ulysses'")
    browser.key("ArrowDown", "Enter", "Tab")
    browser.type("7")
    assert browser.page("document.querySelector('.uriline code').textContent === 'library://books/ulysses?page=7'")
    browser.key("Control+Enter")
    assert browser.page(f"{FORM}.includes('Stately, plump Buck Mulligan (7)')")
    browser.key("Shift+Tab", "Control+a")
    browser.type("nobody")
    assert browser.page("document.querySelector('.uriline code').textContent === 'library://books/nobody?page=7'")
    browser.key("Escape", "Control+Enter")
    assert browser.page("document.querySelector('.t-form .note.bad')?.innerText.includes('could not be read')")


@pytest.mark.parametrize("era", ["handshake", "stateless"])
def test_a_prompt_is_filled_in_with_suggestions_and_shown_as_messages(
    browser: Browser, inspector: InspectorBeside, era: str
):
    open_at(browser, inspector, "prompts", era)
    browser.page("(location.hash = '#prompts/plan_day') && true")
    assert browser.page(
        "document.querySelector('#arg-country') && (document.querySelector('#arg-country').focus(), true)"
    )
    # What is missing counts once something was typed or tried.
    assert browser.page("/^Get(?! anyway)/.test(document.querySelector('.t-form .pri').innerText)")
    browser.type("I")
    assert browser.page("document.querySelector('.t-form .pri').innerText.startsWith('Get anyway')")
    browser.type("taly")
    browser.key("Tab")
    browser.type("O")
    assert browser.page(f"{SUGGESTED} === 'Ostia'")
    browser.key("ArrowDown", "Enter", "Control+Enter")
    assert browser.page(f"{RESULT}.includes('Plan a slow day in Ostia, Italy.') && {RESULT}.includes('3 messages')")
    assert browser.page("document.querySelector('.message.assistant')?.innerText.includes('Gladly')")
    assert browser.page("document.querySelector('.message img')?.naturalWidth === 520")
    assert serious(browser) == []
    browser.key("Tab")
    browser.type("brisk")
    browser.key("Escape", "Control+Enter")
    assert browser.page("document.querySelector('.t-res .note.bad')?.innerText.includes('pace')")


def test_a_server_without_them_says_so_and_leads_on(browser: Browser):
    bare = Server("bare", "1")

    @bare.tool
    def hi() -> str:
        return "hi"

    assert hi
    with inspector_of(Target("bare.py", ("bare.py",), lambda: serving(bare.composition), "stateless")) as inspector:
        browser.look(1440, 900)
        for panel in ("resources", "prompts"):
            browser.open(f"{inspector.url}#{panel}")
            assert browser.page(f"document.querySelector('.t-list .empty')?.innerText.includes('No {panel}')")
        browser.press(".t-list .empty button")
        assert browser.page("location.hash.startsWith('#tools')")
        assert browser.complaints() == []
        browser.open("about:blank")


@pytest.mark.parametrize("panel", ["resources", "prompts"])
def test_it_fits_every_window_in_both_themes(browser: Browser, inspector: InspectorBeside, panel: str):
    shots = os.environ.get("DEFSERVE_SHOTS")
    for width, height, scheme in LOOKS:
        browser.look(width, height, scheme)
        browser.open(f"{inspector.url}#{panel}")
        assert browser.page(f"{ROWS} > 1 && document.documentElement.dataset.theme === {scheme!r}")
        assert browser.page(FITS), width
        row = "[role=option][id$='-1']" if panel == "resources" else "[role=option][id$='-0']"
        browser.press(f".t-list {row}")
        if panel == "prompts":
            if width < 720:
                browser.page(
                    "document.querySelector('#arg-country') && (document.querySelector('#arg-country').focus(), true)"
                )
            assert browser.page("document.activeElement.id === 'arg-country'")
            browser.type("Italy")
            browser.key("Tab")
            browser.type("Rome")
            browser.key("Escape", "Control+Enter")
            assert browser.page("document.querySelector('.message img')?.naturalWidth === 520")
        else:
            assert browser.page(f"{FORM}?.includes('read at')")
        assert browser.page(FITS), width
        assert serious(browser) == []
        if os.environ.get("DEFSERVE_PICTURES") and width == 1440:
            browser.shot(PICTURES / f"inspector-{panel}{'-dark' if scheme == 'dark' else ''}.png")
        elif shots:
            browser.shot(Path(shots) / f"{panel}-{width}-{scheme}.png")
