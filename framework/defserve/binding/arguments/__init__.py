"""Arguments: the schema that a signature gives, and the check of what a peer sends against it.

`validate` gives keyword arguments, or raises BadArguments with a line for each field, worded for a model. Signatures of
plain scalars are checked without importing pydantic, because that would be most of the start-up time.

May import: `binding.annotations`, `binding.signature`.
"""
