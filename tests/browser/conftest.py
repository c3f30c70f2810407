"""A host in a browser: the page of npm's ext-apps on one origin, the view on another."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from defserve.testing import SyncClient
from defserve.testing.sync_parts import SyncApp

from .chromium import Browser, bundled, found
from .origins import Origin, Reply, as_json, origin

PAGE = (
    '<!doctype html><meta charset="utf-8"><title>Host</title>'
    "<style>body{margin:0;padding:16px;background:#f4f4f5;font:14px system-ui,sans-serif}"
    "p{margin:0 0 8px;color:#52525b}iframe{display:block;width:100%;height:0;border:1px solid #d4d4d8;"
    "border-radius:8px;background:#fff;box-sizing:border-box}</style>"
    "<p>How will the weather be in Oslo?</p><main></main><script type='module' src='/host.js'></script>"
)
# A host that hands every message of its frame to `RenderedApp.answer`.
RELAY = """<!doctype html><main></main><script type="module">
const { view } = await (await fetch("/app")).json();
let frame;
addEventListener("message", async ({ source, data }) => {
  if (source !== frame.contentWindow) return;
  const answers = await (await fetch("/answer", { method: "POST", body: JSON.stringify(data) })).json();
  for (const answer of answers) source.postMessage(answer, "*");
});
window.reload = () => {
  frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts");
  frame.src = view;
  document.querySelector("main").replaceChildren(frame);
  return true;
};
reload();
</script>"""

Show = Callable[..., SyncApp]


@pytest.fixture(scope="session")
def scripts() -> dict[str, str]:
    """The scripts of npm's host half and view half, by file name."""
    return bundled()


@pytest.fixture(scope="session")
def chromium(scripts: dict[str, str]) -> Iterator[Browser]:
    browser = Browser(found())
    yield browser
    browser.close()


@pytest.fixture
def browser(chromium: Browser) -> Browser:
    """A page with nothing in it: no storage, no cookies, no tabs, whatever the test before left."""
    chromium.begin()
    return chromium


@pytest.fixture
def show(browser: Browser, scripts: dict[str, str]) -> Iterator[Show]:
    """`show(server, "tool", argument=…)` opens the host, which shows the view of a tool.

    With `host="relay"` the host is not npm's, but ours.
    """
    with ExitStack() as stack:

        def show(server: Any, tool: str, host: str = "", **arguments: Any) -> SyncApp:
            client = stack.enter_context(SyncClient(server, over="http"))
            app = client.render(tool, **arguments)
            sandbox = stack.enter_context(origin(lambda path, _: _view(path, app)))
            page = stack.enter_context(origin(lambda path, body: _host(path, body, app, sandbox, scripts)))
            browser.open(f"{page.url}/{host}")
            return app

        yield show


def _view(path: str, app: SyncApp) -> Reply | None:
    return ("text/html", app.html.encode(), {"Content-Security-Policy": app.policy}) if path == "/view" else None


def _host(path: str, body: bytes, app: SyncApp, sandbox: Origin, scripts: dict[str, str]) -> Reply | None:
    if path in ("/", "/relay"):
        return "text/html", (PAGE if path == "/" else RELAY).encode(), {}
    if path == "/host.js":
        return "text/javascript", scripts["host.js"].encode(), {}
    if path == "/app":
        shown = {"view": f"{sandbox.url}/view", "permissions": app.permissions}
        return as_json({**shown, "arguments": app.target.arguments, "result": app.result})
    return as_json(app.answer(json.loads(body))) if path == "/answer" else None
