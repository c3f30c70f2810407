"""The inspector: one page in a browser that looks into a server of any era, transport and author.

A host side (here) holds the conversations with the server and records every message. The page (`page/`) has nothing of
its own: all it knows comes over one WebSocket. Nobody but the person who was given the address with its token gets in.

May import: `auth.challenges`, `host`, `inspector.apps`, `inspector.kernels`, `inspector.live`, `inspector.panels`,
`inspector.recording`, `inspector.serving`, `inspector.states`, `inspector.tasks`, `inspector.topic`,
`protocols.mcp.skills`, `protocols.mcpx`, `protocols.mgp.audit`, `runner.loopback`, `stores.audit`, `transports.asgi`,
`wire`.
"""
