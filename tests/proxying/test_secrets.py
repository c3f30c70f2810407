"""What only a backend may see: its environment, its token. Neither clients nor logs do."""

from __future__ import annotations

import logging
import os

import pytest

from defserve import Command, Context, Remote, Server
from defserve.auth import StaticTokens
from defserve.proxying.targets import parse_mount_target
from tests.at_address import at_address
from tests.proxying.backends import ERAS, child
from tests.waiting import until

pytestmark = pytest.mark.anyio

SECRET = "hunter2-is-the-password"


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
async def test_a_childs_secret_stays_out_of_results_errors_logs_and_stderr(
    era: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = Server("front")
    server.mount(child(env={"MAIL_TOKEN": SECRET}), prefix="e")
    async with server.connect(era) as client:
        result = await client.call_raw("e_say", {"name": "MAIL_TOKEN"})
        assert result["content"][0]["text"] == "MAIL_TOKEN is [redacted]"
        backend = server.mounts.backends["e"]
        await until(lambda: any("MAIL_TOKEN is" in line for line in backend.stderr))
        await client.call_raw("e_leave", {"code": 3})
        shown = [str(result), *backend.stderr, backend.note, repr(backend), repr(backend.target), caplog.text]
        assert not [text for text in shown if SECRET in text]


@pytest.mark.slow
async def test_a_plain_value_of_the_environment_may_be_a_result_but_no_part_of_an_error() -> None:
    server = Server("front")
    server.mount(child(env={"FOLDER": "/srv/our-projects"}), prefix="e")
    async with server.connect() as client:
        result = await client.call_raw("e_say", {"name": "FOLDER"})
        assert result["content"][0]["text"] == "FOLDER is /srv/our-projects"


@pytest.mark.slow
async def test_a_child_sees_a_bare_environment_and_what_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_DATABASE_PASSWORD", "do not pass on")
    server = Server("front")
    server.mount(child(env={"LISTED": "yes"}), prefix="e")
    async with server.connect() as client:
        seen = set(await client.call("e_environment"))
        assert {"PATH", "LISTED"} <= seen
        assert "OUR_DATABASE_PASSWORD" not in seen
        assert "OUR_DATABASE_PASSWORD" in os.environ


async def test_a_clients_token_is_never_passed_on_and_ours_never_passed_back(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "defserve")
    ours, theirs = "k" * 40, "c" * 40
    inner = Server("inner", auth=StaticTokens({ours: "desk"}))

    @inner.tool
    def who(ctx: Context) -> list[str]:
        return [ctx.principal, ours]

    async with at_address(inner) as back:
        server = Server("front", auth=StaticTokens({theirs: "ann"}))
        server.mount(Remote(back, token=ours), prefix="e")
        async with at_address(server) as url, Remote(url, token=theirs).connect("stateless") as client:
            result = await client.call_raw("e_who")
            assert result["structuredContent"]["result"] == ["desk", "[redacted]"]
    assert ours not in str(result) + caplog.text
    assert theirs not in caplog.text


async def test_a_wrong_token_is_an_error_without_the_token() -> None:
    async with at_address(Server("inner", auth=StaticTokens({"k" * 40: "desk"}))) as back:
        server = Server("front")
        server.mount(Remote(back, token="wrong" * 8), prefix="e")
        async with server.connect():
            backend = server.mounts.backends["e"]
            await until(lambda: bool(backend.note))
            assert "wrong" not in backend.note
            assert "401" in backend.note or "token" in backend.note.lower()


@pytest.mark.slow
async def test_a_secret_that_a_child_prints_among_its_messages_is_not_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    noisy = "import os; print('debug:', os.environ['MAIL_TOKEN'], flush=True)"
    start = f"{noisy}; from tests.proxying.everything import everything; everything().run()"
    server = Server("front")
    server.mount(child("-c", start, env={"MAIL_TOKEN": SECRET}), prefix="e")
    async with server.connect() as client:
        assert await client.call("e_add", a=1, b=2) == 3
    assert "debug:" in caplog.text
    assert SECRET not in caplog.text


def test_targets_do_not_show_their_secrets() -> None:
    remote = Remote(
        f"https://me:{SECRET}@wiki.example.org/mcp?key={SECRET}",
        token="t" * 40,
        headers={"X-Api-Key": SECRET, "Authorization": f"Bearer {SECRET}"},
    )
    command = Command("uvx", "mailer", "--token", SECRET, f"--password={SECRET}", env={"MAIL_TOKEN": SECRET})
    for target in (remote, command):
        assert SECRET not in repr(target)
        assert "t" * 40 not in repr(target)
        assert SECRET not in repr(target.secrets)
        assert target.secrets.redact_text(f"it said {SECRET}!") == "it said [redacted]!"
    assert repr(remote) == "Remote('https://wiki.example.org/mcp')"


def test_a_text_is_an_address_or_a_command_line() -> None:
    assert isinstance(parse_mount_target("https://a.example/mcp"), Remote)
    command = parse_mount_target("npx -y 'some server' --flag")
    assert isinstance(command, Command)
    assert (command.program, command.args) == ("npx", ("-y", "some server", "--flag"))
