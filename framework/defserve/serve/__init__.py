"""How bytes come in and leave, and on which loop calls run: stdio, memory, HTTP and WebSocket. It knows no protocol.

A transport knows its format and who is at the other end, never what a message means. Pipes (stdio, memory) share four
methods: `start`, `send`, `flush`, `close`. Network transports get sessions from a `SessionOpener`, and keep what
waits for a client in a bounded `UnreadMessages`.

When a server ends, each running call is answered or told so. A lifespan is entered once on each loop and left after the
last call. Blocking functions run in a pool of daemon threads.
"""
