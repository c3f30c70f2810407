"""A host uses a skill only if every file of it is what was listed, and asks for nothing else."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from defserve import Server
from defserve.client import UnverifiedSkill, skill_fingerprint
from defserve.client.skills import CheckedEntry, load_skill, read_verified_files
from defserve.errors import PeerError
from tests.rows import for_each_row

pytestmark = pytest.mark.anyio

BASE = "skill://acme/refunds/"
MANIFEST = b"---\nname: refunds\ndescription: About refunds.\nversion: 1\n---\nBody\r\n"
FILES = {"SKILL.md": MANIFEST, "docs/email.md": b"\xef\xbb\xbfDear\r\n", "data.bin": b"\xff\0"}

Json = dict[str, Any]


class Skilled:
    """A server with one skill, as its answers: `lies` is what it says of a URI instead of the truth."""

    def __init__(self, files: dict[str, bytes] = FILES) -> None:
        self.entry: Json = {
            "uri": f"{BASE}SKILL.md",
            "frontmatter": {"name": "refunds", "description": "About refunds.", "version": 1},
            "resources": [
                {"uri": BASE + path, "digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)}
                for path, data in files.items()
            ],
        }
        self.files, self.lies = files, dict[str, list[Any]]()
        self.asked: list[str] = []

    async def read(self, uri: str) -> list[Json]:
        path = uri.removeprefix(BASE)
        self.asked.append(path)
        return self.lies.get(path) or [{"uri": uri, "blob": base64.b64encode(self.files[path]).decode()}]

    def lies_about(self, path: str, data: bytes | str, **fields: Any) -> None:
        said = {"text": data} if isinstance(data, str) else {"blob": base64.b64encode(data).decode()}
        self.lies[path] = [{"uri": BASE + path, **said, **fields}]


async def test_every_file_comes_by_its_path_and_with_its_bytes() -> None:
    server = Skilled()
    assert await read_verified_files(server.read, server.entry) == FILES


async def test_loading_reads_the_manifest_and_nothing_else() -> None:
    server = Skilled()
    skill = await load_skill(server.read, server.entry)
    assert server.asked == ["SKILL.md"]
    assert (skill.text, skill.paths) == (MANIFEST.decode(), list(FILES))
    assert await skill.read("docs/email.md") == FILES["docs/email.md"]
    assert await skill.read("SKILL.md") == MANIFEST
    assert server.asked == ["SKILL.md", "docs/email.md"]


@for_each_row("path", ["docs/other.md", "", "../SKILL.md", "docs", "./SKILL.md", BASE + "SKILL.md"])
async def test_only_files_of_the_entry_can_be_read(path: str) -> None:
    server = Skilled()
    skill = await load_skill(server.read, server.entry)
    with pytest.raises(UnverifiedSkill, match="lists no file"):
        await skill.read(path)
    assert server.asked == ["SKILL.md"]


@for_each_row(
    ("path", "data", "problem"),
    [
        ("SKILL.md", MANIFEST.replace(b"Body", b"Evil"), "has the digest"),
        ("SKILL.md", MANIFEST + b"\n", f"has {len(MANIFEST) + 1} bytes"),
        ("SKILL.md", MANIFEST[:-1], "bytes"),
        ("SKILL.md", MANIFEST.decode().replace("\r\n", "\n"), "bytes"),
        ("SKILL.md", "", "bytes"),
        ("docs/email.md", b"Dear\r\n", "bytes"),
        ("docs/email.md", "\ufeffDeaR\r\n", "has the digest"),
        ("data.bin", "\ud800", "neither text nor bytes"),
    ],
)
async def test_a_file_that_differs_ends_it(path: str, data: bytes | str, problem: str) -> None:
    server = Skilled()
    server.lies_about(path, data)
    with pytest.raises(UnverifiedSkill, match=problem):
        await read_verified_files(server.read, server.entry)
    assert server.asked[-1] == path


@for_each_row(
    "contents",
    [
        [None],
        ["text"],
        [{}],
        [{"uri": BASE + "SKILL.md"}],
        [{"uri": BASE + "SKILL.md", "text": 7}],
        [{"uri": BASE + "SKILL.md", "blob": "not base64!"}],
        [{"uri": BASE + "other.md", "text": MANIFEST.decode()}],
        [{"uri": BASE + "SKILL.md", "text": MANIFEST.decode()}] * 2,
    ],
)
async def test_contents_of_another_shape_are_refused(contents: list[Any]) -> None:
    server = Skilled()
    server.lies["SKILL.md"] = contents
    with pytest.raises(UnverifiedSkill):
        await load_skill(server.read, server.entry)


@for_each_row(
    ("changes", "field"),
    [
        ({"description": "About something else."}, "description"),
        ({"version": True}, "version"),
        ({"version": "1"}, "version"),
        ({"licence": None}, "licence"),
        ({"allowed-tools": "Bash(*)"}, "allowed-tools"),
    ],
)
async def test_frontmatter_that_differs_in_any_field_is_refused(changes: Json, field: str) -> None:
    server = Skilled()
    server.entry["frontmatter"] |= changes
    with pytest.raises(UnverifiedSkill, match=f"'{field}' is not the same in the file and in the list"):
        await read_verified_files(server.read, server.entry)
    assert server.asked == ["SKILL.md"]


async def test_a_field_that_the_list_leaves_out_is_a_difference() -> None:
    server = Skilled()
    del server.entry["frontmatter"]["version"]
    with pytest.raises(UnverifiedSkill, match="'version'"):
        await load_skill(server.read, server.entry)


@for_each_row(
    "manifest",
    [b"no frontmatter", b"---\nname: \xff\n---\n", b"---\nname: refunds\na: &b []\nc: *b\n---\n", b"---\n[\n---"],
)
async def test_a_manifest_that_cannot_be_read_is_refused(manifest: bytes) -> None:
    server = Skilled({"SKILL.md": manifest})
    with pytest.raises(UnverifiedSkill):
        await load_skill(server.read, server.entry)


def changed(**fields: Any) -> Callable[[Json], None]:
    return lambda entry: entry.update(fields)


def with_file(**fields: Any) -> Callable[[Json], None]:
    return lambda entry: entry["resources"][1].update(fields)


@for_each_row(
    ("change", "problem"),
    [
        (changed(uri=None), "does not end in /SKILL.md"),
        (changed(uri="skill://acme/refunds"), "does not end in /SKILL.md"),
        (changed(uri="skill://acme/other/SKILL.md"), "not that of its folder"),
        (changed(frontmatter=None), "not that of its folder"),
        (changed(frontmatter={"name": "other"}), "not that of its folder"),
        (changed(resources="dynamic"), "cannot be verified"),
        (changed(resources=None), "not a list"),
        (changed(resources=[]), "does not list SKILL.md"),
        (changed(resources=["x"]), "outside of it"),
        (lambda entry: entry["resources"].append(entry["resources"][0]), "lists 'SKILL.md' twice"),
        (lambda entry: entry["resources"].extend(entry["resources"] * 200), "at most 512 files"),
        (with_file(uri="skill://acme/other/x.md"), "outside of it"),
        (with_file(uri="file:///etc/passwd"), "outside of it"),
        (with_file(uri=f"{BASE}../x.md"), "is not the URI of a file"),
        (with_file(uri=f"{BASE}%2e%2e/x.md"), "is not the URI of a file"),
        (with_file(uri=f"{BASE}a%2fb"), "is not the URI of a file"),
        (with_file(uri=f"{BASE}a%5c..%5cb"), "is not the URI of a file"),
        (with_file(uri=f"{BASE}C:%5cx"), "is not the URI of a file"),
        (with_file(uri=f"{BASE}a%00"), "is not the URI of a file"),
        (with_file(uri=f"{BASE}%ff"), "is not the URI of a file"),
        (with_file(uri=f"{BASE}a//b"), "is not the URI of a file"),
        (with_file(uri=f"{BASE}x.md?y"), "is not the URI of a file"),
        (with_file(uri=f"{BASE}x.md#y"), "is not the URI of a file"),
        (with_file(uri=BASE), "is not the URI of a file"),
        (with_file(uri=f"{BASE}%53KILL.md"), "lists 'SKILL.md' twice"),
        (with_file(digest=None), "no digest"),
        (with_file(digest="sha256:" + "A" * 64), "no digest"),
        (with_file(digest="sha1:" + "a" * 40), "no digest"),
        (with_file(digest="sha256:" + "a" * 64 + "\n"), "no digest"),
        (with_file(size=None), "no size"),
        (with_file(size=-1), "no size"),
        (with_file(size=True), "no size"),
        (with_file(size=1.0), "no size"),
        (with_file(size=16 * 1024 * 1024), "larger than 16777216 bytes together"),
    ],
)
async def test_an_entry_that_cannot_be_verified_is_refused_before_anything_is_read(
    change: Callable[[Json], None], problem: str
) -> None:
    server = Skilled()
    change(server.entry)
    with pytest.raises(UnverifiedSkill, match=problem):
        await read_verified_files(server.read, server.entry)
    assert server.asked == []


@given(st.text(max_size=40))
def test_no_uri_gives_a_path_that_leads_out_of_the_skill(rest: str) -> None:
    entry = Skilled().entry
    entry["resources"][1]["uri"] = BASE + rest
    try:
        paths = list(CheckedEntry(entry).files)
    except UnverifiedSkill:
        return
    for path in paths:
        folder = Path("/a/b")
        assert folder in Path(folder, path).parents and ".." not in Path(path).parts


def test_a_fingerprint_changes_with_any_file_and_with_nothing_else() -> None:
    before = skill_fingerprint(Skilled().entry)
    reordered = Skilled().entry
    reordered["resources"].reverse()
    assert skill_fingerprint(reordered) == before
    for files in ({**FILES, "data.bin": b""}, {**FILES, "new": b""}, {"SKILL.md": MANIFEST}):
        assert skill_fingerprint(Skilled(files).entry) != before


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for path, data in FILES.items():
        file = tmp_path / "refunds" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return tmp_path


@pytest.mark.parametrize("era", ["handshake", "stateless"])
async def test_skills_of_a_server_of_ours_are_listed_and_verified(folder: Path, era: str) -> None:
    server = Server("s", "1")
    server.skills(folder, prefix="acme")
    async with server.connect(era) as client:
        (entry,) = await client.skills()
        assert await client.skill(entry["uri"]) == entry
        assert await client.read_verified(entry) == FILES
        assert (await client.load_skill(entry)).frontmatter["name"] == "refunds"
        with pytest.raises(PeerError, match="Unknown skill"):
            await client.skill("skill://acme/other/SKILL.md")


async def test_listing_reads_no_file(folder: Path) -> None:
    server = Server("s", "1")
    server.skills(folder)
    read: list[str] = []

    @server.around("resources/read")
    async def seen(call: Any, params: Json, next: Any) -> Any:
        read.append(params["uri"])
        return await next(call, params)

    async with server.connect() as client:
        await client.skills()
        await client.skill("skill://refunds/SKILL.md")
    assert read == []


async def test_the_entry_of_another_skill_is_no_answer(folder: Path) -> None:
    server = Server("s", "1")
    server.skills(folder)

    @server.around("skills/get")
    async def other(call: Any, params: Json, next: Any) -> Any:
        return await next(call, {"uri": "skill://refunds/SKILL.md"})

    async with server.connect() as client:
        with pytest.raises(UnverifiedSkill, match="answered with something else"):
            await client.skill("skill://trusted/SKILL.md")
