"""Arguments: the JSON Schema of a function's parameters, and the validation of what a peer sends.

`validate` gives keyword arguments, or raises BadArguments with a line for each field, worded for a model. Plain scalars
are checked without importing pydantic, because that import would be most of the start-up time.

May import: `binding.annotations`, `binding.signature`.
"""
