"""The metadata of a wheel. It decides name, version, README and scripts, because the wheel is what gets published."""

from __future__ import annotations

import re
import zipfile
from configparser import ConfigParser
from email.parser import BytesParser
from email.policy import compat32
from pathlib import Path
from typing import Final, NamedTuple

from defserve.errors import UsageError

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+!-]{0,127}")


class Wheel(NamedTuple):
    """A wheel. `scripts` are the console scripts by name, `readme` is the long description."""

    path: Path
    name: str
    version: str
    summary: str
    readme: str
    scripts: dict[str, str]


def read_wheel(path: Path) -> Wheel:
    """Raises UsageError for a file that is not a wheel."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            metadata = next(name for name in names if name.endswith(".dist-info/METADATA"))
            message = BytesParser(policy=compat32).parsebytes(archive.read(metadata))
            entries = next((name for name in names if name.endswith(".dist-info/entry_points.txt")), None)
            text = archive.read(entries).decode() if entries else ""
    except (zipfile.BadZipFile, StopIteration, OSError):
        raise UsageError(f"{path} is not a wheel") from None
    for field in ("Name", "Version"):
        # They become part of file names.
        if not NAME.fullmatch(str(message[field])):
            raise UsageError(
                f"{path.name} gives itself the {field.lower()} {str(message[field])[:60]!r}",
                fix="use letters, digits, dots, - and _, as package indexes do",
            )
    scripts = ConfigParser(delimiters=("=",), interpolation=None)
    scripts.optionxform = str  # pyright: ignore[reportAttributeAccessIssue]
    scripts.read_string(text)
    readme = message.get_payload(decode=True)
    return Wheel(
        path,
        str(message["Name"]),
        str(message["Version"]),
        str(message.get("Summary", "")),
        readme.decode("utf-8", "replace") if isinstance(readme, bytes) else "",
        dict(scripts["console_scripts"]) if scripts.has_section("console_scripts") else {},
    )
