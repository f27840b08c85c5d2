"""The test suites of other projects, with all their tables captured, and then with all their models in an outbox too.

    nice python -m tests.foreign guardian
    nice python -m tests.foreign wagtail wagtail.tests.test_page_model wagtail.documents
    nice python -m tests.foreign oscar --source ../django-oscar tests/integration/order

It makes a virtual environment in a scratch folder, takes the project's source from PyPI, runs its suite without
django_events, with everything captured, and with an outbox of every model too, and compares which tests fail. Each run
has an empty MEDIA_ROOT: tests leave files there, and the next run's would get other names. It says which failures
are nothing but counts of queries, and which are saves outside of a transaction: an outbox refuses those, and such code
is what capture() is for. The source of django-oscar on PyPI has no tests: give it a checkout with --source.

It takes from minutes to an hour, needs PyPI, and is no part of the test suite: pytest finds nothing here.
"""
