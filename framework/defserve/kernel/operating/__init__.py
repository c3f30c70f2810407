"""What operators ask of a kernel about its governance: a file for each word of the command line, and MGP's tools.

Whoever reaches the control socket is the user who runs the kernel. Changes of access go through the same methods as
those of MGP's clients, so there is one set of rules, and one audit trail.

May import: `auth.principals`, `core.call`, `kernel.config`, `kernel.governance`, `kernel.members`, `protocols.mgp`,
`proxying.catalogue.items`, `server`, `stores.audit`, `wire`.
"""
