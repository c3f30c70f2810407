"""`defserve why`: the steps of a call for each kind of caller, and that real calls end as it says."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from defserve import Auth, Server, auth, dangerous
from defserve.auth import StaticTokens
from defserve.auth.api_keys import VARIABLE
from defserve.auth.bearer_tokens import TOKEN_FIXES, find_token_fix
from defserve.errors import Refused
from defserve.extending import Extension, Stages
from defserve.protocols.mgp.access import AccessPolicy, Entry
from defserve.server.call_decision import CallDecision, explain_call, resolve_named_caller
from tests.auth.web import client, post
from tests.cli.running import Run
from tests.rows import for_each_row
from tests.waiting import wait_until

NOTES = '''
from defserve import Server, dangerous
from defserve.auth import ApiKeys

server = Server("notes", auth=ApiKeys("keys.json"), audit="audit.jsonl")


@server.tool(scopes=["notes.write"])
@dangerous("filesystem.write")
def delete_note(name: str) -> str:
    """Delete a note."""
    raise RuntimeError("it runs")
'''


@pytest.fixture
def notes(folder: Path, defserve: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(VARIABLE, "0123456789abcdef")
    (folder / "notes.py").write_text(NOTES, encoding="utf-8")
    for who, may in (("ci", "ToolInvoke(delete_note)"), ("wild", "ToolInvoke(*)")):
        defserve("keys", "create", who, "--allow", may, "--scope", "notes.write", "--out", f"{who}.key")
    defserve("keys", "create", "weak", "--allow", "ToolInvoke(read_note)")
    return folder


def steps(out: str) -> list[str]:
    return [re.sub("[0-9a-f]{16}", "ID", line) for line in out.splitlines()]


def test_a_caller_that_is_asked_about_in_another_folder_than_that_of_the_keys_is_told_so(
    notes: Path, defserve: Run, monkeypatch: pytest.MonkeyPatch
):
    (notes / "other").mkdir()
    monkeypatch.chdir(notes / "other")
    code, _, err = defserve("why", "ci", "delete_note", "--server", "../notes.py")
    assert code == 1 and "its store has no keys: run this where the keys are" in err


def test_a_key_that_names_the_tool_runs_it_unasked(notes: Path, defserve: Run):
    code, out, _ = defserve("why", "ci", "delete_note", "--server", "notes.py")
    assert code == 0
    assert steps(out) == [
        'key "ci" → delete_note on notes.py',
        "  ✓ known: API key ID, never expires",
        "  · rights: notes.write, tool:invoke:delete_note",
        "  ✓ needs scope notes.write: has it",
        "  ✓ may call: tool:invoke:delete_note",
        "  ✓ access: no access policy",
        "  ✓ permission filesystem.write: granted by the operator policy",
        "  ✓ confirmation: dangerous. The right tool:invoke:delete_note names the tool: "
        "that is a yes where no person can be asked",
        "would run.",
    ]
    assert not (notes / "audit.jsonl").exists()


def test_a_wildcard_needs_a_person(notes: Path, defserve: Run):
    code, out, _ = defserve("why", "wild", "delete_note", "--server", "notes.py")
    assert code == 5 and "would run only if a person says yes." in out
    assert "? confirmation: dangerous. A person is asked; a client that cannot ask one is refused" in out
    assert "  fix: use a client that offers elicitation" in out


def test_a_refusal_says_what_to_change(notes: Path, defserve: Run):
    code, out, _ = defserve("why", "weak", "delete_note", "--server", "notes.py")
    assert code == 5
    assert steps(out)[3:5] == [
        "  ✗ needs scope notes.write: lacks it",
        "  ✗ may call: lacks tool:invoke:delete_note",
    ]
    assert steps(out)[-2:] == [
        "would be refused.",
        "  fix: replace the key: defserve keys create weak --allow 'ToolInvoke(read_note)' "
        "--allow 'ToolInvoke(delete_note)' --scope notes.write; then defserve keys revoke ID",
    ]


def test_the_key_that_replaces_one_has_its_end_and_rates_and_may_call_the_tool(notes: Path, defserve: Run):
    limits = ("--expires", "30d", "--per-minute", "60")
    defserve("keys", "create", "nightly", "--scope", "other", *limits)
    _, out, _ = defserve("why", "nightly", "delete_note", "--server", "notes.py")
    found = re.search(r"replace the key: defserve (keys create nightly .*); then defserve (keys revoke [0-9a-f]+)", out)
    assert found and "--expires 30d --per-minute 60" in found[1] and "--scope other" in found[1]
    for command in found.groups():
        assert defserve(*shlex.split(command)).code == 0
    assert "✗" not in defserve("why", "nightly", "delete_note", "--server", "notes.py").out


def test_json_has_the_same_steps(notes: Path, defserve: Run):
    code, out, _ = defserve("why", "weak", "delete_note", "--server", "notes.py", "--json")
    found = json.loads(out)
    assert code == 5 and not found["would_run"] and found["verdict"] == "would be refused."
    assert [step["outcome"] for step in found["steps"]] == ["passed", "fact"] + ["refused"] * 2 + ["passed"] * 2


@for_each_row(
    ("caller", "code", "said"),
    [
        ("pipe", 0, "· rights: all of them: the local user started this server"),
        ("anonymous", 5, "✗ known: this server wants a token (auth)"),
        ("alice", 1, ""),
    ],
)
def test_callers_without_a_key(notes: Path, defserve: Run, caller: str, code: int, said: str):
    found = defserve("why", caller, "delete_note", "--server", "notes.py")
    assert found.code == code and said in found.out


def test_a_token_is_read_from_a_file_stdin_or_a_variable(notes: Path, defserve: Run, monkeypatch: pytest.MonkeyPatch):
    asked = ("why", "token", "delete_note", "--server", "notes.py")
    found = defserve(*asked, "--token", "ci.key")
    token = (notes / "ci.key").read_text().strip()
    assert found.code == 0 and "✓ known: token of 'ci' (ApiKeys)" in found.out and token not in found.out
    assert defserve(*asked, "--token", "@ci.key") == found
    monkeypatch.setenv("DEFSERVE_TOKEN", f"{token[:-3]}AAA")
    found = defserve(*asked)
    assert found.code == 5 and "✗ known: unknown: an API key has its id, and another secret" in found.out
    monkeypatch.delenv("DEFSERVE_TOKEN")
    assert "--token @FILE" in defserve(*asked).err


SIGNED_IN = '''
from defserve import Server
from defserve.auth import OAuthProxy

auth = OAuthProxy(
    "github", client_id="a", client_secret="b", url="http://127.0.0.1:8000/mcp", allow="*"{more}
)
server = Server("notes", auth=auth)


@server.tool
def list_notes() -> str:
    """List all notes."""
    return ""
'''


@for_each_row(
    "more, mark, fix",
    [
        ("", "?", "defserve doctor --auth http://127.0.0.1:8000/mcp --token @FILE"),
        (', store="sqlite:///oauth.db", secret="0123456789abcdef" * 2', "✗", "sign in again: defserve login URL"),
    ],
)
def test_sign_ins_in_the_memory_of_the_server_are_left_to_it(
    folder: Path, defserve: Run, more: str, mark: str, fix: str
):
    file = "stored.py" if more else "remembered.py"
    (folder / file).write_text(SIGNED_IN.replace("{more}", more), encoding="utf-8")
    (folder / "token").write_text("abc", encoding="utf-8")
    code, out, _ = defserve("why", "token", "list_notes", "--server", file, "--token", "token")
    assert code == 5 and f"  {mark} known: " in out and fix in out
    assert ("would be refused" in out) is (mark == "✗") and "a person says yes" not in out


def test_each_reason_to_refuse_a_token_says_how_to_get_another():
    source = "".join(path.read_text(encoding="utf-8") for path in Path(auth.__file__).parent.rglob("*.py"))
    checks = set(re.findall(r'"([a-z]+): (?:it|its|the|an?|no|with) ', source))
    assert {"exp", "aud", "iss", "signature", "revoked"} <= checks
    assert checks - {"token"} <= TOKEN_FIXES.keys()
    assert find_token_fix("token: it is not on the list") not in TOKEN_FIXES.values()


def test_an_expired_key_is_not_known(notes: Path, defserve: Run):
    held = json.loads((notes / "keys.json").read_text())
    (key,) = [key for key in held["keys"].values() if key["principal"] == "ci"]
    key["expires_at"] = 1_700_000_000.0
    (notes / "keys.json").write_text(json.dumps(held))
    code, out, _ = defserve("why", f"key:{key['id']}", "delete_note", "--server", "notes.py")
    assert code == 5 and "  ✗ known: API key ID expired 2023-11-14" in steps(out)


@for_each_row(
    ("words", "fix"),
    [
        (("cii", "delete_note"), "did you mean 'ci'?"),
        (("annonymous", "delete_note"), "did you mean 'anonymous'?"),
        (("ci", "delte_note"), "did you mean 'delete_note'?"),
    ],
)
def test_a_slip_of_the_finger_is_guessed(notes: Path, defserve: Run, words: tuple[str, str], fix: str):
    found = defserve("why", *words, "--server", "notes.py")
    assert (found.code, found.out) == (1, "") and fix in found.err


def test_two_keys_of_one_holder_are_told_apart_by_their_ids(notes: Path, defserve: Run):
    defserve("keys", "create", "ci", "--no-tools")
    found = defserve("why", "ci", "delete_note", "--server", "notes.py")
    assert found.code == 1 and "ci has 2 API keys" in found.err and " or key:" in found.err


def test_the_page_shows_what_the_command_prints(folder: Path, defserve: Run, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(VARIABLE, "0123456789abcdef")
    page = (Path(__file__).parents[2] / "docs" / "permissions.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n# notes.py\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (shown,) = re.findall(r"^```console\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (folder / "notes.py").write_text(code, encoding="utf-8")
    printed: list[str] = []
    for line in re.findall(r"^\$ defserve (.*)$", shown, re.MULTILINE):
        printed += [f"$ defserve {line}", *steps(defserve(*shlex.split(line)).out)]
    assert printed == steps(shown)


# -- the same gates as real calls


class Curfew(Extension):
    """A gate of an author's own."""

    name = "curfew"

    def stages(self) -> Stages:
        def admit(call: Any, item: Any) -> None:
            raise Refused("it is too late", data={"fix": "come back tomorrow"})

        return Stages(admit=admit)


