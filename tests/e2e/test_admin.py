"""People use the admin: they look, find out, and repair."""

import re
from datetime import timedelta

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from django_events import Backoff, Draft, publish
from django_events.models import BufferedEvent, Consumer, DeadLetter, Sample, ScheduledEvent
from django_events.models.functions import ClockTimestamp
from django_events.observing import samples
from django_events.operations import pause
from django_events.testing import drain
from tests.e2e.people import superuser, viewer
from tests.e2e.pictures import picture
from tests.e2e.screens import PHONE, on_every_screen

EVENTS = 120


class Mailbox:
    """Takes letters, but for those to full ones."""

    def __init__(self):
        self.full = True
        self.letters = []

    def send(self, event):
        if self.full and event.value["visitor"] % 40 == 0:
            raise OSError(f"the mailbox of visitor {event.value['visitor']} is full")
        self.letters.append(event.id)


@pytest.fixture
def mailbox():
    return Mailbox()


@pytest.fixture
def site(transactional_db, make_topic, make_consumer, mailbox):
    """A topic with consumers that handled their events, but for three dead letters, and an hour of samples."""
    visits = make_topic("visits", partitions=4, timeline=True)

    def count(event): ...

    def invite(event):
        mailbox.send(event)

    make_consumer(visits, handler=count, name="counting")
    make_consumer(visits, handler=invite, name="invitations", mode="queue", retry=Backoff(attempts=1))
    make_consumer(visits, handler=count, name="slow")
    visits.publish_many(
        [
            Draft(
                value={"visitor": n, "page": f"/page/{n % 9}"},
                key=f"visitor-{n % 10}",
                type=f"visit.{'new' if n % 3 else 'again'}",
            )
            for n in range(1, EVENTS + 1)
        ]
    )
    drain(raise_errors=False)
    assert DeadLetter.objects.count() == 3
    samples.take("default")
    made_up()
    yield visits
    Sample.objects.all().delete()
    DeadLetter.objects.all().delete()


def made_up():
    """An hour of samples, as if the site had been busy."""
    rows = list(Consumer.objects.all())
    now = Sample.objects.latest("at").at
    for minute in range(1, 60):
        at = now - timedelta(minutes=60 - minute)
        wave = 40 + 30 * (minute % 12)
        Sample.objects.create(
            at=at,
            taken_at=at,
            published=minute * 3_000 + wave,
            handled=minute * 2_900,
            buffered=0,
            lag=wave * 10,
            consumers={row.pk: [wave, minute * 900, 0, 0] for row in rows},
        )


@pytest.fixture
def olga(page, login):
    login(page, superuser("olga"))
    return page


def narrow_enough(page):
    return page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def open_consumer(page, name):
    page.goto("/admin/django_events/consumer/")
    page.get_by_role("link", name=name, exact=True).click()


@pytest.mark.slow
@pytest.mark.requirement("X5")
@on_every_screen
@pytest.mark.few(1)
def test_the_overview_shows_what_goes_on(site, olga, request):
    olga.goto("/admin/")
    olga.get_by_role("link", name="Overview").first.click()

    olga.get_by_role("heading", name="What needs attention").wait_for()
    assert olga.locator(".events-problems").get_by_role("link", name="invitations").count() >= 1
    expect(olga.get_by_role("img", name=re.compile("Published"))).to_be_visible()
    expect(olga.get_by_role("row", name=re.compile("counting"))).to_be_visible()
    expect(olga.get_by_role("row", name=re.compile(r"visits (Last id )?120"))).to_be_visible()
    assert narrow_enough(olga)
    picture(olga, f"overview-{name_of(request)}")


