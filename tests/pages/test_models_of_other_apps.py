"""docs/how-to/models-of-other-apps.md: the blocks work on a user, on a page of Wagtail, and on an order of Oscar."""

import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.pages.conftest import MakeSite
from tests.pages.site import Site

PAGE = "how-to/models-of-other-apps.md"
UNREACHABLE = (
    "Temporary failure in name resolution",
    "ConnectTimeoutError",
    "NewConnectionError",
    "(from versions: none)",
)
EVENTS = """
from django_events.models import Event
from django_events.log.transfer import Transfer
Transfer("default").move()
for event in Event.objects.of({topic!r}).order_by("id"):
    print(event.type, event.key, sorted(event.value))
"""


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with Wagtail, Oscar, and a Django that both allow."""
    folder = tmp_path_factory.mktemp("others")
    venv.create(folder, with_pip=True)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "ours.pth").write_text(sysconfig.get_path("purelib"))
    pip = [str(folder / "bin/python"), "-m", "pip", "install", "-q", "wagtail", "django-oscar"]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    if any(sign in done.stderr for sign in UNREACHABLE):
        pytest.skip(f"PyPI can't be reached: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return packages


def make(make_site: MakeSite, *apps: str) -> Site:
    site = make_site(PAGE)
    for app in apps:
        for package in (app, f"{app}/migrations"):
            site.write(f"{package}/__init__.py", "")
    site.write("mysite/settings.py", f"\nINSTALLED_APPS += {list(apps)!r}\n", added=True)
    return site


def test_an_outbox_of_the_user(make_site: MakeSite):
    site = make(make_site, "accounts")
    site.take_files("accounts/events.py")
    site.manage("migrate")
    site.script(
        "from django.contrib.auth.models import User\nfrom django.db import transaction\n"
        "with transaction.atomic():\n    User.objects.create_user('ada', password='secret')\n"
        "with transaction.atomic():\n    User.objects.get().delete()\n"
    )
    shown = "['is_active', 'is_staff', 'username']"
    assert site.script(EVENTS.format(topic="users")) == f"user.created 1 {shown}\nuser.deleted 1 {shown}\n"


def test_captures_of_the_user_and_its_groups(make_site: MakeSite):
    site = make(make_site, "accounts")
    site.write("accounts/events.py", "from django_events import topic\n\ntopic('users')\n")
    site.skip_until("class CapturedUser")
    site.take_files("accounts/models.py")
    said = site.run_block()
    assert "CapturedUser" in said
    site.write("accounts/models.py", site.take().code, added=True)
    site.manage("makemigrations", "accounts")
    site.manage("migrate")
    site.script(
        "from django.contrib.auth.models import Group, User\n"
        "user = User.objects.create_user('ada', password='secret')\n"
        "group = Group.objects.create(name='staff')\nuser.groups.add(group)\ngroup.delete()\n"
    )
    row = "['group_id', 'id', 'user_id']"
    assert site.script(EVENTS.format(topic="users")) == (
        f"user.created 1 ['id', 'is_active', 'is_staff', 'username']\nuser.joined 1 {row}\nuser.left 1 {row}\n"
    )


def test_a_capture_of_pages_of_wagtail(make_site: MakeSite, others: Path):
    site = make(make_site, "cms")
    site.variables["PYTHONPATH"] += f":{others}"
    site.write(
        "mysite/settings.py",
        "INSTALLED_APPS = ['wagtail', 'taggit', 'wagtail.images', 'wagtail.documents', 'wagtail.users',"
        " 'wagtail.search', 'wagtail.admin', 'modelcluster', 'treebeard', *INSTALLED_APPS]\n"
        "WAGTAILADMIN_BASE_URL = 'http://localhost'\n",
        added=True,
    )
    site.skip_until("wagtail.models")
    site.take_files("cms/events.py")
    site.write("mysite/settings.py", site.take().code, added=True)
    site.manage("migrate", "-v0")
    assert site.script("print(django.VERSION >= (5, 2))") == "True\n"
    site.script(
        "from wagtail.models import Page\nroot = Page.objects.get(depth=1)\n"
        "page = root.add_child(title='News', slug='news')\npage.title = 'Old news'\npage.save()\npage.delete()\n"
    )
    kinds = [line.split()[0] for line in site.script(EVENTS.format(topic="pages")).splitlines()]
    assert set(kinds) == {"page.created", "page.updated", "page.deleted"}  # its parent counts children, too
    assert (kinds.count("page.created"), kinds.count("page.deleted")) == (1, 1)


def test_a_capture_of_orders_of_oscar(make_site: MakeSite, others: Path):
    site = make(make_site, "sales")
    site.variables["PYTHONPATH"] += f":{others}"
    site.write(
        "mysite/settings.py",
        "import oscar.defaults\nfrom oscar.defaults import *\n"
        "INSTALLED_APPS = ['django.contrib.sites', 'django.contrib.sessions', 'django.contrib.messages',"
        " 'django.contrib.flatpages', 'oscar.apps.analytics.apps.AnalyticsConfig',"
        " 'oscar.apps.checkout.apps.CheckoutConfig', 'oscar.apps.address.apps.AddressConfig',"
        " 'oscar.apps.shipping.apps.ShippingConfig', 'oscar.apps.catalogue.apps.CatalogueConfig',"
        " 'oscar.apps.catalogue.reviews.apps.CatalogueReviewsConfig',"
        " 'oscar.apps.communication.apps.CommunicationConfig', 'oscar.apps.partner.apps.PartnerConfig',"
        " 'oscar.apps.basket.apps.BasketConfig', 'oscar.apps.payment.apps.PaymentConfig',"
        " 'oscar.apps.offer.apps.OfferConfig', 'oscar.apps.order.apps.OrderConfig',"
        " 'oscar.apps.customer.apps.CustomerConfig', 'oscar.apps.search.apps.SearchConfig',"
        " 'oscar.apps.voucher.apps.VoucherConfig', 'oscar.apps.wishlists.apps.WishlistsConfig',"
        " 'treebeard', *INSTALLED_APPS]\nSITE_ID = 1\n"
        "HAYSTACK_CONNECTIONS = {'default': {'ENGINE': 'haystack.backends.simple_backend.SimpleEngine'}}\n",
        added=True,
    )
    site.write("sales/events.py", "from django_events import topic\n\ntopic('orders')\ntopic('stock')\n")
    site.skip_until("oscar.core.loading")
    site.take_files("sales/models.py")
    site.manage("makemigrations", "sales")
    site.manage("migrate", "-v0")
    site.script(
        "from oscar.core.loading import get_model\n"
        "order = get_model('order', 'Order').objects.create(number='1001', currency='EUR', total_incl_tax=9,"
        " total_excl_tax=8, site_id=1)\n"
        "order.status = 'paid'\norder.save()\norder.guest_email = 'a@example.org'\norder.save()\n"
    )
    said = site.script(EVENTS.format(topic="orders"))
    assert [line.split()[:2] for line in said.splitlines()] == [["order.created", "1001"], ["order.updated", "1001"]]
    assert site.all_taken()
