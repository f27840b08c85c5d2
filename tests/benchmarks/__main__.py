"""The one command: python -m tests.benchmarks [N1 N4 …] [--json] [--quick]"""

import argparse
import importlib
import os
import signal
import sys

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "testproject.settings")
django.setup()

from django.conf import settings  # noqa: E402

from django_events.workers.lasting import lasting  # noqa: E402
from tests.benchmarks import report  # noqa: E402
from tests.benchmarks.database import own_database  # noqa: E402
from tests.benchmarks.harness import FIGURES, Effort, Figure, Row  # noqa: E402
from tests.benchmarks.samples import create_plain_tables  # noqa: E402

FAMILIES = (
    "publishing",
    "describing",
    "changes",
    "transfer",
    "consuming",
    "rolling_up",
    "deliveries",
    "subscribing",
    "projections",
    "end_to_end",
    "deriving",
    "time_line",
    "operations",
    "compacting",
    "reading",
    "pipeline",
    "files",
    "tables",
    "row_groups",
    "typed",
    "streams",
    "relaying",
    "taking_in",
    "side_by_side",
)


def main() -> int:
    for family in FAMILIES:
        importlib.import_module(f"tests.benchmarks.{family}")
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description="Measure, beside a plain reference in the same run.",
        epilog="\n".join(f"{figure.id:4} {figure.description}" for figure in FIGURES),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("figures", nargs="*", metavar="N", help="which figures; all of them if none is named")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--quick", action="store_true", help="a fifth of the events and rounds")
    options = parser.parse_args()
    ids = list(dict.fromkeys(figure.id for figure in FIGURES))
    if unknown := set(options.figures) - set(ids):
        parser.error(f"no figure {', '.join(sorted(unknown))}; there are {', '.join(ids)}")
    chosen = [figure for figure in FIGURES if not options.figures or figure.id in options.figures]

    settings.DEBUG = False  # a debug cursor would be measured too
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    show = report.as_json if options.json else report.as_table
    results: list[tuple[Figure, Row]] = []
    with own_database(), lasting():  # as in a worker's process, for what is measured and for loops by hand alike
        create_plain_tables()
        facts = report.machine()
        try:
            for figure in chosen:
                print(f"{figure.id}: {figure.description} …", file=sys.stderr, flush=True)
                for row in figure.measure(Effort(quick=options.quick)):
                    results.append((figure, row))
        finally:  # what was measured before a failure or Ctrl-C is worth reading too
            print(show(facts, results), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
