"""The site: Sphinx with furo and MyST, built offline, MathJax included."""

import re

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


def keep_bars(*arguments):
    """Formulas write |x| for a size; reStructuredText would read a substitution."""
    lines = arguments[-1]
    for number, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            parts = re.split(r"(``.*?``)", line)
            parts[::2] = [part.replace("|", r"\|") for part in parts[::2]]
            lines[number] = "".join(parts)


def setup(app):
    app.connect("autodoc-process-docstring", keep_bars)
