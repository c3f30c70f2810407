"""What the running code belongs to: a call, a context hook, or a source of events.

The verbs of a feature set read it to find the host they speak to.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from defserve.core.call import Call
from defserve.core.identity import SENDER
from defserve.protocols.mcpl.policies import agreed
from defserve.wire.messages import Notification, Params

if TYPE_CHECKING:
    from defserve.core.session import Session


class HookRun:
    """One run of a context hook. `running` is False once the hook has answered."""

    running = True


class DangerousTool:
    """Says of a call that it is one of a dangerous tool, whatever the tool makes it read meanwhile.

    The subject of a call changes while a tool reads a resource. That its tool is dangerous does not.
    """


# The call that this code runs for.
CURRENT: ContextVar[Call | None] = ContextVar("defserve_call", default=None)

# The hook that this code was started in. A task that outlives its hook may infer (§10.7).
IN_HOOK: ContextVar[HookRun | None] = ContextVar("defserve_hook", default=None)

# The session that a source of events runs for. Outside any call, the source speaks to this session.
SOURCE_SESSION: ContextVar[Session | None] = ContextVar("defserve_source_session", default=None)


@contextmanager
def in_hook() -> Generator[None]:
    """Around an author's context hook: `is_in_hook()` is True inside, and inference is refused (§10.7)."""
    run = HookRun()
    token = IN_HOOK.set(run)
    try:
        yield
    finally:
        run.running = False
        IN_HOOK.reset(token)


def is_in_hook() -> bool:
    """Whether this code runs in a context hook that has not answered yet."""
    run = IN_HOOK.get()
    return run is not None and run.running


def call_of_notification(session: Session, method: str, params: Params) -> Call | None:
    """A call for a notification, which gets no answer. None if the host did not negotiate MCPL."""
    import asyncio

    composition = session.composition
    offer = composition.offer_in(Notification(method, params, {}))
    terms = composition.agree(offer) if offer is not None else session.terms
    if terms is None or agreed(terms) is None:
        return None
    call = Call(session, "", method, params, {}, terms)
    call.settled, call.task, call.identity = True, asyncio.current_task(), SENDER.get()
    return call
