"""A group of workers: it starts, loses one, is replaced and ends, and no call notices more than it must."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from defserve.server.workers.supervisor import SupervisorTiming
from defserve.stores.audit.stored_log import StoredAuditLog
from tests.server.workers.group import QUICK, SERVER, group, write_server
from tests.stores.redis_server import RedisServer
from tests.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


async def test_workers_share_a_socket_and_one_that_dies_is_replaced(tmp_path: Path):
    async with group(write_server(tmp_path)) as served:
        first, second = served.pids
        assert int(await served.call("who")) in (first, second)
        os.kill(first, signal.SIGKILL)
        assert await served.hear("SIGKILL") == f"worker 1 (process {first}) was ended by SIGKILL; it is replaced"
        await served.hear(r"worker 1 \(process \d+\) started")
        assert second in served.pids and first not in served.pids
        # One scrape, whichever worker takes it, tells of all.
        status, text = await served.get("/metrics")
        assert status == 200
        for number, pid in enumerate(served.pids, 1):
            assert f'defserve_worker_info{{worker="{number}",pid="{pid}"}} 1' in text
        assert 'defserve_worker_restarts_total{worker="1"} 1\n' in text
        assert 'defserve_worker_restarts_total{worker="2"} 0\n' in text
        assert text.count("# TYPE defserve_tool_calls_total counter") == 1
        assert await served.get("/readyz/group") == (200, "2 of 2 workers ready")
        assert await served.get("/healthz/group") == (200, "2 of 2 workers live")
        assert await served.get("/readyz") == (200, "healthy")
        served.supervisor.stop(0)
        assert await served.ended == 0


async def test_a_reload_loses_no_call_and_a_broken_file_changes_nothing(tmp_path: Path):
    file, mark = write_server(tmp_path), tmp_path / "mark"
    async with group(file, 1) as served:
        (old,) = served.pids
        kept, running = await served.connect(), asyncio.create_task(served.call("slow", path=str(mark)))
        assert int(await kept.call("who")) == old and not kept.is_last
        await until(mark.exists)
        file.write_text("import nothing_of_this_name")
        served.supervisor.reload()
        await served.hear(r"not reloaded: worker 1 \(process \d+\) ended with exit code 1; the workers of before go on")
        assert served.pids == [old] and int(await kept.call("who")) == old
        write_server(tmp_path)
        served.supervisor.reload()
        await served.hear("reloaded: 1 worker started")
        (new,) = served.pids
        # Old connections are told to close with an answer, never instead of one. New ones reach the new worker.
        while not kept.is_last:
            assert int(await kept.call("who")) == old
        assert await kept.reader.read() == b""
        kept.close()
        assert int(await served.call("who")) == new != old
        assert not running.done()
        mark.unlink()
        assert await running == "done"
        await until(lambda: len(served.supervisor.running) == 1)


async def test_two_workers_write_one_audit_log_in_a_file_of_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DEFSERVE_AUDIT_KEY", "k" * 43)
    address = f"sqlite:///{tmp_path / 'audit.db'}"
    source = SERVER.replace("limits=", f"audit={address + '#audit'!r}, limits=")
    async with group(write_server(tmp_path, source=source)) as served:
        await asyncio.gather(*(served.call("who") for _ in range(40)))
        for pid in served.pids:
            with served.only(pid):
                assert int(await served.call("who")) == pid
        status, text = await served.get("/metrics")
        calls = sum(int(count) for count in re.findall(r"defserve_tool_calls_total.* (\d+)", text))
        served.supervisor.stop(0)
        assert await served.ended == 0
    log = StoredAuditLog(f"{address}#audit")
    try:
        assert status == 200 and calls == 42
        report = log.verify()
        assert report.ok and report.events >= calls and not report.lost, report
    finally:
        log.close()


async def test_with_a_redis_any_worker_answers_for_a_session_and_a_reload_ends_none(tmp_path: Path):
    redis = RedisServer().start()
    try:
        source = SERVER.replace("limits=", f"shared={redis.address!r}, limits=")
        async with group(write_server(tmp_path, source=source), options=()) as served:
            session = await served.open_session()
            before = served.pids
            for pid in before:
                with served.only(pid):
                    assert int(await served.call_in(session, "who")) == pid
            served.supervisor.reload()
            await served.hear("reloaded: 2 workers started")
            while (pid := int(await served.call_in(session, "who"))) in before:
                pass  # one of before, that has not been told yet
            assert pid in served.pids
    finally:
        redis.remove()


async def test_a_server_that_cannot_be_loaded_ends_the_group(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    async with group(write_server(tmp_path, source="raise RuntimeError('no such shelf')")) as served:
        assert await served.ended == 1
        assert "ended with exit code 1" in served.said[-1] and len(served.said) == 1
    assert capfd.readouterr().err.count("no such shelf") >= 1


async def test_a_crash_loop_is_told_and_slowed(tmp_path: Path):
    flag = tmp_path / "flag"
    more = f"if os.path.exists({str(flag)!r}): os._exit(3)"
    async with group(write_server(tmp_path, more), 1, timing=replace(QUICK, proven=600.0)) as served:
        flag.touch()
        os.kill(served.pids[0], signal.SIGKILL)
        await served.hear(r"ended with exit code 3; it is tried again")
        await served.hear("worker 1 ended early 3 times in a row; next start in 0.04 s")
        flag.unlink()
        await served.hear(r"worker 1 \(process \d+\) started")


async def test_a_worker_that_hangs_says_where_and_is_replaced(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    async with group(write_server(tmp_path), 1, timing=replace(QUICK, hang=2.0)) as served:
        hung = asyncio.create_task(served.call("block"))
        await served.hear("has not answered for 2 s; it is killed and replaced")
        await served.hear(r"worker 1 \(process \d+\) started")
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await hung
        assert int(await served.call("who")) == served.pids[0]
    assert "in block" in capfd.readouterr().err


async def test_a_worker_that_is_stopped_is_killed_when_the_time_to_drain_is_over(tmp_path: Path):
    file = write_server(tmp_path, source=SERVER.replace("drain=10", "drain=1"))
    async with group(file, 2, timing=SupervisorTiming()) as served:
        stopped, _ = served.pids
        os.kill(stopped, signal.SIGSTOP)
        began = time.monotonic()
        served.supervisor.stop(0)
        assert await served.ended == 0
        assert 1 < time.monotonic() - began < 8, "the time to drain, and about 2 seconds"
        assert served.said[1:] == [f"worker 1 (process {stopped}) did not end in time and was killed"]


async def test_a_worker_whose_calls_take_too_long_is_in_time_to_answer_them(tmp_path: Path):
    file = write_server(tmp_path, source=SERVER.replace("drain=10", "drain=1"))
    async with group(file, 1, timing=SupervisorTiming()) as served:
        mark = tmp_path / "mark"
        never = asyncio.create_task(served.call("slow", path=str(mark)))
        await until(mark.exists)
        served.supervisor.stop(0)
        assert await served.ended == 0
        assert served.said == ["all serve"]
        assert "shutting down" in await never


async def test_a_program_that_is_gone_for_a_while_ends_nobody(tmp_path: Path):
    async with group(write_server(tmp_path), 1) as served:
        plan, (old,) = served.supervisor.plan, served.pids
        served.supervisor.plan = replace(plan, command=(str(tmp_path / "gone"),))
        served.supervisor.reload()
        await served.hear("not reloaded: worker 1 cannot be started: .*gone.*; the workers of before go on")
        assert int(await served.call("who")) == old
        os.kill(old, signal.SIGKILL)
        await served.hear("^worker 1 cannot be started: .*gone.*; it is tried again")
        served.supervisor.plan = plan
        await served.hear(r"worker 1 \(process \d+\) started")
        assert int(await served.call("who")) == served.pids[0]
