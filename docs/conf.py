"""The documentation site: `make docs` builds it with Sphinx and MyST; a link that leads nowhere fails the build."""

from pygments.lexers.c_cpp import CLexer
from sphinx.highlighting import lexers

from tunesmith import __version__

project = "Tunesmith"
release = version = __version__
project_copyright = "the Tunesmith authors, Apache-2.0"

extensions = ["myst_parser", "sphinx.ext.autodoc"]
autodoc_typehints = "none"
myst_enable_extensions = ["colon_fence"]
# Headings down to this level can be linked to, by the names that GitHub gives them.
myst_heading_anchors = 4
# No page may be called `search`: the page of the site's own search would take its place.
exclude_patterns = ["_build"]
nitpicky = True
# Types and names in docstrings are not links.
nitpick_ignore_regex = [("py:.*", ".*")]
# A block of TOML may be a part of a file, which alone is no TOML.
suppress_warnings = ["misc.highlighting_failure"]
lexers["opencl"] = CLexer()

html_theme = "furo"
html_title = f"Tunesmith {release}"
html_copy_source = False
