"""{{ cookiecutter.description }}"""

from defserve import Server

server = Server("{{ cookiecutter.project_slug }}")


@server.tool
def greet(name: str) -> str:
    """Greet somebody by name.

    Args:
        name: Whom to greet.
    """
    return f"Hello, {name}!"


if __name__ == "__main__":
    server.main()