@pytest.mark.slow
@pytest.mark.requirement("X5")
@on_every_screen
@pytest.mark.few(1)
def test_every_page_fits_on_every_screen(site, olga, request):
    consumer = Consumer.objects.get(name="invitations")
    letter = DeadLetter.objects.first()
    publish(site, {"visitor": 7}, key="visitor-7", type="visit.later", publish_at=timezone.now() + timedelta(days=1))
    later = ScheduledEvent.objects.get()
    root = "/admin/django_events/"
    pages = {
        "topics": f"{root}topic/",
        "topic": f"{root}topic/{consumer.topic_id}/change/",
        "remove": f"{root}topic/{consumer.topic_id}/remove/",
        "log": f"{root}topic/{consumer.topic_id}/log/",
        "match": f"{root}topic/{consumer.topic_id}/match/?types=visit.*&keys=visitor-1%0Avisitor-2&where=&last=99",
        "match-wrong": f"{root}topic/{consumer.topic_id}/match/?types=visit.>.x&where=$.visitor>&last=0",
        "event": f"{root}topic/{consumer.topic_id}/log/40/",
        "again": f"{root}topic/{consumer.topic_id}/log/40/again/",
        "consumers": f"{root}consumer/",
        "consumer": f"{root}consumer/{consumer.pk}/change/",
        "deliveries": f"{root}consumer/{consumer.pk}/deliveries/",
        "rewind": f"{root}consumer/{consumer.pk}/act/rewind/?to=id&id=30",
        "replay": f"{root}consumer/{consumer.pk}/act/replay/?first=40&last=40",
        "dead-letters": f"{root}deadletter/",
        "errors": f"{root}deadletter/errors/",
        "dead-letter": f"{root}deadletter/{letter.pk}/change/",
        "discard": f"{root}deadletter/{letter.pk}/act/discard/",
        "workers": f"{root}overview/workers/",
        "scheduled": f"{root}scheduledevent/",
        "scheduled-event": f"{root}scheduledevent/{later.pk}/change/",
        "publish-now": f"{root}scheduledevent/{later.pk}/act/publish/",
        "index": root,
    }
    for name, address in pages.items():
        assert olga.goto(address).status == 200, name
        assert narrow_enough(olga), f"{name} is wider than the screen"
        assert unlabelled(olga) == [], name
        assert headless(olga) == [], name
        assert pale(olga) == [], name
        picture(olga, f"{name}-{name_of(request)}")


@pytest.mark.slow
@pytest.mark.requirement("X16")
@on_every_screen
@pytest.mark.few(1)
def test_an_event_shows_why_it_exists_and_what_it_caused(make_topic, make_consumer, olga, request):
    carts, mails, bills = make_topic("carts"), make_topic("mails"), make_topic("bills")

    def bill(event):
        bills.publish({"of": event.key}, type="bill.made", key=event.key)
        mails.publish({"to": event.key}, type="mail.wanted", key=event.key)

    def mail(event):
        mails.publish({"for": event.address}, type="mail.wanted", key=event.key)

    make_consumer(carts, handler=bill, name="charging")
    make_consumer(bills, handler=mail, name="mailing")
    for customer in ("ann", "bo", "cy"):
        carts.publish({"total": 9}, type="cart.ordered", key=customer)
    drain()
    olga.goto("/admin/django_events/topic/go/carts/2/")
    causes = olga.locator("section", has=olga.get_by_role("heading", name="Causes"))

    causes.get_by_role("link", name="Look for what was published because of it").click()
    expect(causes.get_by_role("row", name="bills/2 bill.made bo")).to_be_visible()
    expect(causes.get_by_role("row")).to_have_count(4)
    assert narrow_enough(olga) and headless(olga) == [] and pale(olga) == []
    causes.scroll_into_view_if_needed()
    picture(olga, f"causes-{name_of(request)}")
    causes.get_by_role("link", name="bills/2").click()
    expect(olga.get_by_role("link", name="carts/2")).to_be_visible()
    picture(olga, f"cause-{name_of(request)}")
    olga.get_by_role("link", name="carts/2").click()
    expect(olga.get_by_role("heading", name="carts/2")).to_be_visible()


def name_of(request):
    return re.search(r"\[(.*)\]", request.node.name)[1].replace(" ", "-")


def unlabelled(page):
    """Controls that say nothing to who can't see them."""
    return page.evaluate(
        """() => [...document.querySelectorAll("#content :is(input:not([type=hidden]), select, textarea, button, a)")]
            .filter(one => !(one.labels?.length || one.ariaLabel || one.textContent.trim() || one.title || one.value))
            .map(one => one.outerHTML)"""
    )


