"""Skills of mounted servers: listed, checked and read as if they were our own, under the prefix."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from defserve import Remote, Server
from defserve.errors import PeerError
from tests.at_address import at_address, fresh
from tests.proxying.backends import ERAS, child
from tests.rows import for_each_row
from tests.waiting import until

pytestmark = pytest.mark.anyio


@pytest.mark.slow
@for_each_row(("back", "era", "prefix"), itertools.product(ERAS, ERAS, [None, "s"]), every=3)
async def test_a_client_loads_and_checks_the_skill_of_a_program(era: str, back: str, prefix: str | None):
    front = Server("front", "1")
    front.mount(child("../../examples/skills.py", version=back), prefix=prefix)
    root = f"skill://{prefix}/refunds" if prefix else "skill://refunds"
    [backend] = front.mounts.backends.values()
    async with front.connect(era) as client:
        await until(lambda: backend.state == "connected")
        (entry,) = await client.skills()
        assert entry["uri"] == f"{root}/SKILL.md"
        assert all(file["uri"].startswith(f"{root}/") for file in entry["resources"])
        skill = await client.skill(entry["uri"])
        assert skill["frontmatter"] == entry["frontmatter"]
        assert len(await client.read_verified(skill)) == len(entry["resources"]) > 1
        found = await client.request("resources/directory/read", {"uri": root})
        assert f"{root}/SKILL.md" in [one["uri"] for one in found["resources"]]
        for method, uri in (("skills/get", f"{root}x/SKILL.md"), ("resources/directory/read", f"{root}/SKILL.md")):
            with pytest.raises(PeerError) as refused:
                await client.request(method, {"uri": uri})
            assert refused.value.code == -32602


async def test_skills_of_several_servers_are_listed_with_our_own(tmp_path: Path):
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "SKILL.md").write_bytes(f"---\nname: {name}\ndescription: d\n---\r\nText\r\n".encode())
    back, front = Server("back", "1"), Server("front", "1")
    back.skill(tmp_path / "theirs")
    front.skill(tmp_path / "ours")
    async with at_address(back) as url, at_address(fresh("skills")) as other:
        front.mount(Remote(url))
        front.mount(Remote(other))
        async with front.connect("stateless") as client:
            listed = {one["frontmatter"]["name"]: one["uri"] for one in await client.skills()}
            assert listed.keys() == {"ours", "theirs", "refunds"}
            for uri in listed.values():
                await client.read_verified(await client.skill(uri))
            read = await client.request("resources/read", {"uri": "skill://theirs/SKILL.md"})
            assert read["contents"][0]["text"].endswith("\r\nText\r\n")


async def test_a_server_without_skills_is_asked_for_none_and_says_so():
    back, front = Server("back", "1"), Server("front", "1")
    async with at_address(back) as url:
        front.mount(Remote(url), prefix="b")
        async with front.connect("stateless") as client:
            assert await client.skills() == []
            with pytest.raises(PeerError) as refused:
                await client.request("skills/get", {"uri": "skill://b/x/SKILL.md"})
            assert refused.value.code == -32602


async def test_a_skill_that_comes_later_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("defserve.proxying.backend.SKILLS_SECONDS", 0.0)
    back, front = fresh("skills"), Server("front", "1")
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "SKILL.md").write_text("---\nname: late\ndescription: d\n---\n")
    async with at_address(back) as url:
        front.mount(Remote(url), prefix="b")
        async with front.connect("stateless") as client:
            assert len(await client.skills()) == 1
            back.skill(tmp_path / "late")
            assert [one["uri"] for one in await client.skills()][1:] == ["skill://b/late/SKILL.md"]
