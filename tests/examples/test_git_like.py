from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .conftest import ConnectTo

pytestmark = pytest.mark.anyio

SET = "git.commit"
MCPL: dict[str, Any] = {"experimental": {"mcpl": {"version": "0.4", "featureSets": True}}}


@pytest.fixture
def kept_in(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_STORE", store)


@pytest.mark.usefixtures("kept_in")
@pytest.mark.req("MCPL-8.3", "MCPL-8.4", "MCPL-8.5", "MCPL-8.6")
async def test_checkpoints_are_names_and_a_rollback_undoes_what_it_can(connect_to: ConnectTo):
    async with connect_to("git_like", known=True, capabilities=MCPL) as client:

        async def commit(message: str, **fields: Any) -> dict[str, Any]:
            result = await client.call_raw("git_commit", {"message": message}, fields=fields)
            state = result["state"]
            assert state.keys() == {"checkpoint", "parent", "featureSet"}
            return state

        async def roll_back(checkpoint: str) -> dict[str, Any]:
            result = await client.request("state/rollback", {"featureSet": SET, "checkpoint": checkpoint})
            return {name: result[name] for name in ("success", "reason") if name in result}

        first = await commit("Begin")
        second = await commit("Add bug", checkpoint=first["checkpoint"])
        assert second["parent"] == first["checkpoint"]
        assert await client.call("git_log") == ["Add bug", "Begin"]
        assert await roll_back(first["checkpoint"]) == {"success": True}
        third = await commit("Fix bug")
        assert third["parent"] == first["checkpoint"]
        assert await client.call("git_log") == ["Fix bug", "Begin"]
        pushed = await client.call("git_push")
        assert await roll_back(first["checkpoint"]) == {"success": False, "reason": f"{pushed} was pushed"}
        assert await client.call("git_log") == ["Fix bug", "Begin"]
        assert await roll_back(third["checkpoint"]) == {"success": True}


async def test_a_plain_client_commits_as_well(connect_to: ConnectTo):
    async with connect_to("git_like") as client:
        await client.call("git_commit", message="Begin")
        await client.call("git_commit", message="Go on")
        assert await client.call("git_log") == ["Go on", "Begin"]
