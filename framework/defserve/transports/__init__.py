"""How bytes reach a server and leave it: standard input and output, memory, HTTP and WebSocket.

A transport knows the syntax of its road and who is at the other end, never what a message means. Every transport in a
pipe has the same few verbs (`start`, `send`, `flush`, `close`). Those of the network ask a `SessionProvider` for
sessions, and keep what waits for a client in a bounded `ClientOutbox`.

May import: `auth.principals`, `wire`.
"""
