"""What a tool can answer with besides text and data: pictures, sounds, links, embedded resources, files."""

from base64 import b64decode

from defserve import Audio, Embedded, File, Image, Link, Server

server = Server("content", "1.0.0")

# A picture of one pixel and a sound of one sample.
DOT = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABAQAAAAA3bvkkAAAACklEQVR42mNgAAAAAgAB5Sfe/AAAAABJRU5ErkJggg==")
CLICK = b"RIFF\x25\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x40\x1f\0\0\1\0\x08\0data\1\0\0\0\x80"


@server.tool
def picture() -> Image:
    """A very small picture."""
    return Image(DOT)


@server.tool
def sound() -> Audio:
    """A very short sound."""
    return Audio(CLICK)


@server.tool
def signpost() -> Link:
    """Where to read on."""
    return Link("text://welcome", title="Welcome", mime_type="text/plain", annotations={"audience": ["user"]})


@server.tool
def enclosure() -> Embedded:
    """A resource, sent along."""
    return Embedded("text://enclosed", text="enclosed", mime_type="text/plain")


@server.tool
def report() -> File:
    """A file, sent along."""
    return File(data="city,degrees\nOslo,21\n", name="report.csv")


if __name__ == "__main__":
    server.main()
