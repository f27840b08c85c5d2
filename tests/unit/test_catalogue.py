"""The catalogue that translators copy has every text of the pages, and no other."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "django_events"
CATALOGUE = "locale/en/LC_MESSAGES/django.po"
MESSAGE = re.compile(r'^(?:msgid|msgid_plural|msgctxt) (".*"(?:\n".*")*)', re.MULTILINE)


def messages(catalogue: Path) -> set[str]:
    return {
        "".join(map(ast.literal_eval, lines.split("\n"))) for lines in MESSAGE.findall(catalogue.read_text("utf-8"))
    }


@pytest.mark.slow
def test_the_catalogue_is_what_makemessages_makes(tmp_path: Path):
    """If it isn't: cd django_events && python -m django makemessages -l en --no-location."""
    if shutil.which("xgettext") is None:
        pytest.skip("xgettext is not installed (apt-get install gettext)")
    copied = shutil.copytree(
        PACKAGE, tmp_path / "django_events", ignore=shutil.ignore_patterns("__pycache__", "locale")
    )
    (copied / "locale").mkdir()
    make = [sys.executable, "-m", "django", "makemessages", "-l", "en", "--no-location", "-v0"]
    without_settings = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    subprocess.run(make, cwd=copied, env=without_settings, check=True)

    made, kept = messages(copied / CATALOGUE), messages(PACKAGE / CATALOGUE)
    assert made - kept == set(), "not in the catalogue"
    assert kept - made == set(), "in the catalogue, and said by no page any more"
    assert len(kept) > 300
