"""Skills on the wire (SEP-2640): what is listed is what is read, to the byte, and to nobody who may not see it."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from defserve import Limits, Server, UsageError
from defserve.auth import Principal, StaticTokens
from defserve.errors import PeerError

pytestmark = pytest.mark.anyio

HEAD = "---\nname: {0}\ndescription: About {0}.\n---\n"
ID = "io.modelcontextprotocol/skills"


def write(root: Path, path: str, data: bytes | str | None = None) -> Path:
    """A file below `root`. A SKILL.md without content gets that of a valid skill."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    given = HEAD.format(file.parent.name) if data is None else data
    file.write_bytes(given if isinstance(given, bytes) else given.encode())
    return file


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, "refunds/SKILL.md")
    write(tmp_path, "refunds/docs/email.md", "Dear …\r\n")
    return tmp_path


async def refusal(client: Any, method: str, **params: Any) -> int:
    with pytest.raises(PeerError) as refused:
        await client.request(method, params)
    return refused.value.code


@pytest.mark.parametrize("era", ["handshake", "stateless"])
async def test_a_skill_is_listed_with_all_its_files_and_read_as_listed(folder: Path, era: str):
    server = Server("s", "1")
    server.skills(folder)
    async with server.connect(era) as client:
        assert client.capabilities["extensions"][ID] == {"directoryRead": True}
        listed = await client.request("skills/list")
        (entry,) = listed["skills"]
        assert entry["uri"] == "skill://refunds/SKILL.md"
        assert entry["frontmatter"] == {"name": "refunds", "description": "About refunds."}
        for file in entry["resources"]:
            data = await client.read_bytes(file["uri"])
            assert (len(data), f"sha256:{hashlib.sha256(data).hexdigest()}") == (file["size"], file["digest"])
        assert [file["uri"] for file in entry["resources"]] == [entry["uri"], "skill://refunds/docs/email.md"]
        got = await client.request("skills/get", {"uri": entry["uri"]})
        assert got["skill"] == entry
        assert "nextCursor" not in got
        for result in (listed, got):
            assert ({"ttlMs", "cacheScope", "resultType"} <= result.keys()) is (era == "stateless")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no end of line",
        b"\xef\xbb\xbfbyte order mark\r\nCR LF\rCR\n",
        b"\0\x01\x7f",
        "é\u2028🙂\ufeff".encode(),
        b"\xff\xfe not UTF-8",
        b"\xed\xa0\x80 half a character",
        b"\xc0\x80 overlong",
    ],
)
@pytest.mark.parametrize("era", ["handshake", "stateless"])
async def test_every_byte_arrives(folder: Path, data: bytes, era: str):
    write(folder, "refunds/data.txt", data)
    server = Server("s", "1")
    server.skills(folder)
    async with server.connect(era) as client:
        (content,) = await client.read("skill://refunds/data.txt")
        sent = content["text"].encode() if "text" in content else base64.b64decode(content["blob"])
        assert sent == data


@pytest.mark.parametrize(
    "head", ["\ufeff---\r\nname: refunds\r\ndescription: x\r\n---\r\n", HEAD.format("refunds")[:-1]]
)
async def test_the_manifest_arrives_byte_for_byte(folder: Path, head: str):
    write(folder, "refunds/SKILL.md", head)
    server = Server("s", "1")
    server.skills(folder)
    async with server.connect() as client:
        assert (await client.read("skill://refunds/SKILL.md"))[0]["text"] == head


async def test_the_manifest_is_a_resource_with_the_name_and_description_of_its_skill(folder: Path):
    server = Server("s", "1")
    server.skills(folder)
    async with server.connect() as client:
        size = len(HEAD.format("refunds"))
        described = {"name": "refunds", "description": "About refunds.", "mimeType": "text/markdown", "size": size}
        # Its other files are found by the entry and by their folder, and do not fill the list.
        assert await client.resources() == [{"uri": "skill://refunds/SKILL.md", **described}]


async def test_what_was_read_at_the_start_is_served_whatever_becomes_of_the_folder(folder: Path):
    server = Server("s", "1")
    server.skills(folder)
    async with server.connect() as client:
        before = (await client.request("skills/list"))["skills"]
        write(folder, "refunds/docs/email.md", "changed")
        write(folder, "refunds/new.md", "new")
        (folder / "refunds" / "SKILL.md").unlink()
        assert (await client.request("skills/list"))["skills"] == before
        assert await client.read_bytes("skill://refunds/docs/email.md") == "Dear …\r\n".encode()
        await client.read("skill://refunds/SKILL.md")
        with pytest.raises(PeerError):
            await client.read("skill://refunds/new.md")


