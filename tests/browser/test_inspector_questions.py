"""The Questions panel of the inspector in a real browser: what a server asks is seen, judged and answered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from defserve import Context, Server
from defserve.inspector.inspection import Inspection
from tests.effort import slow
from tests.inspector.library import library

from .accessibility import serious
from .inspecting import ROWS, InspectorBeside, inspector_in, looks, target_of

if TYPE_CHECKING:
    from .chromium import Browser

pytestmark = pytest.mark.browser

BADGE = "document.querySelector('.side a[href=\"#questions\"] .hot')?.textContent"
DETAIL = "document.querySelector('.p-questions .t-form')?.innerText"


@pytest.fixture
def inspector(browser: Browser) -> Iterator[InspectorBeside]:
    """An inspector that nobody has asked anything yet."""
    browser.look(1440, 900)
    with inspector_in(browser, target_of(library())) as beside:
        yield beside


def begin(inspector: InspectorBeside, era: str, tool: str) -> asyncio.Task[Any]:
    """Call a tool, and do not wait for its end."""

    async def work(inspection: Inspection) -> asyncio.Task[Any]:
        client = await inspection.client(era)
        return asyncio.create_task(client.call(tool))

    return inspector.run(work)


def ended(inspector: InspectorBeside, call: asyncio.Task[Any]) -> Any:
    async def work(_: Inspection) -> Any:
        return await asyncio.gather(call, return_exceptions=True)

    return inspector.run(work)[0]


def has(browser: Browser, words: str) -> bool:
    return bool(browser.page(f"{DETAIL}?.includes({words!r})"))


def test_by_keys_alone_a_form_is_filled_in_and_answered(browser: Browser, inspector: InspectorBeside):
    browser.open(inspector.url + "#tools")
    assert browser.page("document.querySelectorAll('[role=option]').length > 3")
    call = begin(inspector, "stateless", "enter")
    assert browser.page(f"{BADGE} === '1'")
    assert browser.page("document.querySelector('.toast')?.innerText.includes('Who are you?')")
    browser.go("q", f"{DETAIL}?.includes('Who are you?')")
    name = "[id^=q][id$='-name']"
    assert browser.page("/^Answer(?! anyway)/.test(document.querySelector('.btn.pri').innerText)")
    # A try of an empty form says what is missing, and answers nothing.
    browser.key("Control+Enter")
    assert browser.page("document.querySelector('.btn.pri').innerText.startsWith('Answer anyway')")
    assert browser.page(
        "document.querySelectorAll('.t-form .field .bad, .t-form .field [aria-invalid=true]').length > 0"
    )
    assert not call.done()
    browser.page(f"document.querySelector({name!r}).focus() || true")
    browser.type("A")
    browser.key("Tab")
    browser.type("36")
    assert browser.page("document.querySelector('.btn.pri').innerText.startsWith('Answer anyway')")
    assert serious(browser) == []
    browser.key("Shift+Tab")
    browser.key("End")
    browser.type("da")
    assert browser.page("/^Answer(?! anyway)/.test(document.querySelector('.btn.pri').innerText)")
    browser.key("Control+Enter")
    assert ended(inspector, call) == "Ada, 36, reading"
    assert browser.page(f"!({BADGE})")
    assert has(browser, "answered")


@pytest.mark.slow
def test_in_a_session_a_form_may_come_field_by_field(browser: Browser, inspector: InspectorBeside):
    """A server that speaks MGP asks for one value at a time; each answer leads on to the next question."""
    browser.open(inspector.url + "#questions")
    call = begin(inspector, "handshake", "enter")
    for text in ("Ada", "36", "r"):
        field = ".t-form .body :is(input, select)"
        assert browser.page(f"document.querySelector({field!r})?.value === '' || !!document.querySelector('select')")
        browser.page(f"document.querySelector({field!r}).focus() || true")
        browser.type(text)
        browser.key("Control+Enter")
    assert ended(inspector, call) == "Ada, 36, reading"


@pytest.mark.slow
def test_a_call_in_tools_says_that_it_waits_for_an_answer(browser: Browser, inspector: InspectorBeside):
    browser.open(inspector.url + "#tools/enter")
    assert browser.page("document.querySelector('.t-form .toolname')?.textContent === 'enter'")
    browser.key("Control+Enter")
    assert browser.page("document.querySelector('.t-res .note')?.innerText.includes('The server asks something')")
    browser.press(".t-res .note button")
    assert has(browser, "Who are you?")
    press(browser, "Decline")
    assert has(browser, "declined")
    browser.go("t", "/declin|refus/i.test(document.querySelector('.t-res .body')?.innerText)")


def test_an_address_is_judged_before_it_is_opened(browser: Browser, inspector: InspectorBeside):
    call = begin(inspector, "stateless", "sign_in")
    browser.open(inspector.url + "#questions")
    assert has(browser, "https://town.example/sign-in?for=library")
    link = "document.querySelector('.t-form a.btn')"
    assert browser.page(f"{link}.rel === 'noopener noreferrer' && {link}.target === '_blank'")
    assert serious(browser) == []
    browser.key("Control+Enter")
    assert ended(inspector, call) == "signed in"

    async def ask(inspection: Inspection) -> asyncio.Task[Any]:
        url = "javascript:alert(document.cookie)"
        return asyncio.create_task(inspection.questions.ask_person("url", "stateless", message="Open it", url=url))

    asked = inspector.run(ask)
    assert has(browser, "not opened from here")
    assert browser.page("!document.querySelector('.t-form a[href]')")
    press(browser, "Cancel")
    assert ended(inspector, asked) == {"action": "cancel"}


def press(browser: Browser, words: str) -> None:
    found = f"[...document.querySelectorAll('.t-form button')].find(each => each.innerText === {words!r})"
    assert browser.page(f"{found} && ({found}.click(), true)")


@pytest.mark.parametrize("era", [slow("handshake"), "stateless"])
def test_a_model_is_played_by_hand_refused_or_scripted(browser: Browser, inspector: InspectorBeside, era: str):
    browser.open(inspector.url + "#questions")
    call = begin(inspector, era, "summarize")
    assert (
        has(browser, "Summarize: a long book") and has(browser, "You are brief.") and has(browser, "at most 50 tokens")
    )
    browser.page("document.querySelector('.t-form textarea').focus() || true")
    browser.type("It is long.")
    browser.key("Control+Enter")
    assert ended(inspector, call) == "It is long."
    assert browser.page(f"!({BADGE})")
    call = begin(inspector, era, "summarize")
    assert browser.page(f"{BADGE} === '1'")
    press(browser, "Refuse")
    assert "did not let the model answer" in str(ended(inspector, call))
    browser.page("location.hash = '#questions/model'")
    assert has(browser, "The script answers")
    browser.page("document.querySelector('.t-form [role=switch]').click() || true")
    press(browser, "Add a rule")
    assert browser.page("document.querySelectorAll('.rule').length > 0")
    browser.page("document.querySelector('.rule textarea').focus() || true")
    browser.type("Scripted.")
    browser.key("Control+Enter")
    assert browser.page("document.querySelector('.t-form .bar .pri').disabled")
    assert ended(inspector, begin(inspector, era, "summarize")) == "Scripted."
    assert browser.page("document.querySelector('.t-list').innerText.includes('by the script')")
    assert serious(browser) == []


@pytest.mark.slow
def test_roots_are_edited_and_given_to_whoever_asks(browser: Browser, inspector: InspectorBeside):
    browser.open(inspector.url + "#questions/roots")
    assert has(browser, "There are no roots")
    press(browser, "Add a root")
    assert browser.page(
        "document.querySelector('.rootrow input') && (document.querySelector('.rootrow input').focus(), true)"
    )
    browser.type("/home/me")
    assert has(browser, "Roots start with file://")
    browser.key("Home")
    browser.type("file://")
    browser.key("Control+Enter")
    assert browser.page("document.querySelector('.t-form .bar .pri').disabled")
    for era in ("handshake", "stateless"):
        assert ended(inspector, begin(inspector, era, "where")) == ["file:///home/me"]


@pytest.mark.pictures
@pytest.mark.slow
def test_it_fits_every_window_in_both_themes(browser: Browser, inspector: InspectorBeside):
    calls = [begin(inspector, "stateless", tool) for tool in ("summarize", "enter", "sign_in")]
    for look in looks(browser, f"{inspector.url}#questions", f"{ROWS} >= 5"):
        look.fits()
        if look.is_phone:
            assert browser.page("document.querySelector('.tabs-m .hot')?.textContent.startsWith('3')")
        for row in (1, 2, 3):
            if look.is_phone and row > 1:
                browser.press(".t-form [aria-label='Back to the list']")
            browser.press(f".t-list [role=group]:nth-of-type(1) [role=option]:nth-of-type({row + 1})")
            assert browser.page("!!document.querySelector('.t-form .bar .pri')?.offsetParent")
            look.is_fine()
            if row == 1:
                look.picture("questions")
    for call in calls:

        async def end(_: Inspection, call: asyncio.Task[Any] = call) -> None:
            call.cancel()

        inspector.run(end)
        ended(inspector, call)


class Visitor(BaseModel):
    name: Annotated[str, Field(min_length=2, max_length=40)]
    age: Annotated[int, Field(ge=0, le=150)]
    tags: Annotated[list[Literal["new", "old"]], Field(max_length=1)] = []


def test_a_form_shows_its_bounds_and_a_choice_its_labels(browser: Browser):
    server = Server("bounds")

    @server.tool
    async def visit(ctx: Context) -> str:
        visitor = await ctx.ask("Who are you?", Visitor)
        return visitor.name

    @server.tool
    async def pick(ctx: Context) -> str:
        return await ctx.choose("Which room?", {"s": "A single room", "d": "Two beds"})

    with inspector_in(browser, target_of(server)) as inspector:
        browser.look(1440, 900)
        browser.open(inspector.url + "#questions")
        visiting = begin(inspector, "stateless", "visit")
        assert has(browser, "2 to 40 characters")
        assert has(browser, "0 to 150")
        assert has(browser, "at most 1 item")
        assert browser.page(
            "[...document.querySelectorAll('.btn')].find(each => each.innerText === 'Decline').click() || true"
        )
        assert isinstance(ended(inspector, visiting), Exception)
        picking = begin(inspector, "stateless", "pick")
        assert has(browser, "Which room?")
        choices = "[...document.querySelector('.t-form select').options].map(each => each.textContent)"
        assert browser.page(choices)[-2:] == ["A single room", "Two beds"]
        browser.page("document.querySelector('.t-form select').focus() || true")
        browser.type("Two")
        assert browser.page("document.querySelector('.t-form select').selectedOptions[0].textContent === 'Two beds'")
        browser.key("Control+Enter")
        assert ended(inspector, picking) == "d"
