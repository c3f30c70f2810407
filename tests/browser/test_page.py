"""The page of a served server in a real browser: both themes, a phone, the keyboard, without scripts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.waiting import wait_until

from .accessibility import EVERY, UNREACHABLE, serious
from .inspecting import TAKES_PICTURES

if TYPE_CHECKING:
    from .chromium import Browser

pytestmark = pytest.mark.browser

# The picture in docs/transports.md: `make pictures` takes it again.
PICTURE = Path(__file__).parents[2] / "docs" / "pictures" / "landing.png"

SERVER = """
from defserve import Server, dangerous, moderate, safe

server = Server("greenhouse", "0.4.2", description="Reads the sensors of a greenhouse and looks after its beds.")

@server.tool
@safe
def list_sensors() -> list[str]:
    "All sensors and when each last reported."
    return []

@server.tool
@moderate
def set_target(bed: str, degrees: float) -> str:
    "Set the wanted range of a bed."
    return bed

@server.tool
@dangerous
def clear_bed(bed: str) -> str:
    "Take every plant out of a bed."
    return bed

@server.tool(description="Water a bed for some seconds.")
def water() -> str:
    return ""

if __name__ == "__main__":
    server.main()
"""

FITS = "document.documentElement.scrollWidth <= innerWidth"
COLOURS = "(s => s.color + ' on ' + s.backgroundColor)(getComputedStyle(document.body))"
# The contrast of every text with what is behind it, where that is less than WCAG asks for (AA).
FAINT = """(() => {
  const rgb = text => text.match(/[\\d.]+/g).map(Number);
  const light = text => rgb(text).slice(0, 3).map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = e => { for (; e; e = e.parentElement) {
    const c = getComputedStyle(e).backgroundColor; if ((rgb(c)[3] ?? 1) > 0) return c; } return "rgb(255,255,255)"; };
  const found = [];
  for (const e of document.querySelectorAll("main *")) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(ground(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) found.push(e.outerHTML);
  }
  return JSON.stringify(found);
})()"""


@contextmanager
def served(folder: Path, code: str, *options: str) -> Iterator[str]:
    """The address of a server in a process of its own, started as an author starts it."""
    file = folder / "server.py"
    file.write_text(code, encoding="utf-8")
    command = [sys.executable, str(file), "--on", "http://127.0.0.1:0/mcp", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        yield next(line for line in process.stderr if line.startswith("serving on ")).split()[-1]
        process.terminate()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("page"), SERVER) as address:
        yield address


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("api"), SERVER, "--rest") as address:
        yield address


@pytest.fixture(autouse=True)
def usual_window(browser: Browser) -> Iterator[None]:
    yield
    browser.open("about:blank")
    browser.look(560, 330)


@pytest.mark.parametrize(("scheme", "ground"), [("light", "255, 255, 255"), ("dark", "22, 25, 29")])
@pytest.mark.parametrize("width", [360, 1024])
def test_it_fits_its_window_in_both_themes_and_can_be_read(
    browser: Browser, address: str, scheme: str, ground: str, width: int
):
    browser.look(width, 900, scheme)
    browser.open(address)
    assert browser.page("document.title") == "greenhouse, an MCP server"
    assert browser.page(COLOURS).endswith(f"on rgb({ground})")
    assert browser.page(FITS)
    browser.page("document.querySelectorAll('details').forEach(one => { one.open = true }) ?? true")
    assert browser.page(FITS)
    assert browser.page(FAINT) == "[]"
    assert serious(browser) == []
    assert browser.complaints() == []
    assert browser.page("document.images.length + 1") == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_the_page_of_an_api_and_an_error_are_of_the_same_kind(browser: Browser, api: str, scheme: str, width: int):
    browser.look(width, 900, scheme)
    for path, heading in {"/docs": "greenhouse API", "/nothing": "There is nothing here"}.items():
        browser.open(api.removesuffix("/mcp") + path)
        assert browser.page("document.querySelector('h1').textContent").startswith(heading)
        browser.page("document.querySelectorAll('details').forEach(one => { one.open = true }) ?? true")
        assert browser.page(FITS) and browser.page(FAINT) == "[]" and serious(browser) == []
        if shots := os.environ.get("DEFSERVE_SHOTS"):
            browser.shot(Path(shots) / f"server-{heading.split()[-1]}-{width}-{scheme}.png", whole=True)
    # The status of the error itself is told as one.
    assert [text for text in browser.complaints() if "404" not in text] == []


@pytest.mark.slow
@pytest.mark.parametrize("path", ["/mcp", "/docs", "/nothing"])
def test_axe_finds_nothing_in_any_window_and_twice_as_large_everything_is_reached(
    browser: Browser, api: str, path: str
):
    browser.look(390, 844)
    browser.open(api.removesuffix("/mcp") + path)
    browser.page("document.querySelectorAll('details').forEach(one => { one.open = true }) ?? true")
    for width, height in ((390, 844), (768, 1024), (1024, 768), (1440, 900)):
        for scheme in ("light", "dark"):
            browser.look(width, height, scheme)
            assert serious(browser, EVERY) == [], (width, scheme)
            assert browser.page(FITS), (width, scheme)
        browser.look(width // 2, height // 2)
        assert browser.page(FITS), width // 2
        assert browser.page(UNREACHABLE) == "none", width // 2


def test_a_tool_opens_to_its_parameters_and_an_editor_is_a_link_away(browser: Browser, address: str):
    browser.look(1024, 900)
    browser.open(address)
    browser.press("li:nth-child(2) summary")
    assert browser.page("document.querySelector('li:nth-child(2) dl').innerText.includes('degrees')")
    links = browser.page("[...document.querySelectorAll('.acts a')].map(a => a.protocol).join()")
    assert links == "cursor:,vscode:"


def test_its_copy_buttons_copy_and_say_so(browser: Browser, address: str):
    browser.look(1024, 900)
    browser.open(address)
    browser.page("navigator.clipboard.writeText = text => (window.copied = text, Promise.resolve()), true")
    browser.press(".address button")
    assert browser.page("window.copied") == address
    assert browser.page("document.querySelector('.address button').textContent === 'Copied'")
    browser.press("details[open] button")
    assert browser.page("window.copied.startsWith('claude') && window.copied") == (
        f"claude mcp add --transport http greenhouse {address}"
    )
    assert browser.complaints() == []


@pytest.mark.slow
def test_where_the_clipboard_is_refused_the_text_is_selected(browser: Browser, address: str):
    browser.open(address)
    browser.page("navigator.clipboard.writeText = () => Promise.reject(), true")
    browser.press(".address button")
    assert browser.page("String(getSelection())") == address


def test_without_scripts_everything_is_there_but_copy(browser: Browser, address: str):
    browser.look(1024, 900, scripts=False)
    browser.open(address)
    shown = browser.page("[...document.querySelectorAll('button')].filter(b => b.checkVisibility()).length + 1")
    assert shown == 1
    assert browser.page("document.querySelectorAll('li').length") == 4
    browser.press("details:nth-of-type(3) summary")
    assert browser.page("document.querySelector('details:nth-of-type(3)').open")


def test_the_keyboard_reaches_every_button_and_client(browser: Browser, address: str):
    browser.look(1024, 900)
    browser.open(address)
    reached = "[...document.querySelectorAll('button,summary')].every(e => e.tabIndex >= 0)"
    assert browser.page(reached)
    assert browser.page("[...document.querySelectorAll('li svg')].map(e => e.getAttribute('aria-label')).join()") == (
        "safe,moderate,dangerous,unmarked"
    )


def test_no_page_can_frame_it(browser: Browser, address: str):
    browser.open(address.replace("/mcp", "/healthz"))
    browser.page(f"document.body.append(Object.assign(document.createElement('iframe'), {{src: '{address}'}})), true")
    wait_until(lambda: any("frame-ancestors 'none'" in text for text in browser.complaints()))


@pytest.mark.slow
def test_hostile_and_long_words_stay_words_and_fit_a_phone(browser: Browser, tmp_path: Path):
    with served(tmp_path, SERVER.replace("Water a bed", f"<img src=x onerror=alert(1)>{'long' * 20}")) as address:
        browser.look(360, 800, "dark")
        browser.open(address)
        assert browser.page("document.querySelector('li:last-child .d').textContent.startsWith('<img')")
        assert browser.page("document.images.length + 1") == 1
        assert browser.page(FITS)
        assert browser.complaints() == []


@pytest.mark.pictures
def test_its_picture(browser: Browser, address: str, tmp_path: Path):
    browser.look(860, 900)
    browser.open(address)
    browser.shot(PICTURE if TAKES_PICTURES else tmp_path / "landing.png", whole=True)
