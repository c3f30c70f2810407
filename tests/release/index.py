"""A package index on loopback (PEP 503): what pip asks of a folder of wheels."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from tests.browser.origins import Reply, origin

from .artifacts import ROOT, Artifacts

WHEELS: Final = ROOT / "build" / "release" / "wheels"
# What the reader of the README and of the Learn pages installs, and what builds a project.
WANTED: Final = ("http,client,auth,dev", ("pytest", "build", "hatchling"))


def wheels(artifacts: Artifacts) -> Path:
    """A folder with a wheel of everything that is depended on; fetched once for each set of dependencies."""
    extras, others = WANTED
    asked = artifacts.metadata().get_all("Requires-Dist") or []
    mark = WHEELS / f"{hashlib.sha256(repr((asked, others, sys.version)).encode()).hexdigest()[:16]}.complete"
    if not mark.exists():
        pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--dest", str(WHEELS)]
        done = subprocess.run(
            [*pip, f"{artifacts.wheel}[{extras}]", *others], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert done.returncode == 0, done.stdout
        for own in WHEELS.glob("defserve-*"):
            own.unlink()
        mark.touch()
    return WHEELS


@contextmanager
def served(*folders: Path) -> Generator[str]:
    """The address of an index of the files in these folders."""
    files = {path.name: path for folder in folders for path in folder.iterdir() if path.name.endswith((".whl", ".gz"))}

    def reply(path: str, _: bytes) -> Reply | None:
        kind, _, name = unquote(path).strip("/").partition("/")
        if kind == "files" and name in files:
            return "application/octet-stream", files[name].read_bytes(), {}
        found = sorted(file for file in files if project(file) == name) if kind == "simple" else []
        links = "".join(f'<a href="/files/{file}">{file}</a>\n' for file in found)
        return ("text/html", f"<!doctype html><title>{name}</title>{links}".encode(), {}) if found else None

    with origin(reply) as index:
        yield f"{index.url}/simple/"


def project(file: str) -> str:
    """The normalized name of the project that a wheel or an sdist is of."""
    name = file.split("-")[0] if file.endswith(".whl") else file.rpartition("-")[0]
    return re.sub(r"[-_.]+", "-", name).lower()
