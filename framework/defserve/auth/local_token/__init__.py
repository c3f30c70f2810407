"""The local token: a key that only files of this user hold. Who shows it to a server on this machine is its user.

A server on a loopback address writes the key when it starts and removes it when it ends. Our own clients read it by
themselves. It is never sent to any other address, and never logged.

May import: `auth.authority`, `auth.bearer`, `auth.options`, `auth.principals`, `auth.urls`, `auth.verifiers`,
`stores.files`, `stores.private_folder`.
"""
