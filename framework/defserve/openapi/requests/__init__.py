"""Arguments of a call → an HTTP request, and its way to the API.

The address is fixed: a value is encoded into its own place, and refused if it could leave it. Credentials are added
last, are sent to that address alone, and never appear in schemas, errors and logs.

May import: `auth.oauth.basic`, `auth.principals`, `core.call`, `guard.network.urls`, `net`, `openapi.documents`,
`openapi.naming`, `openapi.schemas`.
"""
