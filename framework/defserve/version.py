"""The version of defserve, in its one place: the build reads it from here too."""

from __future__ import annotations

VERSION = "0.1.0"
