"""A Dockerfile, carried out without Docker: its files in a folder, its commands with this Python."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from packaging.requirements import Requirement

DOCKERFILE_LINE = re.compile(r"^([A-Z]+)\s+(.*)$")


@dataclass
class Image:
    """What a Dockerfile makes: the folder it runs in, variables, and what it runs."""

    folder: Path
    bin: Path
    environment: dict[str, str] = field(default_factory=dict[str, str])
    entrypoint: list[str] = field(default_factory=list[str])
    command: list[str] = field(default_factory=list[str])
    healthcheck: list[str] = field(default_factory=list[str])
    user: str = "root"
    ports: list[int] = field(default_factory=list[int])

    @property
    def variables(self) -> dict[str, str]:
        return {"PATH": str(self.bin), "HOME": str(self.bin.parent), **self.environment}


def carried_out(dockerfile: Path, at: Path) -> Image:
    """The image of a Dockerfile. Raises AssertionError for a step that fails, or that this does not know."""
    image = Image(at / "root", at / "bin")
    for folder in (image.folder, image.bin):
        folder.mkdir()
    for name, module in {"python": "", "defserve": " -m defserve"}.items():
        _script(image.bin / name, f'exec {sys.executable}{module} "$@"')
    _script(image.bin / "pip", 'printf "%s\\n" "$@" >> "$HOME/pip.log"')
    _script(image.bin / "useradd", 'printf "%s\\n" "$@" >> "$HOME/users.log"')
    for step, words in steps(dockerfile.read_text(encoding="utf-8")):
        _carry_out(image, step, words, dockerfile.parent)
    for wanted in _logged(at / "pip.log"):
        _assert_installed(Requirement(wanted))
    assert image.user in _logged(at / "users.log"), f"there is no user {image.user}"
    return image


def steps(text: str) -> list[tuple[str, str]]:
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    found = [DOCKERFILE_LINE.match(line) for line in lines if line.strip() and not line.startswith("#")]
    return [(step[1], step[2]) for step in found if step is not None]


def _carry_out(image: Image, step: str, words: str, context: Path) -> None:
    match step:
        case "FROM":
            assert re.fullmatch(r"python:3\.\d+-slim", words)
        case "WORKDIR":
            image.folder = image.folder.parent / "root" / words.lstrip("/")
            image.folder.mkdir(parents=True, exist_ok=True)
        case "COPY":
            *sources, target = words.split()
            for source in sources:
                shutil.copy(context / source, image.folder / target)
        case "RUN":
            subprocess.run(words, shell=True, check=True, env=image.variables, cwd=image.folder)
        case "ENV":
            image.environment |= dict(word.split("=", 1) for word in shlex.split(words))
        case "USER":
            image.user = words
        case "EXPOSE":
            image.ports.append(int(words))
        case "HEALTHCHECK":
            image.healthcheck = json.loads(words.partition("CMD ")[2])
        case "ENTRYPOINT":
            image.entrypoint = json.loads(words)
        case "CMD":
            image.command = json.loads(words)
        case _:
            raise AssertionError(f"a step that is not known: {step} {words}")


def _script(file: Path, line: str) -> None:
    file.write_text(f"#!/bin/sh\n{line}\n")
    file.chmod(0o755)


def _logged(file: Path) -> list[str]:
    """The words of commands that were only written down, without options."""
    words = file.read_text().splitlines() if file.exists() else []
    return [word for word in words if not word.startswith("-") and word != "install"]


def _assert_installed(wanted: Requirement) -> None:
    """That the package is here, with the extras that the Dockerfile names."""
    from importlib.metadata import metadata

    here = metadata(wanted.name)
    assert wanted.extras <= set(here.get_all("Provides-Extra") or ())
