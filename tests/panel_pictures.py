"""Make the pictures of the teaching panels for code hosts: python -m tests.panel_pictures"""

import base64
import tempfile
from pathlib import Path

from drlib.notebook.panels import FOLDER, PANELS, show_panel
from tests.browser import Browser

WIDTH = 660  # pixels


def main() -> None:
    with Browser() as tab, tempfile.TemporaryDirectory() as scratch:
        for name in PANELS:
            page = Path(scratch, f"{name}.html")
            style = "margin:8px;font:14px sans-serif;color:#222;background:#fff"
            page.write_text(
                f'<meta charset="utf-8"><body style="{style}">{show_panel(name).page()}'
            )
            tab.look(WIDTH, 800)
            tab.open(page.as_uri(), ready="document.querySelector('[data-number]') !== null")
            height = tab.js("document.querySelector('.drlib-panel').offsetHeight + 16")
            clip = {"x": 0, "y": 0, "width": WIDTH, "height": height, "scale": 1}
            shot = tab.call("Page.captureScreenshot", clip=clip)["data"]
            (FOLDER / "panels" / f"{name}.png").write_bytes(base64.b64decode(shot))
            print(name)


if __name__ == "__main__":
    main()
