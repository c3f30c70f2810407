"""A store in an SQLite file.

An acknowledged change has been synced to the disk. Several processes on one machine may share a file. Once a change is
acknowledged to one of them, none of them reads an older value.

May import: `stores.formats`, `stores.spaces`, `stores.store`.
"""
