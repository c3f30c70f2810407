"""The Tools panel of the inspector in a real browser: a form of everything, results of everything, by keys alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.effort import slow

from .accessibility import serious
from .inspecting import FITS, PICTURES, TAKES_PICTURES, inspector_process

if TYPE_CHECKING:
    from .chromium import Browser

pytestmark = pytest.mark.browser

GREENHOUSE = "tests/inspector/greenhouse.py"
READY = "document.querySelectorAll('[role=option]').length > 5"
DONE = "!document.querySelector('.t-res .spin') && document.querySelector('.t-res .progress b')?.textContent"
RESULT = "document.querySelector('.t-res .body').innerText"
FORM = "document.querySelector('.t-form .body').innerText"

# What a finger could not hit. A field is as high as its box; a word in a label is not the only way to its switch.
SMALL = """[...document.querySelectorAll("button, a, input:not([type=file]), select")].filter(each => each.offsetParent
  && !each.closest(".in, .lab, .field > .row, .chip, .facts, .filters") && !each.classList.contains("vh")
  && each.getBoundingClientRect().height < 31).map(each => each.outerHTML.slice(0, 80))"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The inspector of the greenhouse."""
    with inspector_process(GREENHOUSE) as (address, _):
        yield address


class Inspector:
    """The page, as a person uses it."""

    def __init__(self, browser: Browser, address: str) -> None:
        self.browser, self.address = browser, address

    def open(self, width: int = 1440, height: int = 900, scheme: str = "light", at: str = "tools") -> None:
        self.browser.look(width, height, scheme)
        self.browser.open(f"{self.address}#{at}")
        assert self.page(READY)

    def page(self, script: str) -> Any:
        return self.browser.page(script)

    def fill(self, selector: str, text: str) -> None:
        self.page(f"document.querySelector({selector!r}).focus() || true")
        self.browser.key("Control+a", "Backspace")
        self.browser.type(text)

    def press(self, words: str, within: str = "body") -> None:
        """Press the button with these words."""
        fits = f"each.offsetParent && each.innerText.trim().startsWith({words!r})"
        found = f"[...document.querySelectorAll({within!r} + ' button')].find(each => {fits})"
        assert self.page(f"{found} && ({found}.click(), true)"), words

    def choose(self, tool: str) -> None:
        self.page(f"location.hash = '#tools/{tool}'")
        assert self.page(f"document.querySelector('.t-form .toolname')?.textContent === {tool!r}")

    def call(self) -> str:
        """Call the tool in view and wait for its end: Done, Failed or Cancelled."""
        before = self.page("document.querySelectorAll('.t-res [role=tab]').length + 1") - 1
        self.browser.key("Control+Enter")
        assert self.page(
            f"document.querySelectorAll('.t-res .no-m [role=tab]').length > {min(before, 19)} || {before} >= 20"
        )
        return self.page(DONE)


@pytest.fixture
def inspector(browser: Browser, address: str) -> Iterator[Inspector]:
    yield Inspector(browser, address)
    assert browser.complaints() == []
    browser.open("about:blank")


def grant(inspector: Inspector) -> None:
    """Say yes to the permission that a call asked for, if it is the first one."""
    if inspector.page(
        "!!document.querySelector('.dlg') || /Done|Failed|Reading/.test(document.querySelector('.t-res').innerText)"
    ):
        inspector.page("document.querySelector('.dlg .btn.pri')?.click(); true")


def survey(inspector: Inspector, *, hold: bool) -> None:
    """Fill in the whole form of `survey`, and call it."""
    inspector.choose("survey")
    inspector.press("list of texts")
    for bed in ("north-1", "north-2", "fern"):
        inspector.page("document.querySelector('#arg-where').focus() || true")
        inspector.browser.type(bed)
        inspector.browser.key("Enter")
    if (
        inspector.page("document.querySelector('#arg-wanted button')?.innerText.startsWith('Add') ? 'add' : 'there'")
        == "add"
    ):
        inspector.press("Add wanted")
    inspector.fill("#arg-wanted-low", "20")
    inspector.fill("#arg-wanted-high", "23")
    inspector.page("document.querySelector('#arg-draw').click() || true")
    if hold:
        inspector.page("document.querySelector('#arg-hold').click() || true")
    inspector.browser.key("Control+Enter")
    grant(inspector)


