"""What any program could use: it knows nothing of tools or servers. Everyone may import it.

`concurrency` keeps tasks until they end and lets one process at a time change a folder, `exports` are lazy, `frozen`
classes cost a start nothing, `hidden_characters` is the one table of them, `peer_bounds` keeps what a peer says small,
`redaction` makes values safe for a log, and by `search_path` no file of an author shadows a library.
"""
