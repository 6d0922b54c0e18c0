"""Teaching panels that run in the page: they need no kernel, and work in the book.

A code host, which runs no script, shows their picture. `panels.js` has the panels and their
formulas; the pictures are made by `python -m tests.panel_pictures`.
"""

import base64
from pathlib import Path

from drlib.registry import suggest_name
from drlib.validation import require

FOLDER = Path(__file__).parent
PANELS = ("clip", "advantage", "kl", "staleness", "entropy", "scheduler")


class PagePanel:
    """Output of a cell: a panel of `PANELS` as self-contained HTML.

    Raises:
        ValueError: unknown name.
    """

    def __init__(self, name: str):
        require(name in PANELS, f"unknown panel {name!r}: {suggest_name(name, PANELS)}")
        self.name = name

    def __repr__(self) -> str:
        return f"panel: {self.name}"

    def _repr_html_(self) -> str:
        """Return the HTML; without scripts it is the panel's picture."""
        image = base64.b64encode((FOLDER / "panels" / f"{self.name}.png").read_bytes()).decode()
        picture = f'<img alt="panel {self.name}" src="data:image/png;base64,{image}">'
        return self.page(picture)

    def page(self, picture: str = "") -> str:
        """Return the HTML with a replacement that is shown until the script runs."""
        script = (FOLDER / "panels.js").read_text(encoding="utf-8")
        return (
            f'<div class="drlib-panel" data-panel="{self.name}" id="drlib-{self.name}">'
            f"{picture}</div>\n<script>\n{script}</script>"
        )


def show_panel(name: str) -> PagePanel:
    """Return the panel: clip, advantage, kl, staleness, entropy or scheduler."""
    return PagePanel(name)