@pytest.mark.pictures
@pytest.mark.parametrize("scheme", ["light", slow("dark")])
def test_a_call_shows_its_progress_table_picture_and_log_as_they_come(
    inspector: Inspector, tmp_path: Path, scheme: str
):
    inspector.open(scheme=scheme)
    survey(inspector, hold=True)
    assert inspector.page("document.querySelector('.t-res .progress')?.innerText.includes('67 %')")
    assert inspector.page(
        "document.querySelectorAll('.t-res .scrolls tbody tr').length === 5"
    )  # and one that is to come
    assert inspector.page("document.querySelector('.t-res img').naturalWidth === 520")
    assert inspector.page("document.querySelectorAll('.logline').length === 2")
    assert "pepper: last value is 14 minutes old" in inspector.page(RESULT)
    assert inspector.page(FITS)
    assert inspector.page(f"getComputedStyle(document.documentElement).colorScheme === {scheme!r}")
    assert serious(inspector.browser) == []
    picture = f"inspector-tools-{scheme}.png"
    inspector.browser.shot((PICTURES if TAKES_PICTURES else tmp_path) / picture)
    inspector.browser.key("Escape")
    assert inspector.page("document.querySelector('.t-res').innerText.includes('The call was cancelled')")


def test_nothing_is_asked_of_another_origin_and_the_token_leaves_the_address_bar(inspector: Inspector):
    inspector.open()
    origin = inspector.address.partition("/?")[0]
    assert [url for url in inspector.browser.asked() if not url.startswith((origin, "data:", f"ws{origin[4:]}"))] == []
    assert "token" not in inspector.page("location.href")
    inspector.page("location.reload() || true")
    assert inspector.page(READY)


def test_a_tab_without_the_token_is_told_what_to_do(inspector: Inspector):
    inspector.open()
    inspector.page("sessionStorage.clear() || location.reload() || true")
    assert inspector.page("document.querySelector('main')?.innerText.includes('This address needs its token')")
    assert "sensors" not in inspector.page("document.body.innerText")


def test_by_keys_alone_a_tool_is_found_filled_in_called_and_repeated(inspector: Inspector):
    inspector.open()
    browser = inspector.browser
    browser.key("/")
    browser.type("forcast")  # a typing error
    assert inspector.page("document.querySelectorAll('[role=option]').length === 1")
    browser.key("Enter")
    assert inspector.page("document.activeElement.id === 'arg-days'")
    browser.key("Control+a")
    browser.type("20")
    assert inspector.page("document.querySelector('.t-form .btn.pri').innerText.startsWith('Call anyway')")
    assert "days: must be at most 14, got 20" in inspector.page(FORM)
    browser.key("Control+a")
    browser.type("5")
    browser.key("Control+Enter")
    assert inspector.page(DONE) == "Done"
    assert inspector.page("document.querySelector('.markdown strong').textContent === '5 days'")
    # What looks like markup stays text, and links lead out by themselves only.
    assert "<b>not bold</b>" in inspector.page(RESULT)
    assert inspector.page("document.querySelector('.markdown a').rel.includes('noreferrer')")
    browser.key("Shift+Tab")
    inspector.page("document.querySelector('[role=listbox]').focus() || true")
    browser.key("r")
    assert inspector.page("document.querySelectorAll('.t-res [role=tab]').length >= 2")
    browser.key("?")
    assert inspector.page("document.querySelector('[role=dialog]').innerText.includes('repeat the call in view')")
    browser.key("Escape")
    browser.key("Control+k")
    assert browser.page("!!document.activeElement.closest('.palette')")
    browser.type("chime")
    assert browser.page("document.querySelector('.found .nav')?.innerText.includes('chime')")
    browser.key("Enter")
    assert inspector.page("location.hash === '#tools/chime'")


