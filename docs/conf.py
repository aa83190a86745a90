"""How the pages are built: ``make docs``."""

from __future__ import annotations

import workspan

project = "Workspan"
author = "Workspan contributors"
release = version = workspan.__version__

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
nitpicky = True

html_theme = "furo"
html_title = "Workspan"
html_show_copyright = False
