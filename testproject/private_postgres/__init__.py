"""A PostgreSQL of its own for tests and demo, for when DATABASE_URL is unset.

    DATABASES = {"default": {"ENGINE": "testproject.private_postgres", "NAME": "postgres"}}

The server starts at the first connection. All processes of one OS user and checkout share it; it
ends, and its folder goes, with its last user. Nothing outlives that: it is for throw-away data.

    base      Django's PostgreSQL backend, connected to the shared server
    shared    join the shared server, start it if there is none
    watch     the process that owns the shared server and waits for its last user to leave
    server    one PostgreSQL server: create, start, stop, remove
    binaries  where PostgreSQL's programs are
    account   the OS user that a server runs as
    folder    folders and files that no other user can read
"""
