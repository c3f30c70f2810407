"""The programs of a cluster on their machines: a load balancer, three nodes of two workers, the stores, the wire.

        c (clients)
        │
        lb (haproxy)
     ┌──┼──┐
    n1  n2  n3       two workers each
     └──┼──┘
   r1, r2, w         Redis, its replica, and three Sentinels
   p1, p2            Postgres, and its synchronous standby

All of them reach each other over the wire.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.chaos.families.clocks import library
from tests.cluster.machines import PREFIX, Network, find_children
from tests.cluster.stores import (
    POSTGRES_MACHINES,
    POSTGRES_PORT,
    REDIS_MACHINES,
    REDIS_PORT,
    SENTINEL_MACHINES,
    SENTINEL_PORT,
    PostgresPair,
    RedisGroup,
)
from tests.faults.process import ROOT, Broken
from tests.stores.postgres_server import find_postgres

CLIENTS, BALANCER = "c", "lb"
NODES = ("n1", "n2", "n3")
MACHINES = (CLIENTS, BALANCER, *NODES, "r1", "r2", "w", *POSTGRES_MACHINES)
WORKERS = 2
PORT, BALANCER_PORT = 8000, 8080
LANES = 3
NODE_SECONDS, DRAIN_SECONDS = 120.0, 25.0
PROGRAMS = {"haproxy": "haproxy", "redis-server": "redis-server", "redis-cli": "redis-tools"}
SERVER = Path(__file__).with_name("served.py")
MAKE_KEYS = Path(__file__).with_name("make_keys.py")


class NotPossible(Exception):
    """A cluster cannot be had here; the text says why."""


def check_programs() -> None:
    """Raises NotPossible."""
    if sys.platform != "linux":
        raise NotPossible("it needs Linux, for network namespaces")
    missing = [package for program, package in PROGRAMS.items() if shutil.which(program) is None]
    missing += [] if find_postgres() else ["postgresql"]
    if missing:
        raise NotPossible(f"these are missing: apt-get install {' '.join(missing)}")


class Node:
    """A machine with a supervisor and its workers. `code` is the folder of the package that it runs."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster, self.name = cluster, name
        self.code = cluster.code
        self.clock = cluster.folder / f"clock-{name}"
        self.jump(0)
        self.process: subprocess.Popen[bytes] | None = None
        self.is_wanted = False

    def start(self) -> None:
        cluster = self._cluster
        on = ("--on", f"http://0.0.0.0:{PORT}/mcp", "--workers", str(WORKERS))
        hosts = [cluster.network.wire_address(name) for name in (BALANCER, self.name)]
        names = [word for host in hosts for word in ("--allow-host", f"{host}:*")]
        command = [sys.executable, "-m", "defserve", "run", str(SERVER), *on, *names, "--log-level", "warning"]
        environment = {
            **cluster.environment,
            "PYTHONPATH": os.pathsep.join((str(self.code / "framework"), str(ROOT))),
            "LD_PRELOAD": library(),
            "FAKETIME_TIMESTAMP_FILE": str(self.clock),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "DONT_FAKE_MONOTONIC": "1",
        }
        self.is_wanted = True
        self.process = cluster.network.start(
            self.name, command, environment=environment, log=cluster.folder / f"node-{self.name}.log", cwd=ROOT
        )

    def find_workers(self) -> list[int]:
        return find_children(self.process.pid) if self.process is not None else []

    def find_pids(self) -> list[int]:
        return [self.process.pid, *self.find_workers()] if self.process is not None else []

    def jump(self, seconds: float) -> None:
        """Set the clock so far from the true time."""
        new = self.clock.with_suffix(".new")
        new.write_text(f"{seconds:+.0f}\n")
        new.rename(self.clock)

    def is_ready(self) -> bool:
        """Whether its machine answers that it is, asked from the machine of the clients."""
        return self._cluster.get_status(self._cluster.network.wire_address(self.name), PORT, "/readyz") == 200

    def stop(self) -> None:
        """As an operator does: its calls end first."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(DRAIN_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """The machine loses its power."""
        for pid in reversed(self.find_pids()):
            os.kill(pid, signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def reload(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGHUP)


class Cluster:
    """All of it, from `start` to `remove`. `code` is a checkout whose package the nodes run."""

    def __init__(self, number: int = 0, code: Path = ROOT, mutant: str = "") -> None:
        self.code = code
        self.folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}-{os.getpid()}-"))
        self.folder.chmod(0o755)
        self.network = Network(MACHINES, number)
        self.history = self.folder / "history.jsonl"
        self.effects = self.folder / "effects"
        self.effects.touch()
        self._mutant = mutant
        self.tokens: list[str] = []
        self._wire: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Raises NoMachines, Broken."""
        self.network.make()
        self._start_wire()
        self.redis = RedisGroup(self.network, self.folder)
        self.redis.start()
        self.postgres = PostgresPair(self.network, self.folder)
        self.postgres.start()
        self.redis.wait_until_whole()
        self.environment = self._make_environment()
        made = self.network.run(CLIENTS, [sys.executable, str(MAKE_KEYS), str(LANES)], env=self.environment, cwd=ROOT)
        if made.returncode:
            raise Broken(f"no keys could be made: {made.stderr[-500:]}")
        self.tokens = made.stdout.split()
        self.nodes = {name: Node(self, name) for name in NODES}
        for node in self.nodes.values():
            node.start()
        self._start_balancer()
        for node in self.nodes.values():
            self.wait_until_ready(node)

    def _make_environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DEFSERVE_")}
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join((str(ROOT / "framework"), str(ROOT))),
            "CLUSTER_STORE": self.postgres.address,
            "CLUSTER_SHARED": self.redis.address,
            "CLUSTER_EFFECTS": str(self.effects),
            "CLUSTER_MUTANT": self._mutant,
            "DEFSERVE_SECRET": secrets.token_hex(24),
            "DEFSERVE_KEYS_PEPPER": secrets.token_hex(24),
            "DEFSERVE_AUDIT_KEY": secrets.token_hex(24),
        }

    def wait_until_ready(self, node: Node) -> None:
        end = time.monotonic() + NODE_SECONDS
        while not node.is_ready():
            if node.process is None or node.process.poll() is not None or time.monotonic() > end:
                raise Broken(f"{node.name} does not start: {self.read_log(node)[-800:]}")
            time.sleep(0.3)

    def read_log(self, node: Node) -> str:
        file = self.folder / f"node-{node.name}.log"
        return file.read_text(errors="replace") if file.exists() else ""

    def get_status(self, host: str, port: int, path: str) -> int:
        """The status of a GET from the machine of the clients; 0 if there is no answer."""
        program = (
            "import http.client as h,sys\n"
            "c=h.HTTPConnection(sys.argv[1],int(sys.argv[2]),timeout=5)\n"
            "c.request('GET',sys.argv[3]);print(c.getresponse().status)"
        )
        done = self.network.run(CLIENTS, [sys.executable, "-ISc", program, host, str(port), path])
        return int(done.stdout) if done.returncode == 0 else 0

    @property
    def url(self) -> str:
        return f"http://{self.network.wire_address(BALANCER)}:{BALANCER_PORT}/mcp"

    # -- the wire ----------------------------------------------------------------------------------------

    def _start_wire(self) -> None:
        ports = {
            CLIENTS: [],
            BALANCER: [BALANCER_PORT],
            **{name: [PORT] for name in NODES},
            **{name: [POSTGRES_PORT] for name in POSTGRES_MACHINES},
            **{name: [*([REDIS_PORT] if name in REDIS_MACHINES else []), SENTINEL_PORT] for name in SENTINEL_MACHINES},
        }
        machines = {
            name: {"own": self.network.address(name), "wire": self.network.wire_address(name), "ports": ports[name]}
            for name in MACHINES
        }
        command = [sys.executable, "-m", "tests.cluster.wire", json.dumps({"machines": machines})]
        self._wire = self.network.start(
            "wire", command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, log=self.folder / "wire.log"
        )
        assert self._wire.stdout is not None
        if self._wire.stdout.readline() != b"up\n":
            raise Broken("the wire does not start")

    def trouble(self, **words: Any) -> None:
        """A line to the wire; see `wire.py`. Without words, its troubles are over."""
        assert self._wire is not None and self._wire.stdin is not None
        self._wire.stdin.write(json.dumps(words).encode() + b"\n")
        self._wire.stdin.flush()

    # -- the load balancer -------------------------------------------------------------------------------

    def _start_balancer(self) -> None:
        settings = self.folder / "haproxy.cfg"
        servers = "\n".join(
            f"    server {name} {self.network.wire_address(name)}:{PORT} check inter 1s fall 2 rise 1" for name in NODES
        )
        settings.write_text(f"""\
global
    maxconn 2000
    nbthread 1
defaults
    mode http
    timeout connect 2s
    timeout client 60s
    timeout server 60s
    timeout check 3s
    retries 2
    option redispatch
frontend clients
    bind {self.network.address(BALANCER)}:{BALANCER_PORT}
    default_backend nodes
backend nodes
    balance roundrobin
    option httpchk
    http-check send meth GET uri /readyz ver HTTP/1.1 hdr Host {self.network.wire_address(BALANCER)}
{servers}
""")
        log = self.folder / "haproxy.log"
        self.network.start(BALANCER, ["haproxy", "-db", "-f", str(settings)], log=log)

    # -- the end -----------------------------------------------------------------------------------------

    def remove(self, *, keep_files: bool = False) -> None:
        self.network.remove()
        for group in ("redis", "postgres"):
            for disk in getattr(getattr(self, group, None), "disks", {}).values():
                disk.remove()
        if not keep_files:
            shutil.rmtree(self.folder, ignore_errors=True)
