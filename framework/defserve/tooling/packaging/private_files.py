"""The one list of files that are never shipped, by name. It holds for every artefact; the ignore files of a new project
repeat it.

The patterns are those of `.gitignore`: one that ends in `/` names folders, any other names files and folders. The last
one that matches decides, and `!` makes an exception. Upper and lower case are the same here, because they are on some
systems.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import translate
from functools import cache, lru_cache
from typing import Final

NEVER_SHIPPED: Final[Mapping[str, tuple[str, ...]]] = {
    "settings with secrets": (
        ".env", ".env.*", "*.env", ".envrc", "secrets.json", "secrets.y*ml", "secrets.toml", "secrets.ini", ".vault*",
        "!.env.example", "!.env.sample", "!.env.template",
    ),
    "a private key": (
        "id_*", "!id_*/", "!id_*.*", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*", "*.pem", "*.key", "*.ppk",
        "*.p8", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdb", "*.kdbx", "*.keytab", "*.agekey", ".ssh/", ".gnupg/",
        ".password-store/", "!*.pub",
    ),
    "credentials": (
        "credentials*", "!credentials*/", "*-credentials.json", "*_credentials.json", "service-account*.json",
        "service_account*.json", "client_secret*.json", ".aws/", ".azure/", ".gcloud/", ".config/gcloud/", ".kube/",
        "kubeconfig*", "*.kubeconfig", ".docker/config.json", ".dockercfg", ".netrc", "_netrc", ".pypirc", ".npmrc",
        ".git-credentials", ".htpasswd", ".pgpass", "pgpass.conf", ".my.cnf", ".mylogin.cnf", ".boto", ".s3cfg",
        "rclone.conf", "*.ovpn", "*.tfstate", "*.tfstate.*", "*.tfvars", "*.tfvars.json", ".terraform/", "wallet.dat",
        "!*.md", "!*.rst", "!*.py", "!*.pyi",
    ),
    "what a server stores": (
        "keys.json", "keys.json.*", "*.pepper", "audit*.jsonl", "audit*.jsonl.*", "audit*.log", "audit*.log.*",
        "*.jsonl.head", "*.log.head", "*.db", "*.db-*", "*.db3", "*.sqlite*",
    ),
    "a history of commands": (".*_history", ".history", ".lesshst", ".viminfo"),
    "a folder of version control or an editor": (
        ".git/", ".hg/", ".svn/", ".bzr/", "CVS/", ".idea/", ".vscode/", ".vs/",
    ),
    "a cache, or made anew": (
        "__pycache__/", ".venv/", "venv/", "node_modules/", ".tox/", ".nox/", ".mypy_cache/", ".pytest_cache/",
        ".ruff_cache/", ".hypothesis/", ".coverage", ".coverage.*", "*.swp", "*~", ".DS_Store",
    ),
}  # fmt: skip
"""What a file is → the names it has. What is inside code and texts is looked at all the same (`secret_contents`)."""


def private_kind(path: str) -> tuple[str, str] | None:
    """What a file that is never shipped is, and the file or folder of the path that says so. None for all others."""
    parts = path.replace("\\", "/").strip("/").split("/")
    for depth in range(1, len(parts) + 1):
        part = "/".join(parts[:depth]) + "/" * (depth < len(parts))
        if kind := _kind(f"/{part.lower()}"):
            return kind, part
    return None


def ignore_lines() -> Iterator[str]:
    """The list as lines of a `.gitignore`, in order."""
    for patterns in NEVER_SHIPPED.values():
        for pattern in patterns:
            yield f"**/{pattern}" if "/" in pattern[:-1] else pattern


@lru_cache(maxsize=4096)
def _kind(path: str) -> str:
    """What a file is, or a folder (then the path ends in `/`). Empty if it may be shipped."""
    found = ""
    for kind, pattern, is_exception in _patterns():
        if pattern.fullmatch(path):
            found = "" if is_exception else kind
    return found


@cache
def _patterns() -> tuple[tuple[str, re.Pattern[str], bool], ...]:
    """Kind, pattern, and whether it is an exception."""
    found: list[tuple[str, re.Pattern[str], bool]] = []
    for kind, patterns in NEVER_SHIPPED.items():
        for pattern in patterns:
            plain = pattern.removeprefix("!").lower()
            names = "/".join(_expression(name) for name in plain.rstrip("/").split("/"))
            end = "/" if plain.endswith("/") else "/?"
            found.append((kind, re.compile(f".*/{names}{end}", re.DOTALL), pattern.startswith("!")))
    return tuple(found)


def _expression(glob: str) -> str:
    """A pattern of one name. A star does not match a slash."""
    return translate(glob).removeprefix("(?s:").removesuffix(r")\Z").removesuffix(r")\z").replace(".*", "[^/]*")
