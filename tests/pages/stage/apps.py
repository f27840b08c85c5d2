"""Each moment is noted in a journal. Where the test has armed its gate, the first process to come waits there."""

import os
from pathlib import Path
from typing import Any

import redis
from celery import signals
from django.apps import AppConfig

from tests.support.fault_app.files import Gate, Journal

FOLDER = Path(os.environ.get("STAGE_FOLDER", "."))


class StageConfig(AppConfig):
    name = "tests.pages.stage"
    label = "stage"

    def ready(self) -> None:
        signals.before_task_publish.connect(sending)
        signals.after_task_publish.connect(sent)
        signals.task_prerun.connect(begins)
        signals.task_postrun.connect(done)
        redis.Redis.xadd = relayed  # type: ignore[method-assign]


def sending(headers: dict[str, Any], **kwargs: Any) -> None:
    note("sending", headers["id"])


def sent(headers: dict[str, Any], **kwargs: Any) -> None:
    note("sent", headers["id"])


def begins(task_id: str, **kwargs: Any) -> None:
    note("begins", task_id)


def done(task_id: str, **kwargs: Any) -> None:
    note("done", task_id)


def relayed(client: Any, name: str, fields: dict[str, Any], **options: Any) -> Any:
    answer = add_to_stream(client, name, fields, **options)
    note("relayed", fields["event"])
    return answer


add_to_stream = redis.Redis.xadd


def note(moment: str, subject: str) -> None:
    Journal(FOLDER).write(moment=moment, subject=subject, pid=os.getpid())
    if (FOLDER / f"{moment}.armed").exists():
        Gate(FOLDER, moment).pass_through()
