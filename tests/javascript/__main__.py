"""The JavaScript of our pages: formatted as prettier does, and nothing that eslint finds. Both come from npm.

python -m tests.javascript          check
python -m tests.javascript --fix    format, then check
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.conformance.suite_install import install_all, node

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
FOLDER = ROOT / ".page-tools"
# Exact: another version may format otherwise.
PACKAGES = (("prettier", "3.10.1"), ("eslint", "10.15.0"))
# Linted only: it is sent with every view, and servers that mount one look for its third line as it is.
UNFORMATTED = "framework/defserve/protocols/mcp/bridge.js"
PATTERNS = (
    "framework/defserve/inspector/page/**/*.js",
    "framework/defserve/server/page.js",
    UNFORMATTED,
    "docs/theme/*.js",
)


def sources() -> list[str]:
    """What we have written ourselves, relative to the root."""
    found = {path.relative_to(ROOT) for pattern in PATTERNS for path in ROOT.glob(pattern)}
    return sorted(path.as_posix() for path in found if "vendor" not in path.parts)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.javascript", description="Formats and lints our pages.")
    parser.add_argument("--fix", action="store_true", help="format the files")
    fix: bool = parser.parse_args(arguments).fix
    files = sources()
    _install()
    ours = [file for file in files if file != UNFORMATTED]
    formatted = _format(ours) if fix else _is_formatted(ours)
    linted = _eslint(files)
    if formatted and linted:
        print(f"   {len(files)} files, formatted, and nothing found")
    return 0 if formatted and linted else 1


def _install() -> None:
    try:
        install_all(PACKAGES, FOLDER)
    except SystemExit as failed:
        wanted = " and ".join(f"{name} {version}" for name, version in PACKAGES)
        raise SystemExit(f"{failed}\n{wanted} are not in {FOLDER.name}/ and could not be had from npm") from None


def _is_formatted(files: Sequence[str]) -> bool:
    done = _prettier("--check", files)
    if done.returncode:
        print(f"{done.stdout}{done.stderr}not formatted; run: python -m tests.javascript --fix", file=sys.stderr)
    return done.returncode == 0


def _format(files: Sequence[str]) -> bool:
    """Format the files; one whose texts would lose or gain a space stays as it was."""
    before = {file: (ROOT / file).read_text(encoding="utf-8") for file in files}
    done = _prettier("--write", files)
    if done.returncode:
        print(f"{done.stdout}{done.stderr}", file=sys.stderr)
        return False
    after = {file: (ROOT / file).read_text(encoding="utf-8") for file in files}
    changed = {file: (before[file], after[file]) for file in files if before[file] != after[file]}
    spaces = _changed_spaces(changed)
    for file in changed:
        if f"{file}:" in spaces:
            (ROOT / file).write_text(before[file], encoding="utf-8")
        else:
            print(f"   formatted {file}")
    if spaces:
        hint = 'not formatted: the spaces of these texts would change. Write ${" "} where one has to stay'
        print(f"{spaces}{hint}, and no white space where there is none.", file=sys.stderr)
    return not spaces


def _changed_spaces(changed: Mapping[str, tuple[str, str]]) -> str:
    return _node(HERE / "spaces.mjs", str(FOLDER), input=json.dumps(changed), check=True).stdout


def _prettier(option: str, files: Sequence[str]) -> subprocess.CompletedProcess[str]:
    program = FOLDER / "node_modules" / "prettier" / "bin" / "prettier.cjs"
    return _node(program, "--config", str(HERE / "prettier.json"), "--log-level", "warn", option, *files)


def _eslint(files: Sequence[str]) -> bool:
    program = FOLDER / "node_modules" / "eslint" / "bin" / "eslint.js"
    done = _node(program, "--config", str(HERE / "eslint.config.mjs"), "--max-warnings", "0", *files)
    print(f"{done.stdout}{done.stderr}", end="", file=sys.stderr)
    return done.returncode == 0


def _node(
    program: Path, *arguments: str, input: str | None = None, check: bool = False
) -> subprocess.CompletedProcess[str]:
    command = [str(node()), str(program), *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", input=input, check=check)


if __name__ == "__main__":
    sys.exit(main())
