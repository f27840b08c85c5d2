"""Django's PostgreSQL backend, connected to the shared private server.

HOST, PORT, USER and PASSWORD of the settings are replaced; NAME, OPTIONS and TEST work as usual.
"""

from typing import Any

from django.db.backends.postgresql import base

from testproject.private_postgres.shared import shared_server


class DatabaseWrapper(base.DatabaseWrapper):
    def get_connection_params(self) -> dict[str, Any]:
        params: dict[str, Any] = super().get_connection_params()
        facts = shared_server.join()
        return {
            **params,
            "host": facts.host,
            "port": facts.port,
            "user": facts.user,
            "password": facts.password,
        }
