"""A real Postgres in a folder of its own, reached by a socket file: started, killed and started again by tests.

`PgBouncer` is a pooler before it, in transaction mode.
"""

from __future__ import annotations

import atexit
import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_until

PLACES = (*map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), os.environ.get("PATH", ""))
PLAIN = ("-c", "shared_buffers=8MB", "-c", "max_connections=100", "-c", "listen_addresses=")
# What a crash would lose does not matter to most tests, and the disk is slow.
QUICK = ("-c", "fsync=off", "-c", "full_page_writes=off")
PORT = 5432


def _has_memory(pid: int) -> bool:
    """Whether a process has not ended. What is left of one that nobody waits for has no memory any more."""
    try:
        return Path(f"/proc/{pid}/statm").read_text().split()[0] != "0"
    except OSError:
        return False


def find_postgres() -> tuple[str, str] | None:
    """The programs `initdb` and `postgres`; None if there are none."""
    programs = [shutil.which(name, path=":".join(PLACES)) for name in ("initdb", "postgres")]
    return None if None in programs else (str(programs[0]), str(programs[1]))


class PostgresServer:
    def __init__(self, *settings: str) -> None:
        programs = find_postgres()
        if programs is None:
            pytest.skip("there is no Postgres; install it (apt-get install postgresql) to run this test")
        self._initdb, self._postgres = programs
        # Not pytest's own folder: a socket's path must be short, and another user has to get there.
        self.folder = Path(tempfile.mkdtemp(prefix="pg"))
        self.url = f"postgresql://tester@/postgres?host={self.folder}"
        self._data, self._settings = self.folder / "data", settings or QUICK
        self.as_user = _somebody_else()
        if self.as_user:
            os.chown(self.folder, self.as_user["user"], self.as_user["group"])
        self._process: subprocess.Popen[bytes] | None = None

    def make_address(self) -> str:
        """The address of a store that nothing is in yet: a schema of its own."""
        return f"{self.url}&schema=t_{secrets.token_hex(6)}"

    def start(self) -> PostgresServer:
        if not self._data.exists():
            # Copying takes a fifth of the time of `initdb`.
            subprocess.run(["cp", "-a", str(_make_empty_database(self._initdb)), str(self._data)], check=True)
        lock = self._data / "postmaster.pid"
        lock.unlink(missing_ok=True)  # of one that was killed
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": self.folder}
        command = [self._postgres, "-D", str(self._data), "-k", str(self.folder), *PLAIN, *self._settings]
        self._process = process = subprocess.Popen(command, **quiet, **self.as_user)
        # The last line of its lock file says how far it is.
        wait_until(lambda: process.poll() is not None or (lock.exists() and "ready" in lock.read_text()))
        assert process.poll() is None, "Postgres does not start"
        return self

    @property
    def pids(self) -> list[int]:
        """Its process and those that it has started."""
        assert self._process is not None
        pid = self._process.pid
        with suppress(OSError):
            return [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
        return [pid]

    def kill(self) -> None:
        """As if by `kill -9`, of all its processes at once."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGSTOP)  # it starts no more of them meanwhile
            pids = self.pids
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._process.wait()
            # While one of them still has the shared memory, another server refuses to start.
            wait_until(lambda: not any(_has_memory(pid) for pid in pids))

    def stop(self) -> None:
        """As an operator does who does not wait for clients."""
        assert self._process is not None
        self._process.send_signal(signal.SIGINT)
        self._process.wait()

    def execute(self, sql: str) -> list[Any]:
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            found = connection.execute(sql.encode())
            return found.fetchall() if found.description else []

    def remove(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@cache
def start_shared_postgres() -> PostgresServer:
    """The one of this process, for tests that leave it running: each has a schema of its own in it."""
    server = PostgresServer().start()
    atexit.register(server.remove)
    return server


class PgBouncer:
    """A pooler that gives each transaction to any of two sessions of a Postgres."""

    def __init__(self, postgres: PostgresServer) -> None:
        program = shutil.which("pgbouncer", path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin")))
        if program is None:
            pytest.skip("there is no pgbouncer; install it (apt-get install pgbouncer) to run this test")
        self.folder = Path(tempfile.mkdtemp(prefix="pgb"))
        self.url = f"postgresql://tester@/postgres?host={self.folder}"
        (self.folder / "users").write_text('"tester" ""\n')
        (self.folder / "settings").write_text(
            f"[databases]\n* = host={postgres.folder} port={PORT}\n"
            f"[pgbouncer]\nlisten_addr =\nlisten_port = {PORT}\nunix_socket_dir = {self.folder}\n"
            f"auth_type = trust\nauth_file = {self.folder}/users\npool_mode = transaction\ndefault_pool_size = 2\n"
        )
        user: dict[str, Any] = postgres.as_user
        if user:
            for path in (self.folder, *self.folder.iterdir()):
                os.chown(path, user["user"], user["group"])
        self._process = subprocess.Popen(
            [program, "-q", str(self.folder / "settings")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **user,
        )
        wait_until(lambda: (self.folder / f".s.PGSQL.{PORT}").exists() or self._process.poll() is not None)

    def make_address(self) -> str:
        return f"{self.url}&schema=t_{secrets.token_hex(6)}"

    def remove(self) -> None:
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


@cache
def _make_empty_database(initdb: str) -> Path:
    """The folder of a database that never ran, to copy."""
    folder, as_user = Path(tempfile.mkdtemp(prefix="pg")), _somebody_else()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    if as_user:
        os.chown(folder, as_user["user"], as_user["group"])
    # A log of 1 MB rather than 16: less to copy.
    options = ("-U", "tester", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync", "--wal-segsize=1")
    command = [initdb, "-D", str(folder / "data"), *options]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, **as_user)
    assert done.returncode == 0, done.stderr
    return folder / "data"


def _somebody_else() -> dict[str, Any]:
    """Postgres does not run as root."""
    if os.geteuid() != 0:
        return {}
    names = {entry.pw_name: entry for entry in pwd.getpwall()}
    somebody = names.get("postgres") or names["nobody"]
    return {"user": somebody.pw_uid, "group": somebody.pw_gid, "extra_groups": []}
