"""The inspector as a command runs it, and the origin of views beside it."""

from __future__ import annotations

import asyncio
import webbrowser

import pytest

from defserve.errors import UsageError
from defserve.host.links.endpoint import Endpoint
from defserve.inspector import running as room
from defserve.inspector.running import RunningInspector, WebOptions, run
from defserve.inspector.views import MOST_VIEWS, View
from tests.inspector.conftest import target_of
from tests.inspector.greenhouse import server
from tests.waiting import until

pytestmark = pytest.mark.anyio


async def fetched(address: str, method: str = "GET") -> tuple[int, dict[str, str], str]:
    endpoint = Endpoint(address, {})
    response = await endpoint.send(method, {})
    body = await response.start(100_000)
    await endpoint.aclose()
    return response.status, dict(response.headers), body.decode()


@pytest.mark.parametrize("browser", [True, False])
async def test_the_address_is_printed_and_the_browser_opened_if_wanted(
    browser: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    opened = list[str]()
    monkeypatch.setattr(webbrowser, "open", opened.append)
    ending: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(run(target_of(server), WebOptions(browser=browser), ending))
    printed = list[str]()
    await until(lambda: bool(printed.extend(capsys.readouterr().out.splitlines()) or printed))
    await until(lambda: bool(opened) or not browser)
    ending.set_result(130)
    assert await task == 130
    assert opened == (printed if browser else [])
    assert len(printed) == 1 and printed[0].startswith("http://127.0.0.1:") and "/?token=" in printed[0]


async def test_a_port_that_is_taken_is_told(running: RunningInspector):
    with pytest.raises(UsageError, match="cannot listen"):
        async with room.inspecting(target_of(server), running.access.port):
            pass


async def test_a_view_has_an_origin_and_a_policy_of_its_own(running: RunningInspector):
    views = running.inspection.views
    address = views.add(View("<p>hello</p>", "default-src 'self'"))
    assert address.startswith(views.origin) and str(running.access.port) not in address
    status, headers, body = await fetched(address)
    assert (status, headers["content-security-policy"], body) == (200, "default-src 'self'", "<p>hello</p>")
    assert "set-cookie" not in headers and headers["content-type"].startswith("text/html")
    for other, method in ((f"{views.origin}/", "GET"), (f"{address}x", "GET"), (address, "POST")):
        status, headers, body = await fetched(other, method)
        assert (status, headers["content-security-policy"]) == (404, "default-src 'none'")
        assert "hello" not in body
    for _ in range(MOST_VIEWS):
        views.add(View("", ""))
    assert (await fetched(address))[0] == 404


async def test_there_is_no_socket_at_the_origin_of_views(running: RunningInspector):
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidStatus

    with pytest.raises(InvalidStatus):
        async with connect(f"ws{running.inspection.views.origin[4:]}/socket", proxy=None):
            pass
