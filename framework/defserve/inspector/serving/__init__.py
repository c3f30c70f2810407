"""The page and its socket on loopback, for the one person who has the token.

Every request is judged by its Host, where it comes from and its token before anything else is done (`access`). The page
is the files of `page/` as they are; all that is about a server goes through the socket.

May import: `inspector.inspection`, `inspector.protocol`, `inspector.verbs`, `transports.asgi`.
"""
