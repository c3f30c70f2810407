"""Creates projects from the template, and adds parts to them.

It changes only what it was asked to change in the files of a project. It parses code but never imports or runs it.

May import: nothing but its own room.
"""
