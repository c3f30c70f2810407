"""Brings a public server into `.migrations/`, beside a copy of it that is migrated, and says how both are started.

Both run where there is no network and nothing can be written but a home of their own: their tools do what they like.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import PathDistribution
from pathlib import Path

from defserve.tooling.migrate.migration import NOTHING_TO_MIGRATE, Migration, migrate_files
from tests.migrations.differences import BY_HAND
from tests.migrations.servers import PublicServer
from tests.peers.isolation import QUIET

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".migrations"
LOCKS = Path(__file__).parent / "locks"
INSTALL_SECONDS = 900

# Homes lie at the same place for both, because servers show paths in their answers.
_HOME = "/tmp/home"
_JAIL = (
    f'mount -t tmpfs tmpfs /tmp && mkdir {_HOME} && mount --bind "$0" {_HOME} && mount -o remount,bind,ro / &&'
    f' mount -t proc proc /proc && cd {_HOME} && exec "$@"'
)
_LAUNCH = (
    "import sys; from importlib import import_module; copy, theirs, module, name, sys.argv[0] = sys.argv[1:6];"
    " del sys.argv[1:]; copy and sys.path.insert(0, copy); theirs and sys.path.append(theirs);"
    " sys.exit(getattr(import_module(module), name)())"
)


class InstalledServer:
    """One server of the table. `folder` has an environment with its own framework, and the migrated copy."""

    def __init__(self, server: PublicServer) -> None:
        self.server = server
        self.folder = FOLDER / f"{server.name}-{server.version}"
        self.python = self.folder / "bin" / "python"
        self.copy = self.folder / "migrated"
        self.packages = next(iter(self.folder.glob("lib/python3*/site-packages")), self.folder)
        self.is_rewritten = False

    def install(self) -> None:
        """Install what the lock names, unless that was done before. Raises subprocess.CalledProcessError."""
        lock = LOCKS / f"{self.server.name}.txt"
        done = self.folder / ".installed"
        if done.exists() and done.read_text(encoding="utf-8") == lock.read_text(encoding="utf-8"):
            return
        _run([sys.executable, "-m", "venv", "--clear", str(self.folder)])
        pip = [str(self.python), "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-deps"]
        _run([*pip, "-r", str(lock)])
        self.packages = next(iter(self.folder.glob("lib/python3*/site-packages")))
        shutil.copyfile(lock, done)

    def migrate(self) -> dict[Path, Migration]:
        """Copy the server's own files, and migrate the copy. The files that are of a server, with what is said."""
        shutil.rmtree(self.copy, ignore_errors=True)
        name = self.server.name.replace("-", "_")
        (info,) = self.packages.glob(f"{name}-*.dist-info")
        for file in PathDistribution(info).files or ():
            if not file.parts[0].endswith(".dist-info") and ".." not in file.parts and file.suffix != ".pyc":
                (self.copy / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(self.packages / file, self.copy / file)
        sources = {path: path.read_text(encoding="utf-8") for path in sorted(self.copy.rglob("*.py"))}
        done = migrate_files(sources)
        for path, migration in done.items():
            if migration.text != sources[path]:
                self.is_rewritten = True
                path.write_text(migration.text, encoding="utf-8")
        for edit in BY_HAND.get(self.server.name, []):
            edit.apply(self.copy)
        return {
            path.relative_to(self.copy): each
            for path, each in done.items()
            if not any(note.text == NOTHING_TO_MIGRATE for note in each.notes)
        }

    def start_original(self) -> list[str]:
        return self._start("original", str(self.python), "", "")

    def start_migrated(self) -> list[str]:
        """With our environment first: of the original's comes what the server needs besides its framework."""
        return self._start("after", sys.executable, str(self.copy), str(self.packages))

    def _start(self, home: str, python: str, first: str, last: str) -> list[str]:
        place = self.folder / f"home-{home}"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        module, _, name = self.server.entry.partition(":")
        return [*_jail(place), python, "-c", _LAUNCH, first, last, module, name, self.server.command]


def _jail(home: Path) -> list[str]:
    spaces = ["unshare", "--net", "--pid", "--mount", "--fork", "--kill-child", "--map-root-user"]
    return [*spaces, "sh", "-c", _JAIL, str(home)]


def can_isolate() -> bool:
    """Whether this system lets a program be alone. Without that, tools of strangers are not called."""
    if shutil.which("unshare") is None:
        return False
    FOLDER.mkdir(exist_ok=True)
    return subprocess.run([*_jail(FOLDER), "true"], capture_output=True).returncode == 0


def environment() -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {**kept, **QUIET, "HOME": _HOME, "PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": "1"}


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=INSTALL_SECONDS)
