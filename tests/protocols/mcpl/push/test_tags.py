from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve import Server, UsageError
from defserve.protocols.mcpl.content import CHAT_TAGS, MAX_TAG_LENGTH, MAX_TAGS, add_implied_tags, check_tags, read_tags
from tests.protocols.mcpl.hosts import MCPL, MCPL_05, hosting
from tests.rows import for_each_row

pytestmark = pytest.mark.req("MCPL-05")

KNOWN = st.sampled_from([f"chat:{name}" for name in sorted(CHAT_TAGS)])


@for_each_row(
    ("given", "closed"),
    [
        (["chat:mention"], {"chat:mention", "chat:addressed"}),
        (["chat:reply", "chat:ambient"], {"chat:reply", "chat:addressed"}),
        (["chat:dm"], {"chat:dm", "chat:addressed", "chat:private"}),
        (["chat:ambient", "acme:x"], {"chat:ambient", "acme:x"}),
        ([], set[str]()),
    ],
)
def test_tags_imply_others(given: list[str], closed: set[str]):
    assert set(add_implied_tags(given)) == closed


@given(st.lists(KNOWN))
def test_a_closure_is_closed_and_a_set(tags: list[str]):
    once = add_implied_tags(tags)
    assert add_implied_tags(once) == once and len(set(once)) == len(once)
    assert not {"chat:addressed", "chat:ambient"} <= set(once)
    assert set(tags) - {"chat:ambient"} <= set(once)


@for_each_row(
    "wrong",
    [
        "chat:dm",
        ["urgent"],
        [":x"],
        ["x:"],
        ["a b:c"],
        ["acme:k="],
        ["acme:k=a b"],
        ["chat:unheard-of"],
        ["chat:dm=1"],
        ["mcpl:anything"],
        [5],
        ["acme:" + "x" * MAX_TAG_LENGTH],
        [f"acme:{n}" for n in range(MAX_TAGS + 1)],
    ],
    ids=lambda wrong: str(wrong)[:30],
)
def test_what_is_not_a_tag_is_refused(wrong: Any):
    with pytest.raises(UsageError):
        check_tags(wrong)


def test_tags_of_both_forms_are_taken_once():
    assert check_tags(["acme:a", "acme:k=v", "acme:a"]) == ["acme:a", "acme:k=v"]


@given(st.recursive(st.none() | st.text() | st.integers() | KNOWN, lambda below: st.lists(below)))
def test_a_reader_takes_anything(value: Any):
    assert all(":" in tag for tag in read_tags(value))


@pytest.mark.anyio
async def test_tags_are_sent_to_those_who_know_them():
    server = Server("tags", "1")
    alerts = server.feature_set("alerts", "Alerts", uses=["pushEvents"])
    for mcpl, tags in ((MCPL, None), (MCPL_05, ["acme:level=high", "chat:dm", "chat:addressed", "chat:private"])):
        async with hosting(server, mcpl=mcpl) as host:
            if host.is_05:
                await host.grant()
            await alerts.push("fire", tags=["acme:level=high", "chat:dm"])
            assert host.list_requested_uris("push/event")[0].get("tags") == tags
