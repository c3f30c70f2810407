"""The Redis and the Postgres of a cluster: each twice, on machines of their own.

Three Sentinels watch the Redis and fail over by themselves. Of the two Postgres servers one is the synchronous standby:
what the primary acknowledges is on both. Nothing fails over there by itself: `PostgresPair.fail_over` does what an
operator does. It ends the old primary for good, promotes the standby, and makes the other machine the new standby.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from tests.cluster.machines import Network, find_family, kill_all
from tests.faults.process import Broken
from tests.stores.postgres_server import find_postgres

REDIS_MACHINES = ("r1", "r2")
SENTINEL_MACHINES = ("r1", "r2", "w")
POSTGRES_MACHINES = ("p1", "p2")
REDIS_PORT, SENTINEL_PORT, POSTGRES_PORT = 6379, 26379, 5432
SERVICE = "cluster"
DOWN_AFTER_MS = 2500
START_SECONDS = 90.0


class Disk:
    """A small file system in memory, which can be filled. A crash of a process loses nothing of it."""

    def __init__(self, folder: Path, megabytes: int) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        options = ["-o", f"size={megabytes}m,mode=0755", "-t", "tmpfs", "tmpfs", str(folder)]
        done = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
        if done.returncode:
            raise Broken(f"a disk of {megabytes} MB cannot be made: {done.stderr.strip()}")

    def fill(self) -> None:
        with suppress(OSError), (self.folder / "ballast").open("ab", buffering=0) as ballast:
            while True:
                ballast.write(b"\0" * 65536)

    def empty(self) -> None:
        (self.folder / "ballast").unlink(missing_ok=True)

    def remove(self) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], capture_output=True, check=False)


# -- Redis.


class RedisGroup:
    def __init__(self, network: Network, folder: Path) -> None:
        self._network, self._folder = network, folder
        self.disks = {name: Disk(folder / name, 64) for name in REDIS_MACHINES}
        self._servers: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def address(self) -> str:
        places = ",".join(f"{self._network.wire_address(name)}:{SENTINEL_PORT}" for name in SENTINEL_MACHINES)
        return f"redis+sentinel://{places}/{SERVICE}/0"

    def start(self) -> None:
        for name in REDIS_MACHINES:
            self.start_server(name)
        for name in SENTINEL_MACHINES:
            self._start_sentinel(name)

    def start_server(self, name: str) -> None:
        """Start the Redis of a machine. It follows the other one, until a Sentinel says otherwise."""
        settings = self.disks[name].folder / "redis.conf"
        if not settings.exists():
            lines = [
                f"port {REDIS_PORT}",
                "bind 0.0.0.0",
                "protected-mode no",
                f"dir {self.disks[name].folder}",
                'save ""',
                "appendonly yes",
                "appendfsync always",
                "repl-diskless-sync-delay 0",
                "repl-timeout 10",
                f"replica-announce-ip {self._network.wire_address(name)}",
                *([f"replicaof {self._network.wire_address('r1')} {REDIS_PORT}"] if name != "r1" else []),
            ]
            settings.write_text("\n".join(lines) + "\n")
        log = self._folder / f"redis-{name}.log"
        self._servers[name] = self._network.start(name, ["redis-server", str(settings)], log=log)

    def _start_sentinel(self, name: str) -> None:
        settings = self._folder / f"sentinel-{name}.conf"
        lines = [
            f"port {SENTINEL_PORT}",
            "bind 0.0.0.0",
            "protected-mode no",
            f"dir {self._folder}",
            f"sentinel announce-ip {self._network.wire_address(name)}",
            f"sentinel monitor {SERVICE} {self._network.wire_address('r1')} {REDIS_PORT} 2",
            f"sentinel down-after-milliseconds {SERVICE} {DOWN_AFTER_MS}",
            f"sentinel failover-timeout {SERVICE} 8000",
        ]
        settings.write_text("\n".join(lines) + "\n")
        log = self._folder / f"sentinel-{name}.log"
        self._network.start(name, ["redis-server", str(settings), "--sentinel"], log=log)

    def ask(self, name: str, *words: str, port: int = REDIS_PORT) -> str:
        """What the Redis of a machine answers to a command, asked on that machine; empty if it does not."""
        try:
            done = self._network.run(name, ["redis-cli", "-p", str(port), *words], timeout=3)
        except subprocess.TimeoutExpired:
            return ""
        return done.stdout if done.returncode == 0 else ""

    def find_primary(self) -> str:
        """The machine that the Sentinels name; the first one if they name none."""
        for sentinel in SENTINEL_MACHINES:
            words = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE)
            told = self.ask(sentinel, *words, port=SENTINEL_PORT).split()
            for name in REDIS_MACHINES:
                if told and told[0] == self._network.wire_address(name):
                    return name
        return REDIS_MACHINES[0]

    def is_whole(self) -> bool:
        """Whether there is a primary with its replica, and the Sentinels know both."""
        primary = self.find_primary()
        if "state=online" not in self.ask(primary, "INFO", "replication"):
            return False
        return all("slaves=1" in self.ask(each, "INFO", "sentinel", port=SENTINEL_PORT) for each in SENTINEL_MACHINES)

    def wait_until_whole(self, seconds: float = START_SECONDS) -> None:
        _wait(self.is_whole, seconds, "Redis has no primary with its replica")

    def kill(self, name: str) -> None:
        self._servers[name].kill()
        self._servers[name].wait()

    def pids(self, name: str) -> list[int]:
        return [self._servers[name].pid]

    def restart_dead(self) -> None:
        for name, process in self._servers.items():
            if process.poll() is not None:
                self.start_server(name)


# -- Postgres.


class PostgresPair:
    """`primary` is the machine that may be written to."""

    def __init__(self, network: Network, folder: Path) -> None:
        self._network, self._folder = network, folder
        programs = find_postgres()
        assert programs is not None
        self._bin = Path(programs[0]).parent
        self.disks = {name: Disk(folder / name, 384) for name in POSTGRES_MACHINES}
        somebody = pwd.getpwnam("postgres")
        self._user = (somebody.pw_uid, somebody.pw_gid)
        for disk in self.disks.values():
            os.chown(disk.folder, *self._user)
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        self.primary = POSTGRES_MACHINES[0]

    @property
    def standby(self) -> str:
        return next(name for name in POSTGRES_MACHINES if name != self.primary)

    @property
    def address(self) -> str:
        hosts = ",".join(self._network.wire_address(name) for name in POSTGRES_MACHINES)
        return f"postgres://postgres@/postgres?host={hosts}&target_session_attrs=read-write&pool=6"

    def _data(self, name: str) -> Path:
        return self.disks[name].folder / "data"

    def start(self) -> None:
        first = self._data(self.primary)
        words = ("-D", str(first), "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
        self._do(self.primary, "initdb", *words)
        with (first / "pg_hba.conf").open("a") as rules:
            rules.write("host all all 10.77.0.0/16 trust\nhost replication all 10.77.0.0/16 trust\n")
        with (first / "postgresql.auto.conf").open("a") as settings:
            settings.write("\n".join(self._settings()) + "\n")
        self._start_server(self.primary)
        self.wait_until_up(self.primary)
        self.make_standby()
        self.wait_until_whole()

    def _settings(self) -> list[str]:
        return [
            "listen_addresses = '*'",
            f"unix_socket_directories = '{self._folder}'",
            "shared_buffers = 16MB",
            "max_connections = 150",
            "min_wal_size = 32MB",
            "max_wal_size = 96MB",
            "wal_keep_size = 64MB",
            "synchronous_commit = on",
            "synchronous_standby_names = '*'",
            "wal_receiver_timeout = 6s",
            "wal_sender_timeout = 6s",
            "wal_retrieve_retry_interval = 500ms",
            "tcp_keepalives_idle = 4",
            "tcp_keepalives_interval = 2",
            "tcp_keepalives_count = 3",
            "client_connection_check_interval = 0",
        ]

    def make_standby(self) -> None:
        """Make the other machine a standby of the primary, from the beginning."""
        name = self.standby
        shutil.rmtree(self._data(name), ignore_errors=True)
        source = f"host={self._network.wire_address(self.primary)} port={POSTGRES_PORT} user=postgres"
        words = ("-D", str(self._data(name)), "-d", source, "-R", "-X", "stream", "-c", "fast", "--no-sync")
        self._do(name, "pg_basebackup", *words)
        self._start_server(name)

    def _do(self, name: str, program: str, *words: str) -> None:
        command = [str(self._bin / program), *words]
        done = self._network.run(name, command, as_user=self._user, cwd=self.disks[name].folder, timeout=START_SECONDS)
        if done.returncode:
            raise Broken(f"{program} on {name}: {done.stderr.strip()[-300:]}")

    def _start_server(self, name: str) -> None:
        (self._data(name) / "postmaster.pid").unlink(missing_ok=True)
        command = [str(self._bin / "postgres"), "-D", str(self._data(name)), "-k", str(self.disks[name].folder)]
        log = self._folder / f"postgres-{name}.log"
        self._servers[name] = self._network.start(
            name, command, log=log, as_user=self._user, cwd=self.disks[name].folder
        )

    def ask(self, name: str, sql: str) -> str:
        """What the Postgres of a machine answers, asked on that machine; empty if it does not."""
        place = ("-h", str(self.disks[name].folder), "-U", "postgres", "-d", "postgres")
        try:
            done = self._network.run(
                name, [str(self._bin / "psql"), *place, "-Atqc", sql], timeout=5, env={"PGCONNECT_TIMEOUT": "2"}
            )
        except subprocess.TimeoutExpired:
            return ""
        return done.stdout.strip() if done.returncode == 0 else ""

    def wait_until_up(self, name: str) -> None:
        _wait(lambda: self.ask(name, "SELECT 1") == "1", START_SECONDS, f"Postgres on {name} does not answer")

    def is_whole(self) -> bool:
        """Whether the primary has its standby, and it is synchronous."""
        return self.ask(self.primary, "SELECT sync_state FROM pg_stat_replication") == "sync"

    def wait_until_whole(self, seconds: float = START_SECONDS) -> None:
        _wait(self.is_whole, seconds, "Postgres has no synchronous standby")

    def kill(self, name: str) -> None:
        """As a machine that loses its power: all processes at once."""
        process = self._servers[name]
        kill_all(find_family(process.pid))
        process.wait()

    def crash_one(self, name: str) -> None:
        """Kill one process of a server. It ends all others, and recovers by itself."""
        children = find_family(self._servers[name].pid)[1:]
        backends = [pid for pid in children if b"postgres: postgres" in _read_command(pid)]
        kill_all((backends or children)[:1])

    def pids(self, name: str) -> list[int]:
        return find_family(self._servers[name].pid)

    def restart_dead(self) -> None:
        for name, process in self._servers.items():
            if process.poll() is not None:
                self._start_server(name)

    def fail_over(self) -> None:
        """End the primary for good, then make the standby the primary."""
        self.kill(self.primary)
        new = self.standby
        self._do(new, "pg_ctl", "promote", "-D", str(self._data(new)), "-w", "-t", "60")
        self.primary = new

    def remove(self) -> None:
        for disk in self.disks.values():
            disk.remove()


def _read_command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _wait(is_so: object, seconds: float, otherwise: str) -> None:
    end = time.monotonic() + seconds
    while not is_so():  # type: ignore[operator]
        if time.monotonic() > end:
            raise Broken(otherwise)
        time.sleep(0.2)
