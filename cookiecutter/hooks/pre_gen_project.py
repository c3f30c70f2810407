"""Refuses answers that would break the project."""

import keyword
import re
import sys

ANSWERS = {
    "project_name": {{ cookiecutter.project_name|jsonify }},
    "project_slug": {{ cookiecutter.project_slug|jsonify }},
    "package_name": {{ cookiecutter.package_name|jsonify }},
    "description": {{ cookiecutter.description|jsonify }},
    "author": {{ cookiecutter.author|jsonify }},
    "github_user": {{ cookiecutter.github_user|jsonify }},
}
RULES = {{ cookiecutter._rules|jsonify }}
RESERVED_NAMES = {{ cookiecutter._reserved_names|jsonify }}
RESERVED = {{ cookiecutter._reserved|jsonify }}

for name, answer in ANSWERS.items():
    pattern, fix = RULES[name]
    if not re.fullmatch(pattern, answer):
        sys.exit(f"{name}: {answer!r} is not valid\n  fix: {fix}")

slug = ANSWERS["project_slug"]
if slug in RESERVED_NAMES:
    problem = f"project_slug: {slug!r} means something else to programs that read it"
    sys.exit(f"{problem}\n  fix: use another, for example {slug}-server")

package = ANSWERS["package_name"]
if keyword.iskeyword(package) or package in sys.stdlib_module_names or package in RESERVED:
    problem = f"package_name: {package!r} is taken by another module"
    sys.exit(f"{problem}\n  fix: use another, for example {package}_server")
