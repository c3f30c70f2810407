"""What is checked before a server runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from defserve.errors import UsageError
from defserve.server.decorators import caller


def refuse_in_a_loop() -> None:
    """Raises UsageError where an event loop runs: a server brings its own, and one thread has only one."""
    asyncio = sys.modules.get("asyncio")  # without it there is no loop, and the first answer does not wait for it
    if asyncio is None or asyncio._get_running_loop() is None:  # the hook for loops of others; it raises nothing
        return
    from defserve.server.elsewhere import OWN_LOOP

    raise UsageError("server.run(…) was called in an event loop, and runs its own", where=caller(), fix=OWN_LOOP)


def check_web_options(given: Mapping[str, Any], method: Callable[..., Any]) -> None:
    """Raises UsageError for an option that does not exist. Otherwise it would do nothing, and nobody would know."""
    from defserve.serving.options import WebFields

    if given.keys() - WebFields.__annotations__.keys():
        from defserve.server.options import refuse_unknown_fields

        refuse_unknown_fields(given, WebFields, method, f"server.{method.__name__}", caller())
