"""MGP §15: the servers of a kernel as a directory that peers may read, and operators change while it runs.

A server that is registered while a kernel runs is sandboxed in any case.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from defserve.base.concurrency import BackgroundTasks
from defserve.client.link import ResolveHost
from defserve.errors import InvalidParams, Rejected, UsageError
from defserve.guard.network import Egress, judge_url_and_addresses, make_url_refusal, resolve_allowed_addresses
from defserve.kernel.config.entries import MgpEntry, RegisterRules, ServerEntry, ServerLaunch
from defserve.kernel.config.loading import resolve_program_path
from defserve.kernel.governance.access import is_operator, require_operator
from defserve.kernel.governance.marks_and_pins import (
    SANDBOXED_TRUST_LEVELS,
    build_governing_entry,
    get_claimed_permissions,
    get_trust_level,
    list_actual_extensions,
)
from defserve.kernel.members import KernelMember, ServerCreator
from defserve.protocols.mcp.authorization import identify_caller
from defserve.protocols.mcp.lifecycle import get_dialect
from defserve.protocols.mgp.errors import PermissionDenied, ResourceExhausted, ServerExists, ServerNotFound
from defserve.protocols.mgp.security import STANDARD_VALIDATORS
from defserve.protocols.mgp.server_discovery import KnownServer, ServerRegistration
from defserve.protocols.mgp.tool_catalogue import recast_call_as_search
from defserve.protocols.mgp.vocabulary import PERMISSION_RISKS

if TYPE_CHECKING:
    from defserve.core.call import Call
    from defserve.core.session import Session
    from defserve.kernel.kernel import Kernel


MAX_REGISTERED_SERVERS: Final = 64
OPEN_SECONDS: Final = 10.0
RETRY_MS: Final = 1_000
REGISTERED, DEREGISTERED = "dev.defserve.server_registered", "dev.defserve.server_deregistered"


class KernelDirectory:
    """The servers behind a kernel. Operators know all of them, others those of which they see a tool.

    It decides what a caller may know and do, and raises Refused.
    """

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._ending = BackgroundTasks()

    # -- list ----------------------------------------------------------------------------------------------

    def servers(self, call: Call) -> Sequence[KnownServer]:
        """Those that the caller may know of, with the tools that it may see."""
        visible, asker = call.session.composition.visible, recast_call_as_search(call)
        tools: dict[str, list[str]] = {}
        for tool in self._kernel.server.mcp.tools.registry:
            if tool.backend is not None and visible(asker, tool):
                tools.setdefault(tool.backend.id, []).append(tool.name)
        knows_all = is_operator(identify_caller(call), self._kernel.config.settings.admins)
        members = self._kernel.members.values()
        return [
            _describe_member(member, tools.get(member.id, ())) for member in members if knows_all or member.id in tools
        ]

    # -- register ------------------------------------------------------------------------------------------

    def require_operator_call(self, call: Call) -> None:
        """Raises Refused unless the caller may add and remove servers. Params are read after that."""
        require_operator(call, self._kernel.config.settings.admins)

    async def register(self, call: Call, wanted: ServerRegistration) -> tuple[str, str]:
        """Add a server and begin to start it. Returns its status, and what there is to say about it."""
        settings = self._kernel.config.settings
        caller = require_operator(call, settings.admins)
        if not settings.register.enabled:
            raise PermissionDenied("this kernel takes no registrations: [kernel.register] of its file is not enabled")
        if get_dialect(call).stateless and not wanted.keep:
            raise InvalidParams(
                "Invalid params: a request without a session has no end at which the server could end: send keep: true"
            )
        await check_rules(wanted, settings.register)
        entry = entry_of(wanted, self._kernel.config.path.parent, caller.id)
        self._check_room(wanted.id)
        await self._record(call, REGISTERED, wanted.id, wanted.justification, wanted.created_by, entry.launch.shown)
        self._check_room(wanted.id)
        session = None if wanted.keep else call.root.session
        member = await self._kernel.add(entry, ServerCreator(caller.id, wanted.justification, session))
        if member.backend is None:
            return "error", member.problem
        await member.backend.ready(OPEN_SECONDS)
        note = member.hidden(member.backend.note) if member.state != "connected" else "its tools are listed"
        return member.state, note or "it is being started"

    def _check_room(self, id: str) -> None:
        if id in self._kernel.leaving:
            raise ServerExists(
                f"server {id!r} is still ending: try again shortly", details={"server_id": id}, retry_after_ms=RETRY_MS
            )
        # One of the file may not be a member yet.
        of_file = (entry.id for entry in self._kernel.config.servers)
        if id in (*self._kernel.members, *of_file, self._kernel.server.mgp.server_id):
            raise ServerExists(f"there is a server {id!r} already", details={"server_id": id})
        if sum(member.creator is not None for member in self._kernel.members.values()) >= MAX_REGISTERED_SERVERS:
            raise ResourceExhausted(f"{MAX_REGISTERED_SERVERS} servers are registered, and no more can be")

    # -- deregister ----------------------------------------------------------------------------------------

    async def deregister(self, call: Call, id: str, reason: str) -> None:
        """End a server that was registered, and forget it."""
        require_operator(call, self._kernel.config.settings.admins)
        member = self._kernel.members.get(id)
        if member is None:
            raise ServerNotFound(f"there is no server {id!r}", details={"server_id": id})
        if member.creator is None:
            raise PermissionDenied(f"{id} comes from the kernel's file: remove it there")
        await self._record(call, DEREGISTERED, id, reason)
        if self._kernel.members.get(id) is member:
            await self._kernel.remove(id, reason or "deregistered")

    def session_closed(self, session: Session) -> None:
        """End what was registered in a conversation that has ended."""
        members = self._kernel.members.values()
        for id in [one.id for one in members if one.creator is not None and one.creator.session is session]:
            self._ending.start(self._kernel.remove(id, "its creator has left"))

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """When it ends, what was ending has ended: no process is left behind."""
        try:
            yield
        finally:
            await asyncio.gather(*self._ending, return_exceptions=True)
            await asyncio.gather(*self._kernel.ending, return_exceptions=True)

    async def _record(self, call: Call, event: str, id: str, why: str, claimed: str = "", where: str = "") -> None:
        """A change that cannot be recorded is not made."""
        details = {"id": id, "reason": why, "created_by": claimed, "where": where}
        audit = self._kernel.server.mgp.audit
        told = {name: value for name, value in details.items() if value}
        await call.in_thread(lambda: audit.report_call_event(call, event, details=told, durable=True))


def _describe_member(member: KernelMember, tools: Sequence[str]) -> KnownServer:
    """Before the server is open, what the file says. After that, what is true of it."""
    entry, said, mgp = member.entry, member.said, member.entry.mgp
    extensions = mgp.extensions if mgp is not None else ()
    permissions = mgp.permissions_required if mgp is not None else ()
    if member.state == "connected" and said is not None:
        extensions = list_actual_extensions(entry, said)
        permissions = tuple(dict.fromkeys((*permissions, *get_claimed_permissions(said))))
    return KnownServer(
        member.id,
        member.state,
        get_trust_level(build_governing_entry(entry, said)),
        tools,
        extensions,
        permissions,
        speaks_mgp=bool(extensions),
        created_by=member.creator.id if member.creator is not None else None,
    )


# -- Which servers may be registered while a kernel runs, and what becomes of one: it is sandboxed in any case.


LEVEL: Final = "sandboxed"


def egress_of(rules: RegisterRules) -> Egress:
    """The addresses that may be registered: public ones by host, others only as exactly `host:port`.

    Raises UsageError for a host that cannot be one.
    """
    private = [host for host in rules.hosts if re.search(r":\d+$", host)]
    return Egress(ports=None, hosts=[host for host in rules.hosts if host not in private], private=private)


def check_register_rules(rules: RegisterRules) -> None:
    """Raises UsageError for what cannot be meant."""
    egress_of(rules)
    for line in rules.commands:
        try:
            words = shlex.split(line)
        except ValueError:
            words = []
        if not words:
            raise UsageError(f"[kernel.register] commands: {line!r} is no command line", fix='write commands = ["uvx"]')


async def check_rules(wanted: ServerRegistration, rules: RegisterRules) -> None:
    """Raises Refused, Rejected or InvalidParams for a server that the operator's rules do not allow."""
    if any("${" in text for text in (wanted.command, *wanted.args, wanted.url)):
        # It would be filled in from the kernel's own environment.
        raise InvalidParams("Invalid params: variables are only for the kernel's file")
    for name in wanted.permissions:
        if PERMISSION_RISKS.get(name) == "dangerous":
            raise PermissionDenied(f"a registered server is sandboxed, and may not need {name}")
    if wanted.url:
        if not (verdict := await judge_url_and_addresses(wanted.url, egress_of(rules))):
            raise make_url_refusal(verdict, "the address is not one that may be registered")
    else:
        _check_command([wanted.command, *wanted.args], rules)


