"""Worker threads for blocking code: a `pool`, and the one thread that a call's blocking code shares (`call_thread`).

Results come back on the event loop. A function that hangs holds up neither its call nor the end of the process.

May import: `transports.arrival`.
"""