@pytest.mark.slow
def test_the_form_and_its_json_are_one_value(inspector: Inspector):
    inspector.open()
    inspector.choose("add_plant")
    inspector.fill("#arg-bed", "fern")
    inspector.press("seed")
    inspector.fill("#arg-what-grams", "2.5")
    moment = "Object.assign(document.querySelector('#arg-at'), { value: '2026-11-15T08:30' })"
    inspector.page(f"{moment}.dispatchEvent(new Event('input'))")
    inspector.press("Add ranges")
    inspector.press("Add an item")
    inspector.fill("#arg-ranges-0-low", "1")
    inspector.fill("#arg-ranges-0-high", "2")
    inspector.press("JSON", ".t-form [role=tablist]")
    shown = inspector.page("document.querySelector('.rawbox textarea').value")
    assert '"kind": "seed"' in shown and '"low": 1' in shown and '"at": "2026-11-15T08:30"' in shown
    inspector.fill(".rawbox textarea", '{"bed": "north-1", "what": {"kind": "plant", "name": "basil", "count": 0}')
    assert "not whole JSON yet" in inspector.page("document.querySelector('.t-form .body').innerText")
    inspector.browser.type("}")
    inspector.press("Form", ".t-form [role=tablist]")
    assert inspector.page("document.querySelector('#arg-bed').value === 'north-1'")
    assert inspector.page("document.querySelector('#arg-what-name').value === 'basil'")
    assert "what.count: must be at least 1, got 0" in inspector.page(FORM)
    inspector.fill("#arg-what-count", "3")
    inspector.browser.key("Control+Enter")
    assert inspector.page(DONE) == "Done"
    assert '"count": 3' in inspector.page(RESULT)


def test_json_that_is_not_whole_is_not_called_and_stays_until_reset(inspector: Inspector):
    inspector.open()
    inspector.choose("chime")
    inspector.press("JSON", ".t-form [role=tablist]")
    inspector.fill(".rawbox textarea", '{"unfinished": ')
    before = inspector.page("'calls ' + document.querySelectorAll('.t-res [role=tab]').length")
    inspector.browser.key("Control+Enter")
    assert inspector.page("document.activeElement === document.querySelector('.rawbox textarea')")
    assert inspector.page("document.querySelector('.rawbox textarea').value") == '{"unfinished": '
    assert inspector.page("'calls ' + document.querySelectorAll('.t-res [role=tab]').length") == before
    inspector.press("Reset")
    assert inspector.page("!document.querySelector('.rawbox textarea').value.includes('unfinished')")


def test_closing_the_palette_gives_the_focus_back(inspector: Inspector):
    inspector.open()
    inspector.choose("chime")
    inspector.page("document.querySelector('.t-form .btn.pri').focus() || true")
    inspector.browser.key("Control+k")
    assert inspector.page("!!document.activeElement.closest('.palette')")
    inspector.browser.key("Escape")
    assert inspector.page("document.activeElement === document.querySelector('.t-form .btn.pri')")


@pytest.mark.slow
def test_a_refusal_is_told_at_its_field_with_its_fix(inspector: Inspector):
    inspector.open()
    inspector.choose("survey")
    inspector.press("Reset")
    inspector.press("list of texts")
    inspector.page("document.querySelector('#arg-where').focus() || true")
    inspector.browser.type("attic")
    inspector.browser.key("Enter", "Control+Enter")
    grant(inspector)
    assert inspector.page("document.querySelector('.t-res .note.bad .fix')?.innerText.includes('use one of north-1')")
    inspector.press("Reset")
    inspector.press("integer")
    inspector.fill("#arg-where", "many")
    inspector.browser.key("Control+Enter")
    assert inspector.page("document.querySelector('.t-res .note.bad')?.innerText.includes('where: expected integer')")
    assert 'where: expected integer or array, got "many"' in inspector.page(FORM)
    assert inspector.page("document.querySelector('#arg-where').getAttribute('aria-invalid') === 'true'")
    assert serious(inspector.browser) == []


@pytest.mark.slow
def test_a_file_is_sent_and_named(inspector: Inspector, tmp_path: Path):
    (tmp_path / "mask.png").write_bytes(b"\x89PNG" + bytes(2000))
    inspector.open()
    inspector.choose("survey")
    inspector.press("Reset")
    inspector.browser.upload("#arg-mask", tmp_path / "mask.png")
    assert inspector.page("document.querySelector('.drop').innerText.includes('mask.png, 2.0 kB')")
    inspector.press("JSON", ".t-form [role=tablist]")
    assert inspector.page("document.querySelector('.rawbox textarea').value.includes('iVBORwAAAA')")


