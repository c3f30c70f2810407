"""MGP §2: what a client offers, what this server takes up of it, and silence about everything else."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve import Server, moderate
from defserve.core.extension import Offer
from defserve.protocols.mgp.terms import MGP_SECTIONS_BY_NAME, MGP_VERSION, negotiate_mgp
from defserve.server import AccessPolicy
from tests.protocols.mgp.callers import offer, speaking
from tests.raw import ERAS, HANDSHAKE, STATELESS, VERSIONS, Json, Raw, raw
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

SESSION = HANDSHAKE[-1]
SERVED = frozenset({"permissions", "tool_security", "audit", "code_safety", "callbacks"})
NINE = (
    "permissions", "tool_security", "access_control", "audit", "code_safety", "lifecycle", "streaming",
    "bidirectional", "discovery",
)  # fmt: skip


def made(**options: Any) -> Server:
    server = Server("files", "1", **options)

    @server.tool
    @moderate("filesystem.read")
    def read() -> str:
        return "text"

    return server


def plain() -> Server:
    server = Server("plain", "1")

    @server.tool
    def read() -> str:
        return "text"

    return server


def mgp_of(peer: Raw) -> Json | None:
    """What the server said of MGP in its opening."""
    capabilities = peer.opening["capabilities"]
    if peer.version == STATELESS:
        assert "mgp" not in capabilities
        return capabilities.get("extensions", {}).get("dev.cloto/mgp")
    assert capabilities.get("experimental", {}).get("mgp") == capabilities.get("mgp")
    return capabilities.get("mgp")


async def answered(capabilities: Json, version: str = SESSION, **options: Any) -> Json | None:
    async with raw(made(**options), version, capabilities) as peer:
        return mgp_of(peer)


def wrapped(version: str, mgp: Any) -> Json:
    return {"extensions": {"dev.cloto/mgp": mgp}} if version == STATELESS else {"mgp": mgp}


# -- the reply -------------------------------------------------------------------------------------------


@pytest.mark.req("MGP-2.3", "MGP-2.4.1")
@pytest.mark.parametrize("version", VERSIONS)
async def test_the_reply_has_what_both_sides_named_and_what_the_tools_need(version: str):
    found = await answered(offer(version, "audit", "security", "com.example.other"), version)
    assert found == {
        "version": MGP_VERSION,
        "extensions": ["audit", "security"],
        "permissions_required": ["filesystem.read"],
        "server_id": "files",
        "trust_level": "standard",
    }


@pytest.mark.req("MGP-2.3", "MGP-2.3t")
@pytest.mark.parametrize("level", ["trusted", "standard", "sandboxed"])
async def test_the_operator_names_the_server_and_how_far_it_is_trusted(level: str):
    found = await answered(offer(SESSION, "audit"), server_id="files-1", trust_level=level)
    assert found is not None
    assert (found["server_id"], found["trust_level"]) == ("files-1", level)


@pytest.mark.req("MGP-2.4.3")
@for_each_row("version", VERSIONS)
@for_each_row("capabilities", [{}, {"experimental": {}}, {"extensions": {}}, {"sampling": {}}])
async def test_a_client_that_offered_nothing_is_shown_nothing(version: str, capabilities: Json):
    async with raw(made(), version, capabilities) as peer:
        assert mgp_of(peer) is None
        assert "mgp" not in str(peer.opening)
        (tool,) = (await peer.ask("tools/list"))["result"]["tools"]
        assert "security" not in tool


@pytest.mark.req("MGP-2.2")
async def test_an_offer_under_experimental_counts_with_a_handshake():
    assert await answered({"experimental": offer(SESSION, "audit")}) == await answered(offer(SESSION, "audit"))


@pytest.mark.req("MGP-2.2")
async def test_each_era_has_its_own_place_for_the_offer():
    assert await answered(offer(SESSION, "audit"), STATELESS) is None
    assert await answered(offer(STATELESS, "audit"), SESSION) is None


@pytest.mark.req("MGP-2.2", "MGP-2.4.3")
@pytest.mark.parametrize("version", ERAS)
@pytest.mark.parametrize(
    "mgp",
    [
        {},
        {"version": "0.3.0"},
        {"extensions": ["audit"]},
        {"version": 3, "extensions": ["audit"]},
        {"version": "0.3.0", "extensions": "audit"},
        {"version": "0.3.0", "extensions": {"audit": True}},
        {"version": None, "extensions": None},
        [],
        "0.3.0",
        True,
        7,
        None,
    ],
)
async def test_a_malformed_offer_leaves_the_conversation_plain(
    mgp: Any, version: str, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING):
        assert await answered(wrapped(version, mgp), version) is None
    if isinstance(mgp, dict) and mgp:
        assert "capabilities.mgp needs a version and extensions" in caplog.text


@pytest.mark.req("MGP-2.4.4")
@for_each_row("era", ERAS)
@for_each_row(
    ("version", "speaks"),
    [
        ("0.3.0", True),
        ("0.3.9", True),
        ("0.4.0", True),
        ("0.1", True),
        ("0", True),
        ("0.3.0-beta.1", True),
        ("1.0.0", False),
        ("00.3.0", False),
        ("10.3.0", False),
        ("", False),
        ("zero", False),
        (" 0.3.0", False),
    ],
)
async def test_versions_agree_when_their_major_is_equal(version: str, speaks: bool, era: str):
    found = await answered(wrapped(era, {"version": version, "extensions": ["audit"]}), era)
    assert (found is not None) is speaks
    assert found is None or found["version"] == MGP_VERSION


# -- extensions ------------------------------------------------------------------------------------------


@pytest.mark.req("MGP-2.2x")
def test_the_nine_names_are_known_beside_the_newer_ones():
    assert set(NINE) <= MGP_SECTIONS_BY_NAME.keys()
    assert (
        MGP_SECTIONS_BY_NAME["security"] == MGP_SECTIONS_BY_NAME["permissions"] | MGP_SECTIONS_BY_NAME["tool_security"]
    )
    assert MGP_SECTIONS_BY_NAME["bidirectional"] == MGP_SECTIONS_BY_NAME["callbacks"] | MGP_SECTIONS_BY_NAME["events"]


@pytest.mark.req("MGP-2.2x", "MGP-2.4.1")
@for_each_row("version", ERAS)
@for_each_row(
    ("offered", "taken"),
    [
        (["security"], ["security"]),
        (["permissions", "tool_security"], ["permissions", "tool_security"]),
        (["bidirectional"], ["bidirectional"]),
        (["callbacks"], ["callbacks"]),
        (["audit", "audit"], ["audit"]),
        (["com.example.other", "sandbox"], []),
        (["access_control"], []),
        ([7, None, ["audit"], {"audit": 1}, "audit"], ["audit"]),
        (["Audit", " audit", ""], []),
        ([], []),
    ],
)
async def test_the_active_set_is_the_intersection_in_the_clients_words(offered: Any, taken: list[str], version: str):
    found = await answered(wrapped(version, {"version": "0.3.0", "extensions": offered}), version)
    assert found is not None
    assert found["extensions"] == taken


@pytest.mark.req("MGP-2.4.1")
async def test_of_all_names_those_are_taken_up_that_are_served():
    served = made().mgp.served_sections
    found = await answered(offer(SESSION, *MGP_SECTIONS_BY_NAME))
    assert found is not None
    assert found["extensions"] == [name for name, sections in MGP_SECTIONS_BY_NAME.items() if sections & served]


async def test_access_control_is_served_where_somebody_administers_it():
    for policy, taken in [
        (AccessPolicy("opt-out"), []),
        (AccessPolicy("opt-out", admins=["alice"]), ["access_control"]),
    ]:
        found = await answered(offer(SESSION, "access_control"), access=policy)
        assert found is not None
        assert found["extensions"] == taken


@pytest.mark.req("MGP-1.5", "MGP-2.4.1")
@for_each_row("version", ERAS)
@for_each_row("method", Server("files", "1").mgp.methods())
async def test_methods_of_what_was_not_negotiated_do_not_exist(method: str, version: str):
    assert method.startswith("mgp/")
    server = made(access=AccessPolicy("opt-out", admins=["local"]))
    for extensions in [(), ("code_safety",)]:
        async with speaking(server, version, extensions) as peer:
            reply = await peer.ask(method, {})
            assert reply["error"]["code"] == -32601, reply
            assert "_mgp" not in str(reply)


@pytest.mark.req("MGP-1.5", "MGP-2.4.1")
@pytest.mark.parametrize(("extensions", "told"), [(("security",), False), (("audit",), True)])
async def test_notifications_of_what_was_not_negotiated_are_not_sent(extensions: Any, told: bool):
    async with speaking(made(), SESSION, extensions) as peer:
        await peer.call("read")
        methods = {message["method"] for message in await peer.news()}
    assert methods == ({"notifications/mgp.audit"} if told else set())


async def test_without_sessions_every_request_negotiates_for_itself():
    async with raw(made(), STATELESS, offer(STATELESS, "security")) as peer:
        (tool,) = (await peer.ask("tools/list"))["result"]["tools"]
        assert "security" in tool
        peer.capabilities = {}
        (tool,) = (await peer.ask("tools/list"))["result"]["tools"]
        assert "security" not in tool


@pytest.mark.req("MGP-1.1", "MGP-1.3", "MGP-8.1")
@for_each_row("version", VERSIONS)
@for_each_row("client", ["plain", "mgp"])
@for_each_row("declares", [False, True], ids=["plain server", "mgp server"])
async def test_all_four_pairs_work_without_configuration(version: str, client: str, declares: bool):
    server = made() if declares else plain()
    async with speaking(server, version, ("security", "audit") if client == "mgp" else ()) as peer:
        assert (await peer.call("read"))["content"] == [{"type": "text", "text": "text"}]
        (tool,) = (await peer.ask("tools/list"))["result"]["tools"]
        assert ("security" in tool) is (client == "mgp")


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=8)
    | st.sampled_from([*MGP_SECTIONS_BY_NAME, "0.3.0", "mgp"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["mgp", "version", "extensions", "dev.cloto/mgp", "experimental"]), inner)
    ),
    max_leaves=8,
)


@given(
    capabilities=st.dictionaries(st.sampled_from(["mgp", "extensions", "experimental"]), json_values), era=st.booleans()
)
def test_no_offer_however_odd_breaks_or_adds_what_is_not_served(capabilities: Json, era: bool):
    found = negotiate_mgp(Offer("x", capabilities, {}, stateless=era), SERVED)
    assert found is None or found.sections <= SERVED
