"""What any program could use: it knows nothing of tools or servers. Everyone may import it.

`backoff` says when to try again, `concurrency` keeps tasks until they end and lets one process at a time change a
folder, `exports` are lazy, `frozen` classes cost a start nothing, `hidden_characters` is the one table of them,
`http_connection` is one connection to a server and unpacks bodies in bounded pieces, `peer_bounds` keeps what a peer
says small, `redaction` makes values safe for a log and has the loggers of all modules, by `search_path` no file of an
author shadows a library, and `yaml_values` is YAML read as JSON.
"""
