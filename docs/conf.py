"""The Sphinx configuration. `make docs` treats every warning as an error."""

from __future__ import annotations

import importlib
import re
import sys
from importlib.metadata import version as version_of
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pygments.lexers import TextLexer
from sphinx.ext.napoleon.docstring import GoogleDocstring

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

project = "lifecycle"
author = "The lifecycle authors"
copyright = author
release = version = version_of("lifecycle-control")

# Makes tables.py importable, which is in this directory.
sys.path.insert(0, str(Path(__file__).parent))
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "tables"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "lifecycle"

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
maximum_signature_line_length = 88
python_use_unqualified_type_names = True
default_role = "py:obj"

PACKAGES = (
    "control",
    "runtime",
    "sources",
    "sources.signatures",
    "handlers",
    "interactive",
    "workers",
    "workers.pool",
    "flows",
    "bridges",
    "observe",
    "observe.mermaid",
    "testing",
    "errors",
    "hooks",
    "states",
    "backoff",
    "journal",
)


def public_names() -> dict[str, str]:
    """Return the package that documents each public name. For example, `Router` is documented in lifecycle.control."""
    packages = {package: importlib.import_module(f"lifecycle.{package}") for package in PACKAGES}
    # The first package that exports a name documents it, except for errors, which have their own page.
    found = dict.fromkeys(packages["errors"].__all__, "lifecycle.errors")
    for package, module in packages.items():
        for name in module.__all__:
            found.setdefault(name, f"lifecycle.{package}")
    return found


def resolve(app: Sphinx, env: Any, node: nodes.Element, content: nodes.Element) -> nodes.Node | None:
    """Link the short names of public objects to their pages. Other names in backticks remain plain."""
    if node.get("refdomain") != "py":
        return None
    name, _, member = str(node["reftarget"]).rpartition("lifecycle.")[2].rpartition(".")
    head, tail = (name, member) if name else (member, "")
    names: dict[str, str] = app.config.lifecycle_names
    package = names.get(head.rpartition(".")[2])
    if package is None:
        return None
    target = ".".join(filter(None, (package, head.rpartition(".")[2], tail)))
    domain = env.get_domain("py")
    if target not in domain.objects:
        return None
    found: nodes.Node = domain.resolve_any_xref(env, node["refdoc"], app.builder, target, node, content)[0][1]
    return found


def clean(*args: Any) -> None:
    """Remove text that the pages show elsewhere, or that Python generates."""
    _app, what, name, obj, _options, lines = args
    if name == "lifecycle.errors":
        del lines[1:]  # The page includes the error tree from the source.
    elif what == "data" and not isinstance(obj, type) and type(obj).__module__ in ("builtins", "types", "typing"):
        lines.clear()  # The docstring of `tuple` or `Union`.
    elif lines and lines[0].startswith("Alias for field number"):
        lines.clear()  # This field of a named tuple has no comment.


def show_given_types(*args: Any) -> tuple[str, str] | None:
    """Show the type that a converted field of a record accepts, instead of the descriptor for type checkers."""
    signature, returned = args[-2:]
    if signature is None:
        return None
    signature = re.sub(r"Converted\[.*? \| None, (.*? \| None)\]", r"\1", signature)
    return signature.replace("OptionalDurationField", "Duration | None").replace("DurationField", "Duration"), returned


def show_stored_types() -> None:
    """Show the type that a converted field of a record stores, in the description of the field."""
    for name, package in public_names().items():
        fields = getattr(getattr(importlib.import_module(package), name), "__annotations__", {})
        for field, kind in fields.items():
            if isinstance(kind, str):
                stored = re.sub(r"Converted\[(.*? \| None), .*\]", r"\1", kind)
                stored = stored.replace("OptionalDurationField", "float | None")
                fields[field] = stored.replace("DurationField", "float")


def inline_attribute(docstring: Any) -> tuple[str, list[str]]:
    """Return all text of an attribute as its description. Napoleon reads the words before a colon as the type."""
    lines = docstring._dedent(docstring._consume_to_end())  # Napoleon has no setting for this
    return "", type(docstring)(lines, docstring._config).lines()


def setup(app: Sphinx) -> None:
    """Set up the extension. Sphinx calls this."""
    # The pages show the source of Mermaid diagrams.
    app.add_lexer("mermaid", TextLexer)
    app.add_config_value("lifecycle_names", public_names(), "env")
    app.connect("missing-reference", resolve)
    app.connect("autodoc-process-docstring", clean)
    app.connect("autodoc-process-signature", show_given_types)
    show_stored_types()
    GoogleDocstring._consume_inline_attribute = inline_attribute  # type: ignore[method-assign]
