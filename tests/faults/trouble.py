"""A disk that is full, a file that cannot be written: told in clear words, and over without a restart."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.faults.notebook import Notebook
from tests.faults.process import Broken

FULL = "The disk of the store is full"
UNWRITABLE = "The store cannot be opened, read or written"
READ_ONLY = "The store cannot be written"

_CAPBSET_DROP, _DAC_OVERRIDE = 24, 1


def fill_the_disk() -> str:
    """Raises Broken; says how the disk was filled."""
    with tempfile.TemporaryDirectory(prefix="faults") as name:
        folder = Path(name)
        with _small_disk(folder) as is_mounted:
            notebook = Notebook(f"sqlite:///{folder / 'notes.db'}")
            try:
                _refuses(notebook.try_to_add("kept"), None)
                # A disk of its own is filled with ballast; else no file of the server's may grow any more.
                if is_mounted:
                    _fill(folder / "ballast")
                else:
                    _let_files_grow(notebook, (folder / "notes.db-wal").stat().st_size)
                _refuses(notebook.try_to_add("x" * 200_000), FULL if is_mounted else UNWRITABLE)
                if notebook.read() != ["kept"]:
                    raise Broken("what was kept cannot be read on a full disk")
                (folder / "ballast").unlink(missing_ok=True)
                _let_files_grow(notebook, resource.RLIM_INFINITY)
                _refuses(notebook.try_to_add("more"), None)
                if notebook.read() != ["kept", "more"]:
                    raise Broken("a refused note was kept, or a later one was not")
            finally:
                notebook.close()
    return "a small disk" if is_mounted else "a bound on the size of files"


def forbid_writing() -> None:
    """Raises Broken."""
    with tempfile.TemporaryDirectory(prefix="faults") as folder:
        file = Path(folder) / "notes.db"
        notebook = Notebook(f"sqlite:///{file}")
        _refuses(notebook.try_to_add("kept"), None)
        notebook.close()
        file.chmod(0o400)
        notebook = Notebook(f"sqlite:///{file}", prepare=_heed_modes)
        try:
            _refuses(notebook.try_to_add("refused"), READ_ONLY)
            if notebook.read() != ["kept"]:
                raise Broken("a store that cannot be written cannot be read either")
            file.chmod(0o600)
            _refuses(notebook.try_to_add("more"), None)
            if notebook.read() != ["kept", "more"]:
                raise Broken("a refused note was kept, or a later one was not")
        finally:
            notebook.close()


def _refuses(said: str | None, wanted: str | None) -> None:
    if said != wanted:
        raise Broken(f"the server said {said!r} instead of {wanted!r}")


@contextmanager
def _small_disk(folder: Path) -> Generator[bool]:
    """Whether one could be mounted."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        is_mounted = subprocess.run(mount, capture_output=True).returncode == 0
    except FileNotFoundError:
        is_mounted = False
    try:
        yield is_mounted
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def _fill(ballast: Path) -> None:
    with ballast.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)


def _let_files_grow(notebook: Notebook, size: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.prlimit(notebook.process.pid, resource.RLIMIT_FSIZE, (size, hard))


def _heed_modes() -> None:
    """In the child: modes of files count for root, too."""
    if os.geteuid() == 0:
        ctypes.CDLL(None).prctl(_CAPBSET_DROP, _DAC_OVERRIDE, 0, 0, 0)
