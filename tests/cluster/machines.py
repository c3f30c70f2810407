"""Machines of a cluster: network namespaces, and a router between them in a namespace of its own.

    a ── router ── b           each machine has one cable; the router passes packets on, or drops them
            │
          wire                 each machine has a second address here, at which others reach it

Nothing leaves the namespaces: no machine has a default route, and the router has cables to its machines only. The wire
is a forwarder (`wire.py`). A never speaks to B's own address but to B's address on the wire, so what A sends to B can
be told from what B sends to A: the router drops by source and destination.

The name of a namespace has the process that made it. What a process that is dead has left behind is removed.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from tests.waiting import is_running

PREFIX = "dscluster"
NETWORK = "10.77.0.0/16"
WIRE = "wire"
ROUTER = "router"


class NoMachines(Exception):
    """Network namespaces cannot be made here; the text says why."""


class Network:
    """All machines of one run. `number` tells the runs of one process apart."""

    def __init__(self, names: Sequence[str], number: int = 0) -> None:
        self._tag = f"{PREFIX}-{os.getpid()}-{number}"
        self.names = [*names, WIRE]
        self._running: list[subprocess.Popen[bytes]] = []
        self._dropped: set[tuple[str, str]] = set()

    def make(self) -> None:
        """Raises NoMachines."""
        if missing := [name for name in ("ip", "nsenter") if shutil.which(name) is None]:
            raise NoMachines(f"there is no {missing[0]} (apt-get install iproute2 util-linux)")
        if os.geteuid() != 0:
            raise NoMachines(
                "only root may make network namespaces; run it as root, or in a container with CAP_SYS_ADMIN"
            )
        remove_leftovers()
        _ip("netns", "add", self.namespace(ROUTER))
        _in(self.namespace(ROUTER), "sysctl", "-qw", "net.ipv4.ip_forward=1")
        for number, name in enumerate(self.names):
            self._connect(number, name)
        # Its machines' second addresses are all at the wire.
        for name in self.names[:-1]:
            _ip("-n", self.namespace(WIRE), "addr", "add", f"{self.wire_address(name)}/32", "dev", "lo")
        _ip("-n", self.namespace(ROUTER), "route", "add", "10.77.100.0/24", "via", self.address(WIRE))

    def _connect(self, number: int, name: str) -> None:
        router, machine, cable = self.namespace(ROUTER), self.namespace(name), f"m{number}"
        _ip("netns", "add", machine)
        _ip("link", "add", cable, "netns", router, "type", "veth", "peer", "name", "eth0", "netns", machine)
        _ip("-n", router, "addr", "add", f"10.77.{number + 1}.1/30", "dev", cable)
        _ip("-n", router, "link", "set", cable, "up")
        _ip("-n", machine, "addr", "add", f"{self.address(name)}/30", "dev", "eth0")
        _ip("-n", machine, "link", "set", "lo", "up")
        _ip("-n", machine, "link", "set", "eth0", "up")
        _ip("-n", machine, "route", "add", NETWORK, "via", f"10.77.{number + 1}.1")

    def namespace(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def address(self, name: str) -> str:
        """A machine's own address."""
        return f"10.77.{self.names.index(name) + 1}.2"

    def wire_address(self, name: str) -> str:
        """The address at which the others reach it."""
        return f"10.77.100.{self.names.index(name) + 1}"

    def start(
        self,
        machine: str,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
        as_user: tuple[int, int] | None = None,
        **options: Any,
    ) -> subprocess.Popen[bytes]:
        """Start a program on a machine. It is killed with the machine at the latest."""
        enter = ["nsenter", f"--net=/run/netns/{self.namespace(machine)}"]
        if as_user is not None:
            enter += ["--setuid", str(as_user[0]), "--setgid", str(as_user[1])]
        out: Any = log.open("ab") if log is not None else subprocess.DEVNULL
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out, **options}
        try:
            process = subprocess.Popen(
                [*enter, "--", *command],
                env=dict(environment) if environment is not None else None,
                start_new_session=True,
                **streams,
            )
        finally:
            if log is not None:
                out.close()
        running = cast("subprocess.Popen[bytes]", process)
        self._running.append(running)
        return running

    def run(self, machine: str, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a program on a machine to its end."""
        enter = ["nsenter", f"--net=/run/netns/{self.namespace(machine)}"]
        if (as_user := options.pop("as_user", None)) is not None:
            enter += ["--setuid", str(as_user[0]), "--setgid", str(as_user[1])]
        return subprocess.run([*enter, "--", *command], capture_output=True, text=True, check=False, **options)

    # -- cutting -----------------------------------------------------------------------------------------

    def drop(self, sender: str, receiver: str) -> None:
        """Drop all packets from one machine to another, silently."""
        for rule in self._rules(sender, receiver):
            if rule not in self._dropped:
                self._dropped.add(rule)
                _ip("-n", self.namespace(ROUTER), "rule", "add", "from", rule[0], "to", rule[1], "blackhole")

    def cut(self, one: str, other: str) -> None:
        self.drop(one, other)
        self.drop(other, one)

    def isolate(self, machine: str) -> None:
        """Cut a machine off from all others."""
        for other in self.names[:-1]:
            if other != machine:
                self.cut(machine, other)

    def heal(self) -> None:
        for source, destination in self._dropped:
            _ip("-n", self.namespace(ROUTER), "rule", "del", "from", source, "to", destination, "blackhole")
        self._dropped.clear()

    def _rules(self, sender: str, receiver: str) -> list[tuple[str, str]]:
        """What is sent on connections that the sender opened, and on those that it took."""
        return [
            (self.address(sender), self.wire_address(receiver)),
            (self.wire_address(sender), self.address(receiver)),
        ]

    # -- the end -----------------------------------------------------------------------------------------

    def remove(self) -> None:
        for name in [*self.names, ROUTER]:
            _remove(self.namespace(name))
        for process in self._running:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()


def remove_leftovers() -> None:
    """Remove what campaigns have left that did not come to their end."""
    for name in _list_namespaces():
        if _is_left(name):
            _remove(name)
    for line in Path("/proc/mounts").read_text(encoding="utf-8").splitlines():
        place = line.split()[1]
        if any(_is_left(part) for part in Path(place).parts):
            subprocess.run(["umount", "-l", place], capture_output=True, check=False)


def _is_left(name: str) -> bool:
    """Whether a namespace or a folder belongs to a campaign whose process is gone."""
    tag, _, rest = name.partition("-")
    owner = rest.partition("-")[0]
    return tag == PREFIX and owner.isdigit() and not is_running(int(owner))


def _list_namespaces() -> list[str]:
    done = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False)
    return [line.split()[0] for line in done.stdout.splitlines() if line.strip()]


def _remove(namespace: str) -> None:
    """End its processes and remove it. That its cables go too is up to the kernel."""
    if not Path(f"/run/netns/{namespace}").exists():
        return
    for _ in range(20):
        found = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False)
        pids = [int(pid) for pid in found.stdout.split()]
        if not pids:
            break
        kill_all(pids)
    subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


def kill_all(pids: Iterable[int], sign: signal.Signals = signal.SIGKILL) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, sign)


def find_children(pid: int) -> list[int]:
    """The processes that a process has started, in their order."""
    try:
        return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def find_family(pid: int) -> list[int]:
    """A process and all that it and they have started."""
    return [pid, *(each for child in find_children(pid) for each in find_family(child))]


def _ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoMachines(f"`ip {' '.join(words)}` failed: {done.stderr.strip()}")


def _in(namespace: str, *command: str) -> None:
    done = subprocess.run(["ip", "netns", "exec", namespace, *command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoMachines(f"`{' '.join(command)}` failed in a namespace: {done.stderr.strip()}")
