"""Sites as other people build them: without the admin, without migrations in tests, with apps in another order."""

import pytest

PUBLISH_AND_TRANSFER = """
from django.core.management import call_command
from django_events import publish
from django_events.models import Event

publish("notes", {"text": "hello"})
call_command("run_transfer", once=True, verbosity=0)
print(json.dumps([event.value for event in Event.objects.since("notes")]))
"""


@pytest.mark.slow
def test_a_site_needs_no_admin(site):
    """Django imports the template tags of every app as soon as an engine is looked at."""
    for command in (["check"], ["migrate", "-v0"], ["check", "--deploy", "--database", "default"]):
        site.do(*command)
    assert site.python(PUBLISH_AND_TRANSFER) == [{"text": "hello"}]


def test_template_tags_bring_no_admin_along(site):
    names = """
    import sys
    from django.template import engines

    engines["django"].from_string("{% load django_events_admin %}{{ 12000|number }}").render({})
    print(json.dumps([n for n in sys.modules if n.startswith(("django.contrib.admin", "django_events.admin"))]))
    """

    assert site.python(names) == []


def test_rendering_registers_nothing_where_the_admin_discovers_nothing(site):
    site.settings(
        """
        INSTALLED_APPS = [
            "django.contrib.admin.apps.SimpleAdminConfig", "django.contrib.auth", "django.contrib.contenttypes",
            "django.contrib.messages", "django.contrib.sessions", *INSTALLED_APPS,
        ]
        """
    )

    registered = """
    from django.contrib import admin
    from django.template import engines

    engines["django"].from_string("{% load django_events_admin %}{{ 12000|number }}").render({})
    print(json.dumps([model._meta.label for model in admin.site._registry]))
    """

    assert site.python(registered) == []


BOTH_WAYS = """
from django.db import models
from django_events import capture, outbox


@outbox("notes", created="outbox", updated=None, deleted=None)
class Thing(models.Model):
    big = models.PositiveBigIntegerField(default=3)
    at = models.DateTimeField(null=True)

    class Meta:
        triggers = capture("notes", created="capture", updated=None, deleted=None)
"""
VALUES = """
print(json.dumps([(v["big"], v["at"]) for v in BufferedEvent.objects.using(using).values_list("value", flat=True)]))
"""


def test_capture_knows_columns_where_the_default_database_is_another_one(site):
    """Types of columns are those of PostgreSQL, where the triggers are."""
    site.settings(
        """
        DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}, "events": database()}
        DATABASE_ROUTERS = ["board.routers.Router"]
        """
    )
    site.write(
        "board/routers.py",
        """
        class Router:
            def db_for_read(self, model, **hints):
                return "events"

            db_for_write = db_for_read

            def allow_migrate(self, db, app_label, **hints):
                return db == "events"
        """,
    )
    site.write("board/models.py", BOTH_WAYS)
    site.write("board/migrations/__init__.py", "")
    for command in (["makemigrations", "-v0"], ["migrate", "--database", "events", "-v0"], ["check"]):
        site.do(*command)

    script = f"""
    from django.db import transaction
    from board.models import Thing
    from django_events.models import BufferedEvent
    using = "events"

    with transaction.atomic(using):
        Thing.objects.create()
    {VALUES.strip()}
    """

    assert site.python(script) == [[3, None], [3, None]]


def test_a_time_without_a_zone_is_the_moment_that_the_database_keeps(site):
    """The hour that the clocks go through twice, and the one that they leave out."""
    site.settings('USE_TZ, TIME_ZONE = False, "Europe/Berlin"')
    site.write("board/models.py", BOTH_WAYS)
    site.write("board/migrations/__init__.py", "")
    for command in (["makemigrations", "-v0"], ["migrate", "-v0"]):
        site.do(*command)

    script = f"""
    from datetime import datetime
    from django.db import transaction
    from board.models import Thing
    from django_events.models import BufferedEvent
    using = "default"

    for moment in [(2026, 10, 25, 2, 30), (2026, 3, 29, 2, 30), (2026, 7, 1, 12)]:
        with transaction.atomic(using):
            Thing.objects.create(at=datetime(*moment))
    {VALUES.strip()}
    """

    moments = ["2026-10-25T01:30:00.000000Z", "2026-03-29T01:30:00.000000Z", "2026-07-01T10:00:00.000000Z"]
    assert [at for _, at in site.python(script)] == [moment for moment in moments for _ in range(2)]


