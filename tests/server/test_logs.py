"""The log on standard error, when nobody reads it."""

from __future__ import annotations

import json
import logging
import os
import select
import socket
import threading
from collections.abc import Iterator

import pytest

from defserve.base.redaction import get_logger
from defserve.server.logs import JsonLogFormatter, NonBlockingLogHandler
from defserve.server.workers.running import _teller


class Piped:
    """A handler whose standard error is a pipe."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reader, writer = os.pipe()
        self._stream = os.fdopen(writer, "w")
        monkeypatch.setattr("sys.stderr", self._stream)
        self.handler = NonBlockingLogHandler()

    def log(self, text: str) -> None:
        self.handler.emit(logging.LogRecord("test", logging.INFO, "", 0, text, None, None))

    def read(self) -> str:
        found = b""
        while select.select([self.reader], [], [], 0)[0]:
            found += os.read(self.reader, 1 << 20)
        return found.decode()

    def close(self) -> None:
        os.close(self.reader)
        self.handler.close()
        self._stream.close()


@pytest.fixture
def piped(monkeypatch: pytest.MonkeyPatch) -> Iterator[Piped]:
    made = Piped(monkeypatch)
    yield made
    made.close()


def test_a_pipe_that_nobody_reads_stops_nobody_and_what_is_missing_is_told(piped: Piped):
    for number in range(5000):
        piped.log(f"{number} {'x' * 100}")
    kept = piped.read().splitlines()
    assert kept[0].startswith("0 ") and 100 < len(kept) < 5000
    piped.log("after")
    assert piped.read() == f"{5000 - len(kept)} lines of the log are missing: nobody read standard error\nafter\n"
    piped.log("later")
    assert piped.read() == "later\n"


def test_a_line_longer_than_the_pipe_is_cut_and_counted(piped: Piped):
    piped.log("x" * 1_000_000)
    assert set(piped.read()) == {"x"}
    piped.log("after")
    assert piped.read() == "\n1 lines of the log are missing: nobody read standard error\nafter\n"
    piped.log("later")
    assert piped.read() == "later\n"


def test_a_line_that_was_cut_does_not_make_the_next_one_no_json(piped: Piped):
    piped.handler.setFormatter(JsonLogFormatter())
    piped.log("x" * 1_000_000)
    piped.read()
    piped.log("after")
    rest, told, after = piped.read().splitlines()
    assert rest == "" and json.loads(told)["level"] == "warning" and json.loads(after)["message"] == "after"


def test_a_log_of_json_lines_stays_one(piped: Piped):
    piped.handler.setFormatter(JsonLogFormatter())
    for _ in range(2000):
        piped.log("x" * 100)
    piped.read()
    piped.log("after")
    told, after = map(json.loads, piped.read().splitlines())
    assert told["message"].endswith("lines of the log are missing: nobody read standard error")
    assert (told["level"], after["message"]) == ("warning", "after")


def test_a_reader_that_has_left_is_no_failure(piped: Piped, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)
    os.dup2(os.open(os.devnull, os.O_RDONLY), piped.reader)
    piped.log("nobody hears this")


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="a pipe cannot be opened once more here")
def test_a_pipe_that_another_process_fills_at_the_last_moment_stops_nobody(
    piped: Piped, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("defserve.server.logs._has_room", lambda pipe: True)
    logging_all = threading.Thread(target=lambda: [piped.log("x" * 4000) for _ in range(100)], daemon=True)
    logging_all.start()
    logging_all.join(20)
    assert not logging_all.is_alive()


@pytest.mark.parametrize("is_json", [True, False])
def test_a_supervisor_never_waits_for_who_reads_its_lines(piped: Piped, is_json: bool):
    say = _teller(is_json)
    saying = threading.Thread(target=lambda: [say("x" * 4000) for _ in range(100)], daemon=True)
    saying.start()
    saying.join(20)
    assert not saying.is_alive()


def test_a_socket_that_nobody_reads_stops_nobody(monkeypatch: pytest.MonkeyPatch):
    ours, theirs = socket.socketpair()
    with ours, theirs, theirs.makefile("w") as stream:
        monkeypatch.setattr("sys.stderr", stream)
        handler = NonBlockingLogHandler()
        for _ in range(2000):
            handler.emit(logging.LogRecord("test", logging.INFO, "", 0, "x" * 1000, None, None))
        ours.setblocking(False)
        read = b""
        while select.select([ours], [], [], 0)[0]:
            read += ours.recv(1 << 20)
        assert read.startswith(b"x" * 1000 + b"\n")
        handler.emit(logging.LogRecord("test", logging.INFO, "", 0, "after", None, None))
        *_, told, after = ours.recv(1 << 20).decode().splitlines()
        assert told.endswith("lines of the log are missing: nobody read standard error") and after == "after"
        handler.close()


def test_a_text_with_a_lone_surrogate_is_a_line_of_json_too():
    record = logging.LogRecord("test", logging.INFO, "", 0, "a\ud800b", None, None)
    assert json.loads(JsonLogFormatter().format(record))["message"] == "a\ufffdb"


def test_a_line_of_json_has_the_masked_traceback_of_ours_and_that_of_other_loggers(caplog: pytest.LogCaptureFixture):
    get_logger().error("it failed", exc_info=RuntimeError("password=hunter2-canary"))
    logging.getLogger("an.author").error("theirs", exc_info=RuntimeError("no disk"))
    logging.getLogger("an.author").error("no exception")
    ours, theirs, plain = (json.loads(JsonLogFormatter().format(record)) for record in caplog.records)
    assert (ours["message"], ours["traceback"]) == ("it failed", "RuntimeError: password=[redacted]")
    assert theirs["traceback"] == "RuntimeError: no disk" and "traceback" not in plain
