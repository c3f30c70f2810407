"""What other frameworks call the verbs of `Context`, and what to write here. Read only when a name does not exist.

Whoever comes from FastMCP or the official SDK meets these errors first. The whole table is in docs/migration.md.
"""

from __future__ import annotations

from typing import Final

_KEEP: Final = "Depends(…) for one call, or a parameter State[Model] for what is kept"

CONTEXT: Final = {
    **{level: f'ctx.log.{level}("…", key=value), without await' for level in ("debug", "info", "warning", "error")},
    "report_progress": "ctx.progress(1, 3), without await; or for item in ctx.track(items)",
    "elicit": 'await ctx.ask("Who?", Guest); for one of several, await ctx.choose("Which?", ["a", "b"])',
    "elicit_url": "await ctx.ask_url(message, url)",
    "list_roots": "await ctx.roots()",
    "create_message": 'await ctx.sample("…")',
    "lifespan_context": "ctx.lifespan",
    "request_context": "ctx.lifespan for the lifespan, ctx.session for the conversation, ctx.call for the call",
    "set_state": _KEEP,
    "get_state": _KEEP,
    "delete_state": _KEEP,
    "request_id": "ctx.trace_id, the id of this call in logs and errors",
    "session_id": "ctx.session, the conversation; ctx.principal is who is calling",
    "client_id": "ctx.principal",
    "access_token": "ctx.principal",
    "fastmcp": "the server object itself",
    "get_http_request": "ctx.principal for who is calling; a call does not depend on how it came",
    "send_notification": "ctx.log for messages, ctx.progress for progress; changed lists are announced by themselves",
    **{
        f"send_{kind}_list_changed": "nothing: a changed list is announced by itself"
        for kind in ("tool", "resource", "prompt")
    },
}
"""An attribute of their `Context` → what to write."""

LOG: Final = {
    "warn": 'ctx.log.warning("…", key=value)',
    "fatal": 'ctx.log.critical("…", key=value)',
    "exception": 'ctx.log.error("…", key=value)',
    "log": 'ctx.log.info("…", key=value), without await',
    "setLevel": "nothing: clients choose the level themselves",
}
"""An attribute of the loggers that people know → what to write."""
