"""The servers that are attacked: real processes on loopback, started when an attack wants one, shared by a family."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.attack.speaking.sockets import Place
from tests.attack.trial import MissingFeature, NotTried, Trial

SERVERS = Path(__file__).parent / "servers"
ROOT = Path(__file__).parents[2]
START_SECONDS = 60.0
MB = 1024 * 1024
MAX_IDLE_SERVERS = 3
BYTECODE = "ATTACK_BYTECODE"
"""The variable that names a folder for the bytecode of all servers of a run: they start in two thirds of the time."""
PEPPER = "the pepper of the attack suite, not a secret"


@dataclass(frozen=True)
class Kind:
    """Which server, where it listens and with which options."""

    file: str = "open"
    options: tuple[str, ...] = ()
    on: str = "http://127.0.0.1:0/mcp"
    env: tuple[tuple[str, str], ...] = ()

    def with_options(self, *options: str) -> Kind:
        return Kind(self.file, (*self.options, *options), self.on, self.env)

    def with_env(self, **env: str) -> Kind:
        return Kind(self.file, self.options, self.on, (*self.env, *env.items()))

    def __str__(self) -> str:
        return " ".join([f"{self.file}.py", *self.options])


@cache
def namespace() -> tuple[str, ...]:
    """The command that runs another without a network. Raises MissingFeature where the system has none."""
    found = ("unshare", "--map-root-user", "--net")
    try:
        tried = subprocess.run([*found, "true"], capture_output=True, text=True)
    except FileNotFoundError:
        raise MissingFeature("there is no unshare command (util-linux)") from None
    if tried.returncode:
        raise MissingFeature(f"no network namespaces here: {tried.stderr.strip()}")
    return found


# The mounts of this machine, each made read-only; those that cannot be are hidden by an empty one in memory.
_READ_ONLY = """
cut -d' ' -f2 /proc/self/mounts | while read -r place; do
  mount -o remount,bind,ro "$place" 2>/dev/null || mount -t tmpfs -o ro none "$place" 2>/dev/null
