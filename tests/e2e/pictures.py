"""Screenshots for the documentation: made only where the environment variable PICTURES names a folder."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page


def picture(page: "Page", name: str) -> None:
    """Save what the screen shows as <PICTURES>/<name>.png, as large as the screen."""
    if folder := os.environ.get("PICTURES"):
        path = Path(folder) / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=path, animations="disabled", caret="hide")
