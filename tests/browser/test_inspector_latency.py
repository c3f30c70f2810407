"""The Latency panel of the inspector in a real browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from defserve.inspector.inspection import Inspection
from defserve.inspector.recording.recorder import RecordedMessage
from tests.inspector.beds import greenhouse

from .inspecting import InspectorBeside, inspector_in, looks, target_of

if TYPE_CHECKING:
    from .chromium import Browser

pytestmark = pytest.mark.browser

ROWS = "[...document.querySelectorAll('.lattable .latrow')]"


def timed(inspector: InspectorBeside, tool: str, *times: float, failed: int = 0) -> None:
    """Calls as the timeline would have them, with times that are always the same."""

    async def work(inspection: Inspection) -> None:
        for number, ms in enumerate(times):
            entry = RecordedMessage(
                number, inspection.hello()["now"], "stateless", "received", "answer", "tools/call", 1, 9, tool
            )
            entry.ms, entry.error = ms, True if number < failed else None
            inspection.latencies.add(entry)

    inspector.run(work)


@pytest.mark.pictures
@pytest.mark.slow
def test_calls_appear_as_bars_and_errors_in_red(browser: Browser):
    with inspector_in(browser, target_of(greenhouse())) as inspector:
        browser.look(1440, 900)
        browser.open(inspector.url + "#latency")
        assert browser.page("document.querySelector('.empty')?.textContent.includes('No calls yet')")
        inspector.call("add_bed", name="fern")
        assert browser.page(f"{ROWS}.length === 1 && {ROWS}[0].innerText.includes('add_bed')")
        timed(inspector, "survey", *[60.0 + number for number in range(40)], 300.0)
        timed(inspector, "water_bed", *[4.0 * 1.09**number for number in range(60)], failed=9)
        timed(inspector, "read_sensor", *[0.4 * 1.05**number for number in range(90)])
        assert browser.page(f"{ROWS}.length === 4")
        # By keys alone: down the list, which is sorted by name and stays so.
        browser.page("document.querySelector('.lattable').focus() || true")
        browser.key("End")
        assert browser.page("document.querySelector('.l-detail h2').textContent === 'water_bed'")
        assert browser.page("document.querySelector('.l-detail .latfacts .bad')?.textContent === '9'")
        assert browser.page("document.querySelectorAll('.hist .x').length > 0")
        assert "failed" in browser.page("document.querySelector('.hist svg').getAttribute('aria-label')")
        browser.key("ArrowUp", "/")
        browser.type("read")
        assert browser.page(f"{ROWS}.length === 1 && {ROWS}[0].innerText.includes('read_sensor')")
        browser.key("Escape", "Escape")
        assert browser.page(f"{ROWS}.length === 4 && document.activeElement.className === 'lattable'")
        for look in looks(browser, inspector.url + "#latency", f"{ROWS}.length === 4"):
            browser.press(".lattable .latrow:nth-child(4)")
            assert browser.page("document.querySelector('.l-detail h2').textContent === 'water_bed'")
            look.is_fine()
            look.picture("latency")
