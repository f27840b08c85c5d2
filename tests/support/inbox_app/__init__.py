"""A topic and an inbox of it, for tests that kill, freeze and cut off its workers."""
