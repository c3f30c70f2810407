"""HTTP as a plain ASGI application: Streamable HTTP for both eras, HTTP+SSE for old clients, and REST.

A request passes the gate, its route and authentication before its body is read. A response starts as JSON and becomes a
stream of events when it has to. What a slow client does not read is bounded, and holds up nobody else.

May import: `auth`, `core.stepping`, `stores.stream_events`, `transports.asgi`, `transports.outbox`,
`transports.session_provider`, `transports.websocket.server`, `wire`.
"""
