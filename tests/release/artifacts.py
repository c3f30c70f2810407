"""What is released: the sdist, and the wheel that is built from it."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from email.message import Message
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


class Artifacts:
    """Built into a folder, as the release builds them: of this checkout, or of a copy."""

    def __init__(self, folder: Path, sources: Path = ROOT, environment: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(sources)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        assert done.returncode == 0, done.stdout
        self.folder = folder
        (self.wheel,) = folder.glob("*.whl")
        (self.sdist,) = folder.glob("*.tar.gz")

    def in_wheel(self) -> dict[str, bytes]:
        """Path to contents."""
        with zipfile.ZipFile(self.wheel) as archive:
            return {name: archive.read(name) for name in archive.namelist()}

    def in_sdist(self) -> dict[str, bytes]:
        """Path below the folder of the release to contents."""
        with tarfile.open(self.sdist) as archive:
            files = {each.name: archive.extractfile(each) for each in archive if each.isfile()}
            return {name.partition("/")[2]: file.read() for name, file in files.items() if file is not None}

    def metadata(self) -> Message:
        (text,) = (body for name, body in self.in_wheel().items() if name.endswith(".dist-info/METADATA"))
        return message_from_string(text.decode("utf-8"))