CAPTURED = """
from django.db import models
from django_events import capture


class Note(models.Model):
    text = models.TextField()

    class Meta:
        triggers = capture("notes")
"""
THAT_PUBLISH = """
import pytest
from django.db import connection
from django_events import publish
from django_events.models import Event
from django_events.testing import drain, published
from board.models import Note

@pytest.mark.django_db
def test_publishing_and_draining():
    publish("notes", "by hand")
    Note.objects.create(text="captured")
    assert [event.value for event in published("notes")] == ["by hand", {"id": 1, "text": "captured"}]
    assert drain() == 0
    assert Event.objects.of("notes").count() == 2

@pytest.mark.usefixtures("transactional_db")
@pytest.mark.parametrize("again", range(2))
def test_what_is_committed(again):
    Note.objects.create(text="captured")
    drain()
    [event] = Event.objects.of("notes")
    assert event.value["text"] == "captured"

@pytest.mark.django_db
def test_the_log_is_what_migrations_make_of_it():
    with connection.cursor() as cursor:
        cursor.execute("SELECT relkind FROM pg_class WHERE oid = 'django_events_event'::regclass")
        assert cursor.fetchone()[0] == "p"
        cursor.execute("SELECT reloptions FROM pg_class WHERE oid = 'django_events_bufferedevent'::regclass")
        assert "autovacuum_vacuum_threshold=5000" in cursor.fetchone()[0]
"""


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ("", ["--nomigrations"]),
        ('DATABASES["default"]["TEST"] = {"MIGRATE": False}', []),
        ('MIGRATION_MODULES = {"django_events": None, "board": None}', ["--create-db"]),
    ],
    ids=["--nomigrations", "MIGRATE", "MIGRATION_MODULES"],
)
def test_tests_may_do_without_migrations(site, settings, options):
    site.settings(settings)
    site.write("board/models.py", CAPTURED)
    site.write("test_board.py", THAT_PUBLISH)

    done = site.pytest(*options)

    assert done.returncode == 0, done.stdout[-5000:]
    assert "4 passed" in done.stdout


def test_a_database_without_migrations_is_healthy_and_stays_as_it_is(site):
    """`migrate` once more changes nothing, and what examines a database finds nothing to say."""
    site.settings('MIGRATION_MODULES = {"django_events": None, "board": None}')
    for _ in range(2):
        site.do("migrate", "--run-syncdb", "-v0")
        site.python(PUBLISH_AND_TRANSFER)

    assert len(site.python(PUBLISH_AND_TRANSFER)) == 3
    done = site.manage("events", "doctor", "--format", "json")
    assert "MIGRATION_MODULES" in done.stdout, done.stderr


def test_tables_without_migrations_that_have_rows_are_left_alone(site):
    site.settings('MIGRATION_MODULES = {"django_events": None, "board": None}')
    site.python(
        """
        from django.db import connection
        from django_events import models

        with connection.schema_editor() as editor:
            for name in ("Topic", "TopicHead", "BufferedEvent", "DedupKey", "SinkBatch", "StagedEvent",
                         "ScheduledEvent", "Event", "Consumer", "Delivery", "DeliveryLease", "PastDelivery",
                         "DeadLetter", "Intervention", "Position", "MaintenanceStep", "Sample"):
                editor.create_model(getattr(models, name))
        models.SinkBatch.objects.create(sink="kept", batch=1, events=1)
        print(json.dumps(None))
        """
    )

    done = site.manage("migrate", "--run-syncdb", "-v0")

    assert done.returncode == 1
    assert "were made without its migrations, and" in done.stderr
    assert "Make the database anew, with the migrations of django_events." in done.stderr


CAPTURED_SITES = """
from django.contrib.sites.models import Site
from django_events import capture


class CapturedSite(Site):
    class Meta:
        proxy = True
        triggers = capture("notes")
"""
REGISTERED_SITES = """
import pgtrigger
from django.contrib.sites.models import Site
from django_events import capture

pgtrigger.register(*capture("notes"))(Site)
"""
TYPES = """
from django_events.testing import published
print(json.dumps([(event.type, event.value.get("name")) for event in published("notes")]))
"""
OURS = '"pgtrigger", "django_events", "board"'


@pytest.mark.parametrize("apps", [f'{OURS}, "django.contrib.sites"', f'"django.contrib.sites", {OURS}'])
def test_the_order_of_apps_does_not_matter(site, apps):
    """django.contrib.sites writes its first row when post_migrate is sent, and the table is captured."""
    site.settings(f"INSTALLED_APPS = [{apps}]")
    site.write("board/models.py", CAPTURED_SITES)
    site.write("board/migrations/__init__.py", "")
    site.do("makemigrations", "-v0")
    site.do("migrate", "-v0")

    assert site.python(TYPES) == [["site.created", "example.com"]]


def test_the_order_of_apps_does_not_matter_where_pgtrigger_installs_triggers(site):
    """Nor does the first migrate leave triggers behind that have no topic."""
    site.settings(
        """
        INSTALLED_APPS = ["pgtrigger", "django.contrib.sites", "django_events", "board"]
        PGTRIGGER_MIGRATIONS, PGTRIGGER_INSTALL_ON_MIGRATE = False, True
        """
    )
    site.write("board/models.py", REGISTERED_SITES)
    site.do("migrate", "-v0")

    assert site.python(TYPES) == [["site.created", "example.com"]]


