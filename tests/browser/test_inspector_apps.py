"""The Apps panel of the inspector in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

import pytest

from defserve import Server
from defserve.inspector.inspection import Inspection
from tests.at_address import fresh
from tests.effort import slow

from .accessibility import serious
from .inspecting import ROWS, InspectorBeside, inspector_in, inspector_of, inspector_process, looks, open_at, target_of

if TYPE_CHECKING:
    from .chromium import Browser

pytestmark = pytest.mark.browser

DEGREES = "[...document.querySelectorAll('li')].map(item => item.textContent).join(' ')"
DIALOG = "document.querySelector('[role=alertdialog]')?.innerText"
STAGE = "document.querySelector('.t-res')?.innerText"


@pytest.fixture
def inspector(browser: Browser) -> Iterator[InspectorBeside]:
    with inspector_in(browser, target_of(fresh("weather_app")), "data:", "http://127.0.0.1:") as beside:
        yield beside


def shown_in(browser: Browser, city: str = "Oslo") -> None:
    assert browser.page("document.querySelector('#app-city')?.focus() ?? !!document.querySelector('#app-city')")
    browser.key("Control+a")
    browser.type(city)
    browser.key("Control+Enter")
    assert browser.frame(f"{DEGREES}.includes('Mon') && {DEGREES}")


@pytest.mark.parametrize("era", [slow("handshake"), "stateless"])
def test_a_view_is_shown_and_what_it_calls_is_confirmed_first(browser: Browser, inspector: InspectorBeside, era: str):
    open_at(browser, inspector, "apps/forecast", era)
    shown_in(browser)
    assert browser.page("document.querySelector('iframe').offsetHeight > 120")
    browser.click("button")
    assert browser.page(f"{DIALOG}?.includes('Let the view call convert?')")
    assert serious(browser) == []
    browser.key("Escape")
    assert browser.page(f"!{DIALOG}")
    assert browser.frame(f"{DEGREES}.startsWith('4°')")
    browser.click("button")
    assert browser.page(f'{DIALOG}?.includes(\'"unit": "F"\')')
    browser.press("[role=alertdialog] .pri")
    assert browser.frame(f"{DEGREES}.startsWith('39°')")
    # Every message of both sides is there.
    browser.press(".t-res [role=tab]:nth-child(2)")
    assert browser.page(
        "['ui/initialize', 'ui/notifications/tool-result', 'tools/call', 'error'].every(each => "
        f"{STAGE}.includes(each))"
    )
    browser.press(".t-res [role=row]:nth-child(2)")
    assert browser.page("document.querySelector('.bmessage')?.innerText.includes('hostContext')")
    assert serious(browser) == []


@pytest.mark.slow
def test_by_keys_alone_an_app_is_found_shown_and_closed(browser: Browser, inspector: InspectorBeside):
    open_at(browser, inspector, "tools")
    browser.go("a", "!!document.querySelector('.p-apps') && document.querySelector('#app-city')")
    browser.key("/")
    browser.type("next days")
    assert browser.page(f"{ROWS} === 1")
    browser.key("Enter", "Enter")
    assert browser.page("document.activeElement.id === 'app-city'")
    browser.type("Lagos")
    browser.key("Control+Enter")
    assert browser.frame(f"{DEGREES}.startsWith('29°')")
    # Into the view and on its button with the keyboard. What it calls is asked for in the page.
    assert browser.page("document.querySelector('iframe').inert")
    browser.page(
        "[...document.querySelectorAll('.t-res .bar .btn')].find(each => each.innerText === 'Enter').focus() ?? true"
    )
    browser.key("Enter")
    assert browser.page("document.activeElement.tagName === 'IFRAME'")
    browser.key("Tab", "Enter")
    assert browser.page(f"{DIALOG}?.includes('convert') && document.activeElement.innerText.startsWith('Deny')")
    browser.key("Escape")
    assert browser.page(f"!{DIALOG}")
    browser.page("document.querySelector('.t-res [role=tab]').focus() ?? true")
    browser.key("ArrowRight", "ArrowRight")
    assert browser.page(f"{STAGE}.includes('Content-Security-Policy') && {STAGE}.includes(\"connect-src 'none'\")")
    assert serious(browser) == []
    browser.key("ArrowRight")
    assert browser.page(f"{STAGE}.includes('Whole result')")
    # Away from its tab the view goes on; the theme of the page is told to it.
    assert browser.frame("document.documentElement.dataset.theme === 'light'")
    browser.press(".top [aria-label='Switch to dark']")
    assert browser.frame("document.documentElement.dataset.theme === 'dark'")
    browser.press(".top [aria-label='Switch to light']")
    browser.press(".t-res [aria-label='Close the view']")
    assert browser.page("!document.querySelector('iframe') && document.querySelector('.t-res .note')?.innerText")


@pytest.mark.slow
def test_a_tool_that_fails_is_told_and_a_server_without_apps_says_so(browser: Browser, inspector: InspectorBeside):
    open_at(browser, inspector, "apps/forecast")
    shown_in(browser)
    bare = Server("bare", "1")

    @bare.tool
    def hi() -> str:
        return "hi"

    assert hi
    with inspector_of(target_of(bare)) as other:
        browser.open(f"{other.url}#apps")
        assert browser.page("document.querySelector('.t-list .empty')?.innerText.includes('No apps')")
        browser.press(".t-list .empty button")
        assert browser.page("location.hash.startsWith('#tools')")
        assert browser.complaints() == []
        browser.open("about:blank")


BOARD = """<h1>Before</h1><output></output><button>Save</button><script>
  const [output, button] = ["output", "button"].map(name => document.querySelector(name));
  let count = 0;
  const show = saved => { count = saved ?? 0; output.textContent = `count ${count}`; };
  host.state.load().then(show);
  button.onclick = () => show(count + 1);
  host.on("teardown", () => host.state.save(count));
