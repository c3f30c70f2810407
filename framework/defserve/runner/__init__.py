"""Runs a composition on an event loop and a transport: signals, draining, worker threads, the exit code.

Knows no protocol. When a server ends, each running call is answered or told so. A lifespan is entered once on each
loop and left after the last call. Blocking functions run in a pool of daemon threads.

May import: `core`, `transports`, `wire`.
"""
