"""What `cookiecutter` needs to fill a project: the server bodies of `../templates`, and the texts of the licences."""

from pathlib import Path

from jinja2 import Environment, pass_context
from jinja2.ext import Extension
from jinja2.runtime import Context

HERE = Path(__file__).parent


class Bodies(Extension):
    """Adds `body("server.py")`, a file of the chosen body, and `licence()`, the text of the chosen licence."""

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        environment.globals["body"] = self.body
        environment.globals["licence"] = self.licence

    @pass_context
    def body(self, context: Context, name: str) -> str:
        return self._filled(context, HERE.parent / "templates" / context["cookiecutter"]["body"] / name)

    @pass_context
    def licence(self, context: Context) -> str:
        return self._filled(context, HERE / "licences" / context["cookiecutter"]["licence"])

    def _filled(self, context: Context, path: Path) -> str:
        text = path.read_text(encoding="utf-8").removesuffix("\n")
        return self.environment.from_string(text).render(context.get_all())
