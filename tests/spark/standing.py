"""A process that runs one command after the other in one session: to start Spark takes longer than they do."""

import json
import os
import sys
import traceback

import django


def main(master: str) -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "testproject.settings"
    django.setup()

    from django.core.management import CommandError, call_command
    from django.db import connections

    from django_events.spark.session import session

    with session("rival", master=master):
        print("ready", flush=True)
        for number, line in enumerate(sys.stdin, 1):
            code = 0
            try:
                call_command(*json.loads(line), stdout=sys.stderr)
            except CommandError as error:
                print(error, file=sys.stderr, flush=True)
                code = error.returncode
            except Exception:
                traceback.print_exc()
                code = 70
            finally:
                connections.close_all()
            print(f"ended {number} {code}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
