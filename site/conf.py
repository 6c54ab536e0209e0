# SPDX-License-Identifier: Apache-2.0
"""How Sphinx makes the site of docs/: `make site` writes build-site/index.html."""

project = "Penstock"
copyright = "The Penstock authors"  # noqa: A001  (Sphinx's name)
extensions = ["myst_parser", "sphinx_copybutton"]
source_suffix = {".md": "markdown"}
root_doc = "docs/index"
html_extra_path = ["root"]  # a page that leads there
html_theme = "furo"
html_title = "Penstock"
html_show_sphinx = False

# Links to headings, as the documents have them: running.md#checkpoints.
myst_heading_anchors = 4
# Prompts of consoles and what they print are not copied.
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
# Blocks that leave lines out ("...") are of no language.
suppress_warnings = ["misc.highlighting_failure"]
