from __future__ import annotations

from typing import Any

import pytest

from defserve import Server
from defserve.protocols.mcpl.manifest import compute_manifest_revision
from tests.protocols.mcpl.appendix_b import validate
from tests.protocols.mcpl.draft_05 import MANIFEST
from tests.protocols.mcpl.hosts import MCPL_05, Host, hosting
from tests.raw import STATELESS, text_of, turns

pytestmark = [pytest.mark.anyio, pytest.mark.req("MCPL-05")]


def notes() -> Server:
    server = Server("notes", "1")
    editing = server.feature_set("notes.edit", "Edit", tag_ontology={"coreTags": ["chat:dm"]})
    editing.tool(name="edit")(edit)
    return server


def edit() -> str:
    return "edited"


async def manifest(host: Host) -> Any:
    return (await host.ask("mcpl/manifest"))["result"]


async def test_the_manifest_is_what_was_advertised():
    async with hosting(notes(), mcpl=MCPL_05) as host:
        assert await manifest(host) == host.advertised
        validate(host.advertised, MANIFEST)
        assert host.advertised["revision"] == compute_manifest_revision(host.advertised)
        assert host.advertised["featureSets"]["notes.edit"]["tagOntology"] == {"coreTags": ["chat:dm"]}


async def test_a_change_is_told_once_and_can_be_fetched():
    server = notes()
    async with hosting(server, mcpl=MCPL_05) as host:
        await host.grant()
        late = server.feature_set("notes.late", "Late", uses=["pushEvents"])
        server.feature_set("notes.later", "Later", uses=["tools"])
        await turns()
        (told,) = host.heard_of("mcpl/manifestChanged")
        fetched = await manifest(host)
        assert told == {"revision": fetched["revision"], "domains": ["capabilities", "featureSets"]}
        assert list(fetched["featureSets"]) == ["notes.edit", "notes.late", "notes.later"]
        assert (await late.push("x", to=next(iter(server.composition.sessions)))).accepted
        server.remove_feature_set("notes.late")
        server.remove_feature_set("notes.later")
        await turns()
        assert host.heard_of("mcpl/manifestChanged")[1:] == [
            {"revision": host.advertised["revision"], "domains": ["capabilities", "featureSets"]}
        ]
        assert host.heard_of("featureSets/changed") == []


async def test_what_comes_and_goes_at_once_is_no_change():
    server = notes()
    async with hosting(server, mcpl=MCPL_05) as host:
        server.feature_set("notes.short", "Short")
        server.remove_feature_set("notes.short")
        await turns()
        assert host.heard_of("mcpl/manifestChanged") == []


async def test_a_change_before_the_host_is_ready_is_told_then():
    server = notes()
    async with hosting(server, mcpl=MCPL_05, opened=False) as host:
        about = {"name": "host", "version": "1"}
        params = {"protocolVersion": host.version, "capabilities": host.capabilities, "clientInfo": about}
        await host.ask("initialize", params)
        server.feature_set("notes.late", "Late", uses=["tools"])
        await turns()
        assert host.heard == []
        await host.tell("notifications/initialized")
        assert host.heard_of("mcpl/manifestChanged")[0]["domains"] == ["featureSets"]


async def test_hosts_of_0_4_have_neither_digest_nor_manifest():
    server = notes()
    async with hosting(server) as host:
        assert "revision" not in host.advertised and "tagOntology" not in str(host.advertised)
        assert (await host.ask("mcpl/manifest"))["error"]["code"] == -32601
        assert text_of(await host.call("edit")) == "edited"


async def test_without_sessions_the_manifest_can_be_fetched():
    async with hosting(notes(), STATELESS, mcpl=MCPL_05) as host:
        fetched = {name: value for name, value in (await manifest(host)).items() if name in host.advertised}
        assert fetched == host.advertised
