"""WebSocket: sockets that clients open to us over ASGI, and sockets that we open ourselves.

One socket is one session, one text frame is one message. A side that does not read is asked nothing more.

May import: `auth.principals`, `transports.asgi`, `transports.outbox`, `transports.client_errors`,
`transports.session_provider`.
"""
