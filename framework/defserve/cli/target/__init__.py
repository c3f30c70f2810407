"""The server that a command is about: found by name, connected to, listed.

Code of this environment is loaded, everything else is connected to. What goes wrong is a UsageError, PeerGone or
PeerTimeout that names the option that helps.

May import: `cli.answers`, `core.composition`, `host`, `protocols.mcp.versions`, `tooling.clients`, `tooling.listing`,
`transports.client_errors`, `transports.websocket.client`.
"""