def guarded(extensions: Iterable[Extension] = (), **options: Any) -> Server:
    tokens = {
        "plain": {"principal": "plain"},
        "reader": {"principal": "reader", "scopes": ["read"]},
        "named": {"principal": "named", "scopes": ["read", "tool:invoke:wipe", "tool:invoke:look"]},
    }
    server = Server("s", "1", auth=Auth(StaticTokens(tokens)), extensions=list(extensions), **options)

    @server.tool(scopes=["read"])
    def look() -> str:
        return "done!"

    @server.tool
    @dangerous("filesystem.write")
    def wipe() -> str:
        return "done!"

    return server


async def decide(server: Server, token: str, tool: str) -> CallDecision:
    return await explain_call(server, await resolve_named_caller(server, "token", token=token), tool)


ACCESS = AccessPolicy("opt-in", [Entry("tool_grant", "named", "wipe"), Entry("server_grant", "reader")])


@pytest.mark.anyio
@for_each_row(
    "options",
    [
        {},
        {"confirm": "never"},
        {"confirm": "always"},
        {"permissions": "deny_all"},
        {"permissions": "config_only", "granted": ["filesystem.write"]},
        {"access": ACCESS},
        {"access": ACCESS, "permissions": "config_only"},
        {"extensions": [Curfew()]},
    ],
)
async def test_real_calls_end_as_the_decision_says(options: dict[str, Any]):
    server = guarded(**options)
    async with client(server) as http:
        for token in ("plain", "reader", "named"):
            for tool in ("look", "wipe"):
                decision = await decide(server, token, tool)
                answer = await post(http, token, "tools/call", name=tool, arguments={})
                assert ("done!" in answer.text) is decision.would_run, (token, tool, decision.steps)


