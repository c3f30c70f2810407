"""The interpreter all servers share: a venv of the benchmark's own, made on demand, or one named by a variable."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.conformance.suite_install import install_all, node

from .contenders import SERVERS
from .processes import Launch

ROOT = Path(__file__).parents[2]
VENV = ROOT / ".bench-venv"
PEERS = ("fastmcp>=4.1,<5", "mcp>=2.3,<3")
HTTP_SERVER = ("uvicorn>=0.30", "httptools>=0.6", "uvloop>=0.19", "websockets>=15")
SHARING = ("redis[hiredis]>=6", "psycopg[binary]>=3.2.4")
NODE_PACKAGES = (
    ("@modelcontextprotocol/server", "2.4.0"),
    ("@modelcontextprotocol/node", "2.1.2"),
    ("zod", "4.2.0"),
)
NODE_MODULES = ROOT / ".bench-venv" / "node"
VARIABLE = "DEFSERVE_BENCH_PYTHON"


def interpreter(default: Path | None = None) -> Path:
    """The Python to run servers with: the one the variable names, else the default, else the venv's.

    The venv is installed if it is not current.
    """
    named = os.environ.get(VARIABLE)
    return Path(named) if named else default or _venv_python()


def node_with_packages() -> Path | None:
    """The Node that runs the TypeScript SDK's server, installed if it is not there; None where it cannot be had."""
    try:
        install_all(NODE_PACKAGES, NODE_MODULES)
    except SystemExit as error:
        print(f"without the TypeScript SDK: {str(error).splitlines()[-1]}", file=sys.stderr)
        return None
    return node()


def server_environment(generated: Path) -> dict[str, str]:
    """Variables for every server alike: this checkout, the shared tools and the generated catalogues importable."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FASTMCP_", "MCP_"))}
    paths = (ROOT / "framework", SERVERS, generated)
    modules = str(NODE_MODULES / "node_modules")
    return {**kept, "PYTHONPATH": os.pathsep.join(map(str, paths)), "NODE_PATH": modules}


def versions(launch: Launch) -> dict[str, str]:
    """What was compared: the interpreters and the distributions that matter, as installed."""
    names = ("pydantic", "pydantic-core", "anyio", "mcp", "fastmcp", "uvicorn", "httptools", "uvloop")
    code = (
        "import sys, importlib.metadata as m\n"
        "print('python', sys.version.split()[0])\n"
        f"for name in {names!r}:\n"
        "    try: print(name, m.version(name))\n"
        "    except m.PackageNotFoundError: pass"
    )
    output = subprocess.run([launch.python, "-c", code], check=True, capture_output=True, text=True).stdout
    found = dict(line.split() for line in output.splitlines())
    if launch.node:
        told = subprocess.run([launch.node, "--version"], check=True, capture_output=True, text=True).stdout
        found |= {"node": told.strip().removeprefix("v"), "TypeScript SDK": dict(NODE_PACKAGES)[NODE_PACKAGES[0][0]]}
    return found


def _venv_python() -> Path:
    python = VENV / "bin" / "python"
    stamp = VENV / "requirements.txt"
    wanted = "\n".join([*_dependencies(), *PEERS, *HTTP_SERVER, *SHARING]) + "\n"
    if python.exists() and stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"setting up {VENV.name} …", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *wanted.split("\n")[:-1]], check=True)
    stamp.write_text(wanted)
    return python


def _dependencies() -> list[str]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
