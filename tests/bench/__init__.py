"""Benchmarks over stdio and HTTP, every contender in one run: `python -m tests.bench`, or `make bench`.

The servers are in `servers/`: a hand-written floor, the official SDK, FastMCP and defserve, each with the same tools,
each with its framework's defaults, all on one interpreter. Rounds are interleaved (one burst each, then again), so
that a machine's drift hits all alike; figures are medians of rounds, ratios medians of the ratios within each round.
Nothing is pinned to a core: client and server want one each. A scalar result travels as text alone from the floor and
from defserve, with structured content beside it from the peers: those are their defaults.

Over HTTP the yardstick is a bare ASGI app with the JSON work of the call on the same uvicorn options (httptools and
uvloop), and the floor a raw `asyncio.Protocol` that does the same without ASGI. 32 keep-alive connections have one call
each under way; in the handshake era each has a session of its own.
The peers run twice, as they are by default (answers are event streams) and with plain JSON answers.

`--against REV` (`make bench ARGS="--against main"`) compares this checkout with another commit instead, in one run.

`python -m tests.bench profile defserve add` shows where one server's time goes.
"""
