"""What the command line ships, writes and believes: secrets in packages, names in settings, audit logs."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from defserve.stores.audit.log_file import AuditLog
from tests.attack.controls.tools import (
    ask_no_anchor,
    believe_any_signature,
    ship_private_files,
    ship_secrets,
    take_any_project_name,
    take_any_server_name,
    write_for_everybody,
)
from tests.attack.trial import Control, Family, NotTried, Trial
from tests.tooling.packaging.projects import write_project

FAMILY = Family("shipping")
# In the alphabet of base64, so that a key that holds it looks like one.
CANARY = "canary3b8a71c2"


def pem(kind: str) -> str:
    key = f"{CANARY}MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEA"
    return f"-----BEGIN {kind}PRIVATE KEY-----\n{key}\n-----END {kind}PRIVATE KEY-----\n"


PEM = pem("")

# Files that nobody means to publish. Below the package, so that every artefact would take them.
NAMES = """
.env .env.local .env.production id_rsa id_ed25519 id_ecdsa server.pem tls.key cert.p12 cert.pfx store.jks vault.kdbx
.aws/credentials .aws/config .azure/token.json .gcloud/creds.json .kube/config credentials.json service-account.json
keys.json app.db data.sqlite data.sqlite3 data.sqlite3-wal data.sqlite3-shm audit.jsonl audit.jsonl.head .netrc .pypirc
.npmrc .git-credentials .htpasswd .bash_history .python_history .ssh/id_rsa .gnupg/secring.gpg terraform.tfstate
terraform.tfstate.backup .vault-token .docker/config.json SERVER.PEM Id_Rsa .ENV
""".split()

# Files with plain names that hold a secret.
CONTENTS = {
    "notes.txt": PEM,
    "settings.py": f'KEY = "AKIAIOSFODNN7EXAMPLF"  # {CANARY}\n',
    "config.toml": f'token = "ghp_{"a1B2" * 9}" # {CANARY}\n',
    "deploy.yaml": f"slack: xoxb-1234567890-1234567890123-AbCdEfGhIjKlMnOpQrStUvWx # {CANARY}\n",
    "openssh.txt": pem("OPENSSH "),
    "rsa.md": "Here it is:\n" + pem("RSA "),
    "key.txt": f"{'0123456789abcdef'}.{'Ab1_' * 10}xyz {CANARY}\n",
}  # fmt: skip


def project(trial: Trial, name: str) -> tuple[Path, Path]:
    """A project that can be published, and the folder of its package."""
    made = write_project(trial.arena.folder / name / "weather-mcp")
    package = next(path.parent for path in made.rglob("__init__.py"))
    return made, package


def shipped(folder: Path) -> dict[str, bytes]:
    """Every file in every artefact below a folder."""
    found: dict[str, bytes] = {}
    for path in folder.rglob("*"):
        if path.suffix in (".whl", ".mcpb", ".zip") and zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as file:
                found |= {f"{path.name}:{name}": file.read(name) for name in file.namelist()}
        elif path.name.endswith(".tar.gz"):
            with tarfile.open(path) as file:
                for member in file.getmembers():
                    data = file.extractfile(member) if member.isfile() else None
                    found[f"{path.name}:{member.name}"] = data.read() if data is not None else b""
    return found


def package(trial: Trial, made: Path, told: str, wanted: list[str]) -> None:
    """The command stops and names every file; no artefact holds one."""
    done = trial.arena.command("package", str(made), "--out", str(made / "out"))
    said = done.stdout + done.stderr
    trial.expect(done.returncode != 0, f"{told}: `defserve package` says nothing")
    for name in wanted:
        folder, _, file = name.rpartition("/")
        named = file in said or (folder and f"{folder}/: " in said)
        trial.expect(named, f"{told}: {name} is not named")
    leaked = sorted(
        {name.rpartition("/")[2] for name, data in shipped(made / "out").items() if CANARY.encode() in data}
    )
    trial.expect(not leaked, f"{told}: shipped {', '.join(leaked)}")


@FAMILY.attack("secrets by name", Control(ship_private_files, "shipped|is not named", "from 0"))
def _(trial: Trial) -> None:
    # A few at a time: the command does not list hundreds.
    for told, names in trial.choose({f"from {at}": NAMES[at : at + 15] for at in range(0, len(NAMES), 15)}):
        made, inside = project(trial, f"names-{told}")
        for n, name in enumerate(names):
            path = inside / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"a file that nobody means to publish: {CANARY}{n}\n")
        package(trial, made, "below the package", names)


@FAMILY.attack("secrets by content", Control(ship_secrets, "shipped|is not named"))
def _(trial: Trial) -> None:
    made, inside = project(trial, "contents")
    for name, text in CONTENTS.items():
        (inside / name).write_text(text)
    package(trial, made, "in plain files", list(CONTENTS))


@FAMILY.attack("secrets by other ways", Control(ship_private_files, r"at the top: \.env is not named"))
def _(trial: Trial) -> None:
    """At the top of the project, by a link, in a folder of tests, and forced in by the settings of the builder."""
    outside = trial.arena.folder / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "credentials").write_text(PEM)
    made, inside = project(trial, "top")
    (made / ".env").write_text(CANARY)
    (made / "id_rsa").write_text(PEM)
    package(trial, made, "at the top", [".env", "id_rsa"])
    made, inside = project(trial, "link")
    (inside / "data.txt").symlink_to(outside / "credentials")
    package(trial, made, "a link to a secret", ["data.txt"])
    made, inside = project(trial, "forced")
    settings = made / "pyproject.toml"
    (made / "private").mkdir()
    (made / "private" / "server.pem").write_text(PEM)
    forced = '\n[tool.hatch.build.targets.wheel.force-include]\n"private/server.pem" = "weather_mcp/readme.txt"\n'
    settings.write_text(settings.read_text() + forced)
    package(trial, made, "forced in under another name", [])
    made, inside = project(trial, "honest")
    (inside / "environment.py").write_text("def keys() -> list[str]:\n    return []\n")
    done = trial.arena.command("package", str(made), "--out", str(made / "out"))
    trial.expect(done.returncode == 0, f"an honest project: {done.stderr[-200:]}")


# Refused whatever the client: they mean something to JavaScript, paths, terminals or shells, or nothing at all.
REFUSED = [
    "__proto__", "constructor", "prototype", "hasOwnProperty", "toString", "__defineGetter__", "valueOf",
    "", " ", "a/b", "../x", "..", ".", "a\\b", "a\nb", "a\rb", "a\tb", "a\x1b[31mb", "a\x00b", "\x7f", "a\u202eb",
    "a\u2028b", "x" * 1_000_000, "$(id)", "`id`", "a;id", "a|id", "a&b", "a>b", "${HOME}",
]  # fmt: skip


@FAMILY.attack("names in clients' settings", Control(take_any_server_name, "^'a/b' for .*: 0 ", "'a/b'"))
def _(trial: Trial) -> None:
    home = trial.arena.folder / "install-home"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    names = [name for _, name in trial.choose({repr(name)[:60]: name for name in REFUSED})]
    for found in trial.arena.drive("install_names", names, HOME=str(home), XDG_CONFIG_HOME=str(home / ".config")):
        held = found["code"] not in (0, -1) and not found["changed"]
        told = f"{found['name']!r} for {found['client']}: {found['code']} {found['said'][-80:]!r}"
        trial.expect(held, told)
    good = trial.arena.drive("install_names", ["weather", "my-server", "a_b2"], HOME=str(home))
    trial.expect(all(found["code"] == 0 for found in good), f"plain names: {[f for f in good if f['code']][:1]}")


@FAMILY.attack("names of projects", Control(take_any_project_name, r"^new '\.\./evil' wrote"))
def _(trial: Trial) -> None:
    """`defserve new` writes below the folder it is in, and nowhere else."""
    folder = trial.arena.folder / "new" / "inside"
    folder.mkdir(parents=True)
    elsewhere = str(trial.arena.folder / "evil")
    for name in (
        "../evil",
        "../../evil",
        elsewhere,
        "a/../../evil",
        "__proto__",
        "-x",
        "a\nb",
        "$(id)",
        "",
        ".",
    ):
        trial.arena.command("new", name, "--yes", cwd=folder)
        left = [path.name for path in folder.parent.iterdir() if path != folder]
        trial.expect(not left and not Path(elsewhere).exists(), f"new {name!r} wrote {left}")


# -- the audit log ---------------------------------------------------------------------------------------

KEY = "0123456789abcdef0123456789abcdef"


def written(folder: Path, **options: object) -> Path:
    """A log of ten events, closed and so signed."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "audit.jsonl"
    with AuditLog(path, key=KEY, **options) as log:  # type: ignore[arg-type]
        for n in range(10):
            log.append({"event_type": "TOOL_EXECUTED", "trace_id": f"t-{n}", "result": "SUCCESS"})
    return path


