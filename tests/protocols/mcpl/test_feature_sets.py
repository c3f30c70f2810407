from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable
from threading import Thread
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from defserve import Server, UsageError
from defserve.errors import InvalidParams
from defserve.protocols.mcpl.content import Turn
from defserve.protocols.mcpl.policies import (
    MAX_POLICY_BYTES,
    MAX_POLICY_NAMES,
    POLICY_META_KEY,
    FeaturePolicy,
    ScopeLists,
)
from tests.effort import examples
from tests.protocols.mcpl.appendix_b import FEATURE_SET, validate
from tests.protocols.mcpl.hosts import Host, hosting
from tests.raw import STATELESS, text_of, turns, until
from tests.rows import for_each_row

SETS = ["a", "a.b", "a.b.c", "a.d", "e"]
PATTERNS = [*SETS, "*", "a.*", "a.b.*", "e.*", "z", "a*", "*.b"]
LISTS = {"whitelist": ["/x/**"]}, {"blacklist": ["/y"]}, {}

updates = st.fixed_dictionaries(
    {},
    optional={
        "enabled": st.lists(st.sampled_from(PATTERNS), max_size=3),
        "disabled": st.lists(st.sampled_from(PATTERNS), max_size=3),
        "scopes": st.dictionaries(st.sampled_from(PATTERNS), st.sampled_from(LISTS), max_size=2),
    },
)


def breadth(pattern: str, name: str) -> int | None:
    """How widely a pattern covers a name, 0 for the name itself; None where it does not."""
    if pattern == name:
        return 0
    covers = pattern == "*" or (pattern.endswith(".*") and name.startswith(pattern[:-1]))
    return 1000 - len(pattern) if covers else None


class Model:
    """What the words of hosts mean for single sets: of one update the most specific counts, else what was before."""

    def __init__(self, strict: bool) -> None:
        self.enabled = dict.fromkeys(SETS, not strict)
        self.lists: dict[str, Any] = {}

    def update(self, update: dict[str, Any]) -> None:
        words = [(pattern, word) for word in ("disabled", "enabled") for pattern in update.get(word, ())]
        for name in SETS:
            found = [(b, word) for pattern, word in words if (b := breadth(pattern, name)) is not None]
            if found:
                self.enabled[name] = min(found)[1] == "enabled"  # "disabled" sorts before "enabled"
        self.lists |= update.get("scopes", {})

    def scoping(self, name: str) -> ScopeLists:
        found = [(b, lists) for pattern, lists in self.lists.items() if (b := breadth(pattern, name)) is not None]
        lists = min(found, key=lambda one: one[0])[1] if found else {}
        return ScopeLists(lists.get("whitelist", []), lists.get("blacklist", [])) if found else ScopeLists()

    @property
    def on(self) -> list[str]:
        return [name for name in SETS if self.enabled[name]]


# -- policies --------------------------------------------------------------------------------------------


@pytest.mark.req("MCPL-6.3", "MCPL-7.2")
@given(st.booleans(), st.lists(updates, max_size=6))
def test_a_policy_is_what_was_last_said(strict: bool, sequence: list[dict[str, Any]]):
    policy, model = FeaturePolicy(strict), Model(strict)
    for update in sequence:
        policy.update(update)
        model.update(update)
        assert [name for name in SETS if policy.is_enabled(name)] == model.on
        assert [policy.find_scope_lists(name) for name in SETS] == [model.scoping(name) for name in SETS]


def memory(strict: bool = False) -> Server:
    """A server with a tool and a hook in every set."""
    server = Server("sets", "1", feature_sets="strict" if strict else "open")
    for name in SETS:
        feature_set = server.feature_set(name, f"Set {name}")

        feature_set.tool(name=name)(_tool(name))
        feature_set.before_inference(_hook(name))
    return server


def _tool(name: str) -> Any:
    def tool() -> str:
        return name

    return tool


def _hook(name: str) -> Any:
    async def hook(turn: Turn) -> str:
        return name

    return hook


