"""Streaming tool calls (MGP §12): chunks in order, missing ones asked for again, a slow reader slows the server.

The result always has every part, also those that a reader missed.

May import: `host.caller`, `host.conversation`, `host.fields`, `host.mgp.peer`, `host.tool_value`.
"""
