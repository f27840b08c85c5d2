"""The shop's mail, as far as a demonstration needs one: it is written down, and some mailboxes are full."""

from testproject.shop.models import FullMailbox, Receipt


class MailboxFull(Exception):
    """The customer has to empty the mailbox first."""


def send(customer: str, *, order_id: int, about: str) -> None:
    """Send a receipt, or raise MailboxFull."""
    if FullMailbox.objects.filter(customer=customer).exists():
        raise MailboxFull(f"the mailbox of {customer} is full")
    Receipt.objects.create(order_id=order_id, event=about)
