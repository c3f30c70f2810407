"""What any program could use: it knows nothing of tools or servers. Everyone may import it.

`background` keeps tasks until they end, `caches` are bounded in bytes, `exports` are lazy, `folders` are changed by one
process at a time, `frozen` classes cost a start nothing, `hidden_characters` is the one table of them, and by
`search_path` no file of an author shadows a library.

May import: nothing else.
"""
