"""A real Postgres in a folder of its own, reached by a socket file."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until

PLACES = (*map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), os.environ.get("PATH", ""))
# What a crash would lose does not matter here, and the disk is slow.
QUICK = ["-c", "fsync=off", "-c", "full_page_writes=off", "-c", "shared_buffers=8MB", "-c", "max_connections=20"]


class PostgresServer:
    def __init__(self) -> None:
        programs = [shutil.which(name, path=":".join(PLACES)) for name in ("initdb", "postgres")]
        if None in programs:
            pytest.skip("there is no Postgres; install it (apt-get install postgresql) to run this test")
        self._initdb, self._postgres = map(str, programs)
        # Not pytest's own folder: a socket's path must be short, and another user has to get there.
        self.folder = Path(tempfile.mkdtemp(prefix="pg"))
        self.url = f"postgresql://tester@/postgres?host={self.folder}"
        self._as_user = _somebody_else()
        if self._as_user:
            os.chown(self.folder, self._as_user["user"], self._as_user["group"])

    def start(self) -> PostgresServer:
        data = self.folder / "data"
        self._run(self._initdb, "-D", data, "-U", "tester", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": self.folder}
        where = ["-D", str(data), "-k", str(self.folder), "-c", "listen_addresses="]
        self._process = subprocess.Popen([self._postgres, *where, *QUICK], **quiet, **self._as_user)
        wait_until(lambda: "ready" in self._state(data) or self._process.poll() is not None)
        return self

    def remove(self) -> None:
        self._process.send_signal(signal.SIGINT)
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, *command: object) -> None:
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=self.folder, **self._as_user)
        assert done.returncode == 0, done.stderr

    def _state(self, data: Path) -> str:
        """The last line of its lock file says how far it is."""
        lock = data / "postmaster.pid"
        return lock.read_text() if lock.exists() else ""


def _somebody_else() -> dict[str, Any]:
    """Postgres does not run as root."""
    if os.geteuid() != 0:
        return {}
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    somebody = names.get("postgres") or names["nobody"]
    return {"user": somebody.pw_uid, "group": somebody.pw_gid, "extra_groups": []}
