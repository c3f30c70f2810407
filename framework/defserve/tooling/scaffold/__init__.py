"""Projects: created from the template, and added to.

Edits files of the author's project. In each file it changes only the part that it adds. It parses code but never
imports or runs it.

May import: nothing else of the package.
"""
