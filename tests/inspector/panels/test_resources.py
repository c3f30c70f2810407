from __future__ import annotations

import base64
from typing import Any

import pytest

from defserve import Server
from defserve.client.client import Client
from defserve.errors import PeerError, UsageError
from defserve.inspector import inspection
from defserve.inspector.panels.resources import list_template_variables
from tests.inspector.conftest import Inspect, Run
from tests.inspector.library import COUNT, library
from tests.waiting import until

pytestmark = pytest.mark.anyio

eras = pytest.mark.parametrize("era", ["handshake", "stateless"])
BOOK = "library://books/{title}{?page}"


@eras
async def test_resources_and_templates_are_listed(inspect: Inspect, do: Run, era: str):
    async with inspect(library()) as inspection:
        listed = await do(inspection, "resources.list", era=era)
    assert listed["offered"] and listed["watches"] and listed["watched"] == []
    assert "library://hours" in [each["uri"] for each in listed["resources"]]
    (template,) = listed["templates"]
    assert template["definition"]["uriTemplate"] == BOOK
    assert template["variables"] == [{"name": "title", "many": False}, {"name": "page", "many": False}]


async def test_a_server_without_resources_says_so(inspect: Inspect, do: Run, monkeypatch: pytest.MonkeyPatch):
    async with inspect(Server("bare", "1")) as inspection:
        assert (await do(inspection, "resources.list"))["resources"] == []
        monkeypatch.setattr(Client, "capabilities", {})
        listed = await do(inspection, "resources.list")
        assert (listed["offered"], listed["resources"], listed["watches"]) == (False, [], False)


def test_a_template_that_is_not_understood_has_no_variables():
    assert list_template_variables("a://{b:3}") is None
    assert list_template_variables("a://{/b*}") == [{"name": "b", "many": True}]


async def test_a_template_is_filled_in(inspect: Inspect, do: Run):
    async with inspect(library()) as inspection:
        filled = await do(inspection, "resources.expand", template=BOOK, values={"title": "a b/c", "page": ""})
        assert filled == {"uri": "library://books/a%20b%2Fc"}
        with pytest.raises(UsageError, match="cannot be filled in"):
            await do(inspection, "resources.expand", template="a://{b:3}", values={})


@eras
async def test_texts_and_bytes_are_read_and_what_is_not_there_is_refused(inspect: Inspect, do: Run, era: str):
    async with inspect(library()) as inspection:
        (text,) = (await do(inspection, "resources.read", era=era, uri="library://hours"))["contents"]
        (blob,) = (await do(inspection, "resources.read", era=era, uri="library://backup"))["contents"]
        with pytest.raises(PeerError):
            await do(inspection, "resources.read", era=era, uri="library://nothing")
    assert text["text"].startswith("9 to 5") and len(base64.b64decode(blob["blob"])) == 2048


@eras
async def test_a_watched_resource_tells_its_changes_until_it_is_left(inspect: Inspect, do: Run, era: str):
    told = list[tuple[str, Any]]()
    async with inspect(library()) as inspection:
        inspection.pages.append(lambda topic, data: told.append((topic, data)))
        for _ in range(2):
            assert await do(inspection, "resources.watch", era=era, uri=COUNT) == {"watched": [COUNT]}
        assert (await do(inspection, "resources.list", era=era))["watched"] == [COUNT]
        client = await inspection.client(era)
        await client.call("lend")
        await until(lambda: ("updated", {"era": era, "uri": COUNT}) in told)
        assert await do(inspection, "resources.watch", era=era, uri=COUNT, on=False) == {"watched": []}
        assert await do(inspection, "resources.watch", era=era, uri=COUNT, on=False) == {"watched": []}


class Asked:
    """A client that remembers what it was asked to watch, and refuses one URI."""

    stateless = False

    def __init__(self) -> None:
        self.uris = list[str]()

    async def subscribe(self, uri: str) -> None:
        if uri == "gone":
            raise PeerError("no such resource")
        self.uris.append(uri)


async def test_a_new_conversation_watches_again_what_is_still_there(monkeypatch: pytest.MonkeyPatch):
    watched, first, second = inspection.Watches(), Asked(), Asked()
    client: Any = first
    await watched.watch_resource(client, "a")
    await watched.watch_resource(client, "b")
    again: Any = second
    watched._uris["handshake"].add("gone")  # pyright: ignore[reportPrivateUsage]
    assert await watched.renew_watches(again) == ["a", "b"] == second.uris
    monkeypatch.setattr(inspection, "MAX_WATCHED_RESOURCES", 2)
    with pytest.raises(UsageError, match="watched already"):
        await watched.watch_resource(again, "c")
