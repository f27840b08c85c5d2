"""Django's runner, for sites that are run by pytest: it doesn't look at system checks either."""

from typing import Any

from django.test.runner import DiscoverRunner


class WithoutChecks(DiscoverRunner):
    def run_checks(self, databases: Any) -> None:
        """Nothing: a site that is made for tests need not pass them."""
