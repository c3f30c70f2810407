"""The Lua scripts: each one is a step that happens as a whole. All of them may be repeated.

ARGV[1] is the prefix of the keys. Under it:

- `session:ID`, a hash: the record of a session. `owner` is the worker that delivers news to it (those after `since`,
  when it began to, or `opened`), `delivered` the last news delivered
- `streams:ID`, a hash: its streams and how many bytes each holds; `ended:ID`, a sorted set: those that are over
- `stream:ID:NAME`, a hash: who runs, called and reads a stream; `events:ID:NAME`, a Redis stream: its events
- `questions:ID`, a hash: the open questions, each with its stream, its number there, and for whom it is
- `account:NAME`, a sorted set: the sessions of one caller, by the time at which they end
- `lease:WORKER`, `read:WORKER` (the last news it has read), `mail:WORKER`, `news`, `signals`, and for each of the last
  three `size:NAME`: how many bytes wait there
- `once:KEY`, a hash: who does something, and what came of it
- `rate:KEY`: when a bucket will be full again, in microseconds
- `table:NAME`, a hash that all workers have a copy of

May import: nothing else of the package.
"""