@pytest.mark.anyio
async def test_a_gate_of_an_author_s_own_speaks_for_itself():
    decision = await decide(guarded([Curfew()]), "reader", "look")
    assert decision.steps[-1] == ("call", "refused", "it is too late", "come back tomorrow")


def kernel_file(folder: Path) -> None:
    vault = f'[[servers]]\nid = "vault"\nprefix = "vault"\ncommand = "{sys.executable}"\n'
    (folder / "mgp.toml").write_text(
        f'[kernel]\nname = "desk"\nkeys = "keys.json"\n{vault}args = ["vault.py"]\ndefault_policy = "opt-in"\n'
    )
    (folder / "vault.py").write_text(
        'from defserve import Server\nserver = Server("vault")\n\n@server.tool\ndef read() -> str:\n    return ""\n\n'
        "server.main()\n"
    )


@pytest.mark.slow
def test_a_kernel_says_why_a_caller_may_not_use_a_tool_of_its_servers(notes: Path, defserve: Run):
    kernel_file(notes)
    code, out, _ = defserve("why", "wild", "vault_read", "--server", "mgp.toml")
    assert code == 5
    assert "✗ access: wild has no access to vault_read" in out
    assert f"fix: defserve kernel access grant wild vault --config {notes}" in out
    told = defserve("why", "wild", "vault_reed", "--server", "mgp.toml")
    assert (told.code, "did you mean 'vault_read'?" in told.err) == (1, True)


@pytest.mark.slow
def test_a_kernel_that_runs_is_asked_why(notes: Path, defserve: Run):
    kernel_file(notes)
    command = [sys.executable, "-m", "defserve", "kernel", "--on", "http://127.0.0.1:0/mcp"]
    with subprocess.Popen(command, cwd=notes) as process:
        try:
            wait_until(lambda: defserve("kernel", "access", "grant", "wild", "vault").code == 0, 60)
            asked = ("why", "token", "vault_read", "--token", "wild.key", "--server", "mgp.toml")
            wait_until(lambda: defserve(*asked).code == 0, 60)
            told = json.loads(defserve(*asked, "--json").out)
        finally:
            process.kill()
    assert told["steps"][-1]["gate"] == "server vault"
    assert {step["outcome"] for step in told["steps"][:-1]} <= {"passed", "fact"}
