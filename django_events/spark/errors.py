"""What went wrong in Spark, in a sentence: the cause stands somewhere in pages of two languages' stacks."""

import re
import sys

import psycopg

from django_events import exceptions

# The errors of this package, as they arrive from workers in other processes.
OURS = re.compile(
    r"(?:django_events\.exceptions|psycopg)\.(?:errors\.)?(\w+): (.+?)(?=\n\s*(?:at |SQLSTATE|\n|$)|\Z| SQLSTATE)", re.S
)
# What Spark writes around its own sentences, for programs.
CODES = re.compile(r"^\[[A-Z0-9_.]+\] | SQLSTATE: \w{5}$")
# Where a stack of the JVM says what was behind it: the last one is the cause.
BEHIND = re.compile(r"^(?:Caused by)?: (?:[\w.$]*\.)?([\w$]+)(?:: (.*))?$", re.M)
ENDED = (
    "Spark's Java process has ended: it was killed, or had no memory left. What was finished stays; run the same "
    "again, and the rest is written."
)
DAMAGED = "The checkpoint is damaged, as after a power failure"
WITH_FILES = (
    "With --to, remove the checkpoint and run the same again: what the files have is left out. With --to-format keep "
    "it: without it the query begins again at --from, and events come twice or are skipped."
)
# A commit without its offsets makes Spark send the batch before it again, and then end with an error.
LAST_BATCH = (
    "Rather remove the damaged file, and if it is in offsets, the one of the same number in commits too: the last "
    "batch comes again."
)
CAUSES = [
    (
        r"No space left on device",
        "The disk is full. What was finished stays; make room and run the same again, and the rest is written.",
    ),
    (
        r"Permission denied|Mkdirs failed|AccessDenied",
        "The folder can't be written there: permission denied. Say another, or run as who may.",
    ),
    (
        r"StreamMetadata\$\.read",
        f'{DAMAGED}: its file metadata. {WITH_FILES} Rather write {{{{"id": "…"}}}} with a new UUID into that file.',
    ),
    (
        r"Failed to read log file (.+?)\. Incomplete log file",
        f"{DAMAGED}: {{0}}. {WITH_FILES} {LAST_BATCH}",
    ),
    (r"Incomplete log file", f"{DAMAGED}. {WITH_FILES} {LAST_BATCH}"),
    (
        r"ParentNotDirectoryException|NotDirectoryException|is not a directory|Parent path is not a directory",
        "There is a file where a folder is to be made. Say another path.",
    ),
    (
        r"No FileSystem for scheme|UnsupportedFileSystemException|Class org\.apache\.hadoop\.fs\.\S+ not found",
        "Spark knows no file system of that kind. Give it the package for it, for example in spark-defaults.conf.",
    ),
    (
        r"Failed to find (?:the )?data source: django_events\b",
        "Spark's Python doesn't find this package. Expected in PYSPARK_PYTHON a Python that has it on all of Spark's "
        f"machines; here that is {sys.executable}",
    ),
    (
        r"Failed to find (?:the )?data source: (\S+?)[.\s]|DATA_SOURCE_NOT_FOUND",
        "Spark doesn't know that format. Give it the package for it, for example in spark-defaults.conf.",
    ),
    (
        r"PACKAGE_NOT_INSTALLED",
        "Spark Connect needs packages that are not installed. Run: pip install 'pyspark[connect]'",
    ),
    (r"trying to connect to the Java server|Answer from Java side is empty|Error while sending or receiving", ENDED),
    # What py4j says, and nothing more, when the connection broke during a call.
    (r"\AAn error occurred while calling \S+\Z", ENDED),
    (
        r"ModuleNotFoundError: No module named '(\S+)'",
        "A module is missing on the machines of Spark: {0}. Install it there, or ship it with --py-files.",
    ),
]


def told(error: BaseException) -> str:
    """The cause of an error of Spark as a short message."""
    if isinstance(error, ConnectionError):
        return ENDED
    text = str(error).strip()
    if found := OURS.search(text):
        return " ".join(found[2].split())
    for pattern, said in CAUSES:
        if found := re.search(pattern, text):
            return said.format(*found.groups())
    if behind := BEHIND.findall(text):
        name, said = behind[-1]
        return f"{said} ({name})" if said else name
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return CODES.sub("", lines[0]) if lines else type(error).__name__


def in_short(error: BaseException) -> Exception:
    """The same, as an error of its kind with a short message.

    On the thread of a query Spark searches in what its function raises, and pages of two languages' stacks let that
    thread run out of its own.
    """
    kinds: dict[str, type[Exception]] = {**vars(psycopg.errors), **vars(exceptions)}
    return kinds.get(kind(error), exceptions.NotReady)(told(error))


def kind(error: BaseException) -> str:
    """The name of the error of this package that an error of Spark carries; nothing for others."""
    found = OURS.search(str(error))
    return found[1] if found else ""
