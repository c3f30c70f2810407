"""WebSocket: sockets that clients open to us over ASGI, and sockets that we open ourselves.

One socket is one session, one text frame is one message. While a peer does not read, nothing more is read from it.

May import: `auth.live`, `auth.principals`, `auth.urls`, `transports.asgi`, `transports.outbox`,
`transports.client_errors`, `transports.session_provider`.
"""
