"""Tasks (extension `io.modelcontextprotocol/tasks`, SEP-2663, for 2026-07-28): calls that go on after their answer.

A task is kept in the server's store before its creation is answered, and every process on that store can tell about it.
It belongs to the principal that made it; to anybody else its id is unknown. The task of a stranger belongs to whoever
has its id, which cannot be guessed. A task runs once. If the process that runs it dies, it has failed, or is run again
as often as its author allows. What is kept is bounded in number and bytes for each principal.

`extension` puts the parts together, and is imported when a tool says `task=`.
"""
