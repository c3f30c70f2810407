"""The kernel: a `Server` filled with the servers of an mgp.toml. It runs them, and follows the file as it changes.

What it remembers beside that file (digests of tools, grants, decisions) is in its state file.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from defserve.base.concurrency import BackgroundTasks
from defserve.base.redaction import get_logger
from defserve.base.secret_references import SecretReader
from defserve.client.link import ResolveHost
from defserve.errors import DefserveError, InvalidParams, UsageError, did_you_mean
from defserve.kernel.config.entries import (
    KernelConfig,
    ServerEntry,
    expand_path_variables,
    expand_variables,
    find_server_changes,
)
from defserve.kernel.config.loading import load_kernel_config
from defserve.kernel.governance.access import (
    find_open_servers,
    has_opt_in_servers,
    make_kernel_policy,
    needs_access_control,
)
from defserve.kernel.governance.governance import Governance
from defserve.kernel.governance.marks_and_pins import check_marks
from defserve.kernel.governance.server_directory import check_register_rules, make_guarded_resolver
from defserve.kernel.kernel_extension import KernelExtension
from defserve.kernel.kernel_state import (
    KernelGroupMembership,
    KernelState,
    SharedState,
    StateFile,
    count_ordered_restarts,
    parse_link_address,
)
from defserve.kernel.members import (
    MAX_CALLS_AT_ONCE,
    KernelMember,
    ServerCreator,
    ServerJournal,
    summarize_call_history,
)
from defserve.kernel.operator_actions import (
    ACCESS_GRANT,
    ACCESS_QUERY,
    ACCESS_REVOKE,
    AccessVerbs,
    PermissionVerbs,
    add_operator_tools,
    check_server_health,
    explain_kernel_call,
    list_held_tools,
    show_audit,
)
from defserve.protocols.mcp.asking.server_secret import SECRET_VARIABLE
from defserve.search.ranking import Search
from defserve.server.server import Server

MAX_SEARCH_RESULTS: Final = 20

log = get_logger("kernel")


class Kernel:
    """The servers of a file, and the `server` that shows them as one.

    Variables are filled in from `environ`, or from this process's own. `options` are those of `Server`, such as `auth`
    and `limits`: they act in front of all servers.
    """

    def __init__(self, config: KernelConfig, environ: Mapping[str, str] | None = None, **options: Any) -> None:
        self.config, self._environ = config, os.environ if environ is None else environ
        self._secrets = SecretReader()
        _check(config)
        self.on = ""
        """The address at which it is served, as its `status` tells. Who serves it sets it."""
        self.journal = ServerJournal()
        self.members: dict[str, KernelMember] = {}
        self.leaving: dict[str, KernelMember] = {}
        """Servers that were removed and have not gone yet. Their ids and names are not free."""
        self.ending = BackgroundTasks()
        self._following: set[str] = set()
        server_options, state, make_group = _share(config, self._environ, options)
        self.server = _server(config, state, server_options)
        self.mounts = self.server.mounts
        self.state = state
        self.governance = Governance(self, state)
        # It looks at a tool before the others do: what it refuses is recorded.
        self.server.extensions = (self.governance, *self.server.extensions)
        self.group: KernelGroupMembership | None = None
        if make_group is not None:
            self.group = make_group(self)
            self.server.extensions = (self.group, *self.server.extensions)
        self.access, self.permissions = AccessVerbs(self), PermissionVerbs(self)
        if (access := self.governance.access) is not None:
            answers = {
                ACCESS_QUERY: access.answer_access_query,
                ACCESS_GRANT: access.grant,
                ACCESS_REVOKE: access.revoke,
            }
            add_operator_tools(self.server, answers)
        self._extension = KernelExtension(self)
        self.server.extend(self._extension)
        self._reloading = asyncio.Lock()
        for entry in config.servers:
            self._add(entry)

    @classmethod
    def load(cls, path: str | Path, **options: Any) -> Kernel:
        """The kernel of a file. Raises UsageError for a mistake in it."""
        return cls(load_kernel_config(path), **options)

    # -- operating: the verbs of `control.py` ---------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """What this kernel is, in a few words."""
        states = [member.state for member in self.members.values()]
        return {
            "pid": os.getpid(),
            "config": str(self.config.path),
            "name": self.server.name,
            "on": self.on,
            "servers": len(states),
            "connected": states.count("connected"),
            "tools": sum(member.backend.tools for member in self.members.values() if member.backend is not None),
        }

    def ps(self) -> list[dict[str, Any]]:
        """Every server, its state and its figures."""
        held = self.governance.pins.list_held_names
        return [
            {**member.make_ps_row(), "held": held(member.id), **self._find_owner(member)}
            for member in self.members.values()
        ]

    def _find_owner(self, member: KernelMember) -> dict[str, Any]:
        """In a group, the kernel that has the process of a server, by the address of its link."""
        if self.group is None:
            return {}
        owner = self.group.find_owner(member.backend.target) if member.backend is not None else None
        return {"kernel": owner.shown if owner is not None else None}

    def history(self) -> list[dict[str, Any]]:
        """How long the calls of each server took in the last ten minutes, as far back as they are remembered."""
        backends = ((member.id, member.backend) for member in self.members.values())
        return [{"id": id, **summarize_call_history(backend.room)} for id, backend in backends if backend is not None]

    async def logs(self, id: str | None = None, follow: bool = False) -> AsyncIterator[dict[str, Any]]:
        """What servers wrote to standard error, and how their states changed; with `follow`, what comes as well."""
        if id is not None:
            self.member(id)
        if not follow:
            for line in self.journal.list_lines(id):
                yield line.to_wire()
            return
        async with aclosing(self.journal.follow_lines(id)) as lines:
            async for line in lines:
                yield line.to_wire()

    async def start(self, id: str) -> dict[str, Any]:
        """Start a server that does not run. Its count of restarts begins anew."""
        member = self.member(id)
        async with member.changing:
            if member.backend is None:
                self._prepare(member)
            if member.backend is None:
                raise UsageError(f"{id} cannot be started: {member.problem}", fix=f"{member.entry.where}: {member.fix}")
            await self._order(member, is_stopped=False)
            member.is_stopped = False
            await member.backend.start()
        return {"id": id, "state": member.state}

    async def stop(self, id: str, reason: str = "operator_request", timeout: float | None = None) -> dict[str, Any]:
        """Let the calls of a server finish, and end it. It is not started again until somebody says so.

        Calls have `timeout` seconds, or as many as the file says.
        """
        member = self.member(id)
        async with member.changing:
            await self._order(member, is_stopped=True)
            member.is_stopped = True
            if member.backend is not None:
                await member.backend.stop(reason, self.config.settings.drain_secs if timeout is None else timeout)
        return {"id": id, "state": member.state}

    async def restart(self, id: str, now: bool = False) -> dict[str, Any]:
        """Start a server again: the next one is opened before the old one ends. With `now`, calls do not finish."""
        member = self.member(id)
        if member.backend is None:
            return await self.start(id)
        async with member.changing:
            await self._order(member, is_stopped=False, is_restart=True)
            timeout, overlap, member.is_stopped = self.config.settings.drain_secs, member.entry.overlap, False
            if now:
                await member.backend.restart("operator_request", 0)
            else:
                try:
                    await member.backend.renew("operator_request", timeout=timeout, overlap=overlap)
                except DefserveError as error:
                    self.journal.add_line(id, "problem", member.hidden(f"it was not restarted: {error}"))
                    raise
        return {"id": id, "state": member.state}

    async def _order(self, member: KernelMember, *, is_stopped: bool, is_restart: bool = False) -> None:
        """Have the other kernels of the group do the same. Raises UsageError if they cannot be told."""
        if self.group is None or member.creator is not None:
            return

        def change(state: KernelState) -> None:
            orders = state.servers.setdefault(member.id, {})
            orders |= {"stopped": is_stopped, "restarted": count_ordered_restarts(orders) + is_restart}

        try:
            await asyncio.to_thread(self.state.update, change)
        except OSError as error:
            raise UsageError(
                f"the other kernels cannot be told: {error}", fix="see that the store of [kernel.group] runs"
            ) from None
        member.restarted = count_ordered_restarts(self.state.known.servers.get(member.id))

    def follow_orders(self) -> None:
        """Do what operators have had other kernels of the group do."""
        for id, orders in self.state.known.servers.items() if self.group is not None else ():
            member = self.members.get(id)
            if member is None or member.creator is not None or id in self._following:
                continue
            is_stopped, count = orders.get("stopped") is True, count_ordered_restarts(orders)
            if is_stopped != member.is_stopped or (count != member.restarted and not is_stopped):
                self._following.add(id)
                work = self.ending.start(self._follow_order(member, is_stopped, count))
                work.add_done_callback(lambda done, id=id: self._following.discard(id))

    async def _follow_order(self, member: KernelMember, is_stopped: bool, restarted: int) -> None:
        is_started, member.restarted = member.is_stopped and not is_stopped, restarted
        member.is_stopped = is_stopped
        if member.backend is None:
            return
        if is_stopped:
            async with member.changing:
                await member.backend.stop("operator_request", self.config.settings.drain_secs)
        elif is_started:
            async with member.changing:
                await member.backend.start()
        else:
            await self.renew_server(member.id, "operator_request")

    async def renew_server(self, id: str, reason: str) -> None:
        """Open a server again where it runs now. If that fails, it is opened when its process ends."""
        member = self.members.get(id)
        if member is None or member.backend is None or member.is_stopped:
            return
        async with member.changing:
            try:
                await member.backend.renew(
                    reason, timeout=self.config.settings.drain_secs, overlap=member.entry.overlap
                )
            except DefserveError as error:
                self.journal.add_line(id, "problem", member.hidden(f"it was not opened again: {error}"))

    async def search(self, query: str, top: int = 5) -> list[dict[str, Any]]:
        """The tools that fit a query best, whoever may use them: who asks operates the kernel."""
        if not query.strip() or not 0 < top <= MAX_SEARCH_RESULTS:
            raise UsageError(
                f"a search has words, and finds up to {MAX_SEARCH_RESULTS} tools",
                fix='defserve kernel search "send a letter"',
            )
        section = self.server.mgp.tool_discovery
        assert section is not None, "the kernel's server is made with a search"
        try:
            found = await section.search_tools(query, top, asyncio.to_thread)
        except InvalidParams as error:
            raise UsageError(f"the search failed: {error.message}", fix="use other words") from None
        return [{"risk_level": tool["security"]["risk_level"], **tool} for tool in found]

    async def explain_call(
        self, caller: str, tool: str, token: str | None = None, scopes: str | None = None
    ) -> dict[str, Any]:
        """Whether a caller may call a tool, step by step, as `defserve why` says it."""
        return await explain_kernel_call(self, caller, tool, token, scopes)

    async def health(self, id: str | None = None) -> list[dict[str, Any]]:
        """Whether servers answer now: one of them, or all."""
        return await check_server_health(self, id)

    def audit(self, last: int = 20, follow: bool = False, verify: bool = False) -> AsyncGenerator[dict[str, Any]]:
        """The last records of the audit log, and with `follow` those that come; or whether it is intact."""
        return show_audit(self, last, follow, verify)

    async def list_held_tools(self, id: str | None = None) -> list[dict[str, Any]]:
        """The tools of a server, or of all, that are held because they changed, each with the difference."""
        return await list_held_tools(self, id)

    async def approve(
        self, id: str, tool: str | None = None, digest: str = "", unseen: bool = False
    ) -> list[dict[str, Any]]:
        """Let tools of a server be used that were held because they changed: those that the digest names, as `pins`
        has shown it. `unseen`: also what was too long to be shown."""
        return [{"id": id, "tool": name} for name in self.governance.approve(self.member(id), tool, digest, unseen)]

    async def refresh(self) -> None:
        """Take over what operators have decided at other kernels of the same file."""
        await self.governance.refresh()
        self.follow_orders()

    async def reload(self) -> dict[str, Any]:
        """Read the file again and do what it says now. A file with a mistake changes nothing: UsageError names it.

        Servers whose entries are the same are not touched. The answer says what was done, and what failed.
        """
        async with self._reloading:  # the file is read here, too: else an older one could be taken over last
            config = await asyncio.to_thread(self._load_config, self.config.path)
            _check(config)
            return await self._take_over(config)

    def _load_config(self, path: Path) -> KernelConfig:
        """The file, and the secrets that it refers to: programs that print them may take long."""
        config = load_kernel_config(path)
        if not config.servers and not path.read_bytes().strip():
            # A full disk, or an editor that is writing it now.
            raise UsageError(f"{path} is empty", fix="write it again; if no server is to run, write [kernel] in it")
        for entry in config.servers:
            for reference in entry.launch.list_secret_references() if entry.enabled else ():
                with suppress(UsageError):  # whoever starts the server says so
                    self._secrets.read_secret(reference)
        return config

    async def renew_secrets(self) -> list[str]:
        """Start servers again whose secrets have changed: those of the file, with the same entry. Returns their ids."""
        changed = [
            member
            for member in tuple(self.members.values())
            if member.uses_secrets and member.backend is not None and await asyncio.to_thread(member.has_new_secrets)
        ]
        for member in changed:
            try:
                await self._relaunch(member.entry)
            except DefserveError as error:
                self.journal.add_line(member.id, "problem", member.hidden(f"it was not restarted: {error}"))
        return [member.id for member in changed]

    def find_open_servers(self) -> list[UsageError]:
        """Servers that unauthenticated callers use with the credentials of the file."""
        has_auth = self.server.auth is not None
        return find_open_servers(self.config, self.on, has_auth=has_auth) if self.on else []

    # -- members -------------------------------------------------------------------------------------------

    def member(self, id: str) -> KernelMember:
        """The server of that id. Raises UsageError with the nearest one."""
        if (found := self.members.get(id)) is not None:
            return found
        known = ", ".join(self.members) or "there are none"
        raise UsageError(f"there is no server {id[:128]!r}", fix=did_you_mean(id, self.members, f"use one of: {known}"))

    def _add(
        self, entry: ServerEntry, creator: ServerCreator | None = None, resolve: ResolveHost | None = None
    ) -> KernelMember:
        member = self.members[entry.id] = KernelMember(entry, self._environ, resolve, self._secrets)
        member.creator = creator
        if self.group is not None and creator is None:
            room = entry.launch.in_flight or MAX_CALLS_AT_ONCE
            member.share_command = partial(self.group.share_command, entry.id, room, entry.overlap)
            member.restarted = count_ordered_restarts(self.state.known.servers.get(entry.id))
        if entry.enabled:
            self._prepare(member)
        return member

    def _prepare(self, member: KernelMember) -> None:
        member.prepare(self.mounts, self.journal)
        if member.backend is not None:
            member.backend.watch(
                lambda change: self.governance.on_server_listed(member) if change.new == "connected" else None
            )
            member.backend.on_claims = partial(self.governance.compare_claims, member)
            member.backend.decides = partial(self.governance.permissions.list_statuses_for_server, member.id)
            if (access := self.governance.access) is not None:
                member.backend.open_to = partial(access.may_use_server, member.id)
            self._extension.watch_member(member)

    async def add(self, entry: ServerEntry, creator: ServerCreator) -> KernelMember:
        """Register a server that the file does not name, and begin to start it. Its id must be free."""
        url = entry.launch.url
        member = self._add(
            entry, creator, make_guarded_resolver(url, lambda: self.config.settings.register) if url else None
        )
        if member.backend is not None:
            await member.backend.start()
        return member

    async def remove(self, id: str, reason: str) -> None:
        """End a server and forget it. Then its id is free. It ends also if the caller does not wait for that."""
        member = self.members.pop(id, None)
        if member is None:  # another is ending it
            return
        self.leaving[id] = member
        self._extension.drop_server(member)
        await asyncio.shield(self.ending.start(self._end(member, reason)))

    async def _end(self, member: KernelMember, reason: str) -> None:
        try:
            async with member.changing:
                if member.backend is not None:
                    await self.mounts.remove(member.id, reason, self.config.settings.drain_secs)
        finally:
            self.governance.drop_server(member.id)
            self.journal.drop_server(member.id)
            del self.leaving[member.id]

    # -- reload --------------------------------------------------------------------------------------------

    @property
    def is_behind(self) -> bool:
        """Whether the file names a server that had to wait for another one of its id, which has gone since."""
        taken = self.members.keys() | self.leaving.keys()
        return not self._reloading.locked() and any(entry.id not in taken for entry in self.config.servers)

    async def _take_over(self, config: KernelConfig) -> dict[str, Any]:
        new = {entry.id: entry for entry in config.servers}
        done = find_server_changes(
            {id: member.entry for id, member in self.members.items() if member.creator is None}, new
        )
        needs_start = self.config.find_restart_changes(config)
        is_other_default = self.config.settings.default_policy != config.settings.default_policy
        self.config = config
        if (access := self.governance.access) is None:
            needs_start += ["default_policy"] if has_opt_in_servers(config) else []
        elif is_other_default:
            access.notify_lists_changed()
        for id in done.adjusted:
            self.members[id].apply_entry(new[id])
            self.governance.declare_again(self.members[id])
        steps = (
            *((id, self.remove(id, "configuration_change")) for id in done.removed),
            *((id, self._replace(new[id])) for id in (*done.replaced, *done.added)),
            *((id, self._relaunch(new[id])) for id in done.relaunched),
        )
        outcomes = await asyncio.gather(*(step for _, step in steps), return_exceptions=True)
        failed = {id: self._failure(id, outcome) for (id, _), outcome in zip(steps, outcomes, strict=True) if outcome}
        for notice in (*config.notes, *self.find_open_servers()):
            log.warning("%s", notice)
        self.members = {id: self.members[id] for id in (*new, *self.members) if id in self.members}
        return {
            "added": [id for id in done.added if id in self.members],
            "removed": done.removed,
            "restarted": [id for id in (*done.replaced, *done.relaunched) if id not in failed],
            "adjusted": done.adjusted,
            "unchanged": done.unchanged,
            "failed": failed,
            "needs_start": needs_start,
        }

    async def _replace(self, entry: ServerEntry) -> None:
        if entry.id in self.leaving:
            raise UsageError(f"server {entry.id!r} is still ending", fix="reload again shortly")
        old = self.members.get(entry.id)
        was_stopped = old is not None and old.is_stopped
        await self.remove(entry.id, "configuration_change")
        while any(member.entry.prefix == entry.prefix for member in self.leaving.values()):
            # Under another id it may be the same server, whose tools keep their names until their calls have ended.
            await asyncio.wait(self.ending, return_when=asyncio.FIRST_COMPLETED)
        member = self._add(entry)
        member.is_stopped = was_stopped
        if member.problem:
            raise UsageError(member.problem)
        if member.backend is not None and not was_stopped:
            await member.backend.start()

    async def _relaunch(self, entry: ServerEntry) -> None:
        member = self.members[entry.id]
        if member.backend is None:
            await self._replace(entry)
        else:
            async with member.changing:
                await member.relaunch(entry, self.config.settings.drain_secs)

    def _failure(self, id: str, outcome: BaseException) -> str:
        if not isinstance(outcome, DefserveError):
            log.error("server %r could not be changed", id, exc_info=outcome)
        text = str(outcome) if isinstance(outcome, DefserveError) else type(outcome).__name__
        self.journal.add_line(id, "problem", f"it was not changed: {text}")
        return text


def _check(config: KernelConfig) -> None:
    """Raises UsageError for what only the whole of a kernel can find wrong with its file."""
    for entry in config.servers:
        check_marks(entry)
    check_register_rules(config.settings.register)


def _share(
    config: KernelConfig, environ: Mapping[str, str], options: Mapping[str, Any]
) -> tuple[Mapping[str, Any], StateFile, Callable[[Kernel], KernelGroupMembership] | None]:
    """The options of the server, what the kernel remembers, and what makes its group if the file has one."""
    group = config.settings.group
    if group is None:
        return options, StateFile(config.path), None
    from defserve.stores.identity import identify_server

    store, link = expand_path_variables(group.store, environ), parse_link_address(expand_variables(group.link, environ))
    url = getattr(options.get("auth"), "resource_url", "")
    identity = identify_server(config.settings.name, namespace=options.get("namespace"), url=url)
    state = SharedState(store, identity)
    shared: dict[str, Any] = {} if config.settings.events not in ("", "memory") else {"store": store}
    if not os.environ.get(SECRET_VARIABLE):
        # What one kernel has sealed, another one opens.
        shared["secret"] = identity.derive_key(state.secret, "kernel questions")
    return {**shared, **options}, state, lambda kernel: KernelGroupMembership(kernel, state, identity, store, link)


def _server(config: KernelConfig, state: StateFile, options: Mapping[str, Any]) -> Server:
    settings = config.settings
    level: Any = settings.level
    of_file: dict[str, Any] = {
        "instructions": settings.instructions or None,
        "audit": settings.audit or None,
        "access": make_kernel_policy(config) if needs_access_control(config, state) else None,
        "search": Search(level=level, pinned=config.list_pinned_tools(), budget=settings.budget),
        "code_mode": settings.code_mode or None,
    }
    if settings.events:
        of_file["experimental"] = ["events"]
        of_file["store"] = None if settings.events == "memory" else settings.events
    if settings.keys and "auth" not in options:
        from defserve.auth.api_keys import ApiKeys

        of_file["auth"] = ApiKeys(settings.keys)
    given = {name: value for name, value in of_file.items() if value is not None}
    return Server(settings.name, **{**given, **options})
