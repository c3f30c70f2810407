"""The site of the documentation in a browser: search, contrast, and nothing asked from anybody else."""

from __future__ import annotations

import json
import mimetypes
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rows import for_each_row
from tests.site.__main__ import build
from tests.site.pages import Pages
from tests.site.places import SITE
from tests.site.questions import ENOUGH, QUESTIONS, TOP

from .accessibility import serious
from .chromium import Browser
from .origins import Origin, Reply, origin

pytestmark = pytest.mark.browser

# One of each kind: the map, a guide, wide tables, pictures, a long page, a part of the reference, code, a list.
KINDS = (
    "index.html",
    "tutorial.html",
    "compatibility.html",
    "inspector.html",
    "troubleshooting.html",
    "reference/index.html",
    "reference/a-server.html",
    "examples/hello.py.html",
)
LOOKS = [(width, scheme) for width in (360, 1440) for scheme in ("light", "dark")]
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
    """The pages of the first results, each once, in their order."""
    # It says how many results there are, and nothing while there is no question.
    ask = f"""(async () => {{
        const root = {DIALOG}, input = root.querySelector("input"), began = Date.now();
        const type = text => {{ input.value = text; input.dispatchEvent(new Event("input", {{ bubbles: true }})); }};
        const until = async pattern => {{
            while (!pattern.test(root.querySelector("[role=status]")?.textContent ?? "") && Date.now() < began + 10000)
                await new Promise(done => setTimeout(done, 5));
        }};
        type("");
        await until(/^$/);
        type({json.dumps(question)});
        await until(/\\d|No results/);
        return JSON.stringify([...root.querySelectorAll("[role=option]")].map(each => each.href));
    }})()"""
    links: list[str] = json.loads(browser.page(ask) or "[]")
    return list(dict.fromkeys(Path(link.partition("?")[0].partition("#")[0]).stem for link in links))


def test_the_search_finds_the_page_that_answers(browser: Browser, site: Origin):
    browser.look(1440, 900)
    browser.open(f"{site.url}/index.html")
    browser.press(".md-search__button")
    assert browser.page(f"!!{DIALOG}.querySelector('input')")
    results = {question: found(browser, question)[:TOP] for question in QUESTIONS}
    missed = {question: results[question] for question, page in QUESTIONS.items() if page not in results[question]}
    assert len(QUESTIONS) - len(missed) >= ENOUGH, missed


def test_the_search_works_in_a_folder_that_was_downloaded(browser: Browser, site: Origin):
    browser.look(1440, 900)
    browser.open(f"{SITE.as_uri()}/index.html")
    browser.press(".md-search__button")
    assert browser.page(f"!!{DIALOG}.querySelector('input')")
    assert "inspector" in found(browser, "inspector")
    assert [url for url in browser.asked() if not url.startswith(("file:", "data:"))] == []


@for_each_row("width, scheme", LOOKS)
def test_everybody_can_read_it_and_nobody_else_is_asked(width: int, scheme: str, browser: Browser, site: Origin):
    browser.look(width, 900, scheme)
    for page in KINDS:
        browser.open(f"{site.url}/{page}")
        assert serious(browser) == [], page
        assert browser.complaints() == [], page
        assert browser.page("document.documentElement.scrollWidth <= innerWidth"), f"{page} is wider than {width}"
        assert [url for url in browser.asked() if not url.startswith((site.url, "data:"))] == [], page