def headless(page):
    """Tables of ours without headers for columns and rows."""
    return page.evaluate(
        """() => [...document.querySelectorAll("table.events-table")]
            .filter(one => [...one.querySelectorAll("thead th")].some(th => th.scope !== "col")
                || [...one.querySelectorAll("tbody tr")].some(tr => !tr.querySelector("th[scope=row], td[colspan]")))
            .map(one => one.outerHTML.slice(0, 200))"""
    )


def pale(page):
    """Texts of ours that stand out from what is behind them by less than 4.5 to 1."""
    return page.evaluate(
        """() => {
            const parts = colour => colour.match(/[\\d.]+/g).map(Number);
            const light = colour => parts(colour).slice(0, 3).map(c => c / 255)
                .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
                .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
            const behind = one => {
                for (; one; one = one.parentElement) {
                    const colour = getComputedStyle(one).backgroundColor;
                    if ((parts(colour)[3] ?? 1) > 0.99) return colour;
                }
                return "rgb(255, 255, 255)";
            };
            return [...document.querySelectorAll("[class*=events-]")]
                .filter(one => one.textContent.trim() && !one.closest("svg"))
                .map(one => [one, light(getComputedStyle(one).color), light(behind(one))])
                .filter(([, a, b]) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05) < 4.5)
                .map(([one]) => one.outerHTML.slice(0, 120));
        }"""
    )


@pytest.mark.long
def test_the_overview_refreshes_itself_until_it_is_stopped(site, olga):
    olga.clock.install()
    olga.goto("/admin/django_events/overview/")
    olga.get_by_role("button", name="Stop refreshing").wait_for()
    site.publish({"visitor": 1})
    drain(raise_errors=False)

    olga.clock.run_for(11_000)
    olga.get_by_role("row", name=re.compile("visits 121")).wait_for()

    olga.get_by_role("button", name="Stop refreshing").click()
    asked = []
    olga.on("request", lambda request: asked.append(request.url))
    olga.clock.run_for(60_000)
    assert not asked
    olga.reload()
    expect(olga.get_by_role("button", name="Refresh every 10 seconds")).to_be_visible()


@pytest.mark.long
def test_a_click_into_a_table_does_not_stop_the_refreshing(site, olga):
    olga.clock.install()
    olga.goto("/admin/django_events/overview/")
    region = olga.get_by_role("region", name="Topics", exact=True)
    region.get_by_role("cell").first.click()
    expect(region).to_be_focused()
    site.publish({"visitor": 1})
    drain(raise_errors=False)

    olga.clock.run_for(11_000)
    olga.get_by_role("row", name=re.compile("visits 121")).wait_for()
    expect(region).to_be_focused()


@pytest.mark.long
def test_the_overview_says_that_it_is_old_and_why(site, olga, guard):
    olga.clock.install()
    olga.goto("/admin/django_events/overview/")
    told = olga.locator(".events-stale")
    expect(told).to_be_hidden()

    overview = "**/admin/django_events/overview/"
    olga.route(overview, lambda route: route.abort())
    for said in ("ERR_FAILED", "ERR_FAILED", "ERR_ABORTED"):  # the last one is the redirect to the form
        guard.expect(said)
    olga.clock.run_for(10_000)
    expect(told).to_contain_text("These figures are old: they are as of 20")
    expect(told).to_contain_text("The server can't be reached.")
    olga.unroute(overview)
    olga.clock.run_for(10_000)
    expect(told).to_be_hidden()

    olga.route(overview, lambda route: route.fulfill(status=503, body="down"))
    guard.expect("503")
    olga.clock.run_for(10_000)
    expect(told).to_contain_text("The server answers with an error (503).")
    olga.unroute(overview)

    olga.context.clear_cookies()
    olga.clock.run_for(10_000)
    expect(told).to_contain_text("You are logged out.")
    picture(olga, "stale")


