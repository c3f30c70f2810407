"""{{ cookiecutter.description }}"""

from defserve import Server, safe

server = Server("{{ cookiecutter.project_slug }}")


@server.tool(title="Greet somebody")
@safe
def greet(name: str) -> str:
    """Greet somebody by name.

    Args:
        name: Whom to greet.
    """
    return f"Hello, {name}!"


if __name__ == "__main__":
    server.main()
