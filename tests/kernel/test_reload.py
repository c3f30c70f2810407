"""The file changes while a kernel serves."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve.errors import UsageError
from defserve.kernel import kernel_extension
from defserve.kernel.config.entries import (
    ConfigChanges,
    KernelConfig,
    ServerEntry,
    ServerLaunch,
    ToolFilter,
    find_server_changes,
)
from defserve.kernel.kernel import Kernel
from defserve.kernel.members import ServerCreator
from defserve.protocols.mgp import vocabulary
from defserve.protocols.mgp.access import AccessPolicy, Entry
from defserve.proxying.mounted import RestartPolicy
from defserve.proxying.targets import Command
from tests.kernel.running import entry, running
from tests.raw import turns
from tests.waiting import until


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


A, B = entry("a"), entry("b")
OFF = "[kernel]\nwatch = false\n"


@pytest.mark.anyio
async def test_unchanged_servers_are_not_touched(tmp_path: Path) -> None:
    async with running(tmp_path, OFF, A, B) as here:
        process, restarts = await here.call("a_pid"), here.kernel.ps()[0]["restarts"]
        here.write(OFF, A, entry("c"))
        done = await here.kernel.reload()
        assert (done["added"], done["removed"], done["unchanged"]) == (["c"], ["b"], ["a"])
        await here.connected("a", "c")
        assert await here.call("a_pid") == process
        assert here.kernel.ps()[0]["restarts"] == restarts
        names = {tool["name"] for tool in await here.client.tools()}
        assert "c_add" in names
        assert "b_add" not in names


@pytest.mark.anyio
async def test_a_file_with_a_mistake_changes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path, OFF, A) as here:
        process = await here.call("a_pid")
        for broken in ("", "\n", "[[servers]]", "not toml", f"{A}\n{A}", entry("a", more="colour = 1")):
            here.write(broken)
            with pytest.raises(UsageError):
                await here.kernel.reload()
        here.path.unlink()
        with pytest.raises(UsageError, match="is not there"):
            await here.kernel.reload()
        assert await here.call("a_pid") == process
        assert list(here.kernel.members) == ["a"]


@pytest.mark.anyio
async def test_of_two_reloads_the_newer_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, OFF, A) as here:
        gates = [asyncio.Event(), asyncio.Event()]
        slow_disk = iter(gates)
        gates[1].set()

        async def read(load: Callable[[Path], KernelConfig], path: Path) -> KernelConfig:
            config = load(path)
            await next(slow_disk).wait()
            return config

        monkeypatch.setattr(asyncio, "to_thread", read)
        first = asyncio.create_task(here.kernel.reload())
        await turns()
        here.write(OFF, A, entry("b", more="enabled = false"))
        second = asyncio.create_task(here.kernel.reload())
        await turns()
        gates[0].set()
        await asyncio.gather(first, second)
        assert list(here.kernel.members) == ["a", "b"]


@pytest.mark.slow
@pytest.mark.anyio
async def test_a_changed_command_is_taken_over_without_a_gap(tmp_path: Path) -> None:
    async with running(tmp_path, OFF, entry("a", more='per = "shared"')) as here:
        before = await here.call("a_pid")
        under_way = asyncio.create_task(here.call("a_slow", seconds=0.3))
        here.write(OFF, entry("a", "--other", more='per = "shared"'))
        answers: list[str] = []
        reload = asyncio.create_task(here.kernel.reload())
        while not reload.done():
            answers.append(await here.call("a_pid"))
        assert (await reload)["restarted"] == ["a"]
        assert await under_way == before
        after = await here.call("a_pid")
        assert after != before
        assert set(answers) <= {before, after}


@pytest.mark.anyio
async def test_a_changed_command_that_does_not_start_leaves_the_old_one_running(tmp_path: Path) -> None:
    async with running(tmp_path, OFF, A) as here:
        process = await here.call("a_pid")
        here.write(OFF, A.replace('command = "', 'command = "/nowhere'))
        done = await here.kernel.reload()
        assert "a" in done["failed"]
        assert await here.call("a_pid") == process
        here.write(OFF, A)
        assert (await here.kernel.reload())["unchanged"] == ["a"]


@pytest.mark.anyio
async def test_what_a_new_command_says_before_it_fails_has_no_secret(tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "NEW_ONE": "hunter2-new"}
    async with running(tmp_path, OFF, A, environ=environ) as here:
        here.write(OFF, entry("a", "--refuse", "${NEW_ONE}"))
        done = await here.kernel.reload()
        assert "cannot start with ${NEW_ONE}" in done["failed"]["a"]
        shown = str(done) + str(here.kernel.journal.list_lines()) + str(here.kernel.ps())
        assert "hunter2" not in shown


@pytest.mark.anyio
async def test_a_server_is_started_again_when_a_secret_of_it_has_changed(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("hunter2-first\n")
    uses = entry("a", more=f'env = {{ API_TOKEN = "${{file:{secret}}}" }}')
    async with running(tmp_path, OFF, uses, B) as here:

        def given() -> str:
            backend = here.kernel.members["a"].backend
            assert backend is not None and isinstance(backend.target, Command)
            return backend.target.env["API_TOKEN"]

        other, process = await here.call("b_pid"), await here.call("a_pid")
        assert given() == "hunter2-first"
        assert await here.call("a_environment", name="API_TOKEN") == "[redacted]"
        assert await here.kernel.renew_secrets() == []
        secret.write_text("hunter3-second!\n")
        await here.kernel.renew_secrets()  # the kernel looks by itself, too, and may have been first
        await until(lambda: given() == "hunter3-second!" and here.state("a") == "connected")
        assert await here.call("a_pid") != process
        assert await here.call("b_pid") == other
        await here.call("a_say", text="it is hunter3-second!, and was hunter2-first")
        await until(lambda: "and was" in str(here.kernel.journal.list_lines()))
        shown = str(here.kernel.journal.list_lines()) + str(here.kernel.ps())
        assert "hunter" not in shown


@pytest.mark.anyio
async def test_a_secret_that_cannot_be_read_is_said_without_it(tmp_path: Path) -> None:
    uses = entry("a", more='env = { API_TOKEN = "${file:/nowhere/token}" }')
    async with running(tmp_path, OFF, uses, wait=False) as here:
        (row,) = here.kernel.ps()
        assert "file:/nowhere/token cannot be read" in str(row) + str(here.kernel.members["a"].problem)
        assert "may read it" in here.kernel.members["a"].fix


@pytest.mark.anyio
async def test_a_policy_is_taken_over_without_a_restart(tmp_path: Path) -> None:
    async with running(tmp_path, OFF, A) as here:
        process = await here.call("a_pid")
        here.write(OFF, entry("a", mgp='restart_policy = "never"'))
        assert (await here.kernel.reload())["adjusted"] == ["a"]
        assert await here.call("a_pid") == process
        os.kill(here.kernel.ps()[0]["pid"], signal.SIGKILL)
        await until(lambda: here.state("a") == "error")


@pytest.mark.anyio
@pytest.mark.parametrize("changed", [entry("a", "--other"), entry("a", prefix="other")], ids=["command", "prefix"])
async def test_a_stopped_server_is_not_started_by_a_change_of_the_file(tmp_path: Path, changed: str) -> None:
    async with running(tmp_path, OFF, A, B) as here:
        await here.kernel.stop("a")
        here.write(OFF, changed, B)
        await here.kernel.reload()
        assert here.state("a") in ("disconnected", "registered")
        assert not [tool for tool in await here.client.tools() if not tool["name"].startswith("b_")]
        await here.kernel.start("a")
        await here.connected("a")


@pytest.mark.anyio
async def test_a_change_that_needs_a_variable_that_is_not_set_is_said(tmp_path: Path) -> None:
    async with running(tmp_path, OFF, A, environ={"PATH": os.environ["PATH"]}) as here:
        here.write(OFF, A, entry("b", "${NOT_SET_HERE}"))
        assert "NOT_SET_HERE" in (await here.kernel.reload())["failed"]["b"]
        assert here.state("b") == "error"


@pytest.mark.anyio
async def test_what_only_a_start_takes_over_is_said(tmp_path: Path) -> None:
    async with running(tmp_path, OFF, A) as here:
        here.write(OFF, 'name = "other"', A)
        assert (await here.kernel.reload())["needs_start"] == ["name"]


def policy_of(kernel: Kernel, id: str) -> AccessPolicy:
    access = kernel.governance.access
    assert access is not None
    policy = access.find_policy(id)
    assert policy is not None
    return policy


@pytest.mark.anyio
async def test_another_default_policy_acts_at_once_and_takes_no_entry(tmp_path: Path) -> None:
    head, idle = 'admins = ["alice"]', 'default_policy = "{}"\n[[servers]]\nid = "a"\ncommand = "x"\nenabled = false\n'
    async with running(tmp_path, OFF, head, idle.format("opt-out"), wait=False) as here:
        registered = ServerEntry("r", ServerLaunch("x"), enabled=False)
        await here.kernel.add(registered, ServerCreator("alice", "", None))
        for id in ("a", "r"):
            policy_of(here.kernel, id).grant(Entry("server_grant", "eve", permission="deny"))

        def allowed() -> list[str]:
            return [
                f"{id} {agent}"
                for id in ("a", "r")
                for agent in ("eve", "bob")
                if policy_of(here.kernel, id).decide(agent, None, vocabulary.utc_now()).permission == "allow"
            ]

        lists = here.kernel.server.mcp.tools.registry
        for default, expected in (("opt-in", []), ("opt-out", ["a bob", "r bob"])):
            before = lists.version
            here.write(OFF, head, idle.format(default))
            assert (await here.kernel.reload())["needs_start"] == []
            assert lists.version > before
            assert allowed() == expected
        assert len(policy_of(here.kernel, "r").entries()) == 1


@pytest.mark.anyio
@pytest.mark.parametrize("whose", ["kernel", "server"])
async def test_a_kernel_that_does_not_tell_callers_apart_says_that_it_cannot_close_a_server(
    tmp_path: Path, whose: str
) -> None:
    idle, closed = '[[servers]]\nid = "a"\ncommand = "x"\nenabled = false\n', 'default_policy = "opt-in"\n'
    async with running(tmp_path, OFF, idle, wait=False) as here:
        here.write(OFF, *((closed, idle) if whose == "kernel" else (idle, closed)))
        assert (await here.kernel.reload())["needs_start"] == ["default_policy"]


@pytest.mark.anyio
async def test_a_removed_server_finishes_its_calls(tmp_path: Path) -> None:
    async with running(tmp_path, OFF, A, B) as here:
        call = asyncio.create_task(here.call("b_slow", seconds=0.5))
        backend = here.kernel.members["b"].backend
        assert backend is not None
        await until(lambda: backend.calls == 1)
        here.write(OFF, A)
        await here.kernel.reload()
        assert await call


@pytest.mark.anyio
async def test_a_server_gets_another_id_and_keeps_its_names_while_a_call_runs(tmp_path: Path) -> None:
    async with running(tmp_path, OFF, entry("a", prefix="p")) as here:
        call = asyncio.create_task(here.call("p_slow", seconds=0.5))
        backend = here.kernel.members["a"].backend
        assert backend is not None
        await until(lambda: backend.calls == 1)
        here.write(OFF, entry("b", prefix="p"))
        await here.kernel.reload()
        assert await call
        await here.connected("b")
        assert await here.call("p_pid")


@pytest.mark.anyio
async def test_a_save_while_an_older_one_is_taken_over_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_extension, "WATCH_SECONDS", 0.05)
    monkeypatch.setattr(kernel_extension, "SETTLE_SECONDS", 0.02)
    async with running(tmp_path, A, B) as here:
        call = asyncio.create_task(here.call("b_slow", seconds=1))
        backend = here.kernel.members["b"].backend
        assert backend is not None
        await until(lambda: backend.calls == 1)
        here.write(A)
        await until(lambda: "b" in here.kernel.leaving)
        here.write(A, entry("c"))
        assert await call
        await until(lambda: "c" in here.kernel.members)


@pytest.mark.anyio
@pytest.mark.parametrize("how", ["watch", "SIGHUP"])
async def test_the_kernel_hears_of_a_change(tmp_path: Path, how: str) -> None:
    head = OFF if how == "SIGHUP" else ""
    async with running(tmp_path, head, A) as here:
        here.write(head, A, B)
        if how == "SIGHUP":
            os.kill(os.getpid(), signal.SIGHUP)
        await until(lambda: "b" in here.kernel.members)
        await here.connected("b")


# ------------------------------------------------------------------------------------------------------------- changes

ENTRIES = st.builds(
    ServerEntry,
    st.sampled_from("abc"),
    st.builds(ServerLaunch, command=st.sampled_from(["x", "y"]))
    | st.builds(ServerLaunch, url=st.sampled_from(["x", "y"])),
    restart=st.sampled_from([RestartPolicy(), RestartPolicy("never")]),
    prefix=st.sampled_from([None, "p"]),
    tools=st.sampled_from([ToolFilter(), ToolFilter(deny=("x",))]),
    enabled=st.booleans(),
)
SERVERS = st.lists(ENTRIES, max_size=3).map(lambda entries: {entry.id: entry for entry in entries})


@given(SERVERS, SERVERS)
def test_every_server_gets_exactly_what_its_change_needs(
    old: dict[str, ServerEntry], new: dict[str, ServerEntry]
) -> None:
    found = find_server_changes(old, new)
    lists = [found.added, found.removed, found.replaced, found.relaunched, found.adjusted, found.unchanged]
    assert sorted(id for ids in lists for id in ids) == sorted(old.keys() | new.keys())
    assert set(found.unchanged) == {id for id in old.keys() & new.keys() if old[id] == new[id]}
    for id in found.adjusted:
        assert old[id].launch == new[id].launch
        assert old[id].prefix == new[id].prefix
    assert find_server_changes(new, new) == ConfigChanges(unchanged=list(new))
