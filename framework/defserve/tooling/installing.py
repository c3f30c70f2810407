"""The command that installs something into this Python. Environments made by uv have no pip."""

from __future__ import annotations

import shlex
import shutil
import sys
from importlib.util import find_spec


def install_command(requirement: str) -> str:
    """A command that works here, to be shown in a `fix:`."""
    quoted = f'"{requirement}"' if "[" in requirement else requirement
    python = shlex.quote(sys.executable)
    if find_spec("pip") is not None:
        return f"{python} -m pip install {quoted}"
    if shutil.which("uv"):
        return f"uv pip install --python {python} {quoted}"
    return f"{python} -m ensurepip && {python} -m pip install {quoted}"
