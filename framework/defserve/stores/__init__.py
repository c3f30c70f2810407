"""What a server keeps: values in memory, SQLite, Redis or Postgres, and private files.

Everything that is stored, sealed or shared names its server: `identity` makes every key of a store, every channel and
every sealing key, and a test looks for others. Servers that share a store or a secret share nothing else.

Values are kept in spaces, each a set of named values. A change to a space happens as a whole or not at all. Once it is
acknowledged, it is kept.

Everything stored has a format version, which is checked once, at opening. An older format is upgraded in place, unless
that would be a guess: what 0.1.0 kept names no server, and somebody has to say whose it is (`defserve state adopt`). A
newer one is refused, with a message that says which format was found, which this version reads, and what to do. The
version is `user_version` of an SQLite file, the hash `format` in Redis, the table `format` in Postgres, and `format` in
a file of API keys and in the head of an audit log. The file of a secret names a format only from format 2 on. Values in
memory have no version.

If you change the form of a stored value: raise the number, add the step that upgrades, and add files of the last
version to `tests/stores/formats`.
"""
