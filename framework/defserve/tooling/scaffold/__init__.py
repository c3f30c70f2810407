"""Creates projects from the template, and adds parts to them.

Edits files of the author's project. In each file it changes only the part that it adds. It parses code but never
imports or runs it.

May import: nothing else of the package.
"""
