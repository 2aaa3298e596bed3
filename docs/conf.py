"""The site: Sphinx with furo and MyST, built offline, MathJax included."""

import re
from dataclasses import MISSING, fields, is_dataclass

import coset

project = "coset"
author = "The coset developers"
copyright = "2026, the coset developers"
version = release = coset.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # carries MathJax, so that pages need no network
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
napoleon_google_docstring = True
napoleon_use_ivar = True
napoleon_attr_annotations = False  # shapes such as "*pixels" would be read as emphasis

html_theme = "furo"
html_title = f"coset {version}"
html_static_path = ["_static"]
html_css_files = ["coset.css"]
html_show_sphinx = False
html_copy_source = False

COLON = "\ue000"  # stands for a colon while napoleon looks for types in front of one
RETURNS = re.compile(r"^ *Returns:\n(?: +.+\n?)+", re.MULTILINE)


def hide_colons(app, what, name, subject, options, lines):
    """Types stand in annotations only: what a property is, or a function returns, is all prose."""
    prose = re.compile(".+") if what == "property" else RETURNS
    text = "\n".join(lines)
    lines[:] = prose.sub(lambda found: found[0].replace(": ", COLON + " "), text).split("\n")


def keep_signs(*arguments):
    """Formulas write |x| for a size; reStructuredText would read a substitution."""
    lines = arguments[-1]
    for number, line in enumerate(lines):
        parts = re.split(r"(``.*?``)", line.replace(COLON, ":"))
        if not line.lstrip().startswith((">>>", "...")):
            parts[::2] = [part.replace("|", r"\|") for part in parts[::2]]
        lines[number] = "".join(parts)


def name_factories(app, what, name, subject, options, signature, returns):
    """Defaults that a dataclass makes anew; ``<factory>`` is no Python, and hides the types too."""
    if signature and is_dataclass(subject):
        for field in fields(subject):
            if (make := field.default_factory) is not MISSING:
                default = f"{make.__name__}()" if is_dataclass(make) else repr(make())
                signature = signature.replace("<factory>", default, 1)
    return signature, returns


def setup(app):
    app.connect("autodoc-process-docstring", hide_colons, priority=400)  # napoleon comes at 500
    app.connect("autodoc-process-docstring", keep_signs)
    app.connect("autodoc-process-signature", name_factories)
