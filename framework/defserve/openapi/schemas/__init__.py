"""Schemas of OpenAPI 3.0 and 3.1 as JSON Schema 2020-12, small enough for a model to read.

Only what describes values is kept. `allOf` of objects is one object. What is used once stands where it is used; what
refers to itself is in `$defs`. Beyond a number of bytes, parts are cut to their type. A document of a few lines can
make neither a schema long nor checking slow.

May import: `binding.arguments.compact`, `binding.arguments.explicit`, `binding.arguments.patterns`, `guard.text`,
`openapi.documents`.
"""
