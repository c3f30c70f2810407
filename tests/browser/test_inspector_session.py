"""A session in a real browser: saved and opened again, its calls as a test, and a call from an earlier state."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from defserve.inspector.inspection import Inspection
from defserve.inspector.session_files import make_session_target, read_session_file
from tests.inspector.beds import greenhouse
from tests.waiting import wait_until

from .inspecting import InspectorBeside, inspector_in, looks, target_of

if TYPE_CHECKING:
    from .chromium import Browser

pytestmark = pytest.mark.browser

ROWS = "[...document.querySelectorAll('.wrow')].filter(each => !each.querySelector('.skel'))"
DRAWER = "document.querySelector('.wdrawer')"
TRAVEL = "document.querySelector('.travel')"
KEEP_FILES = (
    "window.made = [], URL.createObjectURL = (make => blob => (made.push(blob), make(blob)))"
    "(URL.createObjectURL.bind(URL)), true"
)
AS_BASE64 = (
    "(async () => made.length > 0 && btoa(String.fromCharCode(...new Uint8Array(await made.at(-1).arrayBuffer()))))()"
)


@pytest.fixture
def panel(browser: Browser) -> Iterator[InspectorBeside]:
    """The wire of a server with state, after three calls."""
    with inspector_in(browser, target_of(greenhouse(), "beds.py"), "blob:") as inspector:
        inspector.call("add_bed", name="fern")
        inspector.call("add_plant", bed="fern", plant="moss")
        inspector.call("set_target", bed="fern", wanted=22)
        browser.look(1440, 900)
        browser.open(f"{inspector.url}#wire")
        assert browser.page(f"{ROWS}.length >= 3")
        browser.page(KEEP_FILES)
        yield inspector


def press_words(browser: Browser, words: str, within: str = "body") -> None:
    """Press the button with these words."""
    find = f"[...document.querySelectorAll('{within} button')].find(each => each.innerText.includes({words!r}))"
    assert browser.page(f"(each => each && (each.click(), true))({find})"), words


def open_call(browser: Browser, tool: str) -> None:
    assert browser.page(
        f"(each => each && (each.setAttribute('data-it', ''), true))({ROWS}.find(each => "
        f"each.innerText.includes({tool!r})))"
    )
    browser.press("[data-it] .w-method")
    assert browser.page(f"!!{DRAWER}")


def test_its_own_messages_are_hidden_until_they_are_asked_for(browser: Browser, panel: InspectorBeside):
    shown = f"{ROWS}.map(each => each.querySelector('.w-method').innerText)"
    assert "tools/list" not in browser.page(shown)
    browser.press("[title^='What the inspector sends']")
    assert browser.page(f"{shown}.includes('tools/list') && {shown}.includes('server/discover')")


def test_a_session_is_saved_and_opened_again_read_only(browser: Browser, panel: InspectorBeside, tmp_path: Path):
    press_words(browser, "Save", ".wirebar")
    press_words(browser, "Save session", "[role=menu]")
    path = tmp_path / "greenhouse.defsession"
    path.write_bytes(base64.b64decode(browser.page(AS_BASE64)))
    session = read_session_file(path)
    calls = session.summarize()["tools"]
    assert {each["tool"] for each in calls} == {"add_bed", "add_plant", "set_target"}
    with inspector_in(browser, make_session_target(session), "blob:") as inspector:
        for look in looks(browser, f"{inspector.url}#wire", f"{ROWS}.length >= 3"):
            assert browser.page("document.querySelector('.target').innerText.includes('saved session')")
            look.picture("session-wire")
            look.is_fine()
        browser.look(1440, 900)
        browser.open(f"{inspector.url}#state")
        assert browser.page("document.querySelectorAll('.s-graph [role=row]').length >= 3")
        assert browser.page(
            "[...document.querySelectorAll('.moves button')].find(e => e.innerText.includes('Roll back')).disabled"
        )
        browser.open(f"{inspector.url}#tools/add_bed")
        assert browser.page("document.querySelectorAll('.t-list [role=option]').length >= 4")


def test_ticked_calls_become_one_test(browser: Browser, panel: InspectorBeside):
    for tool in ("add_bed", "add_plant"):
        browser.press(f"[aria-label='Tick the call of {tool} for a test']")
    assert browser.page("document.querySelector('.wticked').innerText.includes('2 calls ticked')")
    press_words(browser, "Save as test", ".wticked")
    text = base64.b64decode(browser.page(AS_BASE64)).decode()
    compile(text, "test_it.py", "exec")
    assert text.index("add_bed") < text.index("add_plant") and "@pytest.mark.serves('beds.py')" in text
    assert browser.page("!document.querySelector('.wticked')")


def test_by_keyboard_a_call_is_ticked_and_saved(browser: Browser, panel: InspectorBeside):
    open_call(browser, "add_bed")
    browser.key("x")
    assert browser.page("document.querySelector('.wticked')?.innerText.includes('1 call ticked')")
    browser.key("t")
    assert "def test_add_bed" in base64.b64decode(browser.page(AS_BASE64)).decode()


def test_a_call_is_shown_with_its_state_and_runs_again_from_there(browser: Browser, panel: InspectorBeside):
    open_call(browser, "add_plant")
    press_words(browser, "State", ".wdrawer [role=tablist]")
    assert browser.page(f"{TRAVEL}?.innerText.includes('/beds/fern/plants/0')")
    before = panel.inspection.recorder.count
    press_words(browser, "Run again from", ".travel")
    assert browser.page("document.querySelector('[role=alertdialog]')?.innerText.includes('add_plant')")
    press_words(browser, "Run again", "[role=alertdialog]")
    # The notices of the audit name the tool too.
    assert browser.page(f"{ROWS}.filter(each => /tools.call\\s+add_plant/.test(each.innerText)).length === 2")

    async def count(inspection: Inspection) -> int:
        return len(await inspection.states.open_tree("stateless", "beds.edit", None).list_checkpoints())

    wait_until(lambda: panel.run(count) == 4)  # a call is shown before it is answered
    assert panel.inspection.recorder.count > before
    # On to the checkpoint, and back to the call.
    # By a script: the panel is drawn anew while the call is shown, and a pointer could miss it.
    browser.page("(link => link && (link.click(), true))(document.querySelector('.travel [title^=chk_]'))")
    assert browser.page("location.hash.startsWith('#state/chk_') && !!document.querySelector('.s-graph')")
    press_words(browser, "Its call", ".moves")
    assert browser.page(f"location.hash.startsWith('#wire/checkpoint') && !!{TRAVEL}")


def test_a_call_leads_to_its_audit_lines_and_back(browser: Browser, panel: InspectorBeside):
    open_call(browser, "set_target")
    press_words(browser, "Audit", ".wdrawer")
    assert browser.page("document.querySelector('.auditevent')?.innerText.includes('set_target')")
    press_words(browser, "Show on the wire", ".auditevent")
    assert browser.page(f"{ROWS}.length === 1 && {ROWS}[0].innerText.includes('set_target')")


@pytest.mark.slow
def test_state_and_ticks_fit_every_window_in_both_themes(browser: Browser, panel: InspectorBeside):
    for look in looks(browser, f"{panel.url}#wire/tool:add_plant", f"!!{DRAWER}"):
        press_words(browser, "State", ".wdrawer [role=tablist]")
        assert browser.page(f"{TRAVEL}?.innerText.includes('/beds/fern')")
        if not look.is_phone:
            browser.press("[aria-label='Tick the call of add_plant for a test']")
        look.picture("session-state")
        look.is_fine()


HOSTILE = "<img src=x onerror=document.title=1>\u202e\u0007"


def test_a_file_of_a_stranger_is_only_text(browser: Browser, tmp_path: Path):
    records: list[dict[str, Any]] = [
        {"defsession": {"version": 1, "maker": HOSTILE, "time": 1, "words": [HOSTILE]}},
        {
            "definitions": {
                "era": "stateless",
                "initialize": {
                    "protocolVersion": "2026-07-28",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": HOSTILE, "version": HOSTILE},
                },
                "tools": [{"name": HOSTILE, "description": HOSTILE, "inputSchema": {"type": "object"}}],
            }
        },
        {
            "message": {
                "seq": 0,
                "time": 1,
                "era": "stateless",
                "direction": "sent",
                "kind": "request",
                "method": HOSTILE,
                "about": HOSTILE,
                "id": HOSTILE,
                "size": 1,
                "body": {"method": HOSTILE},
            }
        },
        {"end": True},
    ]
    path = tmp_path / "strange.defsession"
    path.write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")
    with inspector_in(browser, make_session_target(read_session_file(path))) as inspector:
        browser.look(1440, 900)
        browser.open(f"{inspector.url}#wire/0")
        assert browser.page(f"{ROWS}.length === 1 && {DRAWER}?.innerText.includes('<img')")
        assert browser.page("!document.querySelector('main img') && document.title !== '1'")
        assert browser.page("!document.body.innerText.includes('\\u202e')")


SLOW_SOCKETS = """
window.WebSocket = class extends WebSocket {
  get readyState() { return this.isLate ? super.readyState : 0; }
  set onopen(run) { this.addEventListener("open", () => setTimeout(() => { this.isLate = true; run(); }, 1500)); }
};
"""


def test_a_link_to_a_message_is_followed_before_the_page_is_connected(browser: Browser, panel: InspectorBeside):
    assert browser.page(f"{ROWS}.length >= 3")
    browser.run_early(SLOW_SOCKETS)
    browser.open("about:blank")
    browser.open(f"{panel.url}#wire/0")
    assert browser.page(f"{ROWS}.length >= 3 && {DRAWER}?.innerText.includes('jsonrpc')")
