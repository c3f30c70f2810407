"""Refuses to ship what is private, by name and by content: it looks at what is really inside the artefacts."""

from __future__ import annotations

import os
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase, translate
from functools import cache, lru_cache
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple, cast

from defserve.errors import UsageError

SHOWN: Final = 20
MIN_FILE_BYTES: Final = 4
"""Shorter files are the same by chance."""
MAX_FILES: Final = 100_000
"""How many files of the project are looked at. A link may lead to a whole disk."""


# -- The one list of files that are never shipped, by name. It holds for every artefact; the ignore files of a new
# project repeat it.
#
# The patterns are those of `.gitignore`: one that ends in `/` names folders, any other names files and folders. The
# last one that matches decides, and `!` makes an exception. Upper and lower case are the same here, because they are on
# some systems.


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
"""What a file is → the names it has. What is inside code and texts is looked at all the same (`find_secret_kind`)."""

# Kinds whose files are recognised by their content, too, under whatever name a build backend gives them.
COPIED: Final = tuple(NEVER_SHIPPED)[:4]
FIX: Final = (
    "delete or move it, or leave it out of the build: .gitignore or the settings of the build backend, and .mcpbignore "
    "for the bundle. If it may be public: --allow FILE, or allow = [\"FILE\"] under [tool.defserve.package] in "
    "pyproject.toml"
)  # fmt: skip


class PrivateFile(NamedTuple):
    """A file of the project that is not shipped. `kind` says why."""

    path: Path
    shown: str
    kind: str

    def is_copied_in(self, content: BinaryIO) -> bool:
        try:
            with self.path.open("rb") as own:
                return _digest(own) == _digest(content)
        except OSError:
            return False


