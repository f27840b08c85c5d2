"""Every word of the pages can be translated: in a language of brackets, what stands outside of them is data."""

import re
from html.parser import HTMLParser

import pytest
from django.utils import translation

from django_events import Backoff
from django_events.admin import problems as shown_problems
from django_events.models import Consumer, DeadLetter, Topic
from django_events.observing import samples
from django_events.observing.problems import telling
from django_events.testing import drain
from tests.integration.admin.conftest import address, consumer_of, topic_of

pytestmark = pytest.mark.django_db

SPOKEN = ("aria-label", "title", "placeholder", "alt", "data-pause", "data-resume", "aria-description")


class Words(HTMLParser):
    """The texts of a page's content, and of what is read out."""

    def __init__(self):
        super().__init__()
        self.inside = self.skipped = 0
        self.texts = []

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        if self.inside or named.get("id") == "content":
            self.inside += tag not in ("input", "br", "img", "link", "meta", "hr", "path")
            self.texts += [named[name] for name in SPOKEN if named.get(name)]
        self.skipped += tag in ("script", "style", "pre", "code", "time")

    def handle_endtag(self, tag):
        self.inside -= bool(self.inside)
        self.skipped -= tag in ("script", "style", "pre", "code", "time")

    def handle_data(self, text):
        if self.inside and not self.skipped:
            self.texts.append(text)


def untranslated(page):
    """The words of a page that stand outside of brackets."""
    parser = Words()
    parser.feed(page)
    assert parser.texts, "the page has no content"
    text = re.sub(r"manage\.py [\w. -]+", " ", "\n".join(parser.texts))  # commands are the same in every language
    while text != (text := re.sub(r"⟦[^⟦⟧]*⟧", " ", text)):
        pass
    return set(re.findall(r"[^\W\d_]{2,}", text))


@pytest.fixture
def brackets(monkeypatch):
    """A language that puts brackets around every message."""
    translation.gettext("")  # now it is there to be replaced
    for name in ("gettext", "pgettext", "ngettext", "npgettext"):
        plural = "n" in name.removesuffix("gettext")

        context = "p" in name.removesuffix("gettext")

        def bracketed(*said, plural=plural, context=context):
            said = said[1:] if context else said
            return f"⟦{said[0] if not plural or said[-1] == 1 else said[1]}⟧"

        monkeypatch.setattr(translation._trans, name, bracketed, raising=False)


# Names, units and errors.
DATA = {"things", "reader", "slow", "reading", "queue", "KeyError", "kB", "min", "visitor", "kind", "olga", "of"}


@pytest.mark.slow
@pytest.mark.requirement("X5")
def test_every_word_is_translated(olga, things, make_consumer, brackets, monkeypatch):
    def handler(event):
        raise KeyError("visitor")

    reader = make_consumer(things, handler=handler, mode="queue", types=["kind"], retry=Backoff(attempts=1))
    slow = make_consumer(things, handler=handler, name="slow", history=None)
    things.publish({"n": 1}, type="kind", key="reading")
    drain(raise_errors=False)
    DeadLetter.objects.update(fingerprint="KeyError: 'visitor'")
    samples.take("default")
    topic, row, letter = topic_of(things), consumer_of(reader), DeadLetter.objects.first()
    olga.post(address("consumer", consumer_of(slow), "act/pause"))
    root = "/admin/django_events/"
    pages = [
        f"{root}overview/", f"{root}topic/", address("topic", topic), address("topic", topic, "log"),
        address("topic", topic, "log") + "?type=nothing", address("topic", topic, "log/1"),
        address("topic", topic, "log/1/again"), f"{root}consumer/", address("consumer", row),
        address("consumer", consumer_of(slow)), address("consumer", row, "deliveries"),
        *(address("consumer", row, f"act/{name}") for name in ("pause", "resume", "retry_now", "skip", "rewind")),
        address("consumer", row, "act/rewind") + "?to=beginning",
        address("consumer", row, "act/rewind") + "?to=id",
        f"{root}deadletter/errors/", address("deadletter", letter), address("deadletter", letter, "act/redrive"),
        address("deadletter", letter, "act/discard"),
    ]  # fmt: skip
    names = [*Topic.objects.values_list("name", flat=True), *Consumer.objects.values_list("name", flat=True)]
    known = DATA | set(re.findall(r"[^\W\d_]+", " ".join(names)))
    for page in pages:
        answer = olga.get(page)
        assert answer.status_code == 200, page
        assert untranslated(answer.content.decode()) <= known, page


def test_every_kind_of_problem_has_a_name():
    assert set(telling.KINDS) == set(shown_problems.KINDS)
