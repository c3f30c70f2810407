"""What a server keeps: values in memory, SQLite or Redis, and private files.

A change to a space happens as a whole or not at all, and is kept once it is acknowledged. Whatever is stored has a
format version: this version of defserve upgrades an older format in place when it opens it, and refuses a newer one
with a message that says which format it found, which it reads, and what to do. The version is checked once, at opening:
`user_version` of an SQLite file, the hash `format` in Redis, `format` in a file of API keys and in the head of an audit
log. A secret is the text of its file. What is in memory ends with the process and has no version. Whoever changes the
form of a stored value raises the number, adds the step that upgrades, and adds files of the last version to
`tests/stores/formats`.

May import: nothing else of the package.
"""
