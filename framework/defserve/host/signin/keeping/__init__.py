"""Where sign-ins are kept: the system's keyring, private files, memory.

A credential that was kept is there for the next process. Who renews one holds its lock, so that a refresh token that
may be used once is used once.

May import: `auth.urls`, `host.fields`, `host.signin.credential`, `stores.files`, `stores.formats`,
`stores.private_folder`.
"""
