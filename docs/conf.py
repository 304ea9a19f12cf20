"""How Sphinx builds these pages; every warning is an error (`make docs`)."""

from __future__ import annotations

import importlib
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING, Any

from pygments.lexers import TextLexer

if TYPE_CHECKING:
    from docutils import nodes
    from sphinx.application import Sphinx

project = "lifecycle"
author = "The lifecycle authors"
copyright = author
release = version = version_of("lifecycle-control")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = "lifecycle"

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
default_role = "py:obj"

ROOMS = (
    "control",
    "runtime",
    "sources",
    "handlers",
    "workers",
    "flows",
    "testing",
    "errors",
    "hooks",
    "states",
    "backoff",
)


def public_names() -> dict[str, str]:
    """From a name to where it is documented: docstrings say `Router`, the page says lifecycle.control.Router."""
    rooms = {room: importlib.import_module(f"lifecycle.{room}") for room in ROOMS}
    # The first room that offers a name documents it; errors have a page of their own.
    found = dict.fromkeys(rooms["errors"].__all__, "lifecycle.errors")
    for room, module in rooms.items():
        for name in module.__all__:
            found.setdefault(name, f"lifecycle.{room}")
    return found


def resolve(app: Sphinx, env: Any, node: nodes.Element, content: nodes.Element) -> nodes.Node | None:
    """Link short names of public things to their pages; whatever else is in backticks stays plain."""
    if node.get("refdomain") != "py":
        return None
    name, _, member = str(node["reftarget"]).rpartition("lifecycle.")[2].rpartition(".")
    head, tail = (name, member) if name else (member, "")
    names: dict[str, str] = app.config.lifecycle_names
    room = names.get(head.rpartition(".")[2])
    if room is None:
        return None
    target = ".".join(filter(None, (room, head.rpartition(".")[2], tail)))
    domain = env.get_domain("py")
    if target not in domain.objects:
        return None
    found: nodes.Node = domain.resolve_any_xref(env, node["refdoc"], app.builder, target, node, content)[0][1]
    return found


def without_tree(*args: Any) -> None:
    """The tree in the docstring of errors.py is included as it stands; here only the summary is kept."""
    _app, _what, name, _obj, _options, lines = args
    if name == "lifecycle.errors":
        del lines[1:]


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    # Where Mermaid is not drawn, on these pages, it is shown as it is.
    app.add_lexer("mermaid", TextLexer)
    app.add_config_value("lifecycle_names", public_names(), "env")
    app.connect("missing-reference", resolve)
    app.connect("autodoc-process-docstring", without_tree)
