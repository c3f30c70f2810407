"""Secrets as people really write them: none of them is in the file that an import makes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from defserve.kernel.client_import import convert_client_settings, is_harmless, load_client_settings
from tests.rows import for_each_row

S = "hunter2supersecret9Zq"
WORDS: list[list[str]] = [
    ["-p", S], ["-u", f"u:{S}"], ["--user", f"u:{S}"], ["--pat", S], ["--auth", S], [f"--auth={S}"], ["--key", S],
    ["--license", S], ["-H", f"apikey:{S}"], ["--header", f"X-Auth: {S}"], ["-c", f"x --token {S}"],
    ["-c", f"TOKEN={S} x"], [f'{{"token":"{S}"}}'], [f'--config={{"key":"{S}"}}'], [f"Server=h;Uid=u;Pwd={S}"],
    [f"GITHUB_PAT={S}"], ["-e", f"DB_PW={S}"],
]  # fmt: skip
NAMES = [
    "PAT", "GITHUB_PAT", "OPENAI_KEY", "DB_PASS", "MYSQL_PWD", "STRIPE_SK", "SIGNING", "SALT", "ENCRYPTION", "SSH_KEY",
    "LICENSE_KEY", "AWS_SESSION", "PASS", "ACCOUNT_PIN", "APIKEY", "ANYTHING_ELSE", "dbPass",
]  # fmt: skip
HEADERS = [
    "X-Key",
    "X-Auth",
    "X-Auth-Key",
    "Ocp-Apim-Subscription-Key",
    "X-GitHub-PAT",
    "X-Session",
    "apikey",
    "X-Other",
]
ADDRESSES = [
    f"https://h/mcp?%6bey={S}", f"https://h/mcp?to%6ben={S}", f"https://h/mcp?x=1%26token={S}", f"https://h/mcp?k={S}",
    f"https://h/mcp?profile=x&smithery={S}", f"https://h/mcp?api_token[]={S}",
]  # fmt: skip
ENTRIES: list[dict[str, Any]] = [
    *({"command": "x", "args": args} for args in WORDS),
    *({"command": "x", "env": {name: S}} for name in NAMES),
    *({"url": "https://h/mcp", "headers": {name: S}} for name in HEADERS),
    *({"url": url} for url in ADDRESSES),
    {"command": f"x --token {S}"},
    {"command": "x", "cwd": f"/x?token={S}"},
    {"command": "x", f"token={S}": 1},
    {"command": "x", "env": {f"bad-name={S}": "v"}},
    {"command": "x", "env": {"A": f"${{env:B:-{S}}}"}},
    {"command": "x", "env": {"WEBHOOK": f"https://hooks.slack.com/services/T000/B000/{S}"}},
    {"command": "x", "env": {"HEADERS": f'{{"X-Auth":"{S}"}}'}},
    {"url": "https://h/mcp", "headers": {f"X Bad Name {S}": "1"}},
]


def file_of(folder: Path, entry: dict[str, Any]) -> str:
    settings = folder / "c.json"
    settings.write_text(json.dumps({"mcpServers": {"one": entry}}))
    return convert_client_settings(load_client_settings(str(settings))).text


def test_no_usual_secret_is_in_the_file(tmp_path: Path) -> None:
    assert [entry for entry in ENTRIES if S in file_of(tmp_path, entry)] == []


HARMLESS = [
    ("DEBUG", "true"), ("PORT", "8080"), ("LOG_LEVEL", "info"), ("TIMEOUT", "30s"), ("NODE_ENV", "production"),
    ("DATA", "/var/lib/data"), ("HOME_DIR", "~/notes"), ("BASE_URL", "https://api.example.com/v"),
    ("LANG", "en_US.UTF-8"), ("Accept", "application/json"), ("User-Agent", "me/1.0"), ("AWS_REGION", "eu-west-1"),
]  # fmt: skip


@for_each_row(("name", "value"), HARMLESS)
def test_what_is_known_to_be_harmless_stays(name: str, value: str) -> None:
    assert is_harmless(name, value)
