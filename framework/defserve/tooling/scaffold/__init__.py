"""Projects: created from the template, and added to.

Reads and writes files of the author's project and changes nothing else in them. It parses code but never imports or
runs it.

It imports no other room. May import:
"""
