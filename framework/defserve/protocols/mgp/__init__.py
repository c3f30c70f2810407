"""MGP: security that tools declare, enforced for every peer and shown to those that speak the protocol.

`extension.MGP` puts the sections together. Each section is a module, imported when it is first needed: a server
without marks imports none. A peer that speaks less than MGP loses fields on the wire, never protection.
"""
