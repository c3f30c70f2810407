"""The inspector: one page in a browser that looks into a server of any era, transport and author.

A host side (here) holds the conversations with the server and records every message. The page (`page/`) has nothing of
its own: all it knows comes over one WebSocket. Nobody but the person who was given the address with its token gets in.
"""
