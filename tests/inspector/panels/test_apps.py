from __future__ import annotations

import asyncio
from typing import Any

import pytest

from defserve import Context, Server
from defserve.client.client import Client
from defserve.errors import PeerError, UsageError
from defserve.inspector import app_views as room
from defserve.inspector.inspection import Inspection
from defserve.inspector.panels import tools
from tests.at_address import fresh
from tests.inspector.conftest import Inspect, Run
from tests.waiting import until

pytestmark = pytest.mark.anyio

eras = pytest.mark.parametrize("era", ["handshake", "stateless"])


def said(method: str, id: int | None = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": method, "params": params, **({} if id is None else {"id": id})}


async def answered(inspection: Inspection, **answer: Any) -> dict[str, Any]:
    """Answer the question that comes next; what it was."""
    await until(lambda: bool(inspection.questions.waiting))
    (question,) = inspection.questions.waiting
    inspection.questions.answer_question(question["id"], answer)
    await until(lambda: not inspection.questions.waiting)
    return question


@eras
async def test_tools_with_a_view_and_their_views_are_listed(inspect: Inspect, do: Run, era: str):
    async with inspect(fresh("weather_app")) as inspection:
        listed = await do(inspection, "apps.list", era=era)
    assert [(each["name"], each["audience"], each["uri"]) for each in listed["tools"]] == [
        ("forecast", ["model", "app"], "ui://weather-app/forecast"),
        ("convert", ["app"], None),
    ]
    assert [each["uri"] for each in listed["views"]] == ["ui://weather-app/forecast"]


async def test_a_server_without_apps_has_an_empty_list(inspect: Inspect, do: Run, monkeypatch: pytest.MonkeyPatch):
    async def broken(self: Client) -> Any:
        raise PeerError("no list")

    async with inspect(Server("bare", "1")) as inspection:
        assert await do(inspection, "apps.list") == {"tools": [], "views": []}
        monkeypatch.setattr(Client, "capabilities", {"resources": {}})
        monkeypatch.setattr(Client, "resources", broken)
        assert await do(inspection, "apps.list") == {"tools": [], "views": []}


@eras
async def test_a_view_gets_its_input_and_result_and_calls_what_the_person_allows(inspect: Inspect, do: Run, era: str):
    async with inspect(fresh("weather_app")) as inspection:
        context = {"theme": "dark", "unknown": 1}
        shown = await do(inspection, "apps.show", era=era, tool="forecast", arguments={"city": "Oslo"}, context=context)
        assert shown["era"] == era and shown["text"] and shown["border"] is True and shown["reaches"] == []
        assert shown["url"].startswith("/") and "connect-src 'none'" in shown["policy"]

        async def tell(message: dict[str, Any]) -> Any:
            return (await do(inspection, "apps.message", app=shown["app"], message=message))["answers"]

        (begun,) = await tell(said("ui/initialize"))
        told = begun["result"]["hostContext"]
        assert told["theme"] == "dark" and "unknown" not in told
        assert told["availableDisplayModes"] == ["inline", "fullscreen"]
        assert (await do(inspection, "apps.context", app=shown["app"], context={"theme": "light"}))["answers"] == []
        given = await tell(said("ui/notifications/initialized", None))
        assert [each["method"].rpartition("/")[2] for each in given] == ["tool-input", "tool-result"]
        (changed,) = (await do(inspection, "apps.context", app=shown["app"], context={"theme": "dark"}))["answers"]
        assert changed["params"] == {"theme": "dark"}
        assert (await tell(said("ui/request-display-mode", mode="fullscreen")))[0]["result"] == {"mode": "fullscreen"}
        assert (await tell(said("ui/request-display-mode", mode="pip")))[0]["result"] == {"mode": "fullscreen"}

        call = said("tools/call", name="convert", arguments={"city": "Oslo", "unit": "F"})
        for answer, outcome in (({}, "error"), ({"yes": True}, "result"), ({"yes": True, "always": True}, "result")):
            asked = asyncio.create_task(tell(call))
            question = await answered(inspection, **answer)
            assert (question["kind"], question["calls"], question["tool"]) == ("view", "convert", "forecast")
            assert outcome in (await asked)[0]
        assert "result" in (await tell(call))[0]
        # What is not for views is refused, and nobody is asked.
        for name in ("nothing", None, 7):
            assert (await tell(said("tools/call", name=name)))[0]["error"]["code"] == -32602
        await do(inspection, "apps.close", app=shown["app"])
        with pytest.raises(UsageError, match="no longer shown"):
            await tell(call)


async def test_links_are_asked_for_and_words_for_the_model_are_only_shown(inspect: Inspect, do: Run):
    async with inspect(fresh("weather_app")) as inspection:
        shown = await do(inspection, "apps.show", tool="forecast", arguments={"city": "Oslo"})

        async def tell(method: str, **params: Any) -> Any:
            message = said(method, **params)
            (answer,) = (await do(inspection, "apps.message", app=shown["app"], message=message))["answers"]
            return "result" in answer

        asked = asyncio.create_task(tell("ui/open-link", url="https://example.com/a"))
        assert (await answered(inspection, yes=True))["url"] == "https://example.com/a"
        assert await asked
        for url in ("javascript:alert(1)", "file:///etc/passwd", "http://[", "", 7, "https://" + "a" * 9_000):
            assert not await tell("ui/open-link", url=url)
        assert await tell("ui/message", content=[]) and await tell("ui/update-model-context", content=[])
        assert await tell("ping") and not await tell("ui/unknown")
        # A view that is closed asks no longer.
        asked = asyncio.create_task(tell("ui/open-link", url="https://example.com/b"))
        await until(lambda: bool(inspection.questions.waiting))
        asked.cancel()
        await until(lambda: not inspection.questions.waiting)


@eras
async def test_a_view_that_has_changed_is_made_ready_again(
    inspect: Inspect, do: Run, era: str, monkeypatch: pytest.MonkeyPatch
):
    server, pages = Server("pages", "1"), ["<p>one"]

    @server.app("ui://pages/view")
    def view() -> str:
        return pages[-1]

    @server.tool(app=view)
    def look() -> str:
        return "looked"

    assert look
    async with inspect(server) as inspection:
        shown = await do(inspection, "apps.show", era=era, tool="look", arguments={})
        app = inspection.apps[shown["app"]]
        await do(inspection, "apps.message", app=shown["app"], message=said("ui/notifications/initialized", None))
        assert await do(inspection, "apps.reload", era=era, app=shown["app"]) == {}
        assert app.has_begun
        pages.append("<p>two")
        again = await do(inspection, "apps.reload", era=era, app=shown["app"])
        assert again["url"] != shown["url"] and again["policy"] == shown["policy"]
        assert "<p>two" in app.app.html and not app.has_begun
        monkeypatch.setattr(tools, "MAX_VIEW_BYTES", 10)
        pages.append("<p>three")
        with pytest.raises(PeerError, match="are not shown"):
            await do(inspection, "apps.reload", era=era, app=shown["app"])


async def test_a_file_is_saved_by_its_name_and_only_if_it_is_there_whole(inspect: Inspect, do: Run):
    async with inspect(fresh("weather_app")) as inspection:
        shown = await do(inspection, "apps.show", tool="forecast", arguments={"city": "Oslo"})

        async def save(*contents: Any) -> Any:
            message = said("ui/download-file", contents=list(contents))
            (answer,) = (await do(inspection, "apps.message", app=shown["app"], message=message))["answers"]
            return "result" in answer

        file = {"type": "resource", "resource": {"uri": "file:///a%20b.csv", "text": "1,2"}}
        for yes in (True, False):
            asked = asyncio.create_task(save(file))
            assert (await answered(inspection, yes=yes))["saves"] == ["a b.csv"]
            assert await asked is yes
        link = {"type": "resource_link", "uri": "https://example.com/x"}
        for contents in ((), (link,), (file, link), (7,), (file,) * 9):
            assert not await save(*contents)


async def test_what_a_view_sends_is_bounded(inspect: Inspect, do: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(room, "MAX_PENDING_REQUESTS", 2)
    monkeypatch.setattr(room, "MAX_APPS", 1)
    async with inspect(fresh("weather_app")) as inspection:
        first = await do(inspection, "apps.show", tool="forecast", arguments={"city": "Oslo"})
        shown = await do(inspection, "apps.show", tool="forecast", arguments={"city": "Lagos"})
        with pytest.raises(UsageError, match="no longer shown"):
            await do(inspection, "apps.message", app=first["app"], message=said("ping"))
        with pytest.raises(UsageError, match="bytes"):
            await do(inspection, "apps.message", app=shown["app"], message=said("ui/message", text="x" * 2_000_000))
        with pytest.raises(UsageError, match="not an object"):
            await do(inspection, "apps.message", app=shown["app"], message=[])
        link = said("ui/open-link", url="https://example.com")
        waiting = [asyncio.create_task(do(inspection, "apps.message", app=shown["app"], message=link)) for _ in "ab"]
        await until(lambda: len(inspection.questions.waiting) == 2)
        (refused,) = (await do(inspection, "apps.message", app=shown["app"], message=link))["answers"]
        assert "wait already" in refused["error"]["message"]
        # A notice is no request: it takes no room.
        note = said("ui/notifications/size-changed", None, height=3)
        assert (await do(inspection, "apps.message", app=shown["app"], message=note))["answers"] == []
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_progress_is_told_and_a_view_that_is_too_long_is_not_shown(
    inspect: Inspect, do: Run, monkeypatch: pytest.MonkeyPatch
):
    server = Server("slow", "1")

    @server.app("ui://slow/view", csp={"connect": ["http://127.0.0.1:1", "https://api.example.com"]})
    def view() -> str:
        return "<p>hello</p>"

    @server.tool(app=view)
    async def work(ctx: Context) -> str:
        ctx.progress(1, 2, "half")
        return "done"

    assert work
    parts = list[Any]()
    async with inspect(server) as inspection:
        inspection.views.page_port = 1
        shown = await do(inspection, "apps.show", parts, tool="work", arguments={})
        await until(lambda: bool(parts))
        assert parts[0]["message"] == "half"
        assert (shown["reaches"], shown["refused"]) == (["https://api.example.com"], ["http://127.0.0.1:1"])
        monkeypatch.setattr(tools, "MAX_VIEW_BYTES", 10)
        with pytest.raises(PeerError, match="are not shown"):
            await do(inspection, "apps.show", tool="work", arguments={})
        with pytest.raises(UsageError, match="lists no tool"):
            await do(inspection, "apps.show", tool="nothing", arguments={})
