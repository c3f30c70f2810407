"""What a project publishes: built, described, and checked against each other.

Building and uploading run other programs; nothing is uploaded without being asked for. A wheel has the last word on
names and versions.

May import: `host.targets`.
"""