def test_the_order_of_apps_does_not_matter_where_there_are_no_migrations(site):
    """Django tells each receiver of post_migrate of each app: the first one of all may write what is captured."""
    site.settings(f'INSTALLED_APPS = ["eager", {OURS}]')
    site.write("eager/__init__.py", "")
    site.write(
        "eager/apps.py",
        """
        from django.apps import AppConfig
        from django.db.models.signals import post_migrate


        class Eager(AppConfig):
            name = "eager"

            def ready(self):
                post_migrate.connect(write)


        def write(using, **kwargs):
            from board.models import Note

            Note.objects.using(using).create(text="at once")
        """,
    )
    site.write("board/models.py", CAPTURED)
    site.settings(f'INSTALLED_APPS = ["eager", {OURS}]\nMIGRATION_MODULES = {{"django_events": None}}')
    site.do("migrate", "--run-syncdb", "-v0")

    assert ["note.created", None] in site.python(TYPES)


DATA_MIGRATION = """
from django.db import migrations


def write(apps, schema_editor):
    apps.get_model("zoo", "Animal").objects.create(name="lion")


class Migration(migrations.Migration):
    dependencies = [("zoo", "0001_initial")]
    operations = [migrations.RunPython(write)]
"""


ANIMAL = "from django.db import models\nclass Animal(models.Model): name = models.TextField()"


def write_zoo(site):
    """An app with a model, and one that captures it by a proxy, whose name comes first."""
    site.settings('INSTALLED_APPS = ["zoo", "aviary", *INSTALLED_APPS]')
    site.write("zoo/__init__.py", "")
    site.write("zoo/migrations/__init__.py", "")
    site.write("zoo/models.py", ANIMAL)
    site.write("aviary/__init__.py", "")
    site.write("aviary/migrations/__init__.py", "")
    site.write(
        "aviary/models.py",
        """
        from django_events import capture
        from zoo.models import Animal

        class CapturedAnimal(Animal):
            class Meta:
                proxy = True
                triggers = capture("notes")
        """,
    )
    site.do("makemigrations", "-v0")


def test_data_migrations_of_others_may_write_what_is_captured(site):
    """The app with the triggers is the first by its name, and nothing says that theirs come after django_events."""
    write_zoo(site)
    [written] = (site.folder / "aviary/migrations").glob("0001*.py")
    site.write("zoo/migrations/0002_data.py", DATA_MIGRATION)

    assert "('django_events', '0002_drop_logs')" in written.read_text()
    site.do("migrate", "-v0")
    assert site.python(TYPES) == [["animal.created", "lion"]]
    site.do("makemigrations", "--check", "-v0")


def test_triggers_for_a_new_field_of_another_app_come_after_it(site):
    """An upgrade of the other app brings a field, the triggers are written anew, and a new database has both."""
    write_zoo(site)
    site.write("zoo/models.py", f"{ANIMAL}; legs = models.IntegerField(default=4)")
    site.do("makemigrations", "zoo", "-v0")
    [upgrade] = (site.folder / "zoo/migrations").glob("0002*.py")
    site.do("makemigrations", "aviary", "-v0")
    [written] = (site.folder / "aviary/migrations").glob("0002*.py")
    data = DATA_MIGRATION.replace("0001_initial", upgrade.stem)
    site.write("zoo/migrations/0003_data.py", data)

    assert f"('zoo', '{upgrade.stem}')" in written.read_text()
    site.do("migrate", "-v0")
    assert site.python(TYPES) == [["animal.created", "lion"]]
    site.do("makemigrations", "--check", "-v0")


KEPT = f"{ANIMAL}; keeper = models.ForeignKey('keepers.Keeper', models.CASCADE, null=True)"
NESTS = """
from django.db import models

class Tree(models.Model):
    pass

class Nest(Tree):
    pass
"""


