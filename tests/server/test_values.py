"""What the options of `Server` may be: everything else is refused where it is written, with what to write."""

from __future__ import annotations

from typing import Any

import pytest

from defserve import Limits, Server, UsageError
from defserve.guard import Egress
from defserve.server import AccessPolicy, AuditLogger
from defserve.server.decorators import SERVER_OPTION_RULES
from defserve.server.options import ServerFields
from tests.rows import for_each_row

CONFIRM, TRUST = "'auto', 'always', 'never'", "'trusted', 'standard', 'sandboxed', 'core', 'experimental', 'untrusted'"

WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"confirm": "allways"}, "Server(confirm='allways') is not possible", f"use one of {CONFIRM}"),
    ({"confirm": True}, "Server(confirm=True) is not possible", f"use one of {CONFIRM}"),
    ({"confirm": ["always"]}, "Server(confirm=['always']) is not possible", f"use one of {CONFIRM}"),
    ({"trust_level": "hgh"}, "Server(trust_level='hgh') is not possible", f"use one of {TRUST}"),
    ({"egress": "api.example.com"}, "Server(egress='api.example.com') is not possible", "egress=Egress("),
    ({"access": "opt-in"}, "Server(access='opt-in') is not possible", "access=AccessPolicy("),
    ({"version": 1.0}, "Server(version=1.0) is not possible", 'write version="1.0"'),
    ({"title": 3}, "Server(title=3) is not possible", 'write title="3"'),
    ({"instructions": 3}, "Server(instructions=3) is not possible", 'write instructions="3"'),
    ({"description": 3}, "Server(description=3) is not possible", 'write description="3"'),
    ({"website_url": 3}, "Server(website_url=3) is not possible", 'write website_url="3"'),
    ({"server_id": 3}, "Server(server_id=3) is not possible", 'write server_id="3"'),
    ({"shared": 3}, "Server(shared=3) is not possible", 'write shared="3"'),
    ({"icons": 3}, "Server(icons=3) is not possible", "write icons=[3]"),
    ({"icons": "https://x/i.png"}, "Server(icons='https://x/i.png')", "write icons=['https://x/i.png']"),
    ({"granted": "camera"}, "Server(granted='camera') is not possible", "write granted=['camera']"),
    ({"limits": {"tool": 5}}, "Server(limits={'tool': 5}) is not possible", "write limits=Limits(tool=5)"),
    ({"limits": 5}, "Server(limits=5) is not possible", "write limits=Limits(tool=30)"),
    ({"extensions": [3]}, "Server(extensions=[3]) is not possible", "subclasses of defserve.extending.Extension"),
    ({"secret": 31337}, "Server(secret=…) is not possible", "give a text, or bytes"),
    ({"store": 3}, "Server(store=3) is not possible", "sqlite:///notes.db"),
    ({"lifespan": 3}, "Server(lifespan=3) is not possible", "@asynccontextmanager"),
]


@for_each_row("options, problem, fix", WRONG)
def test_a_value_that_is_not_possible_is_refused_with_what_to_write(options: dict[str, Any], problem: str, fix: str):
    with pytest.raises(UsageError) as refused:
        Server("t", **options)
    assert refused.value.problem.startswith(problem)
    assert fix in refused.value.fix
    assert refused.value.where.startswith("tests/server/test_values.py:")


def test_a_name_that_is_no_text_is_refused():
    with pytest.raises(UsageError, match=r'write name="3"'):
        Server(3)  # type: ignore[arg-type]


def test_a_version_that_is_given_by_position_is_checked():
    with pytest.raises(UsageError, match=r'write version="1\.0"'):
        Server("t", 1.0)  # type: ignore[arg-type]


def test_every_option_that_describes_or_protects_a_server_is_checked():
    assert {*ServerFields.__annotations__} - {*SERVER_OPTION_RULES} == {
        "permissions",
        "audit",
    }  # their sections check these


@for_each_row(
    "options",
    [
        {"confirm": "always", "trust_level": "core", "egress": Egress(), "access": AccessPolicy()},
        {"audit": [AuditLogger()], "granted": ("camera",), "icons": ["https://x/i.png"], "limits": Limits(tool=5)},
        {"icons": None},
        {"title": None, "version": None, "egress": None, "limits": None, "store": "memory:"},
    ],
)
def test_values_of_the_right_kind_pass(options: dict[str, Any]):
    assert Server("t", **options).name == "t"


def test_a_log_level_that_does_not_exist_is_refused():
    with pytest.raises(UsageError, match=r"run\(log_level='inf'\) is not possible\n  fix: use one of 'debug', 'info'"):
        Server("t").run(log_level="inf")


def test_none_is_the_default():
    options = Server("t", confirm=None, trust_level=None).mgp.options  # type: ignore[arg-type]
    assert (options.confirm, options.trust_level) == ("auto", "standard")
