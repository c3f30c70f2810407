"""Other servers inside this one: where they are, when they are started again.

May import: nothing else of the package.
"""
