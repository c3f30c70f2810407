"""One run: a cluster, its clients, and the faults of a schedule; then all is healed, read, and checked."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any

from tests.cluster.checker import History, Violation, check
from tests.cluster.cluster import BALANCER_PORT, CLIENTS, NODES, Cluster, Node
from tests.cluster.history import HistoryWriter, Operation, parse_history
from tests.cluster.machines import kill_all
from tests.cluster.schedule import UPGRADE, UPGRADE_AT, Fault, make_faults
from tests.cluster.stores import REDIS_MACHINES, Disk
from tests.faults.process import ROOT, Broken
from tests.peers.catalogue import PY_1, PY_2
from tests.peers.packages import NotInstalled, Package
from tests.waiting import wait_until

THINKING = 0.5
QUIET_SECONDS, READING_SECONDS = 180.0, 400.0
SETTLING, FAILOVER_SECONDS = 3.0, 20.0
# What a process says that could not check a key in use. After the second time it counts as refused, and what was opened
# with it ends, in all processes.
UNCHECKED = b"a credential in use cannot be verified"
LOOK_SECONDS, KEY_SECONDS = 0.5, 10.0
OFFICIAL = Path(__file__).with_name("official.py")
AUDIT = Path(__file__).with_name("read_audit.py")
# What brings a stream of Redis to another machine, or a state of Postgres that its standby has not seen.
UNSYNCED = "unsynced failover"


@dataclass
class Result:
    """What a run saw. `faults` counts the faults of each kind, `operations` by kind and outcome."""

    seed: int
    minutes: float = 0.0
    faults: Counter[str] = field(default_factory=Counter[str])
    operations: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    failovers: Counter[str] = field(default_factory=Counter[str])
    violations: list[Violation] = field(default_factory=list[Violation])
    notes: list[str] = field(default_factory=list[str])
    folder: str = ""


class KeyWatch(Thread):
    """Reads the logs of nodes as they grow. By their clocks nobody could tell when a line was written."""

    def __init__(self, logs: list[Path]) -> None:
        super().__init__(daemon=True)
        self._read = dict.fromkeys(logs, 0)
        self.troubles: list[tuple[float, float]] = []
        self.over = Event()

    def run(self) -> None:
        while not self.over.wait(LOOK_SECONDS):
            for log, read in self._read.items():
                with suppress(OSError), log.open("rb") as file:
                    file.seek(read)
                    new = file.read()
                    self._read[log] = read + len(new)
                    if UNCHECKED in new:
                        now = time.monotonic()
                        self.troubles.append((now - KEY_SECONDS, now + KEY_SECONDS))


class Campaign:
    """`old` is a checkout with which the nodes begin, if they are upgraded while they serve."""

    def __init__(
        self,
        seed: int,
        minutes: float,
        *,
        number: int = 0,
        old: Path | None = None,
        mutant: str = "",
        only: set[str] | None = None,
        official: bool = True,
        tell: Callable[[str], None] = lambda text: None,
    ) -> None:
        self._seed, self._seconds, self._only = seed, minutes * 60, only
        self._old, self._official, self._tell = old, official, tell
        self.cluster = Cluster(number, old or ROOT, mutant)
        self._random = Random(seed)
        self.result = Result(seed)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._primary = ""
        self._looked = time.monotonic()
        self._losses: list[float] = []
        self._watch = KeyWatch([self.cluster.folder / f"node-{name}.log" for name in NODES])
        self._unsynced: list[tuple[float, float]] = []

    def run(self) -> Result:
        """Raises NoMachines, and Broken if the cluster does not come up again after the faults."""
        cluster = self.cluster
        is_good = False
        try:
            cluster.start()
            self._watch.start()
            self._faults = HistoryWriter(cluster.history, "fault")
            self._start_clients()
            began = time.monotonic()
            self._play(began)
            self.result.minutes = (time.monotonic() - began) / 60
            self._heal_all()
            history = self._finish()
            self.result.violations = check(history)
            self.result.operations = Counter((each.kind, each.outcome) for each in history.operations)
            is_good = not self.result.violations
        finally:
            self._watch.over.set()
            self.result.folder = "" if is_good else str(cluster.folder)
            cluster.remove(keep_files=not is_good)
        return self.result

    # -- clients -----------------------------------------------------------------------------------------

    def _start_clients(self) -> None:
        cluster = self.cluster
        plan: dict[str, Any] = {
            "host": cluster.url.split("/")[2].split(":")[0],
            "port": BALANCER_PORT,
            "tokens": cluster.tokens,
            "seed": self._seed,
            "history": str(cluster.history),
            "pause": THINKING,
        }
        self._start([sys.executable, "-m", "tests.cluster.load", json.dumps(plan)], "load")
        if not self._official:
            return
        for name, package, version in (("py1", PY_1, "2025-11-25"), ("py2", PY_2, "2026-07-28")):
            try:
                package.install()
            except NotInstalled as error:
                self.result.notes.append(f"without the official client {name}: {error}")
                continue
            self._start_official(name, package, version)

    def _start_official(self, name: str, package: Package, version: str) -> None:
        lane = len(self.cluster.tokens) - 1
        plan: dict[str, Any] = {
            "url": self.cluster.url,
            "token": self.cluster.tokens[lane],
            "lane": lane,
            "name": name,
            "version": version,
            "seed": self._seed,
            "history": str(self.cluster.history),
            "pause": THINKING,
        }
        self._start([str(package.program), str(OFFICIAL), json.dumps(plan)], name)

    def _start(self, command: list[str], name: str) -> None:
        process = self.cluster.network.start(
            CLIENTS,
            command,
            environment=self.cluster.environment,
            cwd=ROOT,
            log=self.cluster.folder / f"{name}.log",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._processes.append(process)
        self._hear(process, b"up\n")

    def _hear(self, process: subprocess.Popen[bytes], word: bytes) -> None:
        assert process.stdout is not None
        line = process.stdout.readline()
        if line != word:
            raise Broken(f"a client said {line!r} and not {word!r}; see {self.cluster.folder}")

    def _say(self, process: subprocess.Popen[bytes], word: bytes) -> None:
        assert process.stdin is not None
        process.stdin.write(word)
        process.stdin.flush()

    # -- faults ------------------------------------------------------------------------------------------

    def _play(self, began: float) -> None:
        is_upgraded = self._old is None
        for fault in make_faults(self._seed):
            if self._only is not None and fault.kind not in self._only:
                continue
            if not is_upgraded and time.monotonic() > began + UPGRADE_AT * self._seconds:
                is_upgraded = True
                self._commit(Fault(0.0, UPGRADE, (), 0.0))
            if time.monotonic() + fault.pause + fault.seconds > began + self._seconds:
                break
            time.sleep(fault.pause)
            self._commit(fault)
        time.sleep(max(0.0, began + self._seconds - time.monotonic()))

    def _commit(self, fault: Fault) -> None:
        """One fault from its beginning to its end, and what an operator does then."""
        self._look_for_failover()
        id = self._faults.begin("fault", "nemesis", kind=fault.kind, targets=fault.targets, amount=fault.amount)
        self.result.faults[fault.kind] += 1
        self._tell(f"{fault.kind} {' '.join(fault.targets)} {fault.seconds:.0f} s")
        began = time.monotonic()
        try:
            getattr(self, "_" + fault.kind.replace(" ", "_"))(fault)
        finally:
            self.cluster.network.heal()
            self.cluster.trouble()
        self._restore()
        if fault.kind == UNSYNCED:
            self._unsynced.append((began, time.monotonic()))
        self._look_for_failover()
        self._faults.end(id, "ok")

    def _look_for_failover(self) -> None:
        """What a Redis that is no longer the primary had not told its replica is lost."""
        primary = self.cluster.redis.find_primary()
        if self._primary not in ("", primary):
            self._losses.append(self._looked)
            self.result.failovers["redis"] += 1
        self._primary, self._looked = primary, time.monotonic()

    def _restore(self) -> None:
        cluster = self.cluster
        cluster.redis.restart_dead()
        cluster.postgres.restart_dead()
        for node in cluster.nodes.values():
            if node.is_wanted and node.process is not None and node.process.poll() is not None:
                node.start()

    def _resolve(self, target: str) -> str:
        cluster = self.cluster
        match target:
            case "redis":
                return cluster.redis.find_primary()
            case "replica":
                return next(name for name in ("r1", "r2") if name != cluster.redis.find_primary())
            case "postgres":
                return cluster.postgres.primary
            case "standby":
                return cluster.postgres.standby
            case _:
                return target

    def _node(self, fault: Fault) -> Node:
        return self.cluster.nodes[fault.targets[0]]

    def _cut(self, fault: Fault) -> None:
        self.cluster.network.cut(*fault.targets)
        time.sleep(fault.seconds)

    def _cut_one_way(self, fault: Fault) -> None:
        self.cluster.network.drop(*fault.targets)
        time.sleep(fault.seconds)

    def _isolate(self, fault: Fault) -> None:
        self.cluster.network.isolate(fault.targets[0])
        time.sleep(fault.seconds)

    def _delay(self, fault: Fault) -> None:
        sender, receiver = fault.targets
        self.cluster.trouble(**{"from": sender, "to": receiver, "delay": fault.amount})
        time.sleep(fault.seconds)

    def _late_pieces(self, fault: Fault) -> None:
        sender, receiver = fault.targets
        self.cluster.trouble(**{"from": sender, "to": receiver, "loss": fault.amount})
        time.sleep(fault.seconds)

    def _stall(self, fault: Fault) -> None:
        sender, receiver = fault.targets
        self.cluster.trouble(**{"from": sender, "to": receiver, "stall": True})
        time.sleep(fault.seconds)

    def _clock(self, fault: Fault) -> None:
        self._node(fault).jump(fault.amount)
        time.sleep(fault.seconds)
        if self._random.random() < 0.7:
            self._node(fault).jump(0)

    def _full_disk(self, fault: Fault) -> None:
        machine = self._resolve(fault.targets[0])
        disks: dict[str, Disk] = {**self.cluster.redis.disks, **self.cluster.postgres.disks}
        disks[machine].fill()
        time.sleep(fault.seconds)
        disks[machine].empty()
        if fault.targets[0] in ("postgres", "standby"):
            self._restore()
            self._wait_for_postgres()

    def _redis_dies(self, fault: Fault) -> None:
        redis = self.cluster.redis
        redis.kill(self._resolve("redis"))
        time.sleep(fault.seconds)

    def _redis_sleeps(self, fault: Fault) -> None:
        self._let_sleep(self.cluster.redis.pids(self._resolve("redis")), fault.seconds)

    def _stale_redis_failover(self, fault: Fault) -> None:
        """What the primary has written meanwhile is lost: its replica has not heard of it, and is the next primary."""
        redis = self.cluster.redis
        primary = redis.find_primary()
        self.cluster.network.cut(*REDIS_MACHINES)
        time.sleep(fault.seconds)
        redis.kill(primary)
        self.cluster.network.heal()
        with suppress(TimeoutError):
            wait_until(lambda: redis.find_primary() != primary, FAILOVER_SECONDS)

    def _postgres_fails_over(self, fault: Fault) -> None:
        postgres = self.cluster.postgres
        postgres.kill(postgres.primary)
        time.sleep(fault.seconds / 3)
        postgres.fail_over()
        self.result.failovers["postgres"] += 1
        time.sleep(fault.seconds / 3)
        postgres.make_standby()
        self._wait_for_postgres()

    def _unsynced_failover(self, fault: Fault) -> None:
        """The primary works without its standby, restarts, shows what the standby has not seen, and is ended."""
        postgres = self.cluster.postgres
        self.cluster.network.cut(postgres.primary, postgres.standby)
        time.sleep(fault.seconds / 3)
        postgres.crash_one(postgres.primary)
        time.sleep(fault.seconds)
        postgres.kill(postgres.primary)
        self.cluster.network.heal()
        postgres.fail_over()
        self.result.failovers["postgres"] += 1
        postgres.make_standby()
        self._wait_for_postgres()

    def _postgres_restarts(self, fault: Fault) -> None:
        postgres = self.cluster.postgres
        postgres.crash_one(postgres.primary)
        time.sleep(fault.seconds / 2)
        postgres.kill(postgres.primary)
        time.sleep(fault.seconds / 2)
        self._restore()
        self._wait_for_postgres()

    def _postgres_sleeps(self, fault: Fault) -> None:
        self._let_sleep(self.cluster.postgres.pids(self._resolve("postgres")), fault.seconds)

    def _standby_dies(self, fault: Fault) -> None:
        self.cluster.postgres.kill(self._resolve("standby"))
        time.sleep(fault.seconds)
        self._restore()
        self._wait_for_postgres()

    def _worker_dies(self, fault: Fault) -> None:
        if workers := self._node(fault).find_workers():
            kill_all(workers[:1])
        time.sleep(fault.seconds / 3)

    def _worker_sleeps(self, fault: Fault) -> None:
        if workers := self._node(fault).find_workers():
            self._let_sleep([self._random.choice(workers)], fault.seconds)

    def _let_sleep(self, pids: list[int], seconds: float) -> None:
        kill_all(pids, signal.SIGSTOP)
        time.sleep(seconds)
        kill_all(pids, signal.SIGCONT)

    def _node_dies(self, fault: Fault) -> None:
        self._node(fault).kill()
        time.sleep(fault.seconds)

    def _reload(self, fault: Fault) -> None:
        self._node(fault).reload()
        time.sleep(fault.seconds)

    def _upgrade(self, fault: Fault) -> None:
        """One node after the other ends its calls, and starts with the package of this checkout."""
        for node in self.cluster.nodes.values():
            node.stop()
            node.code = ROOT
            node.start()
            self.cluster.wait_until_ready(node)

    def _wait_for_postgres(self) -> None:
        """Until there are two again. A standby that cannot go on is made anew, as an operator would."""
        postgres = self.cluster.postgres
        postgres.wait_until_up(postgres.primary)
        try:
            postgres.wait_until_whole(20)
        except Broken:
            postgres.kill(postgres.standby)
            postgres.make_standby()
            postgres.wait_until_whole()

    # -- the end -----------------------------------------------------------------------------------------

    def _heal_all(self) -> None:
        cluster = self.cluster
        for name in NODES:
            cluster.nodes[name].jump(0)
        self._restore()
        cluster.redis.wait_until_whole()
        self._wait_for_postgres()
        for node in cluster.nodes.values():
            cluster.wait_until_ready(node)
        self._look_for_failover()
        time.sleep(SETTLING)

    def _finish(self) -> History:
        cluster = self.cluster
        for process in self._processes:
            self._say(process, b"over\n")
        for process in self._processes:
            self._hear(process, b"quiet\n")
        self._say(self._processes[0], b"final\n")
        self._hear(self._processes[0], b"done\n")
        audit = self._read_audit()
        with cluster.history.open(encoding="utf-8") as lines:
            operations: list[Operation] = parse_history(lines)
        return History(
            operations,
            effects=cluster.effects.read_text(encoding="utf-8").splitlines(),
            audit=[(trace, kind) for trace, kind in audit["rows"]],
            audit_problem=audit["problem"],
            redis_losses=self._losses,
            key_troubles=self._watch.troubles,
            unsynced=self._unsynced,
        )

    def _read_audit(self) -> dict[str, Any]:
        done = self.cluster.network.run(
            CLIENTS, [sys.executable, str(AUDIT)], env=self.cluster.environment, cwd=ROOT, timeout=READING_SECONDS
        )
        with suppress(ValueError):
            return json.loads(done.stdout)
        return {"rows": [], "problem": f"it cannot be read: {done.stderr.strip()[-300:]}"}
