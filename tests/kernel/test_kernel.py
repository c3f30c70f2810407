"""A kernel over real processes: what clients see of its servers, and what happens when one ends."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from defserve.client import ProcessLink
from defserve.errors import DefserveError, ToolError, UsageError
from defserve.proxying.mounted import ServerExit
from defserve.sandbox import monty
from tests.kernel.running import BACKEND, Running, entry, running
from tests.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def main_process(here: Running, id: str) -> int:
    """The process of a server's own conversation, which the kernel keeps."""
    (pid,) = [row["pid"] for row in here.kernel.ps() if row["id"] == id]
    return pid


def texts(here: Running, id: str | None = None) -> list[str]:
    return [line.text for line in here.kernel.journal.list_lines(id)]


async def test_the_tools_of_all_servers_are_served_as_one(tmp_path: Path) -> None:
    async with running(tmp_path, entry("a"), entry("b")) as here:
        names = {tool["name"] for tool in await here.client.tools()}
        assert {"a_add", "b_add"} <= names
        assert int(await here.call("a_add", a=1, b=2)) == 3
        assert await here.call("a_pid") != await here.call("b_pid")


@pytest.mark.slow
@pytest.mark.skipif(not monty.is_installed(), reason="pydantic-monty is not installed in the tested version")
async def test_code_calls_tools_of_all_servers_if_the_file_says_so(tmp_path: Path) -> None:
    async with running(tmp_path, "[kernel]\ncode_mode = true\n", entry("a"), entry("b")) as here:
        code = "[int(a_add(1, 2)) + int(b_add(a=3, b=4)), a_pid() != b_pid()]"
        assert await here.call("run_code", code=code) == {"result": [10, True]}


