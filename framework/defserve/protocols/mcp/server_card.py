"""Who a server is, for people and programs that haven't connected: its profile, and the documents made from it.

    ServerDescription ─┐                   ┌─► server card, AI catalog    served over HTTP
                       ├─► ServerProfile ──┼─► the page for browsers
    package metadata ──┘                   └─► server.json, manifest.json  published with a package

A profile is what the server says to everyone who connects (`serverInfo`), cut to the lengths that the documents allow,
with what the package adds: the name in the registry, the repository. It has no tools, no capabilities and no
instructions, so the documents can be public even if the server needs a token. Nothing here is imported before the first
document is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from defserve.core.json_values import as_list, is_mapping
from defserve.protocols.mcp.versions import PROTOCOL_VERSIONS

if TYPE_CHECKING:
    from defserve.protocols.mcp.lifecycle import ServerDescription

CARD_SCHEMA: Final = "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json"
CARD_MEDIA_TYPE: Final = "application/mcp-server-card+json"
CATALOG_VERSION: Final = "1.0"

# What the card and `server.json` allow. The lengths are in characters.
MAX_NAME_LENGTH, MAX_VERSION_LENGTH, MAX_TEXT_LENGTH, MAX_URL_LENGTH = 200, 255, 100, 2_000
MAX_NAMESPACE_LENGTH: Final = 120
NAME: Final = re.compile(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+")
VERSION: Final = re.compile(r"\d[0-9A-Za-z.+!_-]*")
VERSION_WILDCARD: Final = re.compile(r"(?:^|\.)[xX*](?:$|\.)")
NOT_IN_NAME: Final = re.compile(r"[^a-zA-Z0-9._-]+")
WEB_URL: Final = re.compile(r"https?://[^\s/]\S*")
ICON_TYPES: Final = frozenset(("image/png", "image/jpeg", "image/jpg", "image/svg+xml", "image/webp"))
ICON_SIZE: Final = re.compile(r"\d+x\d+|any")
MARKER: Final = re.compile(r"mcp-name:\s*([^\s>]+?)(?=\s|-->|$)")

# The host of a repository → what registries call it.
REPOSITORY_SOURCES: Final[Mapping[str, str]] = {"github.com": "github", "gitlab.com": "gitlab"}
REPOSITORY_LABELS: Final = ("repository", "source", "source code")
WEBSITE_LABELS: Final = ("homepage", "website")


@dataclass(frozen=True, slots=True)
class PackageMetadata:
    """What a package says about itself: one line, its README, and its URLs by label."""

    summary: str = ""
    readme: str = ""
    urls: Mapping[str, str] | None = None

    def find_url(self, labels: Sequence[str]) -> str:
        """The first URL with one of these labels; empty if there is none."""
        return next((url for label, url in (self.urls or {}).items() if label.strip().lower() in labels), "")


@dataclass(frozen=True, slots=True)
class ServerProfile:
    """What every document says of a server. Each member fits its rules, or is empty and left out.

    `name` is the name in the registry (`io.github.ann/weather`) that the README claims, `short_name` that of
    `serverInfo`. `details` is the whole description, if `description` is only its beginning. `remotes` are the
    addresses of the endpoint.
    """

    name: str
    short_name: str
    version: str
    description: str
    title: str = ""
    details: str = ""
    website_url: str = ""
    repository_url: str = ""
    icons: tuple[Mapping[str, Any], ...] = ()
    remotes: tuple[str, ...] = ()

    @property
    def repository(self) -> dict[str, str]:
        """The repository as the documents name it. Empty if registries don't know its host."""
        source = REPOSITORY_SOURCES.get(urlsplit(self.repository_url).hostname or "")
        return {"url": self.repository_url, "source": source} if source else {}

    @property
    def shared_members(self) -> dict[str, Any]:
        """The members that the card and `server.json` share, without empty ones."""
        members: dict[str, Any] = {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "version": self.version,
            "websiteUrl": self.website_url,
            "repository": self.repository,
            "icons": [dict(icon) for icon in self.icons],
            "remotes": [{"type": "streamable-http", "url": url} for url in self.remotes],
        }
        required = ("name", "description", "version")
        return {member: value for member, value in members.items() if value or member in required}

    def at_address(self, address: str) -> ServerProfile:
        """The profile of the server at an address. A server that is in no registry is named by the host."""
        host = urlsplit(address).hostname or ""
        name = self.name if is_registry_name(self.name) else make_card_name(host, self.short_name)
        return replace(self, name=name, remotes=(address,))


