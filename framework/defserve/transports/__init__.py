"""How bytes reach a server and leave it: standard input and output, memory, HTTP and WebSocket.

A transport knows its own syntax and who is at the other end, never what a message means. All transports of a pipe have
the same methods (`start`, `send`, `flush`, `close`). Those of the network get sessions from a `SessionProvider`, and
keep messages that wait for a client in a bounded `ClientOutbox`.

May import: `auth.principals`, `wire`.
"""
