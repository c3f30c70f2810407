"""A store in an SQLite file.

An acknowledged change has been synced to the disk. Several processes on one machine may share a file; none of them
reads a value that is older than one that any of them was told.

May import: `stores.store`, `stores.formats`.
"""
