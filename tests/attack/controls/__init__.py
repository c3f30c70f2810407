"""Removals: each takes one protection out of a process. The control of an attack is the attack without its protection.

A row of the table that is held may be held for the wrong reason: a mistake in the attack looks like a refusal. So every
row is run again where its protection is missing, and has to succeed there. A row whose control does not bite is no row.

How to write one:

1. Find the function that refuses. Write a removal in the module for the family's folder (`controls/http.py`,
   `bounds.py`, `tools.py`, `identity.py`): a function that takes a `Patch` and is named after what the server does
   without the protection (`take_any_host`). Remove that one protection, nothing else; import the framework inside.
2. Give the row its control: what is removed, and a pattern for the expectation that fails then. `case` names the case
   that succeeds, if the row goes through its cases with `trial.choose`: the control is quick then.
3. `make attack ARGS="--only FAMILY:ROW"` shows both. The control is bitten if that expectation failed. It is not if
   another did, if the server did not start, or if the attack broke.

Removals are test code: the framework has no switch for them. Servers get theirs by `python -m tests.attack.controls`,
before anything is built (`Arena.python`). A row with several protections has several controls, and all must bite.

Three examples.

A function of a class is replaced. The row fails with "evil.example: the call ran":

    def take_any_host(patch: Patch) -> None:
        patch.set("defserve.serve.http.request_heads:HostOriginGate._check_host", lambda self, host: None)

    attack_http(FAMILY, "foreign hosts", host, controls=[Control(take_any_host, "the call ran")])

A bound is lifted. A name of a module is bound anew wherever it was imported:

    def keep_any_head(patch: Patch) -> None:
        patch.set("defserve.serve.http1.request:MAX_KNOWN_HEADS_BYTES", 10**9)

    FAMILY.add("heads", heads, Control(keep_any_head, "heads of 14 kB: .* MB more"))

The attack calls the framework itself, in the suite's process (`here`), and one of its cases is enough (`case`):

    def pass_every_command(patch: Patch) -> None:
        patch.wrap("defserve.guard.shell:judge", lambda judge: lambda command, **options: judge("true"))

    FAMILY.add(name, run, Control(pass_every_command, "passes", here=True))
"""
