"""What the workers of one server share through Redis: sessions, their event streams, questions, and news.

A worker is one process (`worker_link.SharedStoreLink`). It has a lease, which ends soon after it dies, and a mailbox,
which keeps what others send it while its connection is broken. News goes to all workers. What a worker writes in order
(`SharedStoreLink.queue_script`) is repeated until Redis has taken it. Every script may be repeated: it finds what its
first run did.

- An event of a stream is in Redis before a client sees it, and has its number from there.
- A stream accepts one result. A second writer, such as a worker that was thought dead, gets `STREAM_ENDED`.
- A question is answered once, by whoever takes it out.

The scripts of this room make their keys from a prefix, so a Redis Cluster does not fit.
"""
