"""Where events are kept in order."""
