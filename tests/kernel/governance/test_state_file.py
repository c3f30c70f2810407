"""What a kernel remembers beside its file, and several kernels that write it at once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from defserve.errors import UsageError
from defserve.kernel.control import ask_kernel, find_socket_paths
from defserve.kernel.kernel_state import KernelState, StateFile
from defserve.stores.files import hold_file_lock
from tests.kernel.governance.governing import governed, tool
from tests.kernel.running import entry
from tests.protocols.mgp.callers import BOB, code_of, speaking
from tests.raw import HANDSHAKE
from tests.waiting import until, wait_until

CLOSED = '[kernel]\nadmins = ["alice"]\ndefault_policy = "opt-in"\n'
HOLD = '[servers.mgp]\non_change = "hold"'
GRANTS = 8


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@contextmanager
def kernel_of(config: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "defserve", "kernel", "--config", str(config), "--on", "http://127.0.0.1:0/mcp"]
    nothing = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing) as process:
        try:
            yield process
        finally:
            process.terminate()


def granted(path: Path) -> set[str]:
    kept = json.loads(path.with_suffix(".state.json").read_text())
    return {one["agent_id"] for one in kept["access"].get("a", ())}


@pytest.mark.slow
def test_two_kernels_that_grant_at_once_lose_nothing(tmp_path: Path) -> None:
    config = tmp_path / "mgp.toml"
    config.write_text(f"{CLOSED}{entry('a')}")
    with kernel_of(config) as one, kernel_of(config) as two:
        wait_until(lambda: set(find_socket_paths(config)) == {one.pid, two.pid}, 60)

        def grant(process: int) -> None:
            for number in range(GRANTS):
                asked = {"verb": "access grant", "caller": f"{process}-{number}", "id": "a"}
                assert list(ask_kernel(config, asked, process))

        with ThreadPoolExecutor(2) as both:
            list(both.map(grant, (one.pid, two.pid)))
        expected = {f"{process}-{number}" for process in (one.pid, two.pid) for number in range(GRANTS)}
        assert granted(config) == expected
        # Each knows what was decided at the other, and may take it back.
        found = list(ask_kernel(config, {"verb": "access list"}, one.pid))
        assert {row["agent_id"] for row in found if "agent_id" in row} == expected
        list(ask_kernel(config, {"verb": "access revoke", "caller": f"{two.pid}-0", "id": "a"}, one.pid))
        assert granted(config) == expected - {f"{two.pid}-0"}


@pytest.mark.slow
@pytest.mark.anyio
async def test_what_is_decided_at_one_kernel_holds_at_the_other(tmp_path: Path) -> None:
    kernel = 'admins = ["alice"]\ndefault_policy = "opt-in"\n'
    async with (
        governed(tmp_path, tool("look"), kernel=kernel) as one,
        governed(tmp_path, tool("look"), kernel=kernel) as two,
    ):
        async with speaking(two.here.kernel.server, HANDSHAKE[-1], who=BOB) as bob:

            async def refused() -> bool:
                return code_of(await bob.ask("tools/call", {"name": "s_look", "arguments": {}})) is not None

            assert await refused()
            await one.here.kernel.access.set_entry("allow", "bob", "s")
            # Nobody asks the other kernel for anything: it looks at the file by itself.
            await until(lambda: bool(two.here.kernel.governance.access.find_policy("s").entries()))  # pyright: ignore
            assert not await refused()
            await one.here.kernel.access.set_entry("deny", "bob", "s")
            await two.here.kernel.refresh()
            assert await refused()


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_tool_that_is_accepted_at_one_kernel_is_used_at_the_other(tmp_path: Path) -> None:
    async with governed(tmp_path, tool("add", "Adds."), mgp=HOLD):
        pass
    changed = tool("add", "Adds more.")
    async with governed(tmp_path, changed, mgp=HOLD) as one, governed(tmp_path, changed, mgp=HOLD) as two:
        assert two.here.kernel.ps()[0]["held"] == ["add"]
        (held,) = await one.here.kernel.list_held_tools("s")
        await one.here.kernel.approve("s", digest=held["now"])
        await two.here.kernel.refresh()
        assert two.here.kernel.ps()[0]["held"] == []
        assert await two.here.call("s_add") == "did add"
        # What the other one knew before does not undo it.
        two.here.kernel.governance.on_server_listed(two.here.kernel.members["s"])
        kept = json.loads((tmp_path / "mgp.state.json").read_text())["definitions"]["s"]["add"]["tool"]
        assert kept["description"] == "Adds more."


def test_a_change_is_made_to_what_the_file_says_now(tmp_path: Path) -> None:
    one, two = StateFile(tmp_path / "mgp.toml"), StateFile(tmp_path / "mgp.toml")

    def granting(name: str) -> None:
        def change(state: KernelState) -> None:
            state.access.setdefault("s", []).append({"agent_id": name})

        (one if name < "m" else two).update(change)

    for name in "azby":
        granting(name)
    assert [each["agent_id"] for each in two.known.access["s"]] == ["a", "z", "b", "y"]
    assert one.refresh() and not one.refresh()
    assert one.known == two.known


def test_a_change_that_fails_is_not_remembered(tmp_path: Path) -> None:
    state = StateFile(tmp_path / "mgp.toml")
    state.update(lambda known: known.pins.update(s={"a": "1"}))

    def fails(known: KernelState) -> None:
        known.pins.clear()
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        state.update(fails)
    assert state.known.pins == {"s": {"a": "1"}}
    state.path.write_text("{")
    with pytest.raises(OSError, match="cannot be read"):
        state.update(lambda known: None)
    with pytest.raises(UsageError):
        state.refresh()
    assert state.known.pins == {"s": {"a": "1"}}


def test_a_lock_that_another_holds_is_waited_for_and_then_given_up(tmp_path: Path) -> None:
    with (
        hold_file_lock(tmp_path / "x.lock"),
        pytest.raises(TimeoutError, match="locked"),
        hold_file_lock(tmp_path / "x.lock", 0.05),
    ):
        pass
    with hold_file_lock(tmp_path / "x.lock", 0.05):
        pass