async def acting(host: Host, meta: dict[str, Any] | None = None) -> tuple[list[str], list[str], list[str]]:
    """The sets whose tools are listed, whose tools run, and who take part in inference."""
    more: dict[str, Any] = {"_meta": meta} if meta else {}
    listed = [tool["name"] for tool in (await host.ask("tools/list", more))["result"]["tools"]]
    called = [name for name in SETS if _ran(await host.ask("tools/call", {"name": name, **more}), name)]
    turn = {"inferenceId": "i", "conversationId": "c", "turnIndex": 0, "userMessage": None, **more}
    result = (await host.ask("context/beforeInference", turn))["result"]
    assert result.get("featureSet") in (called or [None])
    return listed, called, [one["content"][0]["text"] for one in result["contextInjections"]]


def _ran(reply: dict[str, Any], name: str) -> bool:
    if "error" in reply:
        assert reply["error"]["code"] == -32001
        assert reply["error"]["data"]["featureSet"] == name and reply["error"]["data"]["canEnable"] is True
        return False
    result = reply["result"]
    if result.get("isError"):
        assert result["_meta"]["dev.defserve/error"]["error_type"] == "feature_set_disabled"
        return False
    return text_of(result) == name


@pytest.mark.slow
@pytest.mark.req("MCPL-6.7u", "MCPL-6.3")
@settings(max_examples=examples(15))
@given(st.booleans(), st.lists(st.tuples(updates, st.booleans()), max_size=4))
def test_nothing_of_a_disabled_set_ever_acts(strict: bool, sequence: list[tuple[dict[str, Any], bool]]):
    async def run() -> None:
        async with hosting(memory(strict)) as host:
            model = Model(strict)
            assert await acting(host) == (model.on, model.on, model.on)
            for update, as_request in sequence:
                model.update(update)
                if as_request:
                    assert (await host.ask("featureSets/update", update))["result"] == {"enabled": model.on}
                else:
                    await host.update(**update)
                assert await acting(host) == (model.on, model.on, model.on)

    asyncio.run(run())


@settings(max_examples=examples(10))
@given(st.booleans(), updates)
def test_without_sessions_every_request_has_its_own_policy(strict: bool, update: dict[str, Any]):
    async def run() -> None:
        async with hosting(memory(strict), STATELESS) as host:
            model, untold = Model(strict), Model(strict).on
            model.update(update)
            assert await acting(host, {POLICY_META_KEY: update}) == (model.on, model.on, model.on)
            assert await acting(host) == (untold, untold, untold)
            assert (await host.ask("featureSets/update", update))["error"]["code"] == -32601

    asyncio.run(run())


@for_each_row(
    "wrong",
    [
        {"enabled": "a"},
        {"disabled": [1]},
        {"scopes": []},
        {"scopes": {"a": []}},
        {"scopes": {"a": {"whitelist": "x"}}},
        {"scopes": {"a": {"whitelist": ["x" * 1025]}}},
        {"scopes": {"a": {"blacklist": ["x"] * 1001}}},
        {"enabled": [f"s{n}" for n in range(MAX_POLICY_NAMES + 1)]},
        {"scopes": {f"s{n}": {} for n in range(MAX_POLICY_NAMES + 1)}},
    ],
    ids=lambda wrong: str(wrong)[:40],
)
def test_a_broken_update_changes_nothing(wrong: dict[str, Any]):
    policy = FeaturePolicy(strict=False)
    policy.update({"disabled": ["b"], "scopes": {"a": {"whitelist": ["y"]}}})
    with pytest.raises(InvalidParams):
        policy.update({"disabled": ["a"], **wrong})
    assert (
        policy.is_enabled("a") and not policy.is_enabled("b") and policy.find_scope_lists("a") == ScopeLists(["y"], [])
    )
    assert policy.revision == 1


@pytest.mark.anyio
async def test_a_broken_update_is_answered_or_logged(caplog: pytest.LogCaptureFixture):
    async with hosting(memory()) as host:
        assert (await host.ask("featureSets/update", {"enabled": "a"}))["error"]["code"] == -32602
        await host.update(disabled="a")
    assert "featureSets/update: Invalid params: disabled must be a list" in caplog.text


