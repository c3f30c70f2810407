"""The command `make docs`: the site, built and checked, in build/docs/site.

It exits with 1 if a link leads nowhere, if a browser would ask anybody else for something, or if the search does not
lead questions to the pages that answer them. With `--serve` the site is then served on loopback, to be read.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

from . import finding, html, models, playground, questions
from .pages import Pages
from .places import BUILD, ROOT, SITE, THEME
from .settings import settings


def main(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    began = time.monotonic()
    pages = Pages()
    problems = build(pages) or html.problems(SITE)
    scores = [questions.measure(each) for each in questions.SETS] if not problems else []
    problems += [problem for score in scores for problem in score.problems]
    if problems:
        print("\n".join(problems), file=sys.stderr)
        print(f"{len(problems)} problems", file=sys.stderr)
        return 1
    count = sum(1 for _ in SITE.rglob("*.html"))
    took = f"{time.monotonic() - began:.1f} s"
    print(f"{count} pages in {SITE.relative_to(ROOT)}: no link is broken, nothing is loaded from elsewhere ({took})")
    for score in scores:
        print(f"questions to the search, {score}")
        if options.questions:
            print("".join(f"   {line}\n" for line in score.misses), end="")
    if options.serve is not None:
        serve(options.serve)
    return 0


def build(pages: Pages) -> list[str]:
    """Build the site. Returns what the generator complained of."""
    shutil.rmtree(BUILD, ignore_errors=True)
    pages.write()
    shutil.copytree(THEME, BUILD / "theme", ignore=shutil.ignore_patterns("*.css", "*.js", "*.toml"))
    (BUILD / "zensical.toml").write_text(settings(pages), encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    plain = {**os.environ, "NO_COLOR": "1"}
    done = subprocess.run(command, cwd=BUILD, env=plain, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        return [re.sub(r"\x1b\[[\d;]*m", "", done.stdout).partition("Traceback (")[0]]
    finding.write(pages)
    models.write(pages)
    playground.write()
    return []


def serve(port: int) -> None:
    handler = partial(SimpleHTTPRequestHandler, directory=str(SITE))
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        print(f"serving on http://127.0.0.1:{server.server_address[1]}/ (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog='make docs ARGS="…"', description=__doc__)
    parser.add_argument("--serve", nargs="?", type=int, const=8000, metavar="PORT", help="serve the site on loopback")
    parser.add_argument("--questions", action="store_true", help="also list questions that the search misses")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