</script>"""
BOARD_SERVER = """
from pathlib import Path
from defserve import Server

server = Server("board", "1")

@server.app("ui://board/view")
def view() -> Path:
    return Path("board.html")

@server.tool(app=view)
def board() -> str:
    with open("calls.txt", "a") as calls:
        calls.write("called ")
    return "shown"
"""


@pytest.mark.parametrize("era", [slow("handshake"), "stateless"])
def test_a_view_whose_file_is_edited_reloads_by_itself_and_keeps_its_state(browser: Browser, tmp_path: Path, era: str):
    (tmp_path / "server.py").write_text(BOARD_SERVER)
    (tmp_path / "board.html").write_text(BOARD)
    address = "http://127.0.0.1:0/mcp"
    with inspector_process("server.py", "--on", address, command="dev", cwd=tmp_path) as (url, _):
        browser.look(1440, 900)
        browser.open(f"{url}#apps/board")
        assert browser.page("!!document.querySelector('.p-apps .t-form .bar .pri')")
        if era == "handshake":
            browser.key("e")
            assert browser.page("document.querySelector('.top .seg .on')?.textContent === 'Handshake'")
            assert browser.page("!!document.querySelector('.p-apps .t-form .bar .pri')")
        browser.press(".t-form .bar .pri")
        assert browser.frame("document.querySelector('output')?.textContent === 'count 0'")
        browser.click("button")
        browser.click("button")
        assert browser.frame("document.querySelector('output').textContent === 'count 2'")

        for title in ("After", "Later"):
            (tmp_path / "board.html").write_text(BOARD.replace("Before", title))
            assert browser.frame(f"document.querySelector('h1')?.textContent === '{title}'")
            assert browser.frame("document.querySelector('output').textContent === 'count 2'")
        assert browser.page("document.body.innerText.includes('The view of board was reloaded')")
        assert (tmp_path / "calls.txt").read_text() == "called "
        browser.open("about:blank")


@pytest.mark.slow
def test_a_view_that_is_another_at_every_look_is_not_reloaded_all_the_time(browser: Browser):
    server, versions = Server("restless", "1"), count(1)

    @server.app("ui://restless/view")
    def view() -> str:
        return f"<output>{next(versions)}</output>"

    @server.tool(app=view)
    def rest() -> str:
        return "rested"

    assert rest

    async def tell(inspection: Inspection) -> None:
        for _ in range(20):
            inspection.push("changed", {"era": "stateless", "kind": "resources"})

    with inspector_in(browser, target_of(server), "data:", "http://127.0.0.1:") as beside:
        open_at(browser, beside, "apps/rest", ready="!!document.querySelector('.p-apps .t-form .bar .pri')")
        browser.press(".t-form .bar .pri")
        assert browser.frame("document.querySelector('output')?.textContent === '1'")
        began = monotonic()
        # The second may come at once. Each after it waits, and then it is the newest.
        for version in (2, 3):
            beside.run(tell)
            assert browser.frame(f"Number(document.querySelector('output')?.textContent) >= {version}")
        assert monotonic() - began >= 2


def test_a_file_that_a_view_makes_is_saved_if_the_person_wants_it(browser: Browser):
    server = Server("maker", "1")

    @server.app("ui://maker/view")
    def view() -> str:
        return (
            """<button onclick="host.download('a b.txt', 'made').then(() => document.title = 'saved')">Make</button>"""
        )

    @server.tool(app=view)
    def make() -> str:
        return "made"

    assert make
    with inspector_in(browser, target_of(server), "data:", "blob:", "http://127.0.0.1:") as beside:
        open_at(browser, beside, "apps/make", ready="!!document.querySelector('.p-apps .t-form .bar .pri')")
        browser.press(".t-form .bar .pri")
        assert browser.page("!!document.querySelector('iframe')")
        saved = (
            "URL.createObjectURL = blob => { blob.text().then(text => { window.saved = text }); return '#apps/make'; }"
        )
        assert browser.page(f"({saved}) && true")
        browser.click("button")
        assert browser.page(f"{DIALOG}?.includes('a b.txt')")
        assert serious(browser) == []
        browser.press("[role=alertdialog] .pri")
        assert browser.page("window.saved") == "made"
        assert browser.frame("document.title === 'saved'")


@pytest.mark.pictures
@pytest.mark.slow
def test_it_fits_every_window_in_both_themes(browser: Browser, inspector: InspectorBeside):
    for look in looks(browser, f"{inspector.url}#apps", f"{ROWS} > 1"):
        look.fits()
        browser.press(".t-list [role=option][id$='-0']")
        shown_in(browser)
        assert browser.page("document.querySelector('iframe').offsetHeight > 120")
        look.is_fine()
        look.picture("apps")
        browser.press(".t-res [role=tab]:nth-child(2)")
        assert browser.page("document.querySelectorAll('.t-res [role=row]').length > 4")
        look.is_fine()
