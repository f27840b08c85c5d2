"""What consumers keep true by folding events: roll-ups, which are tables of figures by time and group."""
