"""How an event gets in."""
