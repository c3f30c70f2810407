"""What can be asked of a kernel that runs: every verb, declared once.

How it works
    A row of `KERNEL_VERBS` has a verb's name, its words for `--help`, its parameters, and the function of the kernel
    that does it. Everything else is made from the row:

    the check of a request          `parse_verb_request`, below
    the call of the function        kernel/control.py
    words, options and help         cli/kernel_actions.py
    the inspector's buttons         inspector/kernels.py

    So a new verb is a row here and a function in the kernel. Its answers are printed as JSON, unless
    cli/kernel_actions.py says how they look.

The command line loads this without the rest of a kernel, so a row reaches its function through the kernel it is given.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from defserve.core.json_values import is_object
from defserve.errors import UsageError

if TYPE_CHECKING:
    from defserve.kernel.kernel import Kernel

Answer: TypeAlias = dict[str, Any]
VerbAnswers: TypeAlias = Answer | list[Answer] | Awaitable[Answer | list[Answer]] | AsyncIterator[Answer]


class VerbParameter(NamedTuple):
    """A field of a request, and an argument of the command line: by its place, or by the `option` that it has.

    `default` is the value of a field that is left out. `...`: it may not be left out.
    """

    name: str
    type: type[str] | type[int] | type[bool]
    help: str
    default: Any = ...
    option: str = ""
    metavar: str = ""


@dataclass(frozen=True, slots=True)
class KernelVerb:
    """A verb of one word, or of two if the first is one of `VERB_GROUPS`.

    about       what it does, for `--help`; empty: programs ask for it, people don't
    function    the kernel → what does it, called with the parameters by name
    has_button  whether the inspector offers it
    method      MGP's method that does the same at an address, for a verb with a button
    """

    name: str
    about: str
    function: Callable[[Kernel], Callable[..., VerbAnswers]]
    parameters: tuple[VerbParameter, ...] = ()
    has_button: bool = False
    method: str = ""


ID: Final = VerbParameter("id", str, "the id of a server, as `ps` shows it")
OPTIONAL_ID: Final = ID._replace(default=None)
TOOL: Final = VerbParameter("tool", str, "only this tool, by the server's name of it", None)
HELD: Final = (
    ID,
    TOOL,
    VerbParameter("digest", str, "what is accepted: the digest that `pins list` shows", "", "--digest", "HEX"),
    VerbParameter("unseen", bool, "also what was too long to be shown", False, "--unseen"),
)
FOLLOW: Final = VerbParameter("follow", bool, "go on with what comes", False, "--follow")
CALLER: Final = VerbParameter("caller", str, "who: the id that a key or token has, such as ann")
REASON: Final = VerbParameter("reason", str, "why; it is kept and audited", None, "--reason", "TEXT")
ENTRY: Final = (CALLER, ID, TOOL)
NEW_ENTRY: Final = (
    *ENTRY,
    REASON,
    VerbParameter("until", str, "when it ends, as 2027-01-31T12:00:00Z", None, "--until", "TIME"),
    VerbParameter("force", bool, "also for a tool that the server does not have now", False, "--force"),
)
DECISION: Final = (
    ID,
    VerbParameter("permission", str, "default: all that nobody has decided about", None),
    REASON._replace(default=""),
)

VERB_GROUPS: Final[Mapping[str, str]] = {
    "access": "show and change who may use which server and tool",
    "permissions": "show and decide which permissions servers have",
    "pins": "show and accept tools that are held because they changed",
}
"""First words of verbs, and what each group is about. A group alone means its `list`."""

_ROWS: Final = (
    KernelVerb("status", "", lambda kernel: kernel.status),
    KernelVerb("ps", "show the servers of a kernel and their states", lambda kernel: kernel.ps),
    KernelVerb("history", "", lambda kernel: kernel.history),
    KernelVerb(
        "logs",
        "show what servers wrote to standard error, and how their states changed",
        lambda kernel: kernel.logs,
        (OPTIONAL_ID._replace(help="only this server"), FOLLOW._replace(option="-f")),
    ),
    KernelVerb(
        "restart",
        "start a server again; the next one is open before the old one ends",
        lambda kernel: kernel.restart,
        (ID, VerbParameter("now", bool, "do not wait for calls under way", False, "--now")),
        has_button=True,
        method="mgp/lifecycle/restart",
    ),
    KernelVerb("start", "start a server that does not run", lambda kernel: kernel.start, (ID,), has_button=True),
    KernelVerb(
        "stop",
        "let the calls of a server finish, and end it",
        lambda kernel: kernel.stop,
        (ID,),
        has_button=True,
        method="mgp/lifecycle/shutdown",
    ),
    KernelVerb("approve", "let tools be used that are held because they changed", lambda kernel: kernel.approve, HELD),
    KernelVerb("reload", "have a kernel read its file again", lambda kernel: kernel.reload, has_button=True),
    KernelVerb(
        "search",
        "find tools by what they do",
        lambda kernel: kernel.search,
        (
            VerbParameter("query", str, "what the tool should do"),
            VerbParameter("top", int, "at most so many (default: 5)", 5, "--top", "N"),
        ),
    ),
    KernelVerb(
        "why",
        "",  # `defserve why` asks for it
        lambda kernel: kernel.explain_call,
        (
            VerbParameter("caller", str, "who calls, as `defserve why` names callers"),
            VerbParameter("tool", str, "the name of a tool of the kernel"),
            VerbParameter("token", str, "the token of the caller", None),
            VerbParameter("scopes", str, "assume that the caller has these scopes", None),
        ),
    ),
    KernelVerb("health", "ask servers whether they answer", lambda kernel: kernel.health, (OPTIONAL_ID,)),
    KernelVerb(
        "audit",
        "show the kernel's audit log, or check that it is intact",
        lambda kernel: kernel.audit,
        (
            VerbParameter("last", int, "the last N (default: 20)", 20, "-n", "N"),
            FOLLOW,
            VerbParameter("verify", bool, "check every record, and show none", False, "--verify"),
        ),
    ),
    KernelVerb(
        "access list",
        "show who may use which server and tool",
        lambda kernel: kernel.access.list_entries,
        (OPTIONAL_ID, CALLER._replace(help="only entries of this caller", default=None, option="--caller")),
    ),
    KernelVerb(
        "access grant",
        "let a caller use a server or a tool",
        lambda kernel: partial(kernel.access.set_entry, "allow"),
        NEW_ENTRY,
    ),
    KernelVerb(
        "access deny",
        "keep a caller from a server or a tool",
        lambda kernel: partial(kernel.access.set_entry, "deny"),
        NEW_ENTRY,
    ),
    KernelVerb("access revoke", "remove what was granted or denied", lambda kernel: kernel.access.revoke_entry, ENTRY),
    KernelVerb(
        "permissions list",
        "show which permissions servers need, and what is decided",
        lambda kernel: kernel.permissions.list_needed,
        (OPTIONAL_ID,),
    ),
    KernelVerb(
        "permissions approve",
        "let a server's tools use a permission",
        lambda kernel: partial(kernel.permissions.decide_permission, "approved"),
        DECISION,
    ),
    KernelVerb(
        "permissions deny",
        "keep a server's tools from a permission",
        lambda kernel: partial(kernel.permissions.decide_permission, "denied"),
        DECISION,
    ),
    KernelVerb(
        "pins list",
        "show tools that are held because they changed, and the difference",
        lambda kernel: kernel.list_held_tools,
        (OPTIONAL_ID,),
    ),
    KernelVerb(
        "pins accept", "let held tools be used as they are now", lambda kernel: kernel.approve, HELD, has_button=True
    ),
)
KERNEL_VERBS: Final = {verb.name: verb for verb in _ROWS}


def parse_verb_request(request: Any) -> tuple[KernelVerb, dict[str, Any]]:
    """The verb of a request `{"verb": …, fields}`, and its fields. Raises UsageError for one that is not made so."""
    if not is_object(request):
        raise UsageError("a request is an object", fix='send {"verb": "ps"}')
    fields = {**request}
    name = fields.pop("verb", None)
    verb = KERNEL_VERBS.get(name) if isinstance(name, str) else None
    if verb is None:
        raise UsageError(f"there is no verb {str(name)[:60]!r}", fix=f"use one of {', '.join(KERNEL_VERBS)}")
    checked: dict[str, Any] = {}
    for parameter in verb.parameters:
        value = fields.pop(parameter.name, parameter.default)
        if value is ... or (value is not parameter.default and type(value) is not parameter.type):
            raise UsageError(
                f"{name} needs {parameter.name}", fix=f"give {parameter.name}: a {parameter.type.__name__}"
            )
        checked[parameter.name] = value
    if fields:
        known = ", ".join(parameter.name for parameter in verb.parameters)
        raise UsageError(f"{name} has no {min(fields)!r}", fix=f"it takes {known or 'nothing'}")
    return verb, checked