async def test_a_server_whose_variable_is_not_set_is_an_error_and_the_others_serve(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = '[[servers]]\nid = "x"\ncommand = "${NOT_SET_HERE}"\n'
    async with running(tmp_path, broken, entry("a"), wait=False, environ={"PATH": os.environ["PATH"]}) as here:
        await here.connected("a")
        row = here.kernel.ps()[0]
        assert (row["id"], row["state"]) == ("x", "error")
        assert "NOT_SET_HERE" in row["note"]
        assert "x is not started: the variable NOT_SET_HERE is not set\n  fix: export NOT_SET_HERE=" in caplog.text
        with pytest.raises(UsageError, match="NOT_SET_HERE") as caught:
            await here.kernel.start("x")
        assert "mgp.toml:1: export NOT_SET_HERE=… and start the kernel again" in caught.value.fix


async def test_a_server_that_is_not_enabled_is_listed_and_started_on_demand(tmp_path: Path) -> None:
    async with running(tmp_path, entry("a", more="enabled = false"), wait=False) as here:
        assert here.state("a") == "registered"
        assert await here.client.tools() == []
        await here.kernel.start("a")
        await here.connected("a")
        assert int(await here.call("a_add", a=1, b=2)) == 3


# ------------------------------------------------------------------------------------------------------ ends and starts


@pytest.mark.req("MGP-11.5p", "MGP-11.5b")
async def test_a_killed_server_is_started_again_and_clients_keep_their_conversation(tmp_path: Path) -> None:
    async with running(tmp_path, entry("a")) as here:
        assert int(await here.call("a_add", a=1, b=2)) == 3
        os.kill(main_process(here, "a"), signal.SIGKILL)
        await until(lambda: here.kernel.ps()[0]["restarts"] == 1)
        await here.connected("a")
        assert int(await here.call("a_add", a=2, b=2)) == 4
        assert any("signal 9" in text for text in texts(here))


@pytest.mark.skipif(not shutil.which("yes"), reason="needs the program `yes`")
async def test_a_server_that_prints_without_end_is_ended_by_the_policy_and_the_others_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is given time to leave, and all the while what it prints is read.
    monkeypatch.setitem(ProcessLink.spawn.__kwdefaults__, "grace", 0.05)
    bad = '[[servers]]\nid = "bad"\ncommand = "yes"\n[servers.mgp]\nbackoff_base_ms = 10\nmax_restarts = 1\n'
    async with running(tmp_path, entry("a"), bad, wait=False) as here:
        await here.connected("a")
        while here.state("bad") != "error" or here.kernel.ps()[1]["restarts"] < 1:
            assert int(await here.call("a_add", a=1, b=2)) == 3
        await until(lambda: any("restart_limit_exceeded" in text for text in texts(here, "bad")))
        assert "no JSON-RPC messages" in here.kernel.ps()[1]["note"]
    assert len(caplog.messages) < 100


@pytest.mark.req("MGP-11.5p")
async def test_a_server_that_is_never_restarted_stays_in_error(tmp_path: Path) -> None:
    async with running(tmp_path, entry("a", mgp='restart_policy = "never"')) as here:
        os.kill(main_process(here, "a"), signal.SIGKILL)
        await until(lambda: here.state("a") == "error")
        with pytest.raises(DefserveError, match="'a'"):
            await here.call("a_add", a=1, b=2)
        await here.kernel.start("a")
        await here.connected("a")


@pytest.mark.req("MGP-11.5w")
async def test_too_many_restarts_leave_a_server_in_error_until_an_operator_starts_it(tmp_path: Path) -> None:
    async with running(tmp_path, entry("a", mgp="max_restarts = 2")) as here:
        for count in (1, 2):
            os.kill(main_process(here, "a"), signal.SIGKILL)
            await until(lambda count=count: here.kernel.ps()[0]["restarts"] == count)  # pyright: ignore
            await here.connected("a")
        os.kill(main_process(here, "a"), signal.SIGKILL)
        await until(lambda: here.state("a") == "error")
        assert any("restart_limit_exceeded" in text for text in texts(here))
        assert here.kernel.ps()[0]["recent_restarts"] == 2
        assert here.kernel.ps()[0]["gave_up"] == "gave up after 2 restarts in 300 s"
        await here.kernel.start("a")
        await here.connected("a")
        assert here.kernel.ps()[0]["recent_restarts"] == 0
        assert here.kernel.ps()[0]["gave_up"] == ""


@pytest.mark.slow
@pytest.mark.req("MGP-11.5p", "MGP-11.5w")
async def test_the_policy_holds_for_the_process_of_a_client_and_harms_no_other_client(tmp_path: Path) -> None:
    async with running(tmp_path, entry("a", mgp="max_restarts = 1")) as here:
        for _ in range(2):
            with pytest.raises(DefserveError, match="crashed before it answered"):
                await here.call("a_leave", code=1)
        with pytest.raises(DefserveError, match="restart_limit_exceeded"):
            await here.call("a_add", a=1, b=2)
        async with here.kernel.server.connect() as other:
            assert int(await other.call("a_add", a=1, b=2)) == 3
        assert here.state("a") == "connected"
        await here.kernel.restart("a")
        assert int(await here.call("a_add", a=1, b=2)) == 3


@pytest.mark.slow
async def test_a_server_that_hangs_is_found_by_probes_and_started_again(tmp_path: Path) -> None:
    health = "health = { interval_secs = 0.05, timeout_secs = 0.3, failures = 2 }"
    async with running(tmp_path, entry("a", more=f'per = "shared"\n{health}'), entry("b")) as here:
        hanging = asyncio.create_task(here.client.call_raw("a_hang"))
        await until(lambda: here.kernel.ps()[0]["restarts"] == 1)
        assert int(await here.call("b_add", a=1, b=2)) == 3
        await here.connected("a")
        assert int(await here.call("a_add", a=1, b=2)) == 3
        with pytest.raises(DefserveError):
            result = await hanging
            raise ToolError(str(result))
        assert any("did not answer 2 probes" in text for text in texts(here, "a"))


async def test_a_stopped_server_stays_stopped_whatever_its_policy(tmp_path: Path) -> None:
    async with running(tmp_path, entry("a", mgp='restart_policy = "always"')) as here:
        process = main_process(here, "a")
        assert await here.kernel.stop("a") == {"id": "a", "state": "disconnected"}
        assert await here.client.tools() == []
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
        backend = here.kernel.members["a"].backend
        assert backend is not None
        assert backend.policy.plan_restart(ServerExit.STOPPED)
        await here.kernel.start("a")
        await here.connected("a")


async def test_a_stop_lets_calls_finish(tmp_path: Path) -> None:
    async with running(tmp_path, entry("a")) as here:
        call = asyncio.create_task(here.call("a_slow", seconds=0.5))
        backend = here.kernel.members["a"].backend
        assert backend is not None
        await until(lambda: backend.calls == 1)
        await here.kernel.stop("a")
        assert await call


async def test_a_restart_is_told_in_the_log_and_begins_the_time_anew(tmp_path: Path) -> None:
    script = tmp_path / "server.py"
    script.write_text(BACKEND.read_text())
    text = f'[[servers]]\nid = "a"\ncommand = "{sys.executable}"\nargs = ["-I", "-S", "{script}"]\n'
    async with running(tmp_path, text) as here:
        before = here.kernel.ps()[0]["since"]
        await here.kernel.restart("a")
        row = here.kernel.ps()[0]
        assert (row["state"], row["since"] > before) == ("connected", True)
        assert "restarted without a gap: operator_request" in texts(here)
        # One that does not open changes nothing, and is told as well.
        script.write_text("import sys; sys.exit('no more')")
        with pytest.raises(DefserveError):
            await here.kernel.restart("a")
        assert here.kernel.ps()[0]["since"] == row["since"]
        assert any(text.startswith("it was not restarted: ") and "no more" in text for text in texts(here))


@pytest.mark.slow
async def test_a_restart_has_no_gap(tmp_path: Path) -> None:
    async with running(tmp_path, entry("a", more='per = "shared"')) as here:
        before = int(await here.call("a_pid"))
        answers: list[int] = []
        ended = asyncio.Event()

        async def load() -> None:
            while not ended.is_set():
                answers.append(int(await here.call("a_pid")))

        under_way = asyncio.create_task(here.call("a_slow", seconds=0.5))
        callers = [asyncio.create_task(load()) for _ in range(4)]
        await until(lambda: len(answers) > 10)
        await here.kernel.restart("a")
        after = int(await here.call("a_pid"))
        ended.set()
        await asyncio.gather(*callers)
        assert int(await under_way) == before
        assert set(answers) == {before, after}
        with pytest.raises(ProcessLookupError):
            os.kill(before, 0)


async def test_all_servers_end_with_the_kernel(tmp_path: Path) -> None:
    async with running(tmp_path, entry("a"), entry("b")) as here:
        processes = [main_process(here, "a"), int(await here.call("a_pid")), main_process(here, "b")]
    for process in processes:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


# -------------------------------------------------------------------------------------------------------------- secrets


async def test_what_was_filled_in_is_shown_to_nobody(tmp_path: Path) -> None:
    secret = "hunter2-and-more"
    environ = {"PATH": os.environ["PATH"], "K_SECRET": secret, "PLAIN": "visible"}
    given = entry("a", "${K_SECRET}", more='[servers.env]\nMINE = "${K_SECRET}"')
    async with running(tmp_path, given, environ=environ) as here:
        assert await here.call("a_environment", name="MINE") == secret  # the server has it
        await here.call("a_say", text=f"token={secret} and {secret}")
        await until(lambda: any("and" in text for text in texts(here, "a")))
        os.kill(main_process(here, "a"), signal.SIGKILL)
        await until(lambda: here.kernel.ps()[0]["restarts"] == 1)
        shown = [str(here.kernel.ps()), str(texts(here)), str(here.kernel.status()), repr(here.kernel.config)]
        assert not [text for text in shown if secret in text]
        assert any("${K_SECRET}" in text or "[redacted]" in text for text in texts(here))


async def test_an_error_that_a_client_reads_has_nothing_that_was_filled_in(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    environ = {"PATH": os.environ["PATH"], "K_ARGUMENT": "hunter2"}
    async with running(tmp_path, entry("a", "--x", "${K_ARGUMENT}"), environ=environ) as here:
        await here.call("a_say", text="I was started with hunter2")
        with pytest.raises(DefserveError) as caught:
            await here.call("a_leave", code=1)
        assert "started with" not in str(caught.value)
        assert "I was started with [redacted]" in caplog.text
        assert "hunter2" not in caplog.text
        assert "hunter2" not in str(caught.value)


async def test_a_child_sees_only_what_the_file_gives_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_SERVERS_TOKEN", "hunter2")
    async with running(tmp_path, entry("a")) as here:
        assert await here.call("a_environment", name="OTHER_SERVERS_TOKEN") == ""
        assert await here.call("a_environment", name="PATH")


# --------------------------------------------------------------------------------------------------------------- verbs


async def test_an_unknown_id_gets_a_suggestion(tmp_path: Path) -> None:
    async with running(tmp_path, entry("office.mail")) as here:
        for verb in (here.kernel.start, here.kernel.stop, here.kernel.restart):
            with pytest.raises(UsageError, match="did you mean 'office.mail'"):
                await verb("office.mial")


@pytest.mark.slow
async def test_tools_of_all_servers_are_found_by_what_they_do(tmp_path: Path) -> None:
    async with running(tmp_path, entry("a"), entry("b")) as here:
        found = await here.kernel.search("add two numbers", 2)
        assert [(tool["name"], tool["server_id"]) for tool in found] == [("a_add", "a"), ("b_add", "b")]
        for query, top in (("", 5), ("x", 0), ("x", 1000)):
            with pytest.raises(UsageError):
                await here.kernel.search(query, top)


@pytest.mark.slow
async def test_an_operator_finds_tools_that_nobody_was_granted(tmp_path: Path) -> None:
    async with running(tmp_path, '[kernel]\ndefault_policy = "opt-in"', entry("a")) as here:
        found = await here.kernel.search("add two numbers", 1)
        assert [tool["name"] for tool in found] == ["a_add"]


@pytest.mark.slow
async def test_with_many_tools_only_pinned_ones_are_listed(tmp_path: Path) -> None:
    head = '[kernel]\nlevel = "L3"\n[kernel.tools]\npinned = ["b.pid"]'
    async with running(tmp_path, head, entry("a", more='pinned = ["add"]'), entry("b")) as here:
        names = {tool["name"] for tool in await here.client.tools()}
        assert {name for name in names if not name.startswith("mgp_")} == {"a_add", "b_pid"}
        assert int(await here.call("b_add", a=1, b=2)) == 3


@pytest.mark.slow
async def test_logs_follow_what_happens(tmp_path: Path) -> None:
    async with running(tmp_path, entry("a"), entry("b")) as here:
        lines: list[dict[str, Any]] = []

        async def follow() -> None:
            async for line in here.kernel.logs("a", follow=True):
                lines.append(line)  # noqa: PERF401 - it never ends

        task = asyncio.create_task(follow())
        await until(lambda: len(lines) >= 2)
        await here.call("b_say", text="not of a")
        await here.call("a_say", text="\x1b[31mhello")
        await until(lambda: any("hello" in line["text"] for line in lines))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert {line["id"] for line in lines} == {"a"}
        assert not any("\x1b" in line["text"] for line in lines)
        assert [line async for line in here.kernel.logs("a")]


async def test_logs_say_each_last_word_once(tmp_path: Path) -> None:
    dying = f'[[servers]]\nid = "x"\ncommand = "{sys.executable}"\nargs = ["no-such-file.py"]\n'
    async with running(tmp_path, dying, wait=False) as here:
        await until(lambda: here.state("x") == "restarting")
        told = [line["text"] async for line in here.kernel.logs("x") if line["kind"] == "state"]
        assert any(text.endswith("exited with code 2") for text in told)
        assert not any("\n" in text for text in told)


async def test_a_file_that_forgets_to_serve_is_told_so(tmp_path: Path) -> None:
    ending = f'[[servers]]\nid = "x"\ncommand = "{sys.executable}"\nargs = ["-I", "-S", "-c", "made = True"]\n'
    async with running(tmp_path, ending, wait=False) as here:
        await until(lambda: here.state("x") == "restarting")
        assert any("it ended without serving" in text for text in texts(here, "x"))
        assert "does the file end with server.main()?" in here.kernel.ps()[0]["note"]


# --------------------------------------------------------------------------------------------------------------- sleep


@pytest.mark.parametrize("setting", ["idle_stop = 0.2", 'start = "lazy"\nidle_stop = 0.2'])
async def test_a_server_that_nobody_uses_sleeps_and_a_call_wakes_it(tmp_path: Path, setting: str) -> None:
    async with running(tmp_path, entry("a", more=f'per = "shared"\n{setting}'), wait=False) as here:
        await until(lambda: here.state("a") == "disconnected")
        names = {tool["name"] for tool in await here.client.tools()}
        assert "a_add" in names
        first = int(await here.call("a_pid"))
        await until(lambda: here.state("a") == "disconnected")
        assert int(await here.call("a_pid")) != first
        assert here.kernel.ps()[0]["recent_restarts"] == 0
        with pytest.raises(ProcessLookupError):
            os.kill(first, 0)


async def test_calls_that_come_while_a_server_falls_asleep_are_answered(tmp_path: Path) -> None:
    async with running(tmp_path, entry("a", more='per = "shared"')) as here:
        backend = here.kernel.members["a"].backend
        assert backend is not None
        for _ in range(3):
            asleep = asyncio.create_task(backend.sleep())
            await until(lambda: backend.state in ("draining", "disconnected"))
            assert int(await here.call("a_add", a=1, b=2)) == 3
            await asleep


async def test_a_stopped_server_is_not_woken_by_a_call(tmp_path: Path) -> None:
    async with running(tmp_path, entry("a", more='start = "lazy"\nidle_stop = 0.2'), wait=False) as here:
        await until(lambda: here.state("a") == "disconnected")
        await here.kernel.stop("a")
        with pytest.raises(DefserveError):
            await here.call("a_add", a=1, b=2)
        assert here.state("a") == "disconnected"
