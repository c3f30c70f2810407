"""The version of defserve. The build reads it from here too."""

from __future__ import annotations

VERSION = "0.2.0"
