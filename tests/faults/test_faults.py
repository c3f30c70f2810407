"""`make faults` in small: a few kills of each kind."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.faults import __main__ as command
from tests.faults import process
from tests.faults.acknowledged import Acknowledged, Add, RollBack
from tests.faults.kernel import kill_backends
from tests.faults.killing import Tally, kill_postgres, kill_redis, kill_servers, share_postgres, share_redis
from tests.faults.killing_tasks import Jobs, kill_on_postgres, kill_on_redis, kill_on_sqlite
from tests.faults.process import Broken, start_python
from tests.faults.rolling import reload_workers
from tests.faults.sessions.killing import kill_sharing_here
from tests.faults.trouble import fill_the_disk, forbid_writing
from tests.forking.processes import ForkedProcess
from tests.rows import for_each_row

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="kills, limits and capabilities as Linux has them"),
    pytest.mark.timeout(120),
]


@pytest.fixture(autouse=True)
def forked_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no matter how the servers start that are killed; `make faults` starts each anew."""

    def start(arguments: Sequence[str], environment: Mapping[str, str], prepare: Callable[[], None] | None) -> Any:
        if prepare is not None or arguments[0].startswith("-"):
            return start_python(arguments, environment, prepare)
        script, *args = arguments
        return ForkedProcess(Path(script), args, subprocess.PIPE, environment, stderr=subprocess.DEVNULL)

    monkeypatch.setattr(process, "start_python", start)


def kills(usually: int, slow: int) -> pytest.MarkDecorator:
    """How often something is killed, and how often by `make test-slow`."""
    return pytest.mark.parametrize("runs", [usually, pytest.param(slow, marks=pytest.mark.slow)])


@pytest.mark.parametrize("seed", [1, pytest.param(3, marks=pytest.mark.slow)])
@kills(2, slow=5)
def test_nothing_acknowledged_is_lost_when_a_server_is_killed(seed: int, runs: int):
    tally = kill_servers(seed, runs)
    assert (tally.runs, len(tally.restarts)) == (runs, runs)


@pytest.mark.parametrize("kill", [kill_redis, kill_postgres])
@kills(2, slow=5)
def test_nothing_acknowledged_is_lost_when_redis_or_postgres_is_killed(kill: Callable[[int, int], Tally], runs: int):
    tally = kill(1, runs)
    assert tally.acknowledged > 0
    assert min(tally.restarts) < 10 * command.RESTART_SECONDS  # beside all the other tests


@pytest.mark.parametrize("share", [share_redis, share_postgres])
@pytest.mark.parametrize("calls", [3, pytest.param(8, marks=pytest.mark.slow)])
def test_two_servers_on_one_store_never_lose_or_fork_a_tree(share: Callable[[int, int, int], Tally], calls: int):
    assert share(1, 2, calls).acknowledged >= calls


@pytest.mark.slow
def test_no_session_event_or_answer_is_lost_when_processes_that_share_them_are_killed():
    assert kill_sharing_here(1, 5).acknowledged > 0


@kills(1, slow=3)
def test_servers_of_a_kernel_are_killed_and_no_client_is_cut_off_and_no_call_runs_twice(runs: int):
    assert kill_backends(1, runs).acknowledged > 0


@pytest.mark.slow
def test_no_call_fails_while_workers_are_replaced():
    assert reload_workers(1, 2, rate=50, pause=0.5).acknowledged > 0


@pytest.mark.req("MCP-8")
@pytest.mark.parametrize("kill", [kill_on_sqlite, kill_on_redis, kill_on_postgres])
@kills(1, slow=3)
def test_no_task_is_lost_or_runs_twice_when_its_process_is_killed(kill: Callable[[int, int], Tally], runs: int):
    tally = kill(1, runs)
    assert tally.runs == runs and tally.acknowledged >= 2 * runs


@pytest.mark.slow
def test_a_full_disk_is_told_and_survived():
    fill_the_disk()


@pytest.mark.slow
def test_a_read_only_file_is_told_and_survived():
    forbid_writing()


