"""A relay as an app declares it: a stream consumer that sends the events of a topic on to a broker.

orders_to_redis = relay(orders, to=redis_stream("shop.orders"), name="orders-to-redis", types=["order.*"])
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, ClassVar, Literal, Protocol, get_args, runtime_checkable

from django_events.declarations.declared_consumer import DeclaredConsumer, Handler
from django_events.exceptions import HandlerNotFound, Refused
from django_events.received import ReceivedEvent

Form = Literal["cloudevent_binary", "cloudevent", "value"]
Transform = Callable[[ReceivedEvent], Any]


@runtime_checkable
class RelayTarget(Protocol):
    """Where a relay sends to, as an app declares it; `django_events.bridges` has those of this package.

    It holds no connection and no secret: those are in the settings, under the name of the broker.
    """

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each reason why it can't be used."""

    def check_installed(self) -> None:
        """Raise Refused if a package is missing, naming the one to install."""

    def route(self, event: ReceivedEvent, partition: int | None) -> Any:
        """Where an event goes, see `bridges.Route`. `partition` is None if all are read as one."""

    def bridge(self) -> Any:
        """A new `bridges.Bridge`, not open yet."""


def forms_of(target: object) -> Sequence[Form]:
    """What a target can be sent, the usual one first: all forms, if it doesn't say so as `forms`."""
    forms: Sequence[Form] = getattr(target, "forms", get_args(Form))
    return forms


@dataclass(frozen=True, kw_only=True)
class DeclaredRelay(DeclaredConsumer):
    """A consumer whose handler is a bridge to a broker. Calling it with a list of events sends them."""

    to: RelayTarget | None = None
    form: Form = "cloudevent_binary"
    transform: Transform | None = field(default=None, compare=False)
    is_relay: ClassVar[bool] = True

    @property
    def sends_to(self) -> str:
        """The target in a few words, or its class if it says none."""
        kind = type(self.to)
        return kind.__name__ if kind.__str__ is object.__str__ else str(self.to)

    @property
    def package(self) -> str:
        """The package of the app that has `transform`, or declares the target."""
        of: Any = self.transform or type(self.to)
        return str(getattr(of, "__module__", "")).partition(".")[0]

    def load(self) -> Handler:
        """What sends its events; HandlerNotFound if it can't."""
        for problem in self.problems():
            raise HandlerNotFound(problem)
        target: Any = self.to
        try:
            target.check_installed()
        except Refused as error:
            raise HandlerNotFound(f"Relay {self.name!r} can't send: {error}") from None
        handler: Handler = import_module("django_events.bridges.relays.relaying").Relaying(self)
        return handler

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        what = f"Relay {self.name!r}"
        if not isinstance(self.to, RelayTarget):
            yield f"{what} has to={self.to!r:.100}, expected a target, like redis_stream('shop.orders')."
        else:
            yield from (f"{what}: {problem}" for problem in self.to.problems())
        if len(self.topics) != 1:
            yield f"{what} has {len(self.topics)} topics, expected one: a target can't compare ids of two topics."
        if self.form not in (forms := forms_of(self.to)):
            yield f"{what} has form={self.form!r}, expected {' or '.join(map(repr, forms))}."
        if self.transform is not None and not callable(self.transform):
            yield f"{what} has transform={self.transform!r}, expected a function of an event, or None."
