"""The State panel of the inspector in a real browser: by mouse, by keyboard, live, with thousands of checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from defserve import Server
from defserve.client.mcpl.state import StateChange
from defserve.inspector.era_connection import InspectionTarget
from defserve.inspector.inspection import Inspection
from defserve.inspector.state_trees import make_state_finder
from defserve.serve.lifespans import connect_in_memory
from tests.at_address import fresh
from tests.inspector.beds import BEDS, greenhouse

from .inspecting import InspectorBeside, inspector_in, looks, target_of

if TYPE_CHECKING:
    from .chromium import Browser

pytestmark = pytest.mark.browser


LAYOUT = Path(__file__).parent / "lanes.js"

GRAPH = "document.querySelector('.graph')"
ROWS = "[...document.querySelectorAll('.graph [role=row]')]"
HEAD = "document.querySelector('.graph .on code, .graph .on [role=gridcell]')?.firstChild.textContent"


def target(server: Server, era: str = "", stored: bool = True) -> InspectionTarget:
    section = server.mcpl.state
    found = make_state_finder(section) if stored and section is not None else None
    return InspectionTarget(
        "greenhouse.py", ("greenhouse.py",), lambda: connect_in_memory(server.composition), era, found
    )


def plant(inspector: InspectorBeside) -> list[str]:
    """Beds, plants, a long run, and branches. The checkpoints of the plants."""

    async def work(inspection: Inspection) -> list[str]:
        client = await inspection.client()
        mcpl = client.mcpl
        assert mcpl is not None
        made: list[str] = []

        async def call(tool: str, **arguments: Any) -> None:
            await client.call(tool, **arguments)
            made.append(str(mcpl.state(BEDS).checkpoint))

        await call("add_bed", name="north")
        await call("add_plant", bed="north", plant="thyme")
        await mcpl.rollback(BEDS, made[0])
        for degrees in range(19, 39):
            await call("set_target", bed="north", wanted=degrees)
        await call("add_bed", name="fern")
        fork = made[-1]
        await call("add_plant", bed="fern", plant="maidenhair")
        await call("add_plant", bed="fern", plant="staghorn")
        await mcpl.rollback(BEDS, fork)
        await call("add_plant", bed="north", plant="basil")
        await call("set_target", bed="fern", wanted=24)
        for text in ("Water the fern", "It is watered"):
            await client.call("send_mail", text=text)
        return made

    return inspector.run(work)


def show(browser: Browser, inspector: InspectorBeside) -> None:
    browser.look(1440, 900)
    browser.open(inspector.url + "#state")


def test_by_mouse_a_click_compares_and_another_rolls_back(browser: Browser):
    with inspector_in(browser, target(greenhouse(), "handshake")) as inspector:
        plant(inspector)
        show(browser, inspector)
        assert browser.page(f"{ROWS}.length > 10 && {ROWS}[0].innerText.includes('set_target')")
        assert browser.page("document.querySelector('.counted').textContent") == "27 checkpoints, 3 branches"
        assert browser.page(f"{ROWS}[0].innerText.includes('beds/fern/wanted: 18 → 24')")
        # Ctrl K leads to a checkpoint, also one that is folded away.
        browser.key("Control+k")
        assert browser.page("!!document.activeElement.closest('.palette')")
        browser.type("25 → 26")
        found = "[...document.querySelectorAll('.found .nav')].find(each => each.innerText.includes('25 → 26'))"
        assert browser.page(f"{found} && ({found}.click(), true)")
        assert browser.page("document.querySelector('.grow2.cur')?.innerText.includes('25 → 26')")
        browser.page("location.hash = '#state', true")
        # The card of a row under the pointer.
        browser.hover(".graph [role=row]:nth-child(3)")
        assert "staghorn" in browser.page("document.querySelector('.card-cp .patch')?.textContent")
        # A is the end of the other branch: what lies between it and the head.
        browser.press(".graph [role=row]:nth-child(3)")
        assert browser.page(f"{ROWS}[2].innerText.includes('A')")
        assert browser.page("document.querySelector('.way').textContent.startsWith('Both come from')")
        assert browser.page(
            "[...document.querySelectorAll('.op code')].map(each => each.textContent).includes('/beds/fern/plants/0')"
        )
        browser.press(".s-diff [role=radio]:nth-child(2)")
        assert browser.page("document.querySelectorAll('.sides .ins').length > 0")
        browser.press(".s-diff [role=radio]:nth-child(3)")
        assert browser.page("document.querySelector('.s-diff .json')?.textContent.includes('basil')")
        before = browser.page(HEAD)
        browser.press(".moves .btn.pri")
        assert browser.page("document.querySelector('.moves .note.ok')?.textContent.includes('The head is at')")
        assert browser.page(f"{HEAD} !== {before!r}")
        # The head's line is the first again, and the fold of the other is still there.
        browser.press(".moves .note .btn")
        assert browser.page(f"{HEAD} === {before!r}")
        # A call starts where the branch was told to.
        browser.press(".graph [role=row]:nth-child(3)")
        browser.press(".moves .row .btn:nth-child(2)")
        assert browser.page("document.querySelector('.moves .note')?.textContent.includes('next call starts at')")
        inspector.call("add_plant", bed="fern", plant="moss")
        assert browser.page(f"{ROWS}[0].innerText.includes('+ beds/fern/plants/2 \"moss\"')")


@pytest.mark.slow
def test_by_keyboard_alone_with_a_refusal(browser: Browser):
    with inspector_in(browser, target(greenhouse(), "stateless", stored=False)) as inspector:
        plant(inspector)
        show(browser, inspector)
        assert browser.page(f"{ROWS}.length > 10")
        browser.key("h")
        assert browser.page("document.activeElement.getAttribute('role') === 'treegrid'")
        before = browser.page(HEAD)
        browser.key("ArrowDown", "j", "a")
        assert browser.page(f"{ROWS}[2].classList.contains('a')")
        browser.key("ArrowDown", "b")
        assert browser.page(f"{ROWS}[3].classList.contains('b')")
        folds = browser.page("document.querySelectorAll('.fold').length")
        # Down to the fold; it opens with Enter.
        browser.key(*["ArrowDown"] * 4)
        assert browser.page("document.querySelector('.grow2.cur')?.classList.contains('fold')")
        browser.key("Enter")
        assert browser.page(f"document.querySelectorAll('.fold').length === {folds} - 1")
        browser.key("/")
        browser.type("thyme")
        assert browser.page("document.querySelector('.found')?.textContent.startsWith('1 found')")
        browser.key("Enter", "Escape", "Escape")
        browser.key("h")
        browser.key("ArrowDown", "a", "u")
        assert browser.page(f"{HEAD} !== {before!r}")
        # The other set has an undo that refuses.
        browser.page("document.querySelector('.pick select').focus(), true")
        browser.type("mail")
        assert browser.page("document.querySelector('.pick select').value.includes('mail.send')")
        assert browser.page(f"{ROWS}.length === 2")
        browser.page("document.activeElement.blur(), true")
        browser.key("h", "u")
        refused = "document.querySelector('.moves .note.bad')?.textContent"
        assert "A mail that was sent cannot be taken back." in browser.page(refused)
        assert browser.page(f"{ROWS}[0].innerText.includes('head')")


@pytest.mark.slow
def test_checkpoints_appear_and_what_is_in_view_stays(browser: Browser):
    with inspector_in(browser, target(greenhouse())) as inspector:
        show(browser, inspector)
        assert browser.page("document.querySelector('.empty')?.textContent.includes('Call a tool of beds.edit')")
        inspector.call("add_bed", name="north")
        assert browser.page(f"{ROWS}.length === 1")
        for number in range(60):
            inspector.call("add_plant" if number % 2 else "set_target", bed="north", **_odd(number))
        assert browser.page("document.querySelector('.counted').textContent.startsWith('61 checkpoints')")
        assert browser.page(f"{ROWS}[4]?.innerText.includes('checkpoints by inspector')")
        browser.key("h", *["ArrowDown"] * 4, "Enter")
        assert browser.page(f"{ROWS}.length > 30")
        browser.page("document.querySelector('.graph').scrollTop = 640, true")
        first = browser.page(f"Math.round({GRAPH}.scrollTop) === 640 && {GRAPH}.scrollHeight")
        inspector.call("set_target", bed="north", wanted=99)
        assert browser.page("document.querySelector('.fresh')?.textContent.includes('1 new')")
        # The rows under the eye did not move: one more is above them.
        moved = (
            "document.querySelector('.graph').scrollTop - 640 === document.querySelector('.graph').scrollHeight - "
            + str(first)
        )
        assert browser.page(moved)
        # Not by the pointer: on its way it may rest on a row, whose card then lies above.
        browser.page("document.querySelector('.fresh .btn').click() ?? true")
        assert browser.page(f"document.querySelector('.graph').scrollTop === 0 && {ROWS}[0].innerText.includes('99')")


def _odd(number: int) -> dict[str, Any]:
    return {"plant": f"moss {number}"} if number % 2 else {"wanted": number}


@pytest.mark.slow
def test_twenty_thousand_checkpoints(browser: Browser):
    with inspector_in(browser, target(greenhouse(), "stateless", stored=False)) as inspector:

        async def many(inspection: Inspection) -> None:
            await inspection.client()
            for number in range(20_000):
                # Every seventh is the end of a branch, so that most rows cannot be folded.
                parent = None if number == 0 else number - (2 if number % 7 == 1 and number > 2 else 1)
                change = StateChange(BEDS, f"id{number}", None if parent is None else f"id{parent}", None, "add_bed")
                inspection.states.record_change("stateless", change)

        inspector.run(many)
        show(browser, inspector)
        assert browser.page("document.querySelector('.counted')?.textContent.startsWith('20,000 checkpoints')")
        assert browser.page(f"{ROWS}.length > 20 && {ROWS}.length < 120")
        browser.key("h")
        browser.key("End")
        assert browser.page(f"{ROWS}.some(row => row.dataset.id === 'id0') && {ROWS}.length < 120")
        slow = """(() => {
          const start = performance.now(), graph = document.querySelector(".graph");
          graph.scrollTop = 100000;
          graph.getBoundingClientRect();
          return performance.now() - start < 2000;
        })()"""
        assert browser.page(slow)


def test_the_layout_holds_for_trees_of_every_shape(browser: Browser):
    with inspector_in(browser, target(greenhouse())) as inspector:
        show(browser, inspector)
        assert browser.page(LAYOUT.read_text(encoding="utf-8")) == "right"


@pytest.mark.slow
def test_a_server_without_state_says_so_and_leads_on(browser: Browser):
    with inspector_in(browser, target_of(fresh("hello"))) as inspector:
        show(browser, inspector)
        assert browser.page("document.querySelector('.empty')?.textContent.includes('does not speak MCPL')")
        browser.press(".empty .btn")
        assert browser.page("location.hash.startsWith('#tools')")


@pytest.mark.pictures
@pytest.mark.slow
def test_it_fits_is_readable_and_has_its_picture(browser: Browser):
    with inspector_in(browser, target(greenhouse())) as inspector:
        plant(inspector)
        ready = f"{ROWS}.length > 5 && {ROWS}[0].innerText.includes('18 → 24')"
        for look in looks(browser, inspector.url + "#state", ready):
            if look.is_phone:
                look.fits()
                browser.press(".bar.only-m .btn")
            assert browser.page("!!document.querySelector('.s-diff .op')")
            look.is_fine()
            if not look.is_phone:
                browser.press(".graph [role=row]:nth-child(3)")
                assert browser.page("document.querySelector('.way').textContent.startsWith('Both come from')")
            look.picture("state")
