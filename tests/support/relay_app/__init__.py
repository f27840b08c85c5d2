"""A topic and a relay of it, for tests that kill, freeze and cut off its workers."""