async def test_folders_are_read_one_level_at_a_time(folder: Path):
    write(folder, "refunds/docs/deep/er/x.bin", b"\xff")
    server = Server("s", "1")
    server.skills(folder)
    async with server.connect() as client:

        async def inside(uri: str) -> dict[str, str]:
            found = await client.request("resources/directory/read", {"uri": uri})
            return {child["uri"]: child["mimeType"] for child in found["resources"]}

        base = "skill://refunds"
        assert await inside(base) == {f"{base}/SKILL.md": "text/markdown", f"{base}/docs": "inode/directory"}
        assert await inside(f"{base}/docs") == {
            f"{base}/docs/deep": "inode/directory",
            f"{base}/docs/email.md": "text/markdown",
        }
        assert await inside(f"{base}/docs/deep/er") == {f"{base}/docs/deep/er/x.bin": "application/octet-stream"}


@pytest.mark.parametrize(
    "uri",
    [
        "skill://refunds/SKILL.md",
        "skill://refunds/docs/email.md",
        "skill://refunds/",
        "skill://refunds/docs/",
        "skill://refunds/doc",
        "skill://refunds/docs/..",
        "skill://refunds/../refunds",
        "skill://refunds/%64ocs",
        "skill://refunds//docs",
        "skill://refunds?x",
        "skill://other",
        "skill://",
        "",
        "/",
        "file:///etc",
        "skill://refunds" + "/x" * 10_000,
        7,
        None,
    ],
)
async def test_what_is_no_folder_of_a_skill_is_refused(folder: Path, uri: Any):
    server = Server("s", "1")
    server.skills(folder)
    async with server.connect() as client:
        assert await refusal(client, "resources/directory/read", uri=uri) == -32602
        if uri != "skill://refunds/SKILL.md":
            assert await refusal(client, "skills/get", uri=uri) == -32602


