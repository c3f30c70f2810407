"""What `server.mount` takes besides a `Server`; for anything else, what to write instead."""

from __future__ import annotations

import os
from types import ModuleType
from typing import Any, Final

from defserve.errors import UsageError
from defserve.host.addresses import Remote as Address
from defserve.proxying.targets import Command
from defserve.server.decorators import caller
from defserve.wire.jsonvalue import is_array, is_mapping

_EACH: Final = 'server.mount(Command("npx", "-y", "some-server", env={…}), prefix="…")'
_ANY: Final = 'give a Server, Command("npx", "-y", "some-server"), Remote("https://…"), or a text for one of these'


def check_mountable(given: Any, server: type[Any]) -> None:
    """Raises UsageError. It does not show the arguments of a command, because they may be secrets."""
    if isinstance(given, str | Address | Command):
        return
    kind, fix = type(given).__name__, _ANY
    if isinstance(given, ModuleType):
        found = next((name for name, value in vars(given).items() if isinstance(value, server)), "server")
        kind, fix = "module", f"mount its server: server.mount({given.__name__}.{found})"
    elif is_array(given) and given and isinstance(given[0], str):
        fix = f'write server.mount(Command("{given[0]}"{", …" if len(given) > 1 else ""}))'
    elif is_mapping(given):
        fix = f"mount each of its servers: {_EACH}" if "mcpServers" in given else f"write {_EACH}"
    elif isinstance(given, os.PathLike):
        fix = f'write server.mount(Command("python", "{os.fspath(given)}"))'  # pyright: ignore
    elif isinstance(given, type) and issubclass(given, server):
        kind, fix = "class", "give an object of it"
    raise UsageError(f"server.mount takes no {kind}", where=caller(), fix=fix)
