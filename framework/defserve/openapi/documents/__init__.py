"""OpenAPI documents: read from an object, a text, a file or an address, and the operations in them.

A document is data from a stranger: its size, its depth and its references are bounded. It never chooses where requests
go: the address of the API is fixed when the document is read.

May import: `guard.network.urls`, `guard.text`, `net`.
"""