def head_of(path: Path) -> Path:
    return path.with_name(path.name + ".head")


def _lines(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Path], None]:
    def tamper(path: Path) -> None:
        path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))

    return tamper


TAMPERING: dict[str, Callable[[Path], None]] = {
    "a line is changed": _lines(lambda x: [*x[:4], x[4].replace(b"SUCCESS", b"BLOCKED"), *x[5:]]),
    "a line is removed": _lines(lambda x: [*x[:4], *x[5:]]),
    "the first line is removed": _lines(lambda x: x[1:]),
    "the last line is removed": _lines(lambda x: x[:-1]),
    "half is removed": _lines(lambda x: x[:5]),
    "two lines change places": _lines(lambda x: [*x[:3], x[4], x[3], *x[5:]]),
    "a line is there twice": _lines(lambda x: [*x[:4], x[3], *x[4:]]),
    "a line is added": _lines(lambda x: [*x, x[-1].replace(b'"seq": 10', b'"seq": 11')]),
    "a line is added in the middle": _lines(lambda x: [*x[:5], b'{"seq": 6, "event": {}, "mac": "00"}\n', *x[5:]]),
    "everything is removed": _lines(lambda x: []),
    "a blank line": _lines(lambda x: [*x[:5], b"\n", *x[5:]]),
    "the head is removed": lambda path: head_of(path).unlink(),
    "the head is empty": lambda path: head_of(path).write_bytes(b""),
    "the head is changed": lambda path: head_of(path).write_bytes(head_of(path).read_bytes().replace(b"1", b"2")),
    "written anew with another key": lambda path: _rewrite(path),
}


