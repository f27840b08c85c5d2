"""A program that serves a subscription: it claims an event, has it in hand until a file is there, and settles it."""

import sys
import time
from datetime import timedelta
from pathlib import Path

import django

django.setup()

from django_events import claim  # noqa: E402
from django_events.exceptions import LeaseLost  # noqa: E402


def main(name: str, go: Path) -> None:
    try:
        with claim(name, lease=timedelta(seconds=1), wait=timedelta(minutes=1)) as claimed:
            print(f"claimed {len(claimed)}")
            while not go.exists():
                time.sleep(0.01)
            claimed.ack(*claimed)
            print("settled")
    except LeaseLost:
        print("lost")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
