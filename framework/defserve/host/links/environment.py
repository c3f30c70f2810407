"""The environment of a child that is not meant to see ours."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

NAMES: Final = frozenset(("PATH", "HOME", "LANG", "LANGUAGE", "TMPDIR", "USER"))
# Without some of these a program does not even start there.
WINDOWS_NAMES: Final = frozenset(
    "APPDATA COMSPEC HOMEDRIVE HOMEPATH LOCALAPPDATA NUMBER_OF_PROCESSORS OS PATH PATHEXT PROCESSOR_ARCHITECTURE "
    "PROGRAMDATA PROGRAMFILES SYSTEMDRIVE SYSTEMROOT TEMP TMP USERNAME USERPROFILE WINDIR".split()
)
LOCALE: Final = "LC_"


def bare_environment(given: Mapping[str, str]) -> dict[str, str]:
    """What any program needs (where programs, the home folder and temporary files are, the language), and `given`."""
    names = WINDOWS_NAMES if os.name == "nt" else NAMES
    ours = {name: value for name, value in os.environ.items() if name in names or name.startswith(LOCALE)}
    return {**ours, **given}
