"""What a page is looked at on: desktop or phone, light or dark.

@on_every_screen
def test_it_fits(page): ...
"""

from dataclasses import dataclass
from typing import Any, Literal

import pytest

DEVICES: dict[str, dict[str, Any]] = {
    "desktop": {"viewport": {"width": 1280, "height": 800}},
    "phone": {
        "viewport": {"width": 360, "height": 740},
        "device_scale_factor": 2,
        "has_touch": True,
        "is_mobile": True,
    },
}


@dataclass(frozen=True)
class Screen:
    device: Literal["desktop", "phone"] = "desktop"
    scheme: Literal["light", "dark"] = "light"

    def __str__(self) -> str:
        return f"{self.device}-{self.scheme}"

    def options(self) -> dict[str, Any]:
        """How Playwright's new_context() is told; the same on every machine, so that pictures don't differ."""
        return {
            **DEVICES[self.device],
            "color_scheme": self.scheme,
            "reduced_motion": "reduce",
            "locale": "en-US",
            "timezone_id": "UTC",
        }


DESKTOP = Screen()
DESKTOP_DARK = Screen(scheme="dark")
PHONE = Screen("phone")
PHONE_DARK = Screen("phone", "dark")
SCREENS = [DESKTOP, DESKTOP_DARK, PHONE, PHONE_DARK]

on_every_screen = pytest.mark.parametrize("page", SCREENS, ids=str, indirect=True)
