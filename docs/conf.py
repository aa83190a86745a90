"""How the pages are built: ``make docs``."""

from __future__ import annotations

import sys
from pathlib import Path

import workspan

sys.path.insert(0, str(Path(__file__).parent))
import drawings

# The figures are drawn from the library that is documented.
drawings.write_all(Path(__file__).parent / "_figures")

project = "Workspan"
author = "Workspan contributors"
release = version = workspan.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
napoleon_google_docstring = False  # it takes a colon in the first line of a property for the end of a type
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "Workspan"
html_show_copyright = False
