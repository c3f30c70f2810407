"""Which servers may be registered while a kernel runs, and what becomes of one: it is sandboxed in any case."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from defserve.errors import InvalidParams, Rejected, UsageError
from defserve.host.link import Resolve
from defserve.kernel.config.building import program_path
from defserve.kernel.config.entries import MgpEntry, RegisterRules, ServerEntry, ServerLaunch
from defserve.kernel.governance.trust import SANDBOXED
from defserve.net.egress import Egress, refusal
from defserve.net.resolve import check, judged_addresses
from defserve.protocols.mgp.discovery.reading import Registration
from defserve.protocols.mgp.errors import PermissionDenied
from defserve.protocols.mgp.security.validators import STANDARD
from defserve.protocols.mgp.security.vocabulary import PERMISSIONS

INLINE: Final = "-c"
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


async def check_rules(wanted: Registration, rules: RegisterRules) -> None:
    """Raises Refused, Rejected or InvalidParams for a server that the operator's rules do not allow."""
    if any("${" in text for text in (wanted.command, *wanted.args, wanted.url)):
        # It would be filled in from the kernel's own environment.
        raise InvalidParams("Invalid params: variables are only for the kernel's file")
    for name in wanted.permissions:
        if PERMISSIONS.get(name) == "dangerous":
            raise PermissionDenied(f"a registered server is sandboxed, and may not need {name}")
    if wanted.url:
        if not (verdict := await check(wanted.url, egress_of(rules))):
            raise refusal(verdict, "the address is not one that may be registered")
    else:
        _check_command([wanted.command, *wanted.args], rules)


def guarded(url: str, rules: Callable[[], RegisterRules]) -> Resolve:
    """Judges each connection to a registered address, as it was judged when it was registered.

    A name may stand for other addresses by then, so a connection goes to those that were judged and to no others. The
    rules are those of the file at that moment.
    """

    async def resolve(host: str, port: int) -> Sequence[str]:
        egress = egress_of(rules())
        if not (verdict := egress.judge(url)):
            raise refusal(verdict, "the address is not one that may be registered")
        return await judged_addresses(host, port, egress)

    return resolve


def _check_command(words: list[str], rules: RegisterRules) -> None:
    """The words must begin as a line of the operator's list does. What follows may not be an option of the program."""
    for line in map(shlex.split, rules.commands):
        rest = words[len(line) :]
        if words[: len(line)] != line or (rest and rest[0].startswith("-")):
            continue
        if line[-1] == INLINE and rest:
            STANDARD["code_safety"][0](rest[0])
        return
    raise Rejected("the command is not on the operator's list", [f"not listed: {words[0][:100]}"], guard="sandbox")


def entry_of(wanted: Registration, folder: Path, caller: str) -> ServerEntry:
    """The entry as if it stood in the file. Its tools are prefixed with its id."""
    launch = (
        ServerLaunch(url=wanted.url)
        if wanted.url
        else ServerLaunch(program_path(wanted.command, folder), wanted.args, cwd=str(folder))
    )
    level = wanted.trust_level if wanted.trust_level in SANDBOXED else LEVEL
    return ServerEntry(
        wanted.id,
        launch,
        prefix=re.sub(r"[^A-Za-z0-9_-]", "_", wanted.id)[:64],
        mgp=MgpEntry(wanted.extensions, wanted.permissions, level, "hold"),
        where=f"registered by {caller}",
    )
