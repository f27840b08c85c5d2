"""A Django project made of the blocks of a page, and its processes on a real database.

A block whose first line is `# shop/events.py` is that file; with words behind the name, like `# shop/models.py, below`,
it is added to it. Any other block of Python is run in the site, as in its shell; a block of sh is run line by line.
"""

import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support.processes import ROOT, Processes
from tests.unit.test_docs import FENCE

NAMED = re.compile(r"# ([\w/]+\.py)(.*)\n")
SETTINGS = """
from testproject.settings import *
from testproject.settings import BASE_DIR, LOGGING

DEBUG = False
BASE = ["django.contrib.auth", "django.contrib.contenttypes", "pgtrigger", "django_events", "shop"]
INSTALLED_APPS = list(BASE)
ROOT_URLCONF = "mysite.urls"
TEMPLATES = []
DJANGO_EVENTS = {"WAKE_UPS": True}
"""
MIGRATE = """
from django.core.management import call_command

call_command("makemigrations", "shop", verbosity=0)
call_command("migrate")
"""


class Block(NamedTuple):
    """A block of code of a page."""

    language: str
    code: str

    @property
    def file(self) -> str | None:
        named = NAMED.match(self.code) if self.language == "python" else None
        return named[1] if named else None

    @property
    def is_added(self) -> bool:
        named = NAMED.match(self.code)
        return bool(named and named[2])


def blocks(page: str) -> list[Block]:
    """The blocks of a page that a reader would use, in their order: no mere text."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found = [
        Block(language, re.sub(rf"^{indent}", "", code, flags=re.MULTILINE))
        for indent, language, code in FENCE.findall(text)
    ]
    return [block for block in found if block.language in ("python", "sh", "sql")]


def shortened(code: str, replaced: Mapping[str, str]) -> str:
    """The code with shorter times, so that a test needn't wait for those of the page."""
    for old, new in replaced.items():
        assert old in code, f"no {old!r} in {code}"
        code = code.replace(old, new)
    return code


class Site(Processes):
    """A project in a folder, made of blocks; the processes are those of its manage.py."""

    def __init__(self, url: str, folder: Path, page: str) -> None:
        super().__init__(url, folder, settings="mysite.settings")
        self.page = page
        self.root = folder / "site"
        self.variables["PYTHONPATH"] = f"{self.root}:{ROOT}"
        self._left = blocks(page)
        self._scripts = 0
        for package in ("mysite", "shop", "shop/migrations"):
            self.write(f"{package}/__init__.py", "")
        self.write("mysite/settings.py", SETTINGS)
        self.write("mysite/urls.py", "urlpatterns = []\n")

    def write(self, name: str, code: str, *, added: bool = False) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        before = path.read_text() + "\n\n" if added and path.exists() else ""
        path.write_text(before + code)

    def take(self, language: str = "python", *, replaced: Mapping[str, str] | None = None) -> Block:
        """The page's next block, which must be of this language. Files are written, the rest is the caller's."""
        block = self._next()
        assert block.language == language, f"{self.page}: expected {language}, found {block}"
        code = shortened(block.code, replaced or {})
        if block.file:
            self.write(block.file, code, added=block.is_added or block.file == "mysite/settings.py")
        return Block(block.language, code)

    def take_files(self, *names: str) -> None:
        """The next blocks, which must be these files."""
        for name in names:
            block = self.take()
            assert block.file == name, f"{self.page}: expected {name}, found {block.file}: {block.code}"

    def run_block(self) -> str:
        """Run the page's next block, of Python or sh, and return what it printed."""
        block = self._next()
        assert not block.file, f"{self.page}: expected something to run, found {block.file}"
        return "".join(self._lines(block)) if block.language == "sh" else self.script(block.code)

    def script(self, code: str) -> str:
        """Run Python in the site, as in its shell, and return what it printed."""
        self._scripts += 1
        path = self.folder / f"script_{self._scripts}.py"
        path.write_text(f"import django\n\ndjango.setup()\n{code}")
        return self._finished([sys.executable, str(path)])

    def manage(self, *arguments: str) -> str:
        done = self.run(*arguments)
        assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    def migrate(self) -> str:
        """Both in one process, which takes half the time."""
        return self.script(MIGRATE)

    def all_taken(self) -> bool:
        """Whether nothing of the page was left out."""
        return not self._left

    def skip_until(self, text: str) -> None:
        """Leave out what comes before the next block with this text: another site is made of it."""
        while self._left and text not in self._left[0].code:
            self._next()

    def _next(self) -> Block:
        assert self._left, f"{self.page} has no more blocks"
        return self._left.pop(0)

    def _lines(self, block: Block) -> Iterator[str]:
        for line in block.code.splitlines():
            command = line.partition("#")[0].split()
            if command:
                assert command[:2] == ["python", "manage.py"], f"{self.page}: {line}"
                yield self.manage(*command[2:])

    def _finished(self, command: list[str]) -> str:
        done = subprocess.run(
            command, env=self.environment(), capture_output=True, text=True, timeout=120, check=False, cwd=self.root
        )
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        return done.stdout
