"""The documentation site: `make docs` builds it with Sphinx and MyST. A link that leads nowhere fails the build, and so
does a figure that is not in the results which its section names."""

import sys
from pathlib import Path
from typing import Any

from pygments.lexers.c_cpp import CLexer
from sphinx.errors import ExtensionError
from sphinx.highlighting import lexers

from tunesmith import __version__

sys.path.insert(0, str(Path(__file__).parent))
from figures import unfounded

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


def setup(app: Any) -> None:
    def check(_: Any, name: str, source: list[str]) -> None:
        if name != "results/README" and (wrong := unfounded(source[0])):
            raise ExtensionError(f"{name}: no result file that its section names has {', '.join(wrong)}")

    app.connect("source-read", check)
    check(app, "README", [(Path(__file__).parent.parent / "README.md").read_text("utf-8")])
