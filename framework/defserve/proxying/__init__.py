"""Other servers inside this one: started or reached, kept running, and shown as if they were our own.

`Remote` and `Command` say where a server is. A `Backend` is one such server: its state, its conversations, what it
offers. `Mounts` is the extension that opens all backends of a server and ends them. Requests and results are passed on
as they came; names, URIs, ids, tokens and the two eras are translated. One slow or broken backend never delays another.
"""
