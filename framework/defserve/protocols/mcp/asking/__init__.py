"""Asking the client within a call: forms, confirmations, sampling, roots, in both eras.

With a handshake a question is a request to the client. Without one it is left in the reply, and the function runs
again with the answers; recorded answers travel sealed, bound to their request, and are honoured once.

May import: `binding`, `core.call`, `protocols.mcp.content`, `protocols.mcp.lifecycle`, `protocols.mcp.params`,
`stores.nonces`, `stores.store`, `wire.messages`.
"""
