"""Who is at the other end of a socket: the address that a trusted proxy forwards, and the user of a unix socket.

Both are facts of the connection. What follows from them is decided in `auth.authority`.

May import: `transports.asgi`.
"""