def reject_private_files(folder: Path, artefacts: Sequence[Path], allowed: Sequence[str]) -> None:
    """Raises UsageError that names every private file in the artefacts, and removes the artefacts then."""
    sources = dict[int, list[PrivateFile]]()
    for source in private_files(folder):
        if not is_shipping_allowed(source.shown, allowed):
            sources.setdefault(source.path.stat().st_size, []).append(source)
    found = dict[tuple[str, str], list[str]]()
    for artefact in artefacts:
        for path, kind in _private_in(artefact, sources, allowed):
            names = found.setdefault((path, kind), [])
            if artefact.name not in names:
                names.append(artefact.name)
    if not found:
        return
    for artefact in artefacts:
        if artefact.parent != folder:  # a document there is the project's own
            artefact.unlink(missing_ok=True)
    lines = [f"  {path}: {kind} (in {', '.join(names)})" for (path, kind), names in found.items()]
    more = [f"  … and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    head = "nothing was packaged, because these must not be shipped:"
    raise UsageError("\n".join([head, *lines[:SHOWN], *more]), fix=FIX)


def is_shipping_allowed(path: str, allowed: Sequence[str], *, in_wheel: bool = False) -> bool:
    """Whether a file is shipped all the same. In a wheel it may lack the first folders of its path, such as `src`."""
    for pattern in allowed:
        parts = pattern.replace("\\", "/").removeprefix("./").split("/")
        forms = ["/".join(parts[start:]) for start in range(len(parts) if in_wheel else 1)]
        if any(fnmatchcase(name, form) for form in forms for name in (path, path.partition(WITHIN)[0])):
            return True
    return False


def private_files(folder: Path) -> Iterator[PrivateFile]:
    """The files of a project that are private by their name, or are links to such files."""
    seen, left = set[str](), MAX_FILES
    for where, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(where)
        # A folder is looked at once, however many links lead to it. What version control and caches hold is not copied.
        folders[:] = [] if real in seen else [name for name in folders if not _is_clutter(name)]
        seen.add(real)
        if (left := left - len(files) - len(folders)) < 0:
            return
        for name in files:
            path = Path(where, name)
            shown = path.relative_to(folder).as_posix()
            target = Path(os.path.realpath(path))
            if not target.is_file() or target.stat().st_size < MIN_FILE_BYTES:
                continue
            inside = target.relative_to(folder) if target.is_relative_to(folder) else target
            kind = classify_private_path(shown) or classify_private_path(inside.as_posix())
            if kind is not None and kind[0] in COPIED:
                yield PrivateFile(target, shown, kind[0])


def _private_in(
    artefact: Path, sources: dict[int, list[PrivateFile]], allowed: Sequence[str]
) -> Iterator[tuple[str, str]]:
    in_wheel = artefact.name.endswith(".whl")
    for file in files_in(artefact):
        if not is_shipping_allowed(file.path, allowed, in_wheel=in_wheel) and (found := _judge_file(file, sources)):
            yield found


def _judge_file(file: ArtefactFile, sources: dict[int, list[PrivateFile]]) -> tuple[str, str] | None:
    """The file or its folder, and what it is, if it is private."""
    if by_name := classify_private_path(file.own_path):
        return file.path.removesuffix(file.own_path) + by_name[1], by_name[0]
    if file.content is None:
        linked = classify_private_path(file.target)
        return (file.path, f"a link to {linked[0]}, {file.target}") if linked else None
    for source in sources.get(file.size, ()):
        if source.is_copied_in(file.content):
            return file.path, f"a copy of {source.shown}, {source.kind}"
        file.content.seek(0)
    kind = find_secret_kind(file.content)
    file.content.seek(0)
    return (file.path, f"it holds {kind}") if kind else None


def _digest(file: BinaryIO) -> bytes:
    digest = sha256()
    while chunk := file.read(CHUNK):
        digest.update(chunk)
    return digest.digest()


def _is_clutter(folder: str) -> bool:
    kind = classify_private_path(f"{folder}/x")
    return kind is not None and kind[0] not in COPIED


def classify_private_path(path: str) -> tuple[str, str] | None:
    """What a file that is never shipped is, and the file or folder of the path that says so. None for all others."""
    parts = path.replace("\\", "/").strip("/").split("/")
    for depth in range(1, len(parts) + 1):
        part = "/".join(parts[:depth]) + "/" * (depth < len(parts))
        if kind := _kind(f"/{part.lower()}"):
            return kind, part
    return None


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


# -- Secrets inside files: private keys, tokens by their well-known forms, and what our own stores write under any name.
#
# Each form is long and specific, so ordinary text is not taken for a secret. A secret without a form of its own, such
# as a password, is not recognised.


CHUNK: Final = 1024 * 1024
OVERLAP: Final = 8 * 1024
MAX_BYTES: Final = 64 * 1024 * 1024
"""How much of one file is looked at."""


class SecretForm(NamedTuple):
    """How a secret looks. A text without one of the words has no match; looking for a word is fast."""

    words: tuple[bytes, ...]
    pattern: re.Pattern[bytes]


def _form(words: bytes, *patterns: bytes) -> SecretForm:
    """A form whose words are separated by blanks."""
    return SecretForm(tuple(words.split()), re.compile(b"|".join(patterns), re.DOTALL))


def _token(words: bytes, *patterns: bytes) -> SecretForm:
    """The same for a token that stands alone."""
    return _form(words, rb"(?<![A-Za-z0-9_-])(?:%s)(?![A-Za-z0-9_-])" % b"|".join(patterns))


FORMS: Final[Mapping[str, SecretForm]] = {
    # With the beginning of the key itself: the line alone is also in programs that look for keys.
    "a private key": _form(
        b"-----BEGIN",
        rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
        rb"(?:(?!%(key)s)(?:\\++[nr]|[\s\"'+,>#*/|]|[A-Za-z-]{3,20}: (?:(?!%(key)s)[^\r\n\\]){0,200}+)){0,40}+%(key)s"
        % {b"key": rb"[A-Za-z0-9+/=]{40}"},
    ),
    "an AWS key": _form(
        b"AKIA ASIA aws_secret_access_key AWS_SECRET_ACCESS_KEY",
        rb"(?<![A-Za-z0-9])A[KS]IA(?![A-Z0-9]{0,9}EXAMPLE)[A-Z0-9]{16}(?![A-Za-z0-9])",
        rb"(?:aws_secret_access_key|AWS_SECRET_ACCESS_KEY)[\"']?\s{0,4}[=:]\s{0,4}[\"']?"
        rb"(?![A-Za-z0-9/+]{0,33}EXAMPLE)[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+])",
    ),
    "a GitHub token": _token(
        b"gho_ ghp_ ghr_ ghs_ ghu_ github_pat_",
        rb"gh[opsur]_[A-Za-z0-9]{36,255}",
        rb"github_pat_[A-Za-z0-9_]{50,255}",
    ),
    "a GitLab token": _token(b"glpat- gldt- glrt- glptt-", rb"gl(?:pat|dt|rt|ptt)-[A-Za-z0-9_-]{20,64}"),
    "an API key of a model": _token(
        b"sk-", rb"sk-[A-Za-z0-9]{20,200}", rb"sk-(?:ant|proj|svcacct|or)-[A-Za-z0-9_-]{24,255}"
    ),
    "a Stripe key": _token(b"k_live_", rb"[rs]k_live_[A-Za-z0-9]{20,200}"),
    "a Slack token": _form(
        b"xox xapp- hooks.slack.com",
        rb"(?<![A-Za-z0-9])xox[a-z]-[A-Za-z0-9-]{10,250}",
        rb"(?<![A-Za-z0-9])xapp-[0-9]-[A-Za-z0-9-]{20,250}",
        rb"hooks\.slack\.com/services/T[A-Z0-9]{8,12}/B[A-Z0-9]{8,12}/[A-Za-z0-9]{20,30}",
    ),
    "a Google key": _token(
        b"AIza GOCSPX- ya29.",
        rb"AIza[A-Za-z0-9_-]{35}",
        rb"GOCSPX-[A-Za-z0-9_-]{28}",
        rb"ya29\.[A-Za-z0-9_-]{60,2000}",
    ),
    "a token of a package index": _form(
        b"pypi-AgE npm_ _auth",
        rb"(?<![A-Za-z0-9])(?:pypi-AgE[A-Za-z0-9_-]{40,1000}|npm_[A-Za-z0-9]{36}(?![A-Za-z0-9]))",
        rb":_(?:auth|authToken|password)\s{0,4}=\s{0,4}[\"']?[A-Za-z0-9+/=_-]{16,1000}",
    ),
    "a Hugging Face token": _token(b"hf_", rb"hf_[A-Za-z0-9]{34,64}"),
    "an API key of defserve": _form(b".", rb"(?<=[^A-Za-z0-9_-][0-9a-f]{16})\.[A-Za-z0-9_-]{43}(?![A-Za-z0-9_-])"),
    "a secret of defserve": _form(
        b"DEFSERVE_",
        rb"DEFSERVE_(?:SECRET|KEYS_PEPPER|AUDIT_KEY)[\"']?\s{0,4}[=:]\s{0,4}[\"']?[A-Za-z0-9_/+=-]{32,1000}",
    ),
    "a file of API keys": _form(b'"hash"', rb'"hash":\s{0,8}"[0-9a-f]{64}",\s{0,16}"id":\s{0,8}"[0-9a-f]{16}"'),
    "an audit log": _form(
        b'"mac":"',
        rb'"prev":"[0-9a-f]{64}","seq":[1-9][0-9]{0,17},"mac":"[0-9a-f]{64}"\}',
        rb'"mac":"[0-9a-f]{64}","seq":[0-9]{1,18},"sig":"[0-9a-f]{64}"',
    ),
    "a database of a server": _form(b"SQLite", rb'\A\nSQLite format 3\0.{0,16000}CREATE TABLE "?entries"? \('),
}
"""What a secret is → how it looks. A text begins with a line break here."""


def find_secret_kind(file: BinaryIO) -> str | None:
    """What the first secret in a file is. None if nothing looks like one in the first MAX_BYTES."""
    kept, read = b"\n", 0
    while read < MAX_BYTES and (chunk := file.read(CHUNK)):
        read += len(chunk)
        data = kept + chunk
        for text in (data, data.replace(b"\0", b"")) if _is_wide(data) else (data,):
            for kind, form in FORMS.items():
                if any(word in text for word in form.words) and form.pattern.search(text):
                    return kind
        kept = data[-OVERLAP:]
    return None


def _is_wide(data: bytes) -> bool:
    """Whether this may be text of two bytes a letter, as some editors save it."""
    begin = data[:400]
    return begin.count(0) > len(begin) // 3


# -- What is really inside an artefact: every file of a wheel, sdist or bundle, and of archives inside them.


ZIPS: Final = (".zip", ".whl", ".mcpb", ".egg", ".jar")
TARS: Final = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
DEPTH: Final = 3
"""How deep archives in archives are opened."""
WITHIN: Final = ": "
UNREADABLE: Final = (OSError, EOFError, RuntimeError, ValueError, zipfile.BadZipFile, tarfile.TarError, zlib.error)


class ArtefactFile(NamedTuple):
    """A file in an artefact: its path there, its size and its content. A link has a `target` and no content.

    The path of a file in an archive inside the artefact begins with that of the archive: `data/old.zip: a/b.txt`.
    """

    path: str
    size: int
    content: BinaryIO | None
    target: str = ""

    @property
    def own_path(self) -> str:
        """The path in the archive that holds it."""
        return self.path.rpartition(WITHIN)[2]


def files_in(artefact: Path) -> Iterator[ArtefactFile]:
    """The files of an artefact, each to be read before the next. Raises UsageError if it cannot be opened."""
    # An sdist has everything in one folder, which is named after it.
    root = f"{artefact.name.removesuffix('.tar.gz')}/" if artefact.name.endswith(".tar.gz") else ""
    try:
        with artefact.open("rb") as file:
            for found in _iter_contents(ArtefactFile(artefact.name, artefact.stat().st_size, file), DEPTH):
                yield found._replace(path=found.path.removeprefix(root))
    except UNREADABLE as error:
        raise UsageError(f"{artefact.name} cannot be checked: {error}", fix="build it anew") from None


def _iter_contents(file: ArtefactFile, depth: int, inside: str = "") -> Iterator[ArtefactFile]:
    """The file itself, or what it holds if it is an archive."""
    name, content = file.path.lower(), file.content
    if depth < DEPTH or not name.endswith(ZIPS + TARS):
        yield file._replace(path=inside + file.path)
    if content is None or not depth or not name.endswith(ZIPS + TARS):
        return
    within = f"{inside}{file.path}{WITHIN}" if depth < DEPTH else ""
    try:
        for found in _in_zip(content) if name.endswith(ZIPS) else _in_tar(content):
            yield from _iter_contents(found, depth - 1, within)
    except UNREADABLE:
        # Inside an artefact it may be broken on purpose, as a test's data is.
        if depth == DEPTH:
            raise


def _in_zip(file: BinaryIO) -> Iterator[ArtefactFile]:
    with zipfile.ZipFile(file) as archive:
        for info in archive.infolist():
            if not info.is_dir():
                with archive.open(info) as content:
                    yield ArtefactFile(info.filename.replace("\\", "/"), info.file_size, cast(BinaryIO, content))


def _in_tar(file: BinaryIO) -> Iterator[ArtefactFile]:
    with tarfile.open(fileobj=file) as archive:
        for member in archive:
            if member.isreg():
                yield ArtefactFile(member.name, member.size, cast(BinaryIO, archive.extractfile(member)))
            elif member.issym():
                yield ArtefactFile(member.name, 0, None, member.linkname)
