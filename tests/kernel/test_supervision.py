"""A kernel goes on looking at its files, whatever it finds in them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from defserve.errors import DefserveError
from defserve.kernel import kernel_extension
from tests.kernel.running import Running, running
from tests.waiting import until

pytestmark = pytest.mark.anyio

ADMIN = '[kernel]\nadmins = ["alice"]\n'
DEEP = "[" * 20_000 + "]" * 20_000


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_extension, "WATCH_SECONDS", 0.01)
    monkeypatch.setattr(kernel_extension, "SETTLE_SECONDS", 0.01)


def idle(id: str) -> str:
    """A server that is never started."""
    return f'[[servers]]\nid = "{id}"\ncommand = "none"\nenabled = false\n'


def save(path: Path, text: str) -> None:
    """All at once: a kernel that looks so often would read half of it."""
    draft = path.with_suffix(".draft")
    draft.write_text(text)
    os.replace(draft, path)


def denial(agent: str, **more: Any) -> dict[str, Any]:
    return {"entry_type": "server_grant", "agent_id": agent, "permission": "deny", **more}


def is_denied(here: Running, agent: str) -> bool:
    access = here.kernel.governance.access
    assert access is not None
    policy = access.find_policy("a")
    assert policy is not None
    return policy.decide(agent, None, access.clock()).permission == "deny"


async def test_a_file_that_is_nested_too_deeply_is_named_and_the_next_one_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, idle("a"), wait=False) as here:
        save(here.path, f"x = {DEEP}\n{idle('a')}")
        await until(lambda: "mgp.toml is not TOML" in caplog.text)
        save(here.path, idle("a") + idle("b"))
        await until(lambda: list(here.kernel.members) == ["a", "b"])


async def test_an_error_that_nobody_expected_is_told_once_for_each_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = list[int]()

    async def fails() -> Any:
        raise RuntimeError("nobody expected this") from ConnectionError("postgres://bob:hunter2-canary@db/x")

    async def refresh() -> None:
        turns.append(1)
        await fails()

    async with running(tmp_path, idle("a"), wait=False) as here:
        monkeypatch.setattr(here.kernel, "refresh", refresh)
        with monkeypatch.context() as broken:
            broken.setattr(here.kernel, "reload", fails)
            save(here.path, idle("a") + idle("b"))
            await until(lambda: "was read again" in caplog.text)
        seen = len(turns)
        await until(lambda: len(turns) > seen + 5)
        tracebacks = [record for record in caplog.records if record.exc_text]
        assert len(tracebacks) == 2
        assert "nobody expected this" in caplog.text and "postgres://[redacted]@db/x" in caplog.text
        assert "hunter2" not in caplog.text
        save(here.path, idle("a") + idle("c"))
        await until(lambda: list(here.kernel.members) == ["a", "c"])


async def test_a_denial_of_another_kernel_arrives_beside_and_after_an_entry_that_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, ADMIN, idle("a"), wait=False) as here:
        state = here.path.with_suffix(".state.json")

        def keep(*entries: dict[str, Any]) -> None:
            save(state, json.dumps({"version": 1, "pins": {}, "access": {"a": entries}}))

        assert not is_denied(here, "eve") and not is_denied(here, "mallory")
        keep(denial("eve", expires_at="tomorrow"), denial("mallory"))
        await until(lambda: is_denied(here, "mallory"))
        assert is_denied(here, "eve")
        assert "mgp.state.json" in caplog.text and "expires_at" in caplog.text
        keep(denial("trent"))
        await until(lambda: is_denied(here, "trent"))
        assert not is_denied(here, "eve")


async def test_a_decision_that_cannot_be_kept_is_refused_with_its_reason_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, ADMIN, idle("a"), wait=False) as here:
        here.path.with_suffix(".state.json").write_text("{")
        with pytest.raises(DefserveError, match="The decision cannot be kept"):
            await here.kernel.access.set_entry("deny", "eve", "a")
        assert not is_denied(here, "eve")
        assert "mgp.state.json cannot be read" in caplog.text and "Traceback" not in caplog.text


async def test_a_state_file_that_is_removed_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    state = tmp_path / "mgp.state.json"
    save(state, json.dumps({"version": 1, "pins": {}, "access": {"a": [denial("eve")]}}))
    async with running(tmp_path, ADMIN, idle("a"), wait=False) as here:
        state.unlink()
        await until(lambda: not is_denied(here, "eve"))
        assert caplog.text.count("mgp.state.json was removed") == 1


async def test_a_state_file_that_cannot_be_read_changes_nothing_and_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state = tmp_path / "mgp.state.json"
    save(state, json.dumps({"version": 1, "pins": {}, "access": {"a": [denial("eve")]}}))
    async with running(tmp_path, ADMIN, idle("a"), wait=False) as here:
        save(state, "{")
        for _ in range(3):
            await here.kernel.refresh()
        assert is_denied(here, "eve")
        assert [record.getMessage().count("cannot be read") for record in caplog.records] == [1]
        save(state, json.dumps({"version": 1, "pins": {}, "access": {"a": [denial("mallory")]}}))
        await until(lambda: is_denied(here, "mallory"))
