"""Puts a composition on an event loop and a transport: signals, draining, worker threads, the exit code.

Knows no protocol. What is under way when a server ends is answered, or told that it ends; lifespans are entered once on
each loop and left behind the last call. Every call of a blocking function runs in a pool of daemon threads.

May import: `core`, `transports`, `wire`.
"""
