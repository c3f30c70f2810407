"""MGP for a host: `Mgp` has the options, `MgpPeer` is one server. Each feature has a file or a folder.

Every tool call is validated, permitted and confirmed before it is sent, also to a server without MGP. A server's
declarations can make the host more careful, never less.

May import: `host.answers`, `host.caller`, `host.conversation`, `host.eras`, `host.fields`, `host.listening`,
`host.person`, `host.tool_value`, `protocols.mcp`, `protocols.mgp`, `wire`.
"""
