"""What stands in front of a kernel: keys, and who may operate it over the network."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from defserve.auth.api_keys import ApiKeys
from defserve.client import Client
from defserve.client.targets import connect_url
from defserve.errors import DefserveError
from defserve.kernel.config.loading import load_kernel_config
from defserve.kernel.kernel import Kernel
from defserve.proxying.channel import BackendChannel
from tests.at_address import at_address
from tests.kernel.running import entry
from tests.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def pepper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEFSERVE_KEYS_PEPPER", "a pepper that is long enough")


async def made_key(folder: Path, principal: str) -> str:
    keys = ApiKeys(folder / "keys.json")
    made = await keys.create(principal, permissions=["ToolInvoke(*)", "ToolsListAll"])
    await keys.close()
    return made.token


async def test_a_kernel_with_keys_serves_only_who_has_one(tmp_path: Path) -> None:
    token = await made_key(tmp_path, "ann")
    (tmp_path / "mgp.toml").write_text(f'[kernel]\nkeys = "keys.json"\n{entry("a")}')
    kernel = Kernel(load_kernel_config(tmp_path / "mgp.toml"))
    async with at_address(kernel.server) as url:
        async with Client(await connect_url(url, token=token)) as client:
            await until(lambda: kernel.members["a"].state == "connected")
            assert int(await client.call("a_add", a=1, b=2)) == 3
        for wrong in (None, "not-a-key"):
            with pytest.raises(DefserveError):
                async with Client(await connect_url(url, token=wrong)) as stranger:
                    await stranger.call("a_add", a=1, b=2)


async def test_without_a_key_no_call_waits_for_a_start_up_to_the_number_of_spares(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mgp.toml").write_text(entry("a", more="spares = 3"))
    kernel = Kernel(load_kernel_config(tmp_path / "mgp.toml"))
    served, open_channel = list[int](), BackendChannel.open

    async def note_process(channel: BackendChannel, link: Any, version: str | None) -> None:
        await open_channel(channel, link, version)
        served.append(link.pid)

    async with at_address(kernel.server) as url, Client(await connect_url(url), version="stateless") as stranger:
        backend = kernel.members["a"].backend
        assert backend is not None
        spares = backend.conversations.spares
        await until(lambda: len(spares) == 3)
        waiting = set(spares.pids)
        monkeypatch.setattr(BackendChannel, "open", note_process)
        await asyncio.gather(*(stranger.call("a_add", a=1, b=2) for _ in range(3)))
    assert set(served) == waiting and len(served) == 3


@pytest.mark.parametrize(("principal", "may"), [("ann", True), ("bob", False)])
async def test_only_a_key_of_an_admin_operates_servers(tmp_path: Path, principal: str, may: bool) -> None:
    token = await made_key(tmp_path, principal)
    head = '[kernel]\nkeys = "keys.json"\nadmins = ["ann"]\n'
    (tmp_path / "mgp.toml").write_text(f"{head}{entry('a')}")
    kernel = Kernel(load_kernel_config(tmp_path / "mgp.toml"))
    offer = {"mgp": {"version": "0.3.0", "extensions": ["lifecycle"]}}
    async with at_address(kernel.server) as url:
        link = await connect_url(url, token=token)
        async with Client(link, version="2025-11-25", capabilities=offer) as client:
            await until(lambda: kernel.members["a"].state == "connected")
            wanted = {"server_id": "a", "reason": "operator_request", "timeout_ms": 1000}
            asked = client.request("mgp/lifecycle/shutdown", wanted)
            if may:
                assert (await asked)["accepted"] is True
                await until(lambda: kernel.members["a"].state == "disconnected")
            else:
                with pytest.raises(DefserveError, match="bob may not operate"):
                    await asked
                assert kernel.members["a"].state == "connected"
