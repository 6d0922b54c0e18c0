"""Sphinx settings of the book: `make book` builds it from docs/ and notebooks/.

Stored outputs are shown; nothing is executed. The pages work offline: formulas are MathML and the
search runs in the page.
"""

from pathlib import Path

from docutils import nodes
from latex2mathml.converter import convert
from sphinx import addnodes
from sphinx.transforms.post_transforms import SphinxPostTransform

ROOT = Path(__file__).parents[2]

project = "drlib"
author = "the drlib authors"
root_doc = "docs/book/index"
extensions = ["myst_nb", "sphinx_copybutton"]
include_patterns = [
    "docs/*.md",
    "docs/book/index.md",
    "notebooks/*.ipynb",
    "notebooks/solutions/*.ipynb",
]
exclude_patterns = [".*", "runs", "build", "tests", "drlib", "figures", "requirements"]

nb_execution_mode = "off"
nb_ipywidgets_js = {}  # panels need a kernel; their stored pictures are shown
nb_merge_streams = True
myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = "drlib"
html_show_sourcelink = False
html_math_renderer = "mathml"


def _enter_inline(translator, node):
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _enter_block(translator, node):
    number = f"({node['number']})" if node.get("number") else ""
    translator.body.append(f"<p>{convert(node.astext(), display='block')}{number}</p>")
    raise nodes.SkipNode


class OutsideLinks(SphinxPostTransform):
    """Replace links to folders and pages of the checkout that are not in the book by their text."""

    default_priority = 5  # before MyST reports them as missing

    def run(self, **kwargs):
        for link in list(self.document.findall(addnodes.pending_xref)):
            if link.get("refdomain") == "doc":  # from the root, without a suffix
                is_outside = link["reftarget"] not in self.env.all_docs
                path = ROOT / f"{link['reftarget']}.md"
            else:  # as written in the page
                path = (ROOT / link.get("refdoc", "")).parent / link["reftarget"]
                is_outside = path.is_dir()
            if is_outside and path.exists():
                link.replace_self(link.children)


def write_start_page(app, exception):
    """Write index.html, which opens the first page."""
    start = f'<meta http-equiv="refresh" content="0; url={root_doc}.html">'
    if exception is None:
        Path(app.outdir, "index.html").write_text(f"<!DOCTYPE html>{start}\n", encoding="utf-8")


def setup(app):
    """Register the transform and the renderer of formulas, which browsers show without a script."""
    app.connect("build-finished", write_start_page)
    app.add_post_transform(OutsideLinks)
    app.add_html_math_renderer("mathml", (_enter_inline, None), (_enter_block, None))
