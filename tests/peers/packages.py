"""Which packages the peers are, and how each comes into a folder of its own below `.peers/`."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.conformance import suite_install

FOLDER = suite_install.ROOT / ".peers"
INSTALL_SECONDS = 600


class NotInstalled(Exception):
    """A package index does not give it, or there is no network; the text says which."""


@dataclass(frozen=True)
class Package:
    """One release of one package."""

    index: str
    name: str
    version: str
    beside: tuple[str, ...] = ()
    """Exact releases of what it needs, where the newest that it allows is not the one that is meant."""

    @property
    def folder(self) -> Path:
        name = self.name.strip("@").replace("/", "-").partition("[")[0]
        return FOLDER / "-".join((name, self.version, *(each.replace("==", "-") for each in self.beside)))

    @property
    def program(self) -> Path:
        """What runs scripts that import the package."""
        return self.folder / "bin" / "python" if self.index == "pip" else suite_install.node()

    def install(self) -> None:
        """Bring it there, if it is not there whole. Raises NotInstalled."""
        done, wanted = self.folder / ".installed", " ".join((self.name, self.version, *self.beside))
        if done.exists() and done.read_text(encoding="utf-8") == wanted:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        # Tests of several processes may want it at the same time: one installs, the others wait.
        with (self.folder.parent / f"{self.folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if done.exists() and done.read_text(encoding="utf-8") == wanted:
                return
            try:
                _INSTALLERS[self.index](self)
            except SystemExit as error:
                raise NotInstalled(str(error)) from None
            except subprocess.TimeoutExpired:
                raise NotInstalled(f"it took longer than {INSTALL_SECONDS} s") from None
            done.write_text(wanted, encoding="utf-8")


def _pip(package: Package) -> None:
    _run([sys.executable, "-m", "venv", str(package.folder)])
    pip = [str(package.program), "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
    _run([*pip, f"{package.name}=={package.version}", *package.beside])


def _npm(package: Package) -> None:
    suite_install.install(package.name, package.version, package.folder)


_INSTALLERS = {"pip": _pip, "npm": _npm}


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS)
    if done.returncode:
        raise SystemExit((done.stderr or done.stdout).strip()[-300:])