def test_a_dangerous_call_is_confirmed_and_escape_denies(inspector: Inspector):
    inspector.open()
    inspector.choose("clear_bed")
    inspector.fill("#arg-bed", "fern")
    inspector.browser.key("Control+Enter")
    assert inspector.page("document.querySelector('[role=alertdialog]')?.innerText.includes('clear_bed')")
    assert inspector.page("document.activeElement.innerText.startsWith('Deny')")
    assert serious(inspector.browser) == []
    inspector.page(
        "document.querySelector('.scrim').dispatchEvent(new MouseEvent('mousedown', { bubbles: true })); true"
    )
    assert inspector.page("!!document.querySelector('[role=alertdialog]')")
    inspector.browser.key("Escape")
    assert inspector.page("!document.querySelector('[role=alertdialog]')")
    assert inspector.page("document.querySelector('.t-res .note.bad')?.innerText.includes('not confirmed')")
    inspector.browser.key("Control+Enter")
    assert inspector.page("!!document.querySelector('[role=alertdialog]')")
    inspector.press("Allow once")
    assert inspector.page(DONE) == "Done"
    assert "fern is empty" in inspector.page(RESULT)


@pytest.mark.slow
def test_the_other_era_is_a_key_away(inspector: Inspector):
    inspector.open()
    inspector.choose("help")
    inspector.browser.key("e")
    assert inspector.page("document.querySelector('.top [role=radio][aria-checked=true]').innerText === 'Handshake'")
    assert inspector.page(READY)
    inspector.browser.key("Control+Enter")
    assert inspector.page("document.querySelector('.t-res').innerText.includes('Ran in the handshake era')")
    inspector.browser.key("e")
    assert inspector.page("document.querySelector('.top [role=radio][aria-checked=true]').innerText === 'Stateless'")


@pytest.mark.slow
def test_sounds_links_and_lists_are_shown(inspector: Inspector):
    inspector.open()
    inspector.choose("chime")
    inspector.browser.key("Control+Enter")
    assert inspector.page("document.querySelector('audio')?.src.startsWith('data:audio/')")
    inspector.choose("manual")
    inspector.browser.key("Control+Enter")
    assert inspector.page("document.querySelector('.linkcard')?.innerText.includes('text://manual')")


@pytest.mark.slow
def test_a_call_is_saved_as_a_test_and_as_a_line(inspector: Inspector):
    inspector.open()
    inspector.choose("forecast")
    line = "defserve call tests/inspector/greenhouse.py forecast days:="
    assert inspector.page(f"document.querySelector('.cmd code').textContent.startsWith({line!r})")
    inspector.page(
        "(window.saved = [], HTMLAnchorElement.prototype.click = function () { saved.push(this.download); }, true)"
    )
    inspector.browser.key("Control+Enter")
    assert inspector.page(DONE) == "Done"
    inspector.press("Save as test")
    assert inspector.page("saved[0]") == "test_forecast.py"


def test_on_a_phone_one_pane_is_in_view(inspector: Inspector, tmp_path: Path):
    inspector.open(360, 740)
    panes = "[...document.querySelectorAll('main > section')].filter(each => each.offsetParent)"
    shown = f"{panes}.map(each => each.className).join()"
    assert inspector.page(f"({shown}).includes('t-list') && ({shown})") == "pane t-list"
    assert inspector.page(FITS)
    assert serious(inspector.browser) == []
    inspector.browser.shot(tmp_path / "list.png")
    options = "[...document.querySelectorAll('[role=option]')]"
    inspector.page(f"{options}.find(each => each.innerText.includes('survey')).click() || true")
    assert inspector.page(f"({shown}).includes('t-form') && ({shown})") == "pane t-form"
    assert inspector.page(FITS)
    assert inspector.page(f"({SMALL}).join('|') || 'none'") == "none"
    inspector.browser.shot(tmp_path / "form.png")
    inspector.press("Call")
    grant(inspector)
    assert inspector.page(f"({shown}).includes('t-res') && ({shown})") == "pane t-res"
    assert inspector.page(FITS)
    inspector.browser.shot(tmp_path / "result.png")
    inspector.page("document.querySelector('.t-res [aria-label=\"Back to the list\"]').click() || true")
    assert inspector.page(f"({shown}).includes('t-list')")


