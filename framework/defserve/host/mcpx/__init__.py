"""A host as a participant of a topic.

It needs a gateway, no server of its own. What it hears is bounded: a slow listener misses the oldest.

May import: `host.fields`, `host.tool_value`, `protocols.mcpx`, `transports.websocket.client`.
"""
