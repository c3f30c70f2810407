"""The inspector and servers that others have written, in a real browser: a panel works, or says what is not there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.peers.packages import NotInstalled, Package

from .accessibility import serious
from .inspecting import inspector_process

if TYPE_CHECKING:
    from .chromium import Browser

# They are installed first.
pytestmark = [pytest.mark.browser, pytest.mark.slow]

HERE = Path(__file__).parent
EVERYTHING = Package("npm", "@modelcontextprotocol/server-everything", "2026.8.31")
OFFICIAL = Package("pip", "mcp", "2.3.0")
MAIN, RESULT = "document.querySelector('main')?.innerText", "document.querySelector('.t-res')?.innerText"


class Served(NamedTuple):
    """Where an inspector of somebody's server is, a tool of it, what to type into its fields, and what it says then."""

    url: str
    tool: str
    typed: tuple[str, ...]
    says: str


def inspected(package: Package, script: str, *about: object) -> Iterator[Served]:
    try:
        package.install()
    except NotInstalled as error:
        pytest.skip(f"{package.name} {package.version} could not be installed: {error}")
    with inspector_process("--", str(package.program), script) as (address, _):
        yield Served(address, *about)  # pyright: ignore[reportArgumentType]


@pytest.fixture(scope="module", params=["everything", "official"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    if request.param == "official":
        yield from inspected(OFFICIAL, str(HERE / "official.py"), "add", ("2", "3"), "2 and 3 are 5")
    else:
        script = EVERYTHING.folder / "node_modules" / EVERYTHING.name / "dist" / "index.js"
        yield from inspected(EVERYTHING, str(script), "get-sum", ("2", "3"), "The sum of 2 and 3 is 5")


def opened(browser: Browser, served: Served, place: str) -> None:
    browser.look(1440, 900)
    browser.open("about:blank")
    browser.open(f"{served.url}#{place}")


def filled(browser: Browser, field: str, served: Served) -> None:
    assert browser.page(f"document.querySelector('{field}') && (document.querySelector('{field}').focus(), true)")
    for at, text in enumerate(served.typed):
        browser.key(*(["Tab"] if at else []), "Control+a")
        browser.type(text)


def test_tools_of_others_are_called_and_started(browser: Browser, served: Served):
    opened(browser, served, f"tools/{served.tool}")
    filled(browser, "#arg-a", served)
    browser.key("Control+Enter")
    assert browser.page(f"{RESULT}.includes({served.says!r})")
    opened(browser, served, "tasks")
    # Neither has tasks of the extension: it is a plain call, and the panel says so.
    assert browser.page("!!document.querySelector('#task-tool')")
    chosen = "document.querySelector('#task-tool')"
    browser.page(f"({chosen}.value = {served.tool!r}, {chosen}.dispatchEvent(new Event('change', {{bubbles: true}})))")
    filled(browser, "#task-a", served)
    browser.key("Control+Enter")
    assert browser.page(f"{RESULT}.includes({served.says!r}) && {RESULT}.includes('plain call')")
    assert serious(browser) == []
    assert browser.complaints() == []


def test_every_panel_opens_on_what_the_server_has(browser: Browser, served: Served):
    opened(browser, served, "tools")
    for panel in ("Resources", "Prompts", "Apps", "Tasks", "State", "Live", "Security", "Skills"):
        browser.page(f"(location.hash = '#{panel.lower()}') && true")
        assert browser.page(f"document.querySelector('main h1')?.textContent === {panel!r}"), panel
        assert browser.page("!document.querySelector('main .loading')"), panel
        assert browser.page(f"{MAIN}.length > 40 && !{MAIN}.includes('could not be drawn')"), panel
    assert browser.page(f"{MAIN}.includes('offers no skills')")
    assert browser.complaints() == []


def test_a_view_of_the_official_sdk_is_shown(browser: Browser, served: Served):
    opened(browser, served, "apps")
    if served.tool != "add":
        assert browser.page(f"{MAIN}.includes('No apps')")
        return
    filled(browser, "#app-a", served)
    browser.key("Control+Enter")
    assert browser.frame("document.querySelector('#said')?.textContent === '2 and 3 are 5'")
    assert browser.complaints() == []