@pytest.mark.long
def test_problems_are_grouped_by_kind_and_have_their_repair(site, olga, make_topic):
    for n in range(7):
        make_topic(f"idle-{n}").publish(n)
    BufferedEvent.objects.update(published_at=ClockTimestamp() - timedelta(minutes=5))
    pause("slow")
    olga.goto("/admin/django_events/overview/")

    problems = olga.get_by_role("region", name="What needs attention")
    expect(problems.get_by_role("heading", name=re.compile(r"\(1 error, 2 warnings\)"))).to_be_visible()
    moved = problems.get_by_role("region", name="transfer")
    expect(moved).to_contain_text("7 events of 7 topics in the buffer, the oldest for 5 min: no transfer moves them.")
    kinds = problems.get_by_role("heading", level=3).all_inner_texts()
    assert [kind.split()[0].lower() for kind in kinds] == ["error", "warning", "warning"]
    expect(problems.get_by_role("link", name="Dead letters")).to_be_visible()
    picture(olga, "problems")
    problems.get_by_role("link", name="Resume…").click()
    olga.get_by_role("button", name="Resume").click()
    expect(olga.get_by_text("goes on").first).to_be_visible()
    assert Consumer.objects.get(name="slow").paused_at is None


@pytest.mark.slow
@pytest.mark.requirement("X5")
def test_one_browses_filters_and_goes_to_an_id(site, olga):
    olga.goto("/admin/django_events/topic/")
    olga.get_by_role("link", name="visits", exact=True).click()
    olga.get_by_role("link", name="Browse the log").click()
    first = olga.locator("#content tbody th a").first
    expect(first).to_have_text("120")

    olga.get_by_role("link", name="Older").first.click()
    expect(first).to_have_text("70")
    olga.get_by_role("link", name="Newer").first.click()
    expect(first).to_have_text("120")

    olga.get_by_label("Key").fill("visitor-3")
    olga.get_by_role("button", name="Show").click()
    expect(first).to_have_text("113")
    assert olga.locator("#content tbody th a").all_text_contents()[:2] == ["113", "103"]
    olga.get_by_label("Go to id").fill("53")
    olga.get_by_role("button", name="Show").click()
    expect(first).to_have_text("53")

    first.click()
    expect(olga.locator("pre").first).to_contain_text('"visitor": 53')
    expect(olga.get_by_role("row", name=re.compile("counting handled"))).to_be_visible()
    olga.get_by_role("link", name="visits/63 →").click()
    olga.get_by_role("heading", name="visits/63").wait_for()


@pytest.mark.slow
def test_the_sums_below_a_table_are_as_large_as_what_they_add_up(site, olga):
    open_consumer(olga, "counting")
    olga.get_by_role("link", name="Rewind…").click()
    olga.get_by_label("Go on at").select_option("beginning")
    olga.get_by_role("button", name="Show what would happen").click()
    expect(olga.locator("tfoot td").first).to_be_visible()
    look = "one => [getComputedStyle(one).fontSize, getComputedStyle(one).color, getComputedStyle(one).paddingRight]"

    assert olga.locator("tfoot td").first.evaluate(look) == olga.locator("tbody td").last.evaluate(look)


@pytest.mark.slow
@pytest.mark.requirement("X5")
def test_a_rewind_is_seen_before_it_is_done(site, olga, mailbox):
    mailbox.full = False
    open_consumer(olga, "invitations")
    olga.get_by_role("link", name="Rewind…").click()
    olga.get_by_label("Go on at").select_option("id")
    olga.get_by_label("Id:", exact=True).fill("118")
    olga.get_by_role("button", name="Show what would happen").click()

    expect(olga.get_by_role("row", name=re.compile("all 121 118 3"))).to_be_visible()
    before = list(mailbox.letters)
    olga.get_by_role("button", name="Rewind now").click()
    expect(olga.get_by_text("3 events come again")).to_be_visible()
    expect(olga.get_by_role("row", name=re.compile("olga rewind"))).to_be_visible()
    drain()
    assert mailbox.letters[len(before) :] == [118, 119, 120]


@pytest.mark.requirement("X5")
def test_a_dead_letter_is_redriven_and_handled(site, olga, mailbox):
    olga.goto("/admin/django_events/deadletter/")
    olga.get_by_role("link", name="By error").click()
    olga.get_by_role("link", name=re.compile("^OSError in .*:send: the mailbox of visitor # is full")).click()
    expect(olga.get_by_text("3 dead letters").first).to_be_visible()
    olga.get_by_role("link", name="visits/40").click()
    expect(olga.locator("pre").first).to_contain_text("visitor 40 is full")
    olga.get_by_text("Traceback", exact=True).click()
    expect(olga.get_by_text("raise OSError")).to_be_visible()

    mailbox.full = False
    olga.get_by_role("link", name="Redrive…").click()
    olga.get_by_role("button", name="Redrive").click()
    expect(olga.get_by_text("1 dead letter is handled again")).to_be_visible()
    drain()
    assert mailbox.letters[-1] == 40
    olga.reload()
    expect(olga.get_by_role("link", name="visits/40")).not_to_be_visible()
    expect(olga.get_by_role("link", name="visits/80")).to_be_visible()