def _rewrite(path: Path) -> None:
    path.unlink()
    head_of(path).unlink(missing_ok=True)
    with AuditLog(path, key="another key, of thirty-two bytes") as log:
        log.append({"event_type": "TOOL_EXECUTED", "result": "SUCCESS"})


@FAMILY.attack("a changed audit log", Control(believe_any_signature, "a line is changed", "a line is changed"))
def _(trial: Trial) -> None:
    verify = ("audit", "verify")
    fine = written(trial.arena.folder / "audit" / "fine")
    done = trial.arena.command(*verify, str(fine), DEFSERVE_AUDIT_KEY=KEY)
    if done.returncode:
        raise NotTried(f"an intact log: {done.stdout}{done.stderr}")
    for n, (name, tamper) in enumerate(trial.choose(TAMPERING)):
        path = written(trial.arena.folder / "audit" / str(n))
        tamper(path)
        done = trial.arena.command(*verify, str(path), DEFSERVE_AUDIT_KEY=KEY)
        trial.expect(done.returncode != 0, f"{name}: {done.stdout.strip()}")
        trial.expect("Traceback" not in done.stderr, f"{name}: a traceback")


@FAMILY.attack("an audit log that is gone", Control(ask_no_anchor, "^set back"))
def _(trial: Trial) -> None:
    """Log and head removed, or set back together: only an anchor elsewhere tells, so there must be one."""
    named = next((name for name in inspect.signature(AuditLog.__init__).parameters if "anchor" in name), None)
    offered = trial.arena.command("audit", "verify", "--help").stdout
    if not trial.expect(named, "AuditLog takes no anchor: heads are kept beside the log alone"):
        return
    flag = next((word.strip("[],") for word in offered.split() if word.strip("[],").startswith("--anchor")), None)
    if not trial.expect(flag, "`audit verify` takes no --anchor"):
        return
    folder = trial.arena.folder / "anchored"
    anchor = folder / "elsewhere" / "anchor"
    anchor.parent.mkdir(parents=True)
    for name in ("removed", "set back", "begun anew"):
        anchor.unlink(missing_ok=True)
        shutil.rmtree(folder / "log", ignore_errors=True)
        path = written(folder / "log", **{str(named): [str(anchor)]})
        early = {file: file.read_bytes() for file in (path, head_of(path)) if file.exists()}
        with AuditLog(path, key=KEY, **{str(named): [str(anchor)]}) as log:  # type: ignore[arg-type]
            log.append({"event_type": "TOOL_EXECUTED", "result": "SUCCESS"})
        for file in early:
            file.unlink(missing_ok=True)
        if name == "set back":
            for file, data in early.items():
                file.write_bytes(data)
        elif name == "begun anew":
            with AuditLog(path, key=KEY) as log:
                log.append({"event_type": "TOOL_EXECUTED", "result": "SUCCESS"})
        done = trial.arena.command("audit", "verify", str(path), str(flag), str(anchor), DEFSERVE_AUDIT_KEY=KEY)
        trial.expect(done.returncode != 0, f"{name}: {done.stdout.strip()}")


@FAMILY.attack("files for their owner alone", Control(write_for_everybody, ": 6[0-7]4$", here=True))
def _(trial: Trial) -> None:
    """Keys, peppers and audit logs are written for their owner, and not through a link that somebody left."""
    folder = trial.arena.folder / "private"
    folder.mkdir()
    made = trial.arena.command(
        "keys", "create", "alice", "--no-tools", "--store", str(folder / "keys.json"), cwd=folder
    )
    trial.expect(made.returncode == 0, f"keys create: {made.stderr[-200:]}")
    log = written(folder / "audit")
    config = trial.arena.folder / "config"
    for path in [folder / "keys.json", log, head_of(log), *config.rglob("*")]:
        if path.is_file():
            mode = os.stat(path).st_mode & 0o777
            trial.expect(mode & 0o077 == 0, f"{path.name}: {mode:o}")
    shown = json.dumps([made.stdout, made.stderr])
    kept = (folder / "keys.json").read_text()
    secret = next((word for word in made.stdout.split() if "." in word and len(word) > 50), "")
    trial.expect(secret and secret.partition(".")[2] not in kept, f"the key itself is in the store: {len(shown)}")
