"""The options of commands that can open the inspector. Nothing of the inspector is imported for them."""

from __future__ import annotations

from argparse import ArgumentParser


def add_web_options(parser: ArgumentParser) -> None:
    parser.add_argument("--web", action="store_true", help="open the inspector: a page in the browser, on loopback")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="the port of the page (default: a free one)")
    parser.add_argument(
        "--store", metavar="ADDRESS", help="with --web: the server's store, to show all of its checkpoints"
    )
    parser.add_argument("--no-browser", action="store_true", help="do not open a browser, only print the address")