# -- declaring -------------------------------------------------------------------------------------------


@pytest.mark.req("MCPL-6.2", "MCPL-B")
@for_each_row(
    ("name", "description", "options", "words"),
    [
        ("", "x", {}, "words with dots"),
        ("a..b", "x", {}, "words with dots"),
        ("a.*", "x", {}, "words with dots"),
        ("a", "", {}, "no description"),
        ("a", "x", {"uses": ["telepathy"]}, "telepathy"),
        ("a", "x", {"tag_ontology": {"tags": {"bad tag": {}}}}, "bad tag"),
        ("a", "x", {"tag_ontology": {"open": float("nan")}}, "nan"),
    ],
)
def test_a_set_that_could_not_be_advertised_is_refused(name: str, description: str, options: Any, words: str):
    with pytest.raises(UsageError, match=words):
        Server("s", "1").feature_set(name, description, **options)


def test_a_name_is_taken_once():
    server = Server("s", "1")
    server.feature_set("a", "A")
    with pytest.raises(UsageError, match="already registered"):
        server.feature_set("a", "B")


def test_feature_sets_are_open_or_strict():
    wrong: Any = "closed"
    with pytest.raises(UsageError, match='say "open"'):
        Server("s", "1", feature_sets=wrong)


@pytest.mark.anyio
@pytest.mark.req("MCPL-6.1", "MCPL-6.2", "MCPL-B")
async def test_uses_follow_from_what_was_declared():
    server = Server("s", "1")
    server.feature_set("undeclared", "May push and infer")
    server.feature_set("said", "Says so", uses=["inferenceRequest"])
    derived = server.feature_set("derived", "Has verbs", uses=["pushEvents"])
    derived.tool(name="t")(late_tool)
    derived.before_inference(_hook("x"))
    async with hosting(server) as host:
        described = host.advertised["featureSets"]
    for one in described.values():
        validate(one, FEATURE_SET)
    assert {name: one["uses"] for name, one in described.items()} == {
        "undeclared": ["pushEvents", "inferenceRequest"],
        "said": ["inferenceRequest"],
        "derived": ["pushEvents", "contextHooks.beforeInference", "tools"],
    }


def late_tool() -> str:
    return "late"


# -- while serving ---------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.req("MCPL-6.7c")
async def test_hosts_are_told_of_sets_that_come_and_go():
    server = memory()
    async with hosting(server) as host, hosting(server, mcpl=None) as plain:
        late = server.feature_set("late", "Came late")
        late.tool(name="late")(late_tool)
        await turns()
        assert host.heard_of("featureSets/changed") == [
            {"added": {"late": {"description": "Came late", "uses": ["tools"]}}}
        ]
        assert text_of(await host.call("late")) == "late"
        server.remove_feature_set("late")
        await turns()
        assert host.heard_of("featureSets/changed")[1:] == [{"removed": ["late"]}]
        assert host.heard_of("notifications/tools/list_changed")
        assert (await host.ask("tools/call", {"name": "late"}))["error"]["code"] == -32602
        assert plain.heard_of("featureSets/changed") == []
        server.feature_set("late", "Came again").tool(name="late")(late_tool)
        assert text_of(await host.call("late")) == text_of(await plain.call("late")) == "late"


@pytest.mark.anyio
async def test_a_removed_set_stops_its_hooks_and_nobody_elses():
    server = memory()
    async with hosting(server) as host:
        server.remove_feature_set("a.b")
        rest = [name for name in SETS if name != "a.b"]
        turn = {"inferenceId": "i", "conversationId": "c", "turnIndex": 0, "userMessage": None}
        result = (await host.ask("context/beforeInference", turn))["result"]
        assert [one["content"][0]["text"] for one in result["contextInjections"]] == rest
        with pytest.raises(UsageError, match="there is no feature set"):
            server.remove_feature_set("a.b")