@pytest.mark.parametrize(
    "upgraded",
    [
        KEPT,
        f"{KEPT}; name = models.TextField(db_column='title')",
        f"{KEPT}; nest = models.ForeignKey('aviary.Nest', models.CASCADE, null=True)",
    ],
    ids=["a foreign key", "a column of another name", "a foreign key to the app with the triggers"],
)
def test_triggers_come_after_changes_of_another_app_that_wait_for_a_third(site, upgraded):
    """All in one makemigrations, which has to decide whose operations come first."""
    write_zoo(site)
    site.settings('INSTALLED_APPS = ["zoo", "aviary", "keepers", *INSTALLED_APPS]')
    site.write("keepers/__init__.py", "")
    site.write("keepers/migrations/__init__.py", "")
    site.write("keepers/models.py", "from django.db import models\nclass Keeper(models.Model): pass")
    site.do("makemigrations", "keepers", "-v0")
    site.write("zoo/models.py", upgraded)
    if "aviary.Nest" in upgraded:
        models = site.folder / "aviary/models.py"
        site.write("aviary/models.py", models.read_text() + NESTS)
    site.do("makemigrations", "-v0")
    [upgrade] = (site.folder / "zoo/migrations").glob("0002*.py")
    triggers = sorted((site.folder / "aviary/migrations").glob("000*.py"))[-1]
    site.write("zoo/migrations/0003_data.py", DATA_MIGRATION.replace("0001_initial", upgrade.stem))

    assert f"('zoo', '{upgrade.stem}')" in triggers.read_text()
    assert triggers.read_text().count("RemoveTrigger(") == triggers.read_text().count("AddTrigger(") == 3
    site.do("migrate", "-v0")
    assert site.python(TYPES) == [["animal.created", "lion"]]
    site.do("makemigrations", "--check", "-v0")


def test_a_migration_makes_a_topic_before_what_publishes_to_it(site):
    """Also one that no app declares any more, and one that is new together with a new release of django_events."""
    site.write("board/models.py", CAPTURED)
    site.write("board/migrations/__init__.py", "")
    site.do("makemigrations", "-v0")
    site.write(
        "board/migrations/0002_more.py",
        """
        from django.db import migrations
        from django_events import CreateTopic, publish


        def write(apps, schema_editor):
            with schema_editor.connection.cursor() as cursor:
                cursor.execute("SELECT django_events_publish('old', '7'), django_events_publish('notes', '8')")


        class Migration(migrations.Migration):
            dependencies = [("board", "0001_initial")]
            operations = [
                CreateTopic("old", partitions=4, timeline=True), CreateTopic("notes", partitions=9),
                migrations.RunPython(write, migrations.RunPython.noop),
            ]
        """,
    )
    for way in ("migrate", "-v0"), ("migrate", "board", "0001", "-v0"), ("migrate", "-v0"):
        site.do(*way)

    topics = """
    from django_events.models import Topic
    print(json.dumps(sorted(Topic.objects.values_list("name", "partitions", "timeline"))))
    """
    assert site.python(topics) == [["notes", 1, False], ["old", 4, True]]
    assert (
        "Create topic old"
        in site.do("migrate", "board", "0001", "--plan").stdout + site.do("sqlmigrate", "board", "0002").stdout
    )


def test_a_topic_that_a_migration_wants_too_early_is_refused_with_the_way_out(site):
    site.write("board/migrations/__init__.py", "")
    site.write(
        "board/migrations/0001_initial.py",
        """
        from django.db import migrations
        from django_events import CreateTopic

        class Migration(migrations.Migration):
            operations = [CreateTopic("notes")]
        """,
    )

    done = site.manage("migrate", "-v0")

    assert done.returncode == 1
    assert (
        "Create topic notes of board: the tables of django_events are not there yet. Add to the dependencies of the "
        "migration: ('django_events', '0002_drop_logs')"
    ) in done.stderr


def test_a_database_beside_postgresql_gets_no_tables(site):
    """No router keeps us away from it, and `migrate` of all databases goes through."""
    site.settings('DATABASES["lite"] = {"ENGINE": "django.db.backends.sqlite3", "NAME": "lite.sqlite3"}')
    site.write("board/models.py", CAPTURED)
    site.write("board/migrations/__init__.py", "")
    site.do("makemigrations", "-v0")
    site.do("check", "--database", "lite")
    for arguments in ([], ["board", "zero"], ["django_events", "zero"], []):
        site.do("migrate", "--database", "lite", "-v0", *arguments)
    site.do("migrate", "-v0")

    tables = """
    from django.db import connections
    print(json.dumps([name for name in connections["lite"].introspection.table_names() if "events" in name]))
    """
    assert site.python(tables) == []


def test_uninstalling_takes_no_tables_of_others_along(site):
    """Their migrations depend on ours, for the sake of the order in a new database."""
    site.write("board/models.py", CAPTURED)
    site.write("board/migrations/__init__.py", "")
    site.do("makemigrations", "-v0")
    site.do("migrate", "-v0")
    site.python("from board.models import Note; Note.objects.create(text='kept'); print('null')")

    refused = site.manage("migrate", "django_events", "zero", "-v0")

    assert refused.returncode == 1
    assert "would unapply migrations of other apps, and drop what they made: board.0001_initial." in refused.stderr
    migration = site.folder / "board/migrations/0001_initial.py"
    migration.write_text(migration.read_text().replace("('django_events', '0002_drop_logs'),", ""))
    site.do("migrate", "django_events", "zero", "-v0")
    notes = "from board.models import Note; print(json.dumps(list(Note.objects.values_list('text', flat=True))))"
    assert site.python(notes) == ["kept"]