@pytest.mark.slow
def test_the_command_tells_what_it_did(capsys: pytest.CaptureFixture[str]):
    command.main(["--runs", "1", "--only", "servers", "--jobs", "1", "--seed", "1"])
    out = capsys.readouterr().out
    assert out.startswith("servers      1 runs, ")
    assert "0 lost, 0 unreadable" in out


def test_the_command_says_how_to_see_it_again(capsys: pytest.CaptureFixture[str]):
    def story(seed: int, runs: int) -> Tally:
        if seed == 8:
            raise Broken("a checkpoint is lost")
        return Tally(runs=runs, restarts=[0.1])

    assert command.tell("servers", command.Story(story), 25, jobs=2, seed=7) == 1
    out = capsys.readouterr().out
    assert "BROKEN: a checkpoint is lost (--only servers --runs 10 --seed 8)" in out
    assert "15 runs" in out and "1 broken stories" in out


def test_a_slow_restart_is_a_failure():
    assert command.is_slow(Tally(restarts=[0.2, 1.1, 1.2]))
    assert not command.is_slow(Tally(restarts=[0.2, 0.3, 1.2]))


# -- the judge itself ------------------------------------------------------------------------------------


def told(*texts: str) -> Acknowledged:
    """A host that was told of these notes, one after another."""
    line = Acknowledged()
    for count in range(1, len(texts) + 1):
        notes = [{"id": n + 1, "text": text} for n, text in enumerate(texts[:count])]
        state = {"checkpoint": f"chk_{texts[count - 1]}", "parent": None, "data": {"notes": notes}}
        line.take(Add(texts[count - 1]), {"result": {"content": [], "state": state}})
    return line


@for_each_row(
    ("head", "maybe", "is_good"),
    [
        (["a", "b"], [], True),
        (["a"], [], False),
        (["a", "b", "c"], [], False),
        (["a", "b", "c"], [Add("c"), Add("d")], True),
        (["a", "b", "d", "c"], [Add("c"), Add("d")], True),
        (["a", "b", "c", "c"], [Add("c")], False),
        (["a"], [RollBack("chk_a")], True),
        (["a", "c"], [RollBack("chk_a")], False),
        (["b", "a"], [], False),
    ],
)
def test_a_head_is_what_was_acknowledged_and_perhaps_what_was_under_way(
    head: list[str], maybe: list[Add | RollBack], is_good: bool
):
    line = told("a", "b")
    line.maybe += maybe
    if is_good:
        line.check_head(head)
        assert line.tip == head
    else:
        with pytest.raises(Broken):
            line.check_head(head)


def test_an_error_that_nobody_expects_is_told():
    failed = {"result": {"isError": True, "content": [{"type": "text", "text": "The store cannot be reached"}]}}
    with pytest.raises(Broken, match="cannot be reached"):
        told("a").take(Add("b"), failed)
    line = told("a")
    line.take(Add("b"), failed, tolerates="The store cannot be reached")
    assert line.maybe == [Add("b")]


@pytest.mark.parametrize(
    ("tool", "task", "log", "wrong"),
    [
        ("once", {"status": "completed"}, "begin once 1\nend once 1", None),
        ("once", {"status": "failed", "statusMessage": "the process that ran the task has died"}, "begin once 1", None),
        ("once", {"status": "failed", "statusMessage": "a bug"}, "begin once 1", "has failed"),
        ("again", {"status": "failed", "statusMessage": "the process that ran the task has died"}, "", "has failed"),
        ("once", {"status": "completed"}, "begin once 1\nbegin once 1\nend once 1", "ran twice"),
        ("once", {"status": "completed"}, "begin once 1", "did not come to its end"),
    ],
)
def test_a_task_that_ran_twice_or_ended_otherwise_is_told(
    tmp_path: Path, tool: str, task: dict[str, Any], log: str, wrong: str | None
):
    jobs = Jobs(tmp_path / "log")
    (tmp_path / "log").write_text(log)
    jobs.ended["once 1"] = tool, {**task, "result": {"content": [{"text": "once 1"}]}}
    if wrong is None:
        jobs.judge()
    else:
        with pytest.raises(Broken, match=wrong):
            jobs.judge()
