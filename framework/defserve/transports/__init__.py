"""How bytes reach a server and leave it: standard input and output, memory, HTTP and WebSocket.

A transport knows its format and who is at the other end, never what a message means. Pipe transports (stdio, memory)
share four methods: `start`, `send`, `flush`, `close`. Network transports (HTTP, WebSocket) get sessions from a
`SessionProvider`, and keep what waits for a client in a bounded `ClientOutbox`.

May import: `auth.principals`, `wire`.
"""
