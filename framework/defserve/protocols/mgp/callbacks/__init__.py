"""Callbacks (MGP §13.4): questions to a person, sent as notifications and answered by requests.

Only the session and caller that were asked can answer, only once, and only while the call that asks waits.

May import: `core`, `wire`, `stores.nonces`, `protocols.mcp`.
"""