done
if touch "$0" 2>/dev/null; then echo "$0 can be written" >&2; exit 1; fi
exec "$@"
"""


@cache
def read_only_machine() -> tuple[str, ...]:
    """The command that runs another without a network, without a file that it could write, and alone: it sees no
    other process that it could end. Raises MissingFeature where the system has no such thing."""
    folders = ("/", "/tmp", "/var/tmp", "/dev/shm", "/run")
    checks = " && ".join(f"! touch {folder}/pwn 2>/dev/null" for folder in folders)
    found = (*namespace(), "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _READ_ONLY, str(Path(__file__)))
    tried = subprocess.run([*found, "sh", "-c", checks], capture_output=True, text=True)
    if tried.returncode:
        raise MissingFeature(f"the machine cannot be made read-only for a process: {tried.stderr.strip()}")
    return found


class Served:
    """A server process: where it is, what it has marked, how large it is."""

    def __init__(self, kind: Kind, folder: Path, environment: dict[str, str], python: Sequence[str]) -> None:
        self.kind, self.folder = kind, folder
        self._log = folder / "log"
        self.marks = folder / "marks"
        on = kind.on.replace("{folder}", str(folder))
        command = [*python, "defserve", "run", str(SERVERS / f"{kind.file}.py"), "--on", on, *kind.options]
        env = {**environment, "ATTACK_MARKS": str(self.marks), "ATTACK_FOLDER": str(folder), **dict(kind.env)}
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd=ROOT
            )
        self.place = self._listening()
        self._before, self.largest, self._seen = self.resident, 0.0, 0

    def _listening(self) -> Place:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            if found := re.search(r"serving on (?:\w+://([^/\s]+):(\d+)|unix:(\S+))", self.log):
                host, port, path = found.groups()
                return Place(path) if path else Place(host.strip("[]"), int(port))
            time.sleep(0.02)
        self.stop()
        raise NotTried(f"{self.kind} does not start: {self.log.strip()[-300:]}")

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def new_log(self) -> str:
        """What it has logged since `begin_measuring`."""
        return self.log[self._seen :]

    @property
    def is_alive(self) -> bool:
        return self.process.poll() is None

    def has_marked(self, word: str) -> bool:
        """Whether a tool ran that was told to mark this word."""
        return self.marks.exists() and word in self.marks.read_text(errors="replace")

    # -- memory ------------------------------------------------------------------------------------------

    def _status(self, name: str) -> int:
        with suppress(OSError):
            found = re.search(rf"^{name}:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text(), re.M)
            if found:
                return int(found[1]) * 1024
        return 0

    @property
    def resident(self) -> int:
        return self._status("VmRSS")

    @property
    def open_files(self) -> int:
        with suppress(OSError):
            return len(os.listdir(f"/proc/{self.process.pid}/fd"))
        return 0

    def begin_measuring(self) -> None:
        """Growth is counted from now. The kernel forgets the peak."""
        self.largest = max(self.largest, self.growth)
        self._seen = len(self.log)
        with suppress(OSError):
            Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")
        self._before = self.resident

    @property
    def growth(self) -> float:
        """MB by which it has grown at its largest since `begin_measuring`."""
        return max(self._status("VmHWM") - self._before, 0) / MB

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(1)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Arena:
    """The servers of one family, and a home of their own, so that nothing of the user is read or written."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="attack-")
        self.folder = Path(self._folder.name)
        self._served: dict[tuple[Kind, str], Served] = {}
        self._removal = ""
        self.used: set[Served] = set()
        self.grown = 0.0
        """MB by which a server had grown that was dropped during this attack."""
        for name in ("home", "config", "run"):
            (self.folder / name).mkdir(mode=0o700)
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "LC_ALL", "VIRTUAL_ENV")}
        self.environment = {
            **kept,
            "HOME": str(self.folder / "home"),
            "XDG_CONFIG_HOME": str(self.folder / "config"),
            "XDG_RUNTIME_DIR": str(self.folder / "run"),
            "DEFSERVE_KEYS_PEPPER": PEPPER,
            "PYTHONPATH": str(ROOT),
            **(
                {"PYTHONPYCACHEPREFIX": shared}
                if (shared := os.environ.get(BYTECODE))
                else {"PYTHONDONTWRITEBYTECODE": "1"}
            ),
        }

    @property
    def python(self) -> list[str]:
        """The start of a command that runs a module; in a control without the protection."""
        return [sys.executable, "-m", *(["tests.attack.controls"] if self._removal else [])]

    def remove(self, removal: str) -> None:
        """From now on, start every process without this protection (`Control.name`)."""
        self._removal = self.environment["ATTACK_WITHOUT"] = removal
        for (kind, other), served in list(self._served.items()):
            # A few stay: neighbours in the table often share a removal.
            if other != removal and len(self._served) > MAX_IDLE_SERVERS:
                served.stop()
                del self._served[kind, other]

    def serve(self, kind: Kind, *, fresh: bool = False) -> Served:
        """A server of this kind, already running if another attack has used it."""
        key = (kind, self._removal)
        found = self._served.get(key)
        if found is not None and fresh:
            self.drop(found)
            found = None
        elif found is not None and not found.is_alive:
            found = None
        if found is None:
            place = Path(tempfile.mkdtemp(prefix="server-", dir=self.folder))
            found = self._served[key] = Served(kind, place, self.environment, self.python)
        if found not in self.used:
            found.begin_measuring()
            found.largest = 0.0
            self.used.add(found)
        return found

    def drop(self, served: Served) -> None:
        """Stop it. Who asks for such a server again gets another process."""
        self.grown = max(self.grown, served.growth, served.largest)
        self.used.discard(served)
        served.stop()
        self._served = {key: one for key, one in self._served.items() if one is not served}

    def expect_bounded(self, trial: Trial, most: float, *, wants_alive: bool = True) -> float | None:
        """Whatever the attack was: the servers live, and have not grown by more MB than this. By how much they have."""
        grown = self.grown or None
        for served in list(self.used):
            if not served.is_alive:
                if wants_alive:
                    trial.expect(False, f"{served.kind} has ended: {served.log.strip()[-200:]}")
                continue
            growth = max(served.growth, served.largest)
            grown = max(grown or 0.0, growth)
            if growth > most:
                self.drop(served)
                trial.expect(False, f"{served.kind} grew by {growth:.0f} MB, more than {most:.0f}")
        return grown

    def command(self, *arguments: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        """Run the `defserve` command to its end."""
        return subprocess.run(
            [*self.python, "defserve", *arguments],
            env={**self.environment, **env},
            cwd=cwd or self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
        )

    def drive(self, script: str, given: object, *, without_network: bool = False, **env: str) -> Any:
        """Run a script of `drivers/` with this as JSON on its input; what it prints, read as JSON.

        Without a network, for scripts that run hostile code. Where a protection is missing, that code is not to change
        this machine: it runs where it can write to nothing.
        """
        line = [*self.python, f"tests.attack.drivers.{script}"]
        if without_network:
            line = [*(read_only_machine() if self._removal else namespace()), *line]
        done = subprocess.run(
            line, input=json.dumps(given), env={**self.environment, **env}, cwd=ROOT, capture_output=True, text=True
        )
        if done.returncode:
            raise NotTried(f"{script}: {done.stderr.strip()[-300:]}")
        return json.loads(done.stdout)

    def close(self) -> None:
        for served in self._served.values():
            served.stop()
        self._folder.cleanup()
