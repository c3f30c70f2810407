"""Timers on an event loop: the deadline of a call, and how thousands of them stay cheap.

A call that ends in time costs its timer next to nothing.

May import: `core.call`, `runner.threads`.
"""
