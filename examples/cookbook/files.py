"""Files of one folder: no path leads out of it, nothing large is read, and nothing is deleted unasked."""

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field

from defserve import Server, ToolError, Within, dangerous, moderate

ROOT = Path(os.environ.get("FILES_ROOT", "."))
LONGEST = 100_000  # bytes
server = Server("files", "1.0.0")
Inside = Annotated[Path, Within(ROOT), "A path relative to the folder, such as notes/today.md."]
Pattern = Annotated[str, Field(pattern=r"^[\w.*?-]+$", description="Names of files, such as *.md.")]
Content = Annotated[str, Field(max_length=LONGEST, description="All of the text.")]


def existing(file: Path) -> Path:
    if not file.is_file():
        raise ToolError(f"There is no file {file.name!r}. Use list_files to see what there is.")
    return file


@server.tool
@moderate("filesystem.read")
def list_files(pattern: Pattern = "*") -> list[str]:
    """The files of the folder and its subfolders."""
    found = (file.relative_to(ROOT).as_posix() for file in ROOT.rglob(pattern) if file.is_file())
    return sorted(found)[:200]


@server.tool
@moderate("filesystem.read")
def read_file(path: Inside) -> str:
    """Read a text file."""
    if existing(path).stat().st_size > LONGEST:
        raise ToolError(f"It is longer than {LONGEST} bytes.")
    return path.read_text(encoding="utf-8", errors="replace")


@server.tool
@moderate("filesystem.write")
def write_file(path: Inside, text: Content) -> str:
    """Write a text file; one that is there is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return f"{len(text)} characters written"


@server.tool
@dangerous("filesystem.write")
def delete_file(path: Inside) -> str:
    """Delete a file."""
    existing(path).unlink()
    return "It is gone."


if __name__ == "__main__":
    server.main()
