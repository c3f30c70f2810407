"""Secrets by reference: read where they are, again when they change, and shown to nobody."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from defserve import UsageError
from defserve.base import secret_references
from defserve.base.secret_references import (
    COMMAND_SECONDS,
    MAX_SECRET_BYTES,
    RETRY_SECONDS,
    SecretReader,
    SecretSetting,
    is_secret_reference,
    read_secret_setting,
    run_program,
)
from tests.rows import for_each_row


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_any_other_text_is_the_secret_itself() -> None:
    for text in ("hunter2", "", "FILE:/x", "files:/x", "a file:/x"):
        assert not is_secret_reference(text)
        assert SecretSetting(text, "the secret").read_secret() == text


def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path, reader = tmp_path / "token", SecretReader()
    path.write_text("first\n")
    assert reader.read_secret(f"file:{path}") == "first"
    path.write_text("second\r\n")
    assert reader.read_secret(f"file:{path}") == "second"
    assert reader.list_recent_values(f"file:{path}") == ("second", "first")


def test_a_mount_that_swaps_a_link_is_noticed(tmp_path: Path) -> None:
    """Kubernetes writes a new folder, and turns a link around."""
    for name in ("one", "two"):
        (tmp_path / name).write_text(name)
    link = tmp_path / "token"
    link.symlink_to(tmp_path / "one")
    reader = SecretReader()
    assert reader.read_secret(f"file:{link}") == "one"
    (tmp_path / "new").symlink_to(tmp_path / "two")
    os.replace(tmp_path / "new", link)
    assert reader.read_secret(f"file:{link}") == "two"


def test_a_path_may_name_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """systemd says in one where a unit's credentials are."""
    (tmp_path / "token").write_text("hunter2")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_secret_setting("file:$CREDENTIALS_DIRECTORY/token", "x") == "hunter2"
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    with pytest.raises(UsageError, match="a variable in it is not set"):
        read_secret_setting("file:$CREDENTIALS_DIRECTORY/token", "x")


def test_keys_of_several_lines_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("-----BEGIN\nabc\n-----END\n")
    assert read_secret_setting(f"file:{tmp_path}/key.pem", "x") == "-----BEGIN\nabc\n-----END"


def test_a_program_is_run_again_when_its_time_is_over() -> None:
    clock, runs = Clock(), list[list[str]]()

    def run(words: list[str]) -> bytes:
        runs.append(words)
        return f"value {len(runs)}".encode()

    reader, reference = SecretReader(run=run, clock=clock), "command:op read 'op://a b/c'"
    assert [reader.read_secret(reference) for _ in range(3)] == ["value 1"] * 3
    assert runs == [["op", "read", "op://a b/c"]]
    clock.now += COMMAND_SECONDS + 1
    assert reader.read_secret(reference) == "value 2"


def test_what_was_read_counts_while_its_source_is_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock, path = Clock(), tmp_path / "token"
    path.write_text("hunter2")
    reader = SecretReader(clock=clock)
    assert reader.read_secret(f"file:{path}") == "hunter2"
    path.unlink()
    assert reader.read_secret(f"file:{path}") == "hunter2"
    assert "still counts" in caplog.text and "hunter2" not in caplog.text
    path.write_text("hunter3")
    clock.now += RETRY_SECONDS + 1
    assert reader.read_secret(f"file:{path}") == "hunter3"


def test_no_shell_reads_a_command(tmp_path: Path) -> None:
    target = tmp_path / "made"
    text = f"command:{sys.executable} -c 'import sys; print(sys.argv[1:])' $HOME `touch {target}` $(touch {target})"
    assert "$HOME" in read_secret_setting(text, "x")
    assert not target.exists()


@for_each_row(
    ("reference", "problem"),
    [
        ("file:", "absolute path"),
        ("file:relative/path", "absolute path"),
        ("command:", "no command line"),
        ("command:   ", "no command line"),
        ("command:a 'b", "no command line"),
        ("command:vault kv get x | head", "without a shell"),
        ("command:a && b", "without a shell"),
    ],
)
def test_a_reference_that_can_never_be_read_is_refused_at_once(reference: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        SecretSetting(reference, "OAuthProxy(client_secret=…)")
    assert "OAuthProxy(client_secret=…)" in caught.value.problem
    assert caught.value.fix


def test_problems_say_where_and_what_to_do_and_never_what_was_read(tmp_path: Path) -> None:
    hidden = "hunter2" * 5
    (tmp_path / "long").write_text(hidden * MAX_SECRET_BYTES)
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe" + hidden.encode())
    prints = f"{sys.executable} -c 'print(\"{hidden}\"); raise SystemExit(3)'"
    for reference, problem in (
        (f"file:{tmp_path}/none", "No such file"),
        (f"file:{tmp_path}", "cannot be read"),
        (f"file:{tmp_path}/long", "more than"),
        (f"file:{tmp_path}/empty", "no text"),
        (f"file:{tmp_path}/bytes", "no text"),
        ("command:/nowhere/op read x", "No such file"),
        (f"command:{prints}", "the code 3"),
    ):
        with pytest.raises(UsageError, match=problem) as caught:
            read_secret_setting(reference, "x")
        assert hidden not in str(caught.value), reference
        assert caught.value.fix


def test_a_program_is_bounded_in_bytes_and_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="more than"):
        read_secret_setting(f"command:{sys.executable} -c 'while True: print(\"x\" * 10000)'", "x")
    monkeypatch.setattr(secret_references, "RUN_SECONDS", 0.3)
    began = time.monotonic()
    with pytest.raises(TimeoutError, match="takes more than"):
        # A program that its program has started is ended too, though it holds the pipe.
        run_program([sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '60'])"])
    assert time.monotonic() - began < 30


def test_a_secret_is_not_shown() -> None:
    assert "hunter2" not in repr(SecretSetting("hunter2", "x"))


@pytest.mark.anyio
async def test_an_event_loop_goes_on_while_a_program_runs() -> None:
    text = SecretSetting(f"command:{sys.executable} -c 'print(7)'", "x")
    assert await text.load_secret() == "7"


@pytest.mark.anyio
async def test_settings_of_auth_and_of_apis_take_references(tmp_path: Path) -> None:
    """What changes in the file counts for the next request."""
    from defserve.auth import RegisteredClient
    from defserve.openapi import ApiKey, Basic, Bearer
    from defserve.openapi.request_building import ApiRequest

    path = tmp_path / "secret"
    reference = f"file:{path}"
    path.write_text("one")
    known = RegisteredClient("job", secret=reference)
    credentials = (Bearer(reference), Basic("ann", reference), ApiKey(reference, header="x-key"))
    assert await known.is_secret("one")
    path.write_text("second")
    assert await known.is_secret("second") and not await known.is_secret("one")
    for each in credentials:
        request = ApiRequest("GET", "https://api.example.com/", {})
        await each.load_secrets()
        assert "second" in each.add_to(request)
