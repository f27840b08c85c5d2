"""A topic of one site, and a mirror or an inbox of it at another one, for tests that kill, freeze and cut them off."""
