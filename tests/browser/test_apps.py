"""Views in a real browser, in the hands of a host that others have written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from defserve import Server
from tests.at_address import fresh
from tests.effort import slow

from .inspecting import TAKES_PICTURES
from .origins import anything, origin

if TYPE_CHECKING:
    from .chromium import Browser
    from .conftest import Show

pytestmark = pytest.mark.browser

# The picture in docs/apps.md: `make pictures` takes it again.
PICTURE = Path(__file__).parents[2] / "docs" / "apps.png"
DEGREES = "[...document.querySelectorAll('li')].map(item => item.textContent).join(' ')"


@pytest.mark.pictures
def test_a_view_shows_the_result_of_its_tool_and_a_click_calls_another(browser: Browser, show: Show, tmp_path: Path):
    show(fresh("weather_app"), "forecast", city="Oslo")
    assert browser.frame(DEGREES) == "4°Mon 7°Tue 9°Wed 6°Thu 3°Fri"
    assert browser.frame("document.querySelector('h1').textContent") == "Oslo"
    assert browser.page("seen.initialized && seen.calls.length === 0")
    # The bridge tells the host its size and adopts the host's theme.
    assert browser.page("seen.sizes.at(-1) > 150 && seen.sizes.at(-1)") < 400
    assert browser.frame("getComputedStyle(document.querySelector('h1')).color") == "rgb(1, 2, 3)"
    browser.shot(PICTURE if TAKES_PICTURES else tmp_path / "apps.png")

    browser.click("button")
    assert browser.frame(f"{DEGREES}.startsWith('39°') && {DEGREES}") == "39°Mon 45°Tue 48°Wed 43°Thu 37°Fri"
    assert browser.page("seen.calls") == [{"name": "convert", "arguments": {"city": "Oslo", "unit": "F"}}]


@pytest.mark.slow
def test_a_view_that_is_mounted_under_a_prefix_finds_its_tools(browser: Browser, show: Show):
    parent = Server("parent", "1")
    parent.mount(fresh("weather_app"), prefix="home")
    app = show(parent, "home_forecast", city="Lagos")
    assert app.uri == "ui://home/weather-app/forecast"
    assert browser.frame(f"{DEGREES}.startsWith('29°')")
    browser.click("button")
    assert browser.frame(f"{DEGREES}.startsWith('84°')")
    assert browser.page("seen.calls[0].name") == "home_convert"
    assert browser.frame("host.resources().then(all => all.map(each => each.uri))") == ["ui://weather-app/forecast"]


# Every road by which a page reaches another origin. Each ends in `allowed` or `blocked`.
REACH = """
const done = (kind, promise) => promise.then(() => "allowed", () => "blocked").then(how => found[kind] = how);
const loaded = (name, attributes) => new Promise((resolve, reject) => {
  const element = Object.assign(document.createElement(name), attributes);
  element.onload = resolve;
  element.onerror = reject;
  document.body.append(element);
});
const reach = origin => {
  window.found = {};
  const socket = new Promise((resolve, reject) => {
    const one = new WebSocket(origin.replace("http", "ws") + "/socket");
    one.onerror = reject;
  });
  return Promise.all([
    done("fetch", fetch(origin + "/fetch")),
    done("image", loaded("img", { src: origin + "/image.svg" })),
    done("script", loaded("script", { src: origin + "/script.js" })),
    done("style", loaded("link", { rel: "stylesheet", href: origin + "/style.css" })),
    done("socket", socket),
    Promise.resolve(navigator.sendBeacon(origin + "/beacon", "x")),
  ]).then(() => JSON.stringify(found));
};
"""
FRAME = "loaded('iframe', {{src: '{0}/frame.html'}}); new Promise(resolve => setTimeout(() => resolve(true), 300))"


def reaching(**csp: list[str]) -> Server:
    server = Server("reaching", "1")

    @server.app("ui://reaching/view", csp=csp)  # pyright: ignore[reportArgumentType]
    def view() -> str:
        return f"<html><head><title>x</title></head><body><script>{REACH}</script></body></html>"

    @server.tool(app=view)
    def show() -> str:
        return "shown"

    return server


def test_a_policy_blocks_every_origin_that_a_view_does_not_name(browser: Browser, show: Show):
    with origin(anything) as named, origin(anything) as other:
        show(reaching(connect=[named.url, named.url.replace("http", "ws")], resource=[named.url]), "show")
        allowed = json.loads(browser.frame(f"reach('{named.url}')"))
        assert allowed == {
            "fetch": "allowed", "image": "allowed", "script": "allowed", "style": "allowed", "socket": "blocked"
        }  # fmt: skip
        blocked = json.loads(browser.frame(f"reach('{other.url}')"))
        assert set(blocked.values()) == {"blocked"} and blocked.keys() == allowed.keys()
        assert browser.frame(FRAME.format(other.url))
        # Nothing of it left the browser.
        assert other.asked == []
        assert {"/socket", "/fetch", "/image.svg", "/script.js", "/style.css"} <= set(named.asked)


@pytest.mark.slow
def test_a_view_that_names_nothing_reaches_nothing(browser: Browser, show: Show):
    with origin(anything) as other:
        show(reaching(), "show")
        assert set(json.loads(browser.frame(f"reach('{other.url}')")).values()) == {"blocked"}
        assert browser.frame(FRAME.format(other.url))
        assert other.asked == []


def test_a_view_cannot_call_a_tool_that_is_for_the_model_alone(browser: Browser, show: Show):
    server = reaching()
    ran: list[str] = []

    @server.tool(visible_to="model")
    def pay() -> str:
        ran.append("pay")
        return "paid"

    show(server, "show")
    assert (
        browser.frame("host.call('pay').then(() => 'paid', error => error.message)") == "Views may not call this tool"
    )
    assert ran == []


@pytest.mark.slow
def test_a_host_can_end_a_view_and_the_view_hears_of_it(browser: Browser, show: Show):
    show(reaching(), "show")
    assert browser.frame("host.on('teardown', () => { window.ended = true }); true")
    assert browser.page("seen.initialized && teardown().then(() => true)")
    assert browser.frame("window.ended")


def counter(script: str | None) -> Server:
    """A view with a bridge of its own, or with ours (None)."""
    server, count = Server("counter", "1"), {"value": 1}
    ours = """const show = counter => { document.querySelector("output").textContent = counter.value; };
      host.on("result", show); document.querySelector("button").onclick = async () => show(await host.call("more"));"""

    @server.app("ui://counter/view", bridge=script is None)
    def view() -> str:
        return f"<output></output><button>More</button><script type=module>{script or ours}</script>"

    @server.tool(app=view)
    def show() -> dict[str, int]:
        return count

    @server.tool(visible_to="app")
    def more() -> dict[str, int]:
        count["value"] += 1
        return count

    return server


@pytest.mark.parametrize("bridge", [slow("ours"), "npm"])
@pytest.mark.parametrize("host", ["ours", "npm"])
def test_each_host_shows_each_kind_of_view(
    browser: Browser, show: Show, scripts: dict[str, str], bridge: str, host: str
):
    script = scripts["view.js"].replace("</script", "<\\/script") if bridge == "npm" else None
    app = show(counter(script), "show", host="relay" if host == "ours" else "")
    output = "document.querySelector('output').textContent"
    assert browser.frame(output) == "1"
    browser.click("button")
    assert browser.frame(f"{output} === '2' && {output}") == "2"
    if host == "ours":
        methods = [method for method, _ in app.received]
        # Each message goes to the server as a request of its own, and requests may overtake each other.
        assert methods[0] == "ui/initialize" and "ui/notifications/initialized" in methods
        assert "ui/notifications/size-changed" in methods and "tools/call" in methods


# -- What hosts of ext-apps offer ------------------------------------------------------------------------------


def helped(**options: Any) -> Server:
    """A view that does nothing by itself: tests press its helpers."""
    server = Server("helped", "1")

    @server.app("ui://helped/view", **options)
    def view() -> str:
        return "<body><p>Ready</p></body>"

    @server.tool(app=view)
    def show() -> str:
        return "shown"

    @server.resource("notes://today", mime_type="text/plain")
    def today() -> str:
        """The notes of today."""
        return "water the beans"

    return server


USES: dict[str, tuple[str, Any]] = {
    "open": ("host.open('https://example.com')", {"url": "https://example.com"}),
    "message": ("host.say('hi')", {"role": "user", "content": [{"type": "text", "text": "hi"}]}),
    "remember": ("host.remember({ cart: 3 })", {"structuredContent": {"cart": 3}}),
    "display": ("host.display('fullscreen')", {"mode": "fullscreen"}),
    "log": ("host.log('hm')", {"level": "info", "data": "hm"}),
    "download": (
        "host.download('a b.csv', new Uint8Array([1, 255]), 'text/csv')",
        {
            "contents": [
                {
                    "type": "resource",
                    "resource": {"uri": "file:///a%20b.csv", "mimeType": "text/csv", "blob": "Af8="},
                }
            ]
        },
    ),
    "sample": (
        "host.sample({ messages: [], maxTokens: 9 }).then(answer => answer.content.text === '42')",
        {"messages": [], "maxTokens": 9},
    ),
}  # fmt: skip


def test_every_helper_reaches_the_host(browser: Browser, show: Show):
    show(helped(), "show")
    for kind, (script, params) in USES.items():
        assert browser.frame(f"Promise.resolve({script}).then(() => true)"), kind
        assert browser.page(f"seen.asked.find(([kind]) => kind === '{kind}')?.[1]") == params
    assert browser.frame("host.resources().then(all => all.map(each => each.uri))") == [
        "ui://helped/view",
        "notes://today",
    ]
    assert browser.frame("host.read('notes://today').then(([one]) => one.text)") == "water the beans"
    assert browser.frame("host.close() ?? true")
    assert browser.page("seen.asked.some(([kind]) => kind === 'close')")


def test_what_a_host_does_not_offer_is_refused_in_the_view_and_never_sent(browser: Browser, show: Show):
    show(helped(), "show", host="#bare")
    assert (
        browser.frame("Promise.all([host.can('serverTools'), host.can('downloadFile')]).then(String)") == "true,false"
    )
    for kind in ("open", "remember", "download", "sample"):
        assert browser.frame(f"({USES[kind][0]}).then(() => 'sent', error => error.message)").startswith(
            "This host does not offer "
        )
    assert browser.frame("host.read('notes://today').catch(error => error.missing)") == "serverResources"
    assert browser.frame("host.display('pip')") == "inline"
    assert browser.frame("host.log('hm').then(() => true)")
    # The example host takes messages without saying so.
    assert browser.frame("host.say('hi').then(() => true)")
    assert browser.page("seen.asked.map(([kind]) => kind)") == ["message"]


def test_a_host_calls_the_tools_of_a_view(browser: Browser, show: Show):
    show(helped(display_modes=["inline"]), "show")
    assert browser.page("seen.can") == {"tools": {"listChanged": True}, "availableDisplayModes": ["inline"]}
    assert browser.frame(
        "host.tool('move', { description: 'Move the piece.' }, ({ to }) => { if (!to) throw new Error('where to?');"
        " return { at: to }; }) ?? true"
    )
    assert browser.page("viewTools().then(tools => tools.map(tool => tool.description))") == ["Move the piece."]
    assert browser.page("callView('move', { to: 'e4' })") == {
        "content": [{"type": "text", "text": '{"at":"e4"}'}],
        "structuredContent": {"at": "e4"},
    }
    assert browser.page("callView('move', {})") == {
        "content": [{"type": "text", "text": "where to?"}],
        "isError": True,
    }
    assert browser.page("callView('fly', {}).catch(error => error.message)").endswith("Unknown tool: fly")


@pytest.mark.slow
def test_a_view_adopts_fonts_insets_and_the_room_it_has(browser: Browser, show: Show):
    show(helped(), "show")
    assert browser.frame("document.documentElement.style.maxHeight") == "900px"
    assert browser.frame("document.documentElement.style.getPropertyValue('--safe-area-top')") == "7px"
    assert browser.frame("[...document.querySelectorAll('style')].some(each => each.textContent.includes('Housefont'))")
    assert browser.page("seen.width > 100")


@pytest.mark.parametrize(("host", "stays"), [("#storage", True), ("", False), ("relay", True)])
def test_what_a_view_saves_is_there_after_a_reload(browser: Browser, show: Show, host: str, stays: bool):
    """In a frame with an origin, without one, and in a host that keeps it for the view."""
    app = show(helped(), "show", host=host)
    assert browser.frame("host.state.load().then(state => state === null)")
    assert browser.frame("host.state.save({ page: 7 }).then(String)") == str(stays).lower()
    assert browser.frame("(window.isOld = true)") and browser.page("reload()")
    assert browser.frame("!window.isOld && !!window.host")
    assert browser.frame("host.state.load().then(state => JSON.stringify(state))") == (
        '{"page":7}' if stays else "null"
    )
    assert UUID(app.result["_meta"]["viewUUID"]).version == 4


@pytest.mark.slow
def test_the_forecast_is_in_the_same_unit_after_a_reload(browser: Browser, show: Show):
    show(fresh("weather_app"), "forecast", host="#storage", city="Oslo")
    assert browser.frame(f"{DEGREES}.startsWith('4°')")
    browser.click("button")
    assert browser.frame(f"{DEGREES}.startsWith('39°') && (window.isOld = true)") and browser.page("reload()")
    assert browser.frame(f"!window.isOld && {DEGREES}.startsWith('39°')")
    assert browser.page("seen.calls.length === 1")


@pytest.mark.slow
def test_the_storage_of_an_origin_holds_the_newest_fifty_states(browser: Browser, show: Show):
    show(helped(), "show", host="#storage")
    assert browser.frame("host.ready.then(() => localStorage.setItem('dev.defserve/view-statex', 'junk') ?? true)")
    old = "Object.entries(Array(60).fill()).forEach(([at]) => localStorage.setItem(`dev.defserve/view-state${at}`, "
    assert browser.frame(f"{old} JSON.stringify({{ at: +at, value: 1 }}))) ?? true")
    assert browser.frame("host.state.save('new').then(() => localStorage.length)") == 50
    assert browser.frame("host.state.load()") == "new"