def make_guarded_resolver(url: str, rules: Callable[[], RegisterRules]) -> ResolveHost:
    """Judges each connection to a registered address, as it was judged when it was registered.

    A name may stand for other addresses by then, so a connection goes to those that were judged and to no others. The
    rules are those of the file at that moment.
    """

    async def resolve(host: str, port: int) -> Sequence[str]:
        egress = egress_of(rules())
        if not (verdict := egress.judge(url)):
            raise make_url_refusal(verdict, "the address is not one that may be registered")
        return await resolve_allowed_addresses(host, port, egress)

    return resolve


def _check_command(words: list[str], rules: RegisterRules) -> None:
    """The words must begin as a line of the operator's list does. What follows may not be an option of the program."""
    for line in map(shlex.split, rules.commands):
        rest = words[len(line) :]
        if words[: len(line)] != line or (rest and rest[0].startswith("-")):
            continue
        if line[-1] == "-c" and rest:
            STANDARD_VALIDATORS["code_safety"][0](rest[0])
        return
    raise Rejected("the command is not on the operator's list", [f"not listed: {words[0][:100]}"], guard="sandbox")


def entry_of(wanted: ServerRegistration, folder: Path, caller: str) -> ServerEntry:
    """The entry as if it stood in the file. Its tools are prefixed with its id."""
    launch = (
        ServerLaunch(url=wanted.url)
        if wanted.url
        else ServerLaunch(resolve_program_path(wanted.command, folder), wanted.args, cwd=str(folder))
    )
    level = wanted.trust_level if wanted.trust_level in SANDBOXED_TRUST_LEVELS else LEVEL
    return ServerEntry(
        wanted.id,
        launch,
        prefix=re.sub(r"[^A-Za-z0-9_-]", "_", wanted.id)[:64],
        mgp=MgpEntry(wanted.extensions, wanted.permissions, level, "hold"),
        where=f"registered by {caller}",
    )
