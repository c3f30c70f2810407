"""A host as a participant of a topic.

It needs a gateway, but no server of its own. Unread news are bounded: a slow listener misses the oldest.

May import: `host.fields`, `host.tool_value`, `protocols.mcpx`, `transports.websocket.client`, `wire.messages`.
"""