def make_server_profile(info: Mapping[str, Any], package: PackageMetadata | None = None) -> ServerProfile:
    """The profile of a server that says `info` (`serverInfo`) about itself. `package` is where it comes from."""
    package = package or PackageMetadata()
    short_name, title = str(info.get("name") or ""), _cut_text(info.get("title"))
    details = " ".join(str(info.get("description") or package.summary or title or short_name).split())
    description = _cut_text(details)
    website, homepage = str(info.get("websiteUrl") or ""), package.find_url(WEBSITE_LABELS)
    return ServerProfile(
        name=find_registry_name_in_readme(package.readme) or "",
        short_name=short_name,
        version=str(info.get("version") or ""),
        description=description or "An MCP server",
        title=title,
        details=details if details != description else "",
        website_url=next(filter(is_web_url, (website, homepage)), ""),
        repository_url=next(filter(is_web_url, (package.find_url(REPOSITORY_LABELS),)), ""),
        icons=tuple(icon for icon in as_list(info.get("icons") or []) if _is_public_icon(icon)),
    )


def make_running_server_profile(identity: ServerDescription) -> ServerProfile:
    """The profile of a server of this process. Its package counts only if it has the version that the server tells."""
    found = identity.find_distribution()
    package = None
    if found is not None and found.version == identity.version:
        about = found.metadata
        labelled = (url.partition(",") for url in about.get_all("Project-URL") or ())
        urls = {label.strip(): url.strip() for label, _, url in labelled}
        summary, readme, homepage = ((about.get_all(key) or [""])[0] for key in ("Summary", "Description", "Home-page"))
        package = PackageMetadata(summary, readme, {**urls, **({"Homepage": homepage} if homepage else {})})
    return make_server_profile(identity.info(PROTOCOL_VERSIONS[-1].name), package)


# -- The documents that are served.


def make_server_card(profile: ServerProfile) -> dict[str, Any] | None:
    """The server card. None if the server's version can't be in one, because it is a range or a word."""
    if not is_exact_version(profile.version):
        return None
    return {"$schema": CARD_SCHEMA, **profile.shared_members}


def make_ai_catalog(profile: ServerProfile, card_url: str) -> dict[str, Any]:
    """A catalog of this server alone. It repeats nothing that the card says."""
    namespace, _, name = profile.name.partition("/")
    # A publisher is a domain, and a namespace is one that is written backwards.
    identifier = f"urn:air:{_reverse_domain(namespace)}:mcp:{name}"
    return {
        "specVersion": CATALOG_VERSION,
        "entries": [{"identifier": identifier, "type": CARD_MEDIA_TYPE, "url": card_url}],
    }


def make_card_name(host: str, name: str) -> str:
    """The name of a server that is in no registry: `com.example.tools/weather` for tools.example.com."""
    domain = _reverse_domain(host) if re.fullmatch(r"[a-zA-Z0-9.-]+", host) else "localhost"
    namespace = domain[:MAX_NAMESPACE_LENGTH]
    word = NOT_IN_NAME.sub("-", name).strip("-") or "server"
    return f"{namespace}/{word[: MAX_NAME_LENGTH - len(namespace) - 1]}"


def _reverse_domain(domain: str) -> str:
    try:
        ip_address(domain)
    except ValueError:
        return ".".join(reversed(domain.split(".")))
    return domain


# -- What fits the rules of the documents.


def find_registry_name_in_readme(readme: str) -> str | None:
    """The registry name that a README claims: `<!-- mcp-name: io.github.me/weather -->`."""
    found = MARKER.search(readme)
    return found[1] if found else None


def is_registry_name(name: str) -> bool:
    return 3 <= len(name) <= MAX_NAME_LENGTH and NAME.fullmatch(name) is not None


def is_exact_version(version: str) -> bool:
    """Whether a version names one release: no range (`^1.0`, `1.x`) and no word (`latest`)."""
    is_plain = len(version) <= MAX_VERSION_LENGTH and VERSION.fullmatch(version) is not None
    return is_plain and VERSION_WILDCARD.search(version) is None


def is_web_url(url: object) -> bool:
    return isinstance(url, str) and len(url) <= MAX_URL_LENGTH and WEB_URL.fullmatch(url) is not None


def _is_public_icon(icon: object) -> bool:
    """Whether everyone can load an icon, and registries take it. A `data:` icon is only told to who connects."""
    if not is_mapping(icon) or not icon.keys() <= {"src", "mimeType", "sizes", "theme"}:
        return False
    src, sizes = icon.get("src"), as_list(icon.get("sizes") or [])
    return (
        is_web_url(src)
        and str(src).startswith("https://")
        and icon.get("mimeType", "image/png") in ICON_TYPES
        and icon.get("theme", "light") in ("light", "dark")
        and all(isinstance(size, str) and ICON_SIZE.fullmatch(size) for size in sizes)
    )


def _cut_text(text: object) -> str:
    """A text on one line, cut at a word if it is too long."""
    line = " ".join(str(text or "").split())
    if len(line) <= MAX_TEXT_LENGTH:
        return line
    return line[: MAX_TEXT_LENGTH - 1].rsplit(" ", 1)[0].rstrip(" ,;:.") + "…"
