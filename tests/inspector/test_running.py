"""The inspector as a command runs it, and the origin of views beside it."""

from __future__ import annotations

import asyncio
import webbrowser

import pytest

from defserve.client.links.endpoint import HttpEndpoint
from defserve.errors import UsageError
from defserve.inspector import app_views as kept_views
from defserve.inspector import page_server as room
from defserve.inspector.app_views import MAX_VIEWS, ViewDocument, ViewDocumentServer
from defserve.inspector.page_server import InspectorWebOptions, RunningInspector, run_inspector
from tests.inspector.conftest import target_of
from tests.inspector.greenhouse import server
from tests.waiting import until

pytestmark = pytest.mark.anyio

POLICY = "default-src 'self'; sandbox allow-scripts; frame-ancestors http://127.0.0.1:{0} http://localhost:{0}"


async def fetched(
    address: str, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], str]:
    endpoint = HttpEndpoint(address, {})
    response = await endpoint.send(method, headers or {})
    body = await response.read_body_start(100_000)
    await endpoint.aclose()
    return response.status, dict(response.headers), body.decode()


@pytest.mark.parametrize("browser", [True, False])
async def test_the_address_is_printed_and_the_browser_opened_if_wanted(
    browser: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    opened = list[str]()
    monkeypatch.setattr(webbrowser, "open", opened.append)
    ending: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(run_inspector(target_of(server), InspectorWebOptions(browser=browser), ending))
    printed = list[str]()
    await until(lambda: bool(printed.extend(capsys.readouterr().out.splitlines()) or printed))
    await until(lambda: bool(opened) or not browser)
    ending.set_result(130)
    assert await task == 130
    assert len(opened) == browser and not any("token" in url for url in opened)
    assert len(printed) == 1 and printed[0].startswith("http://127.0.0.1:") and "/?token=" in printed[0]


async def test_a_port_that_is_taken_is_told(running: RunningInspector):
    with pytest.raises(UsageError, match="cannot listen"):
        async with room.serve_inspector(target_of(server), running.access.port):
            pass


async def test_a_view_has_an_origin_and_a_policy_of_its_own(running: RunningInspector):
    views = running.inspection.views
    address = views.add(ViewDocument("<p>hello</p>", "default-src 'self'"))
    assert address.startswith(views.origin) and str(running.access.port) not in address
    status, headers, body = await fetched(address)
    assert (status, headers["content-security-policy"], body) == (
        200,
        POLICY.format(running.access.port),
        "<p>hello</p>",
    )
    assert "set-cookie" not in headers and headers["content-type"].startswith("text/html")
    for other, method in ((f"{views.origin}/", "GET"), (f"{address}x", "GET"), (address, "POST")):
        status, headers, body = await fetched(other, method)
        assert status == 404 and headers["content-security-policy"].startswith("default-src 'none'; sandbox")
        assert "hello" not in body
    # A browser gets it for a frame, and for nothing else: in a tab of its own it would be a page of this machine.
    assert [(await fetched(address, headers={"sec-fetch-dest": to}))[0] for to in ("iframe", "document")] == [200, 404]
    for _ in range(MAX_VIEWS):
        views.add(ViewDocument("", ""))
    assert (await fetched(address))[0] == 404
    views.page_port = 0
    assert "frame-ancestors 'none'" in (await fetched(address))[1]["content-security-policy"]


def test_views_are_kept_up_to_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(kept_views, "MAX_BYTES", 10)
    views = ViewDocumentServer()
    for html in ("\ud800", "x" * 6, "y" * 6, "z" * 20):
        views.add(ViewDocument(html, ""))
    assert [body for body, _ in views._views.values()] == [b"z" * 20]  # pyright: ignore[reportPrivateUsage]


async def test_there_is_no_socket_at_the_origin_of_views(running: RunningInspector):
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidStatus

    with pytest.raises(InvalidStatus):
        async with connect(f"ws{running.inspection.views.origin[4:]}/socket", proxy=None):
            pass