@pytest.mark.anyio
async def test_a_set_may_come_from_a_thread():
    server = memory()
    async with hosting(server) as host:
        thread = Thread(target=lambda: server.feature_set("late", "From a thread"))
        thread.start()
        thread.join()
        await turns()
        assert [list(change["added"]) for change in host.heard_of("featureSets/changed")] == [["late"]]


def declaring(server: Server, between: Callable[[], object] = lambda: None) -> Callable[[str], str]:
    """A sync tool that declares a set with everything, and does something in the middle."""

    def declare(name: str) -> str:
        made = server.feature_set(name, "Declared by a tool", scoped=True)
        made.tool(name=f"{name}_tool")(late_tool)
        between()
        made.before_inference(_hook("x"))
        made.events(_nothing)
        return "declared"

    return declare


async def _nothing() -> AsyncIterator[str]:
    for text in ():
        yield text


WHOLE = {
    "description": "Declared by a tool",
    "uses": ["pushEvents", "contextHooks.beforeInference", "tools"],
    "scoped": True,
}


@pytest.mark.anyio
async def test_a_set_that_a_sync_tool_declares_is_told_once_and_whole():
    server = memory()
    server.add_tool(declaring(server, between=lambda: time.sleep(0.001)), name="declare")
    async with hosting(server) as host:
        for number in range(50):
            assert text_of(await host.call("declare", {"name": f"s{number}"})) == "declared"
        await turns()
        told = host.heard_of("featureSets/changed")
    assert told == [{"added": {f"s{number}": WHOLE}} for number in range(50)]


@pytest.mark.anyio
async def test_a_set_that_is_half_declared_is_not_listed():
    server, half, go_on = memory(), threading.Event(), threading.Event()

    def wait() -> None:
        half.set()
        assert go_on.wait(30)

    server.add_tool(declaring(server, between=wait), name="declare")
    async with hosting(server) as host:
        call = asyncio.create_task(host.call("declare", {"name": "late"}))
        await until(half.is_set)
        async with hosting(server) as other:
            assert "late" not in other.advertised["featureSets"]
            go_on.set()
            await call
            await turns()
            assert other.heard_of("featureSets/changed") == [{"added": {"late": WHOLE}}]
        async with hosting(server) as third:
            assert third.advertised["featureSets"]["late"] == WHOLE


@pytest.mark.anyio
async def test_a_set_that_grows_later_is_told_again_and_one_that_is_gone_at_once_never():
    server = memory()
    async with hosting(server) as host:
        late = server.feature_set("late", "Came late", uses=["tools"])
        server.feature_set("brief", "Stays for a moment")
        server.remove_feature_set("brief")
        await turns()
        late.before_inference(_hook("x"))
        await turns()
        uses = [change["added"]["late"]["uses"] for change in host.heard_of("featureSets/changed")]
    assert uses == [["tools"], ["contextHooks.beforeInference", "tools"]]


@pytest.mark.anyio
async def test_the_first_set_comes_before_serving():
    server = Server("s", "1")
    async with hosting(server, mcpl=None):
        with pytest.raises(UsageError, match="after the server has started"):
            server.feature_set("a", "A")


# -- silence ---------------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.req("MCPL-5.3")
@pytest.mark.parametrize(("told", "logged"), [(False, 1), (True, 0)])
async def test_acting_without_a_policy_of_the_host_is_logged(told: bool, logged: int, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO, "defserve"):
        async with hosting(memory()) as host:
            if told:
                await host.update(enabled=["a"])
            for name in SETS:
                await host.call(name)
    assert caplog.text.count("no featureSets/update") == logged


@for_each_row("part", ["enabled", "disabled", "scopes"])
def test_a_policy_is_bounded_in_bytes_however_many_updates_bring_it(part: str):
    policy = FeaturePolicy(strict=False)
    for number in range(3):
        long = f"{number}" + "y" * (MAX_POLICY_BYTES // 4)
        policy.update({part: {long: {}} if part == "scopes" else [long]})
    with pytest.raises(InvalidParams, match="longer than"):
        policy.update({part: {"z" * MAX_POLICY_BYTES: {}} if part == "scopes" else ["z" * MAX_POLICY_BYTES]})
    assert policy.revision == 3
