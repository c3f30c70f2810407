"""Where mgp.toml is looked for (MGP §15.2). The variable is an override, so it comes first."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from defserve.errors import UsageError

OVERRIDE: Final = "MGP_CONFIG_PATH"
# The second is the name that the reference kernel reads.
HERE: Final = ("mgp.toml", "mcp.toml")
USER: Final = ("mgp", "servers.toml")


def locate(given: str | None = None, environ: Mapping[str, str] = os.environ) -> Path:
    """The absolute path of the file: `given`, else the variable, the current folder, the user's settings.

    The first place that has a file counts; places are not merged. Raises UsageError if there is none.
    """
    for source, name in (("--config", given), (OVERRIDE, environ.get(OVERRIDE))):
        if name:
            path = Path(name).expanduser().absolute()
            if not path.is_file():
                raise UsageError(f"{source} names {name}, and there is no such file", fix="correct the path")
            return path
    found = next((place for place in places(environ) if place.is_file()), None)
    if found is None:
        looked = ", ".join(map(str, places(environ)))
        raise UsageError(
            f"there is no mgp.toml; looked for {looked}",
            fix="write one, make one with defserve kernel import .mcp.json, or give --config FILE",
        )
    return found


def places(environ: Mapping[str, str] = os.environ) -> list[Path]:
    """Where the file may be when nobody says where it is, in order."""
    settings = Path(environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser())
    return [*(Path(name).absolute() for name in HERE), settings.joinpath(*USER)]
