"""What is really inside an artefact decides. An artefact with a private file does not stay."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from defserve.errors import UsageError
from defserve.tooling.packaging.privacy import reject_private_files
from tests.tooling.packaging.projects import write

TOKEN = "ghp_" + "a1B2" * 9
ENV = "DATABASE_PASSWORD=correct horse battery\n"


def wheel(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "weather_mcp-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def sdist(folder: Path, files: Mapping[str, str], links: Mapping[str, str] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "weather_mcp-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(f"weather_mcp-1.0/{name}")
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(f"weather_mcp-1.0/{name}")
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    return path


def refused(folder: Path, *artefacts: Path, allowed: tuple[str, ...] = ()) -> str:
    with pytest.raises(UsageError) as caught:
        reject_private_files(folder, artefacts, allowed)
    assert not any(artefact.exists() for artefact in artefacts)
    return str(caught.value)


def nested(files: Mapping[str, str]) -> bytes:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return data.getvalue()


def test_a_private_file_in_an_archive_inside_is_found(tmp_path: Path):
    made = wheel(tmp_path / "out", {"pkg/data.zip": nested({"a/.env": ENV}), "pkg/old.whl": nested({"b.txt": TOKEN})})
    said = refused(tmp_path, made)
    assert "pkg/data.zip: a/.env: settings with secrets" in said and "pkg/old.whl: b.txt: it holds" in said


def test_a_broken_archive_inside_is_no_obstacle(tmp_path: Path):
    reject_private_files(
        tmp_path, [wheel(tmp_path / "out", {"pkg/broken.zip": b"PK\3\4 no", "pkg/broken.tar.gz": b"\x1f\x8b"})], []
    )


def test_a_link_to_a_private_file_is_found(tmp_path: Path):
    said = refused(tmp_path, sdist(tmp_path / "out", {}, {"settings": "/home/ann/.aws/credentials", "readme": "a.md"}))
    assert "settings: a link to credentials, /home/ann/.aws/credentials" in said and "readme" not in said


@pytest.mark.skipif(os.name != "posix", reason="links need rights there")
@pytest.mark.parametrize("linked", [".aws/credentials", ".aws"])
def test_what_a_link_of_the_project_leads_to_is_known_again(tmp_path: Path, linked: str):
    settings = "[default]\nrole_arn = arn:aws:iam::1:role/ann\n"
    write(tmp_path / "home", {".aws/credentials": settings})
    write(tmp_path / "project", {"README.md": "# Weather"})
    (tmp_path / "project" / "settings").symlink_to(tmp_path / "home" / linked)
    (tmp_path / "project" / "circle").symlink_to(tmp_path / "project")
    said = refused(tmp_path / "project", wheel(tmp_path / "out", {"pkg/a.txt": settings, "README.md": "# Weather"}))
    assert "  pkg/a.txt: a copy of settings" in said and "README" not in said


def test_a_folder_with_many_files_is_one_line_and_a_long_list_is_cut(tmp_path: Path):
    files = {f".venv/lib/{number}.py": "" for number in range(50)} | {f"{number}.pem": "" for number in range(30)}
    lines = refused(tmp_path, sdist(tmp_path / "out", files)).splitlines()
    assert [line for line in lines if ".venv" in line] == [
        "  .venv/: a cache, or made anew (in weather_mcp-1.0.tar.gz)"
    ]
    assert "  … and 11 more" in lines


def test_a_file_in_two_artefacts_is_named_once(tmp_path: Path):
    made = wheel(tmp_path / "out", {"a.pem": "x"}), sdist(tmp_path / "out", {"a.pem": "x"})
    said = refused(tmp_path, *made)
    assert "a.pem: a private key (in weather_mcp-1.0-py3-none-any.whl, weather_mcp-1.0.tar.gz)" in said


def test_an_exception_holds_for_its_file_alone(tmp_path: Path):
    files = {"tests/ca.pem": "x", "ca.pem": "x"}
    said = refused(tmp_path, sdist(tmp_path / "out", files), allowed=("tests/ca.pem",))
    assert "  ca.pem" in said and "tests/ca.pem" not in said
    reject_private_files(tmp_path, [sdist(tmp_path / "out", files)], ["./tests/*.pem", "ca.pem"])


def test_a_document_that_is_published_is_looked_at_too(tmp_path: Path):
    document = tmp_path / "server.json"
    document.write_text(f'{{"value": "{TOKEN}"}}')
    assert "server.json: it holds a GitHub token" in refused(tmp_path / "project", document)


def test_files_that_are_the_same_by_chance_are_no_copies(tmp_path: Path):
    write(tmp_path / "project", {".env": "\n", ".vscode/settings.json": "{}\n\n\n", "keys.json": "{}"})
    made = wheel(tmp_path / "out", {"pkg/a.txt": "\n", "pkg/b.json": "{}\n\n\n", "pkg/c.json": "{}"})
    reject_private_files(tmp_path / "project", [made], [])