@pytest.mark.slow
@pytest.mark.parametrize("width", [1024, 1200, 720])
def test_nothing_overflows_in_between(inspector: Inspector, width: int, tmp_path: Path):
    inspector.open(width, 768)
    inspector.choose("survey")
    assert inspector.page(FITS)
    inspector.browser.shot(tmp_path / f"{width}.png")


@pytest.mark.slow
def test_lines_between_panes_move_by_keys_and_are_remembered(inspector: Inspector):
    inspector.open()
    before = inspector.page("document.querySelector('.t-list').getBoundingClientRect().width")
    inspector.page("document.querySelector('[role=separator]').focus() || true")
    inspector.browser.key("ArrowRight", "ArrowRight")
    assert inspector.page("document.querySelector('.t-list').getBoundingClientRect().width") == before + 32
    inspector.page("location.reload() || true")
    assert inspector.page(READY)
    assert inspector.page("Math.round(document.querySelector('.t-list').getBoundingClientRect().width)") == round(
        before + 32
    )


@pytest.mark.slow
def test_the_inspector_going_away_is_told(browser: Browser):
    with inspector_process(GREENHOUSE) as (address, _):
        browser.look(1440, 900)
        browser.open(address)
        assert browser.page(READY)
    assert browser.page("document.querySelector('.banner')?.innerText.includes('The inspector went away')")


LONG_NUMBERS = '''
from defserve import Server

server = Server("numbers")

@server.tool
def add_one(number: int) -> dict[str, int]:
    """Add one."""
    return {"sum": number + 1}

'''


def test_a_long_integer_is_sent_as_typed_and_shown_as_it_came(browser: Browser, tmp_path: Path):
    (tmp_path / "numbers_server.py").write_text(LONG_NUMBERS)
    with inspector_process(str(tmp_path / "numbers_server.py")) as (address, _):
        inspector = Inspector(browser, address)
        browser.look(1440, 900)
        browser.open(f"{address}#tools/add_one")
        assert inspector.page("document.querySelector('.t-form input') !== null")
        for number in (9007199254740993, -(2**64), 41):
            inspector.fill(".t-form input", str(number))
            browser.key("Control+Enter")
            assert inspector.page(f"document.querySelector('.t-res .body')?.innerText.includes('{number + 1}')")


UPLOADS = '''
from typing import Annotated
from defserve import Server
from defserve.guard import FileTypes, Upload

server = Server("uploads")

@server.tool
async def tell(file: Annotated[Upload, FileTypes("text/*")]) -> str:
    """Tell what a file is."""
    return f"{file.name}, {file.media_type}, {(await file.read()).decode()}"
'''
CHOOSE = """(() => {
  const input = document.querySelector('.t-form input[type=file]'), files = new DataTransfer();
  files.items.add(new File(['a;b'], 'Plan, für $& 2.csv', { type: 'text/csv' }));
  input.files = files.files;
  input.dispatchEvent(new Event('change', { bubbles: true }));
  return true;
})()"""


def test_a_chosen_file_keeps_its_name_and_its_type(browser: Browser, tmp_path: Path):
    (tmp_path / "uploads_server.py").write_text(UPLOADS, encoding="utf-8")
    with inspector_process(str(tmp_path / "uploads_server.py")) as (address, _):
        inspector = Inspector(browser, address)
        browser.look(1440, 900)
        browser.open(f"{address}#tools/tell")
        assert inspector.page("document.querySelector('.t-form input[type=file]') !== null")
        inspector.page(CHOOSE)
        assert inspector.page("document.querySelector('.t-form').innerText.includes('für')")
        browser.key("Control+Enter")
        said = "document.querySelector('.t-res .body')?.innerText"
        assert inspector.page(f"{said}?.includes('Plan, für __ 2.csv, text/csv, a;b')")
