"""Runs a composition on an event loop and a transport: signals, draining, worker threads, the exit code.

It knows no protocol. When a server ends, its running calls are answered or refused. Lifespans are entered once on each
loop, and left after the last call. Blocking functions run in a pool of daemon threads.

May import: `core`, `transports`, `wire`.
"""
