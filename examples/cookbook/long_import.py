"""A long import: it tells how far it is, can be cancelled, and reports the lines that it could not read."""

import csv
import os
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from defserve import Context, Server, ToolError, Within, moderate

FOLDER = os.environ.get("IMPORT_FOLDER", ".")

server = Server("people", "1.0.0")
people: dict[str, "Person"] = {}


class Person(BaseModel):
    email: str = Field(pattern=r"^\S+@\S+$")
    name: str
    age: int = Field(ge=0, le=150)


class Report(BaseModel):
    imported: int
    problems: list[str]


@server.tool(task="optional", ttl=3600, timeout=1800)
@moderate("filesystem.read")
def import_people(file: Annotated[Path, Within(FOLDER)], ctx: Context) -> Report:
    """Import people from a CSV file with the columns email, name and age.

    Args:
        file: Its path, relative to the folder for imports.
    """
    if not file.is_file():
        raise ToolError(f"There is no file {file.name}.")
    with file.open(newline="", encoding="utf-8") as text:
        rows = list(csv.DictReader(text))
    found, problems = list[Person](), list[str]()
    for line, row in enumerate(ctx.track(rows), 2):
        if ctx.cancelled:
            raise ToolError(f"Cancelled at line {line}. Nothing was imported.")
        try:
            found.append(Person.model_validate(row))
        except ValidationError as error:
            problems.append(f"line {line}: {error.errors()[0]['loc'][0]}: {error.errors()[0]['msg']}")
    people.update({person.email: person for person in found})
    return Report(imported=len(found), problems=problems[:20])


if __name__ == "__main__":
    server.main()
