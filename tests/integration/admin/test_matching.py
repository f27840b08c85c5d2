"""What a filter would match, tried on the page that a consumer's page leads to."""

import pytest
from django.utils.html import escape

from django_events import Draft, publish_many
from tests.integration.admin.conftest import address, consumer_of, topic_of
from tests.support.fix_topics import transfer_all

pytestmark = [pytest.mark.django_db, pytest.mark.requirement("S12")]


@pytest.fixture
def page(things):
    """The page of a topic with six events of two types."""
    drafts = [Draft(value={"n": n}, type="order.paid" if n % 3 else "note", key=f"a.{n}") for n in range(1, 7)]
    publish_many(things, drafts)
    transfer_all()
    return address("topic", topic_of(things), "match")


@pytest.fixture
def reader(things, make_consumer):
    def handler(event): ...

    return consumer_of(make_consumer(things, handler=handler, types=["order.*"], keys=["a.>", "b"], where="$.n > 2"))


def tried(answer):
    return [(one.type, one.events, one.matching, one.newest) for one in answer.context["tried"].types]


def test_the_filter_of_a_consumer_is_tried_at_once(olga, page, reader):
    leading = olga.get(address("consumer", reader)).text
    answer = olga.get(f"{page}?consumer={reader.pk}")

    assert f'href="{page}?consumer={reader.pk}"' in leading
    assert tried(answer) == [("order.paid", 4, 2, [5, 4]), ("note", 2, 0, [])]
    assert "2 of the newest 6 events match." in answer.text
    assert [answer.context["form"][name].value() for name in ("types", "keys", "where")] == [
        "order.*", "a.>\nb", "$.n > 2",
    ]  # fmt: skip
    assert f'href="{page.replace("match", "log")}5/"' in answer.text


def test_another_one_is_typed_in(olga, page, reader):
    answer = olga.get(page, {"consumer": reader.pk, "types": "note\r\nnothing\r\n", "keys": "", "where": "", "last": 4})

    assert tried(answer) == [("note", 2, 2, [6, 3]), ("order.paid", 2, 0, [])]
    assert tried(olga.get(page, {"where": "$.n == 1", "last": 5})) == [
        ("order.paid", 3, 0, []), ("note", 2, 0, []),
    ]  # fmt: skip


def test_a_topic_begins_with_an_empty_form(olga, things, page):
    assert f'href="{page}"' in olga.get(address("topic", topic_of(things))).text
    answer = olga.get(page)
    assert answer.context["tried"] is None and not answer.context["form"].is_bound


@pytest.mark.parametrize(
    ("said", "field", "why"),
    [
        ({"types": "a.>.b"}, "types", "“a.>.b”: > means the rest, so it can only be last."),
        ({"keys": "fine\n>.x"}, "keys", "“>.x”: > means the rest, so it can only be last."),
        ({"types": "a\0"}, "types", "Null characters are not allowed."),
        ({"where": "$.n >"}, "where", "syntax error"),
        ({"where": "$.n like_regex '('"}, "where", "can't be used"),
        ({"where": "strict $.nothing > 1"}, None, ""),
        ({"last": "0"}, "last", "greater than or equal to 1"),
        ({"last": "1000000"}, "last", "less than or equal to 100000"),
    ],
)
def test_what_is_wrong_is_said_at_its_field(olga, page, said, field, why):
    answer = olga.get(page, {"last": 10, **said})

    assert answer.status_code == 200
    errors = answer.context["form"].errors
    assert set(errors) == ({field} if field else set())
    assert (answer.context["tried"] is None) is (field is not None)
    assert field is None or (why in errors[field][0] and escape(why) in answer.text)


def test_a_predicate_tells_nothing_of_masked_fields(olga, page, reader, settings):
    settings.DJANGO_EVENTS = {"MASKED_FIELDS": ["n"]}

    assert set(olga.get(page, {"where": "$.n == 1", "last": 5}).context["form"].errors) == {"where"}
    assert tried(olga.get(f"{page}?consumer={reader.pk}"))[0] == ("order.paid", 4, 2, [5, 4])


@pytest.mark.slow
def test_the_filter_of_a_consumer_is_for_those_who_see_consumers(sign_in, page, reader):
    answer = sign_in("view_event").get(f"{page}?consumer={reader.pk}")

    assert (answer.status_code, answer.context["consumer"], answer.context["tried"]) == (200, None, None)
    seen = sign_in("view_consumer", name="eve")
    assert seen.get(page).status_code == 403
    assert page not in seen.get(address("consumer", reader)).text
