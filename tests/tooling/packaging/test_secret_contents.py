"""A secret in a file is found by its form, whatever the file is called; ordinary text is not taken for one."""

from __future__ import annotations

import io
import json
import secrets
from pathlib import Path

import pytest

import defserve
from defserve.auth.api_keys import ApiKeys
from defserve.stores.audit.log_file import AuditLog
from defserve.stores.sqlite import SqliteStore
from defserve.stores.store import API_KEYS_SPACE, StoreChange
from defserve.tooling.packaging.privacy import CHUNK, find_secret_kind
from tests.effort import cpu_within
from tests.rows import for_each_row

# Put together here, so that no scanner takes this file for a leak.
BODY = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7"
BEGIN = "-----BEGIN {}PRIVATE KEY{}-----"
SECRETS = {
    "PEM": f"{BEGIN.format('', '')}\n{BODY}\n",
    "RSA with headers": f"{BEGIN.format('RSA ', '')}\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n{BODY}\n",
    "RSA on one line": f"{BEGIN.format('RSA ', '')} Proc-Type: 4,ENCRYPTED DEK-Info: AES-128-CBC,00 {BODY}",
    "OpenSSH": f"{BEGIN.format('OPENSSH ', '')}\r\n{BODY}\r\n",
    "PGP": f"{BEGIN.format('PGP ', ' BLOCK')}\n\n{BODY}\n",
    "PEM in JSON": json.dumps({"private_key": f"{BEGIN.format('', '')}\n{BODY}\n"}),
    "PEM in code": f'KEY = (\n    "{BEGIN.format("EC ", "")}\\n"\n    "{BODY}\\n"\n)',
    "AWS id": "key = AKIA" + "QWERTYUIOPASDFGH",
    "AWS secret": "[default]\naws_secret_access_key = " + "aB3/" * 10,
    "GitHub": "token: ghp_" + "a1B2" * 9,
    "GitHub, fine-grained": "github_pat_" + "A1b2C3d4E5" * 8,
    "GitLab": "glpat-" + "x7Y8z9" * 4,
    "model": "OPENAI_API_KEY=sk-" + "a" * 48,
    "model, by project": '"sk-proj-' + "aB3_-9" * 10 + '"',
    "model, ant": "sk-ant-api03-" + "aB3_-9" * 12,
    "Stripe": "sk_live_" + "a1B2c3" * 4,
    "Slack": "xoxb-" + "123456789012-abcdefABCDEF",
    "Google": "AIza" + "a1B2c" * 7,
    "PyPI": "password = pypi-AgE" + "IcHlwaS5vcmc" * 6,
    "npm": "//registry.npmjs.org/:_authToken=" + "0f9e8d7c-1234-abcd",
    "Hugging Face": "hf_" + "aBcDeFgHiJ" * 4,
    "ours": f"TOKEN={secrets.token_hex(8)}.{secrets.token_urlsafe(32)}",
    "our secret": f"DEFSERVE_SECRET={secrets.token_urlsafe(32)}",
}  # fmt: skip
ORDINARY = [
    "if text.startswith('-----BEGIN PRIVATE KEY-----'): refuse()",
    "AKIA" + "IOSFODNN7EXAMPLE",
    "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "ghp_… and sk-… and xox… are tokens; sk-YOUR-KEY-HERE",
    "class='sk-toggleable__content sk-circle-fade-dot-animation'",
    "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU,0",
    "task-aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "0123456789abcdef" * 4,
    "DEFSERVE_SECRET=change-me",
]


def kind(data: bytes) -> str | None:
    return find_secret_kind(io.BytesIO(data))


@for_each_row("case", SECRETS)
def test_a_secret_is_found(case: str):
    text = SECRETS[case]
    assert kind(text.encode()) is not None
    assert kind(f"# notes\n{text}\nmore".encode()) is not None


@for_each_row("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-8-sig"])
def test_a_secret_is_found_in_other_encodings(encoding: str):
    assert kind(f"the key is here\n{SECRETS['PEM']}".encode(encoding)) == "a private key"


@pytest.mark.parametrize("before", [CHUNK - 30, CHUNK, 2 * CHUNK - 60])
def test_a_secret_is_found_wherever_it_lies(before: int):
    assert kind(b"x" * before + b"\n" + SECRETS["PEM"].encode()) == "a private key"


@for_each_row("text", ORDINARY)
def test_ordinary_text_is_no_secret(text: str):
    assert kind(text.encode()) is None


@pytest.mark.slow
def test_nothing_in_this_framework_is_taken_for_a_secret():
    package = Path(defserve.__file__).parent
    found = {}
    for path in package.rglob("*"):
        if path.is_file() and path.suffix != ".pyc" and (what := kind(path.read_bytes())):
            found[path.relative_to(package).as_posix()] = what
    assert found == {}


@pytest.mark.anyio
async def test_what_our_stores_write_is_known_under_any_name(tmp_path: Path):
    keys, store = ApiKeys(tmp_path / "a.txt", pepper="a pepper of sixteen bytes"), SqliteStore(tmp_path / "b.bin")
    await keys.create("ann")
    await store.change(StoreChange(API_KEYS_SPACE, put={"a": b"1"}))
    await store.close()
    log = AuditLog(tmp_path / "c.txt", key="an audit key of sixteen bytes")
    log.append({"event_type": "A"}, durable=True)
    log.close()
    for name, what in (
        ("a.txt", "a file of API keys"),
        ("b.bin", "a database of a server"),
        ("c.txt", "an audit log"),
        ("c.txt.head", "an audit log"),
    ):
        assert kind((tmp_path / name).read_bytes()) == what, name


HOSTILE = [
    BEGIN.format("", "") + "\\n" * 400_000,
    (BEGIN.format("", "") + "abc: d\n") * 30_000,
    BEGIN.format("", "") + "\taZZa: @+" * 11 + "!",
    (BEGIN.format("", "") + "\taZZa: @+" * 50 + "!") * 1_000,
    "-----BEGIN " + "A " * 400_000,
    "aws_secret_access_key=" * 50_000,
    "sk-ant-" * 100_000,
    "." + "a" * 1_000_000,
    "SQLite format 3\0" + "CREATE TABLE " * 50_000,
]


@pytest.mark.slow
@for_each_row("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_does_not_slow_the_search(text: str):
    assert cpu_within(1.0, lambda: kind(text.encode()))
