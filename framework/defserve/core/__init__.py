"""One conversation with one peer: sessions, calls, and the extensions that a server is made of.

There is no I/O, no clock and no protocol by name. The runner meets the needs that `engine` states; protocols plug in
as `extension` says. These files are one aggregate: they may know each other's types.

May import: `wire`.
"""
