"""The site of the documentation in a browser: search, contrast, and nothing asked from anybody else."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rows import for_each_row
from tests.site.__main__ import build
from tests.site.pages import Pages
from tests.site.places import SITE

from .accessibility import EVERY, UNREACHABLE, serious
from .chromium import Browser
from .origins import Origin, Reply, anything, origin

pytestmark = pytest.mark.browser

# One of each kind: the first page, tabs and notes, wide tables, pictures, the reference, charts, diagrams, recipes, the
# playground in a page and by itself, and what is shown for an address that leads nowhere.
KINDS = (
    "index.html",
    "learn/first-server.html",
    "compatibility.html",
    "inspector.html",
    "reference/index.html",
    "reference/a-server.html",
    "benchmarks.html",
    "permissions.html",
    "protocols.html",
    "cookbook/index.html",
    "playground.html",
    "404.html",
)
PLAYGROUND = [f"playground/index.html#{panel}" for panel in ("tools/readings", "wire", "state")]
LOOKS = [(width, scheme) for width in (390, 768, 1024, 1440) for scheme in ("light", "dark")]
# What is left of a phone and of a window if everything is twice as large.
ZOOMED = (195, 720)
FITS = "document.documentElement.scrollWidth <= innerWidth"
# The dialog of the search is in a shadow root.
DIALOG = "[...document.querySelectorAll('*')].find(each => each.shadowRoot?.querySelector('dialog')).shadowRoot"


@pytest.fixture(scope="module")
def site() -> Iterator[Origin]:
    pytest.importorskip("zensical", reason="the site needs its generator: make docs installs it")
    assert build(Pages()) == []

    def reply(path: str, _: bytes) -> Reply | None:
        file = SITE / path.partition("?")[0].lstrip("/")
        kind = mimetypes.guess_type(file.name)[0] or "text/plain"
        return (kind, file.read_bytes(), {}) if file.is_file() else None

    with origin(reply) as served:
        yield served


def found(browser: Browser, question: str) -> list[str]:
    """The pages of the first results for what somebody puts into the field, in their order."""
    browser.press(".md-search__button")
    field = f"{DIALOG}.querySelector('input')"
    assert browser.page(f"!!{field}")
    # At once: what the first letters find is not the answer.
    put = f"field.focus(); field.value = {question!r}; field.dispatchEvent(new Event('input', {{ bubbles: true }}))"
    assert browser.page(f"(field => {{ {put}; return true; }})({field})")
    links = browser.page(f"[...{DIALOG}.querySelectorAll('[role=option]')].map(each => each.href).join(' ')")
    return list(dict.fromkeys(Path(link.partition("?")[0].partition("#")[0]).stem for link in (links or "").split()))


def test_the_search_takes_a_question(browser: Browser, site: Origin):
    browser.look(1440, 900)
    browser.open(f"{site.url}/index.html")
    assert "elicitation" in found(browser, "How do I ask the user a question?")
    assert browser.complaints() == []


def test_the_search_shows_a_page_that_is_about_the_question_and_has_its_words_nowhere(browser: Browser, site: Origin):
    browser.look(1440, 900)
    browser.open(f"{site.url}/index.html")
    assert found(browser, "slack bot")[0] in ("channels", "chat")
    assert browser.complaints() == []


def test_the_results_are_read_and_opened_by_the_keyboard(browser: Browser, site: Origin):
    browser.look(1440, 900)
    browser.open(f"{site.url}/index.html")
    assert "authentication" in found(browser, "rate limits")
    selected = f"{DIALOG}.querySelector('[aria-selected=true]')"
    first = browser.page(f"{selected}.href")
    assert browser.page(f"{selected}.querySelector('mark') !== null")
    browser.key("ArrowDown")
    second = browser.page(f"{selected}.href")
    assert second != first
    browser.key("Enter")
    assert browser.page(f"location.href === {second!r} && document.readyState === 'complete'")
    assert browser.complaints() == []


def test_the_terminal_of_the_first_page_plays_and_can_be_stopped(browser: Browser, site: Origin):
    browser.look(1440, 900)
    browser.open(f"{site.url}/index.html")
    button = "document.querySelector('.terminal > button')"
    states = "new Set(document.querySelector('.cast').getAnimations({ subtree: true }).map(each => each.playState))"
    assert browser.page(f"{button}?.textContent") == "Pause"
    browser.press(".terminal > button")
    assert browser.page(f"{button}.textContent === 'Play' && !{states}.has('running')")
    browser.page(
        "document.querySelector('.cast').getAnimations({ subtree: true }).forEach(each => each.finish()) ?? true"
    )
    assert browser.page(f"{button}.textContent === 'Play again'")
    browser.press(".terminal > button")
    assert browser.page(f"{button}.textContent === 'Pause' && {states}.has('running')")


def test_the_first_screen_says_what_it_is_how_to_install_it_and_why(browser: Browser, site: Origin):
    browser.look(1440, 900)
    browser.open(f"{site.url}/index.html")
    seen = "each => each.getBoundingClientRect().bottom <= innerHeight"
    assert browser.page(f"[...document.querySelectorAll('.first, .figures')].every({seen})")
    install = browser.page("document.querySelector('.first .tabbed-block code').textContent.trim()")
    assert install.startswith("pip install ")


def test_the_search_works_in_a_folder_that_was_downloaded(browser: Browser, site: Origin):
    browser.look(1440, 900)
    browser.open(f"{SITE.as_uri()}/index.html")
    assert "inspector" in found(browser, "inspector")
    assert [url for url in browser.asked() if not url.startswith(("file:", "data:", "blob:", "about:"))] == []


def test_a_script_that_wants_something_from_elsewhere_does_not_get_it(browser: Browser, site: Origin):
    with origin(anything) as elsewhere:
        browser.open(f"{site.url}/index.html")
        assert browser.page(f"fetch('{elsewhere.url}/x.js').then(() => 'asked', () => 'refused')") == "refused"
        load = "new Promise(end => { each.onload = () => end('loaded'); each.onerror = () => end('refused'); })"
        script = f"const each = document.createElement('script'); each.src = '{elsewhere.url}/x.js';"
        assert browser.page(f"(() => {{ {script} document.head.append(each); return {load}; }})()") == "refused"
        assert elsewhere.asked == []


@pytest.mark.slow
@for_each_row("width, scheme", LOOKS, every=2)
def test_everybody_can_read_it_and_nobody_else_is_asked(width: int, scheme: str, browser: Browser, site: Origin):
    browser.begin()
    browser.look(width, 900, scheme)
    for page in KINDS:
        browser.open(f"{site.url}/{page}")
        assert browser.page("document.body.dataset.mdColorScheme") == {"light": "default", "dark": "slate"}[scheme]
        # The Copy buttons are made by a script, and then are no landmarks any more.
        assert browser.page("!document.querySelector('.md-code__nav:not([role])')")
        assert serious(browser, EVERY) == [], page
        assert browser.complaints() == [], page
        assert browser.page(FITS), f"{page} is wider than {width}"
        assert [url for url in browser.asked() if not url.startswith((site.url, "data:"))] == [], page
    for page in PLAYGROUND:
        browser.open("about:blank")
        browser.open(f"{site.url}/{page}")
        assert browser.page("document.querySelector('main')?.innerText.length > 20")
        assert serious(browser, EVERY) == [], page
        assert browser.page(FITS), f"{page} is wider than {width}"


@pytest.mark.slow
@for_each_row("width", ZOOMED)
def test_twice_as_large_it_needs_no_scrolling_to_the_side(width: int, browser: Browser, site: Origin):
    browser.begin()
    browser.look(width, 450)
    for page in (*KINDS, *PLAYGROUND):
        browser.open("about:blank")
        browser.open(f"{site.url}/{page}")
        assert browser.page("document.readyState === 'complete'") and browser.page(FITS), page
        assert browser.page(UNREACHABLE) == "none", page


@pytest.mark.slow
@for_each_row("width, scheme", LOOKS, every=2)
def test_everybody_can_use_the_search(width: int, scheme: str, browser: Browser, site: Origin):
    browser.begin()
    browser.look(width, 900, scheme)
    browser.open(f"{site.url}/learn/first-server.html")
    assert browser.page(f"{DIALOG}.querySelector('input').placeholder === 'Search or ask'")
    for typed, shown in (("", "true"), ("image", f"{DIALOG}.querySelector('[role=option]')")):
        browser.key("Control+k")
        browser.type(typed)
        assert browser.page(f"!!{shown} && {DIALOG}.querySelector('dialog').open")
        assert browser.page(f"{DIALOG}.querySelector('dialog').getAnimations({{ subtree: true }}).length === 0")
        assert serious(browser, EVERY) == [], typed
        browser.key("Escape")


def test_a_page_that_is_missing_offers_the_search(browser: Browser, site: Origin):
    browser.look(1440, 900)
    browser.open(f"{site.url}/404.html")
    assert browser.page(f"!!{DIALOG}.querySelector('input')")
    browser.press(".missing-search")
    assert browser.page(f"{DIALOG}.querySelector('dialog').open")


def test_the_playground_shows_a_recorded_session_and_refuses_the_rest(browser: Browser, site: Origin):
    browser.begin()
    browser.look(1440, 900)
    browser.open(f"{site.url}/playground/index.html")
    # It opens on a call with its result, and another call has a number of its own.
    rows = "document.querySelectorAll('.t-res .scrolls tbody tr').length"
    assert browser.page(f"{rows} === 4 && document.querySelector('.t-form .toolname').textContent === 'readings'")
    tabs: int = browser.page("document.querySelectorAll('.t-res .no-m [role=tab]').length")
    browser.press(".t-form .btn.pri")
    assert browser.page(f"document.querySelectorAll('.t-res .no-m [role=tab]').length === {tabs + 1} && {rows} === 4")
    browser.page("location.hash = '#wire', true")
    assert browser.page("document.querySelector('main').innerText.includes('tools/call')")
    browser.page("location.hash = '#state', true")
    assert browser.page("document.querySelectorAll('.graph [role=row]').length") == 4
    browser.press(".moves .btn.pri")
    assert browser.page("document.querySelector('main').innerText.includes('This is a recording')")
    assert browser.complaints() == []
    assert [url for url in browser.asked() if not url.startswith((site.url, "data:"))] == []
