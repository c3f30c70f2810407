"""The control socket: how the command line operates a kernel that runs.

It is a unix socket in a folder that only this user can use, and every peer must be this user. A connection carries one
request as a line of JSON, and the answers as lines of JSON.

May import: `kernel.config.locating`, `kernel.control`, `runner.address`, `runner.peer.unix_user`, `runner.sockets`,
`stores.private_folder`.
"""
