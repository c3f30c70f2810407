"""Opaque tokens: the issuer is asked whether a token is good (RFC 7662).

Answers are kept for less than two seconds, so a token that is taken back ends what it opened within five seconds. An
issuer that does not answer is no reason to call a token bad: `IssuerUnavailable` is raised.

May import: `auth.bearer`, `auth.issuers`, `auth.oauth`, `auth.principals`, `auth.urls`.
"""