@pytest.mark.parametrize(
    "uri",
    [
        "skill://refunds/../secret",
        "skill://refunds/docs/../../secret",
        "skill://refunds/%2e%2e/secret",
        "skill://refunds/link",
        "skill://refunds/.env",
        "skill://refunds/docs",
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
async def test_nothing_outside_a_skill_can_be_read(folder: Path, uri: str):
    write(folder, "secret", "secret")
    write(folder, "refunds/.env", "secret")
    (folder / "refunds" / "link").symlink_to("../secret")
    server = Server("s", "1")
    server.skills(folder)
    async with server.connect() as client:
        assert await refusal(client, "resources/read", uri=uri) == -32602


async def test_names_of_files_are_encoded_in_uris(folder: Path):
    names = ["a b.md", "100%.md", "ü#?.md", "a&b=c;d.md"]
    for name in names:
        write(folder, f"refunds/odd {name[0]}/{name}", name)
    server = Server("s", "1")
    server.skills(folder)
    async with server.connect() as client:
        (entry,) = (await client.request("skills/list"))["skills"]
        read = {await client.read_text(file["uri"]) for file in entry["resources"] if "odd" in file["uri"]}
        assert read == set(names)
        found = await client.request("resources/directory/read", {"uri": "skill://refunds/odd%20a"})
        assert [child["name"] for child in found["resources"]] == ["a b.md", "a&b=c;d.md"]


async def test_skills_in_folders_and_in_skills_are_found(tmp_path: Path):
    for path in ("team one/billing/SKILL.md", "outer/SKILL.md", "outer/inner/SKILL.md", "outer/inner/x.md", "no/x.md"):
        write(tmp_path, path)
    server = Server("s", "1")
    server.skills(tmp_path, prefix="acme/eu")
    async with server.connect() as client:
        listed = {entry["uri"]: entry for entry in (await client.request("skills/list"))["skills"]}
        base = "skill://acme/eu"
        assert set(listed) == {
            f"{base}/outer/SKILL.md",
            f"{base}/outer/inner/SKILL.md",
            f"{base}/team%20one/billing/SKILL.md",
        }
        inner = [file["uri"] for file in listed[f"{base}/outer/inner/SKILL.md"]["resources"]]
        assert inner == [f"{base}/outer/inner/SKILL.md", f"{base}/outer/inner/x.md"]
        outer = [file["uri"] for file in listed[f"{base}/outer/SKILL.md"]["resources"]]
        assert outer == [f"{base}/outer/SKILL.md", *inner]


async def test_one_skill_is_served_alone_under_a_prefix(folder: Path):
    write(folder, "other/SKILL.md")
    server = Server("s", "1")
    server.skill(folder / "refunds", prefix="acme")
    async with server.connect() as client:
        entries = (await client.request("skills/list"))["skills"]
        assert [entry["uri"] for entry in entries] == ["skill://acme/refunds/SKILL.md"]


async def test_lists_and_folders_come_in_pages(tmp_path: Path):
    for number in range(5):
        write(tmp_path, f"s{number}/SKILL.md")
        write(tmp_path, f"s0/d{number}/x", "x")
    server = Server("s", "1", limits=Limits(page=2))
    server.skills(tmp_path)
    async with server.connect() as client:

        async def pages(method: str, member: str, **params: Any) -> list[list[str]]:
            found: list[list[str]] = []
            while True:
                page = await client.request(method, params)
                found.append([item["uri"] for item in page[member]])
                if "nextCursor" not in page:
                    return found
                params["cursor"] = page["nextCursor"]

        listed = await pages("skills/list", "skills")
        assert [len(page) for page in listed] == [2, 2, 1]
        assert len({uri for page in listed for uri in page}) == 5
        inside = await pages("resources/directory/read", "resources", uri="skill://s0")
        assert [len(page) for page in inside] == [2, 2, 2]
        assert len({uri for page in inside for uri in page}) == 6
        for cursor in ("", "x", "c2tpbGxzOjE", 1, []):
            assert await refusal(client, "resources/directory/read", uri="skill://s0", cursor=cursor) == -32602


async def test_a_caller_without_the_scopes_sees_nothing_of_a_skill(folder: Path):
    write(folder, "open/SKILL.md")
    tokens = StaticTokens({"in": Principal("a", scopes=frozenset({"billing"})), "out": Principal("b")})
    server = Server("s", "1", auth=tokens)
    server.skill(folder / "refunds", scopes=["billing"])
    server.skill(folder / "open")
    from defserve.client import RemoteServer
    from defserve.serve.session_opener import serve_on_loopback

    async with serve_on_loopback(server.asgi(), server.limits) as url:
        async with RemoteServer(url, token="in").connect() as client:
            assert len((await client.request("skills/list"))["skills"]) == 2
        async with RemoteServer(url, token="out").connect() as client:
            (entry,) = (await client.request("skills/list"))["skills"]
            assert entry["uri"] == "skill://open/SKILL.md"
            assert [item["uri"] for item in await client.resources()] == ["skill://open/SKILL.md"]
            assert await refusal(client, "skills/get", uri="skill://refunds/SKILL.md") == -32602
            assert await refusal(client, "resources/directory/read", uri="skill://refunds") == -32602
            assert await refusal(client, "resources/directory/read", uri="skill://refunds/docs") == -32602
            assert await refusal(client, "resources/read", uri="skill://refunds/docs/email.md") == -32602


@pytest.mark.parametrize("mounted_first", [True, False])
@pytest.mark.parametrize("prefix", [None, "shop"])
async def test_a_mounted_server_brings_its_skills(folder: Path, prefix: str | None, mounted_first: bool):
    parent, child = Server("parent", "1"), Server("child", "1")
    if mounted_first:
        parent.mount(child, prefix=prefix)
    child.skills(folder)
    if not mounted_first:
        parent.mount(child, prefix=prefix)
    base = "skill://shop/refunds" if prefix else "skill://refunds"
    async with parent.connect() as client, child.connect() as own:
        (entry,) = (await client.request("skills/list"))["skills"]
        assert [file["uri"] for file in entry["resources"]] == [f"{base}/SKILL.md", f"{base}/docs/email.md"]
        assert await client.read_bytes(f"{base}/docs/email.md") == "Dear …\r\n".encode()
        found = await client.request("resources/directory/read", {"uri": base})
        assert [child["uri"] for child in found["resources"]] == [f"{base}/SKILL.md", f"{base}/docs"]
        assert (await own.request("skills/list"))["skills"][0]["uri"] == "skill://refunds/SKILL.md"


async def test_a_server_without_skills_says_nothing_of_them():
    async with Server("s", "1").connect() as client:
        assert "extensions" not in client.capabilities
        assert await refusal(client, "skills/list") == -32601


def test_a_server_without_skills_imports_none_of_it() -> None:
    program = """
import sys
from defserve import Server
server = Server("s")
@server.tool
def f() -> str: return ""
server.composition
assert not [name for name in sys.modules if "skills" in name or name == "yaml"], sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    ("path", "data", "problem"),
    [
        ("refunds/SKILL.md", "# no frontmatter", "SKILL.md: it does not begin with frontmatter"),
        ("refunds/SKILL.md", "---\nname: [\n---\n", "SKILL.md: the frontmatter is not YAML: line 3"),
        ("refunds/SKILL.md", b"---\nname: \xff\n---\n", "it is not UTF-8 \\(byte 10\\)"),
        ("refunds/SKILL.md", "---\ndescription: x\n---\n", "the name None of a skill is not.*\n.*name: refunds"),
        ("refunds/SKILL.md", "---\nname: Refunds\ndescription: x\n---\n", "is not 1 to 64 lower-case"),
        ("refunds/SKILL.md", "---\nname: other\ndescription: x\n---\n", "called 'other' and its folder 'refunds'"),
        ("refunds/SKILL.md", "---\nname: refunds\n---\n", "has no description"),
        ("refunds/SKILL.md", "---\nname: refunds\ndescription: ' '\n---\n", "has no description"),
        ("refunds/SKILL.md", "---\nname: refunds\ndescription: [x]\n---\n", "has no description"),
        ("Bad_Name/SKILL.md", None, "'Bad_Name' of a skill.*\n.*rename the skill and its folder"),
        ("a--b/SKILL.md", None, "single hyphens"),
        ("refunds/inner/SKILL.md", "", "inner/SKILL.md: it does not begin"),
        ("refunds/large", b"x" * (16 * 1024 * 1024 + 1), "too large: more than 16777216 bytes"),
    ],
)
def test_a_wrong_skill_is_refused_when_it_is_declared(
    folder: Path, path: str, data: bytes | str | None, problem: str
) -> None:
    write(folder, path, data)
    with pytest.raises(UsageError, match=problem):
        Server("s").skills(folder)


def test_a_folder_without_skills_is_refused(tmp_path: Path) -> None:
    for wrong in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UsageError, match="there is no skill below"):
            Server("s").skills(wrong)
    with pytest.raises(UsageError, match=r"has no SKILL\.md"):
        Server("s").skill(tmp_path)


def test_a_folder_that_is_itself_a_skill_is_told_apart(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"use server\.skill\(…\)"):
        Server("s").skills(folder / "refunds")
    with pytest.raises(UsageError, match=rf"use server\.skills\('{folder.name}'\)"):
        Server("s").skill(folder)


def test_skills_in_caches_and_hidden_folders_are_nobodys(folder: Path) -> None:
    for path in ("node_modules/x/SKILL.md", ".cache/y/SKILL.md", "__pycache__/z/SKILL.md"):
        write(folder, path)
    server = Server("s")
    server.skills(folder)
    assert [uri for uri, _ in server.mcp.ensure_skills_section().registry.items()] == ["skill://refunds/SKILL.md"]


@pytest.mark.skipif(sys.platform == "win32", reason="links need rights there")
def test_a_manifest_that_is_a_link_out_of_the_folder_is_no_manifest(folder: Path) -> None:
    write(folder, "outside.md", HEAD.format("other"))
    (folder / "other").mkdir()
    (folder / "other" / "SKILL.md").symlink_to("../outside.md")
    with pytest.raises(UsageError, match=r"has no SKILL\.md: it is a symbolic link out of the folder"):
        Server("s").skills(folder)


@pytest.mark.parametrize("prefix", ["/acme", "acme/", "a//b", "..", "a/../b", "a b", "a?b", "ü", "%41"])
def test_a_prefix_is_a_plain_path(folder: Path, prefix: str) -> None:
    with pytest.raises(UsageError, match="is not a path of a URI"):
        Server("s").skills(folder, prefix=prefix)


def test_the_same_skill_twice_is_refused_and_names_the_file(folder: Path) -> None:
    server = Server("s")
    server.skills(folder)
    with pytest.raises(UsageError, match=r"SKILL\.md.* is already registered at .*refunds/SKILL\.md"):
        server.skill(folder / "refunds")


def test_the_first_skill_comes_before_serving(folder: Path) -> None:
    server = Server("s")
    assert server.composition is not None
    with pytest.raises(UsageError, match="the first skill comes after the server has started"):
        server.skills(folder)


def test_all_skills_together_have_a_bound(tmp_path: Path) -> None:
    for name in "abcde":
        write(tmp_path, f"{name}/SKILL.md")
        write(tmp_path, f"{name}/data", bytes(15 * 1024 * 1024))
    with pytest.raises(UsageError, match="too large together"):
        Server("s").skills(tmp_path)


@pytest.mark.slow
def test_a_relative_path_starts_beside_the_file_that_names_it(folder: Path) -> None:
    write(folder, "server.py", 'from defserve import Server\nserver = Server("s")\nserver.skills(".")\n')
    done = subprocess.run(
        [sys.executable, "-m", "defserve", "list", str(folder / "server.py"), "--json"],
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    assert "skill://refunds/SKILL.md" in done.stdout
