"""The Resources and Prompts panels of the inspector in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from defserve import Server
from defserve.inspector.inspection import Inspection
from tests.effort import slow
from tests.inspector.library import library

from .accessibility import serious
from .inspecting import ROWS, InspectorBeside, inspector_in, inspector_of, looks, open_at, target_of

if TYPE_CHECKING:
    from .chromium import Browser

pytestmark = pytest.mark.browser

FORM, RESULT = "document.querySelector('.t-form')?.innerText", "document.querySelector('.t-res')?.innerText"
SUGGESTED = (
    "[...document.querySelectorAll('.suggested:not([hidden]) [role=option]')].map(each => each.textContent).join()"
)


@pytest.fixture
def inspector(browser: Browser) -> Iterator[InspectorBeside]:
    with inspector_in(browser, target_of(library()), "data:") as beside:
        yield beside


def choose(browser: Browser, uri: str) -> None:
    browser.page(f"(location.hash = '#resources/' + encodeURIComponent({uri!r})) && true")
    assert browser.page(f"document.querySelector('.uriline code')?.textContent === {uri!r}")


@pytest.mark.parametrize("era", [slow("handshake"), "stateless"])
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


def test_a_description_stays_in_view_above_long_contents(browser: Browser):
    server = Server("books")

    @server.resource("books://all")
    def books() -> str:
        """Every book of the library."""
        return "a book\n" * 500

    assert books
    with inspector_in(browser, target_of(server)) as inspector:
        for look in looks(browser, f"{inspector.url}#resources/books%3A%2F%2Fall", f"{FORM}?.includes('read at')"):
            assert browser.page("document.querySelector('.t-form .about').clientHeight >= 16"), look.width
            look.is_fine()
            look.picture("described")


@pytest.mark.parametrize("era", [slow("handshake"), "stateless"])
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


@pytest.mark.slow
def test_by_keys_alone_a_template_is_found_completed_and_read(browser: Browser, inspector: InspectorBeside):
    open_at(browser, inspector, "tools")
    browser.go("r", f"{ROWS} === 6 && !!document.querySelector('.p-resources')")
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


@pytest.mark.parametrize("era", [slow("handshake"), "stateless"])
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


@pytest.mark.slow
def test_a_server_without_them_says_so_and_leads_on(browser: Browser):
    bare = Server("bare", "1")

    @bare.tool
    def hi() -> str:
        return "hi"

    assert hi
    with inspector_of(target_of(bare)) as inspector:
        browser.look(1440, 900)
        for panel in ("resources", "prompts"):
            browser.open(f"{inspector.url}#{panel}")
            assert browser.page(f"document.querySelector('.t-list .empty')?.innerText.includes('No {panel}')")
        browser.press(".t-list .empty button")
        assert browser.page("location.hash.startsWith('#tools')")
        assert browser.complaints() == []
        browser.open("about:blank")


@pytest.mark.pictures
@pytest.mark.slow
def test_resources_fit_every_window_in_both_themes(browser: Browser, inspector: InspectorBeside):
    for look in looks(browser, f"{inspector.url}#resources", f"{ROWS} > 1"):
        look.fits()
        browser.press(".t-list [role=option][id$='-1']")
        assert browser.page(f"{FORM}?.includes('read at')")
        look.is_fine()
        look.picture("resources")


@pytest.mark.pictures
@pytest.mark.slow
def test_prompts_fit_every_window_in_both_themes(browser: Browser, inspector: InspectorBeside):
    for look in looks(browser, f"{inspector.url}#prompts", f"{ROWS} > 1"):
        look.fits()
        browser.press(".t-list [role=option][id$='-0']")
        if look.is_phone:
            browser.page(
                "document.querySelector('#arg-country') && (document.querySelector('#arg-country').focus(), true)"
            )
        assert browser.page("document.activeElement.id === 'arg-country'")
        browser.type("Italy")
        browser.key("Tab")
        browser.type("Rome")
        browser.key("Escape", "Control+Enter")
        assert browser.page("document.querySelector('.message img')?.naturalWidth === 520")
        look.is_fine()
        look.picture("prompts")