@pytest.mark.long
def test_all_are_chosen_and_discarded_with_a_reason(site, olga):
    olga.goto("/admin/django_events/deadletter/")
    olga.locator("#action-toggle").check()
    olga.get_by_label("Action:").select_option("discard")
    olga.get_by_role("button", name="Go").click()
    olga.get_by_role("button", name="Discard").click()
    assert DeadLetter.objects.count() == 3, "the browser wants a reason"
    olga.get_by_label("Reason").fill("visitors who are gone")
    olga.get_by_role("button", name="Discard").click()

    expect(olga.get_by_text("3 dead letters discarded: visitors who are gone")).to_be_visible()
    assert not DeadLetter.objects.exists()


@pytest.mark.requirement("X5")
@pytest.mark.long
def test_who_may_only_look_finds_nothing_to_press(site, page, login, guard):
    login(page, viewer("django_events.view_consumer", "django_events.view_overview"))
    page.goto("/admin/django_events/overview/")
    expect(page.get_by_role("link", name="invitations").first).to_be_visible()
    expect(page.get_by_role("link", name="visits", exact=True)).not_to_be_visible()
    open_consumer(page, "counting")
    expect(page.get_by_role("link", name="Pause…")).not_to_be_visible()
    guard.expect("403 (Forbidden)")

    page.wait_for_url("**/change/")
    address = page.url.replace("/change/", "/act/pause/")
    assert page.goto(address).status == 403


@pytest.mark.slow
def test_pause_and_resume_on_a_phone(site, open_page, login):
    page = open_page(PHONE)
    login(page, superuser("olga"))
    open_consumer(page, "slow")
    page.get_by_role("link", name="Pause…").tap()
    page.get_by_role("button", name="Pause").tap()
    expect(page.get_by_text("is paused").first).to_be_visible()
    page.get_by_role("link", name="Resume…").tap()
    page.get_by_role("button", name="Resume").tap()
    expect(page.get_by_text("goes on").first).to_be_visible()
    assert Consumer.objects.get(name="slow").paused_at is None


@pytest.mark.slow
def test_an_action_is_taken_with_the_keyboard(site, olga):
    open_consumer(olga, "slow")
    olga.get_by_role("link", name="Pause…").focus()
    olga.keyboard.press("Enter")
    olga.get_by_role("button", name="Pause").focus()
    olga.keyboard.press("Enter")
    olga.get_by_text("is paused").first.wait_for()
    assert Consumer.objects.filter(name="slow", paused_at__lte=ClockTimestamp()).exists()


@pytest.mark.slow
def test_a_hostile_payload_does_nothing(site, olga):
    site.publish(
        {"visitor": 1, "<img src=x onerror=console.error(1)>": "</pre><script>console.error(2)</script>"}, type="<b>x"
    )
    drain(raise_errors=False)

    olga.goto(f"/admin/django_events/topic/{Consumer.objects.get(name='slow').topic_id}/log/121/")
    expect(olga.locator("pre").first).to_contain_text("</pre><script>")


@pytest.mark.long
def test_the_columns_of_dead_letters_fit_beside_the_menu_and_the_filters(site, olga):
    """The one with a long error, a long type and a long key too."""
    error = f"OSError: {'the mailbox is full, ' * 20}"
    DeadLetter.objects.update(error=error, type="order.shipped.abroad", key="8fe5a819-011e-49e7-9263-ebf09e564331")
    olga.set_viewport_size({"width": 1400, "height": 900})
    olga.goto("/admin/django_events/deadletter/")

    wide, there_is = olga.evaluate("(one => [one.scrollWidth, one.clientWidth])(document.querySelector('.results'))")
    assert wide <= there_is
    expect(olga.get_by_role("columnheader", name="Dead since")).to_be_in_viewport()
