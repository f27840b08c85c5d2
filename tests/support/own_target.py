"""A site's own target of a relay, which is its bridge, too: what tests of one say is only what differs."""

from django_events.bridges.relays.targets import Route


class Own:
    """It has no limit, remembers nothing, and goes to one place."""

    largest = None

    def problems(self):
        return iter(())

    def check_installed(self):
        pass

    def route(self, event, partition):
        return Route("paper")

    def bridge(self):
        return self

    def open(self):
        pass

    def newest(self, log):
        return None

    def close(self):
        pass
