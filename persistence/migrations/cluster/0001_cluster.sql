-- The manager's store: one cluster in one file.

-- "LSHc": tells this file from another application's database, and from an oplog.
PRAGMA application_id = 1280526435;

CREATE TABLE head (
    id INTEGER PRIMARY KEY CHECK (id = 1),
    cluster TEXT NOT NULL,
    shard_count INTEGER NOT NULL CHECK (shard_count BETWEEN 1 AND 65536),
    revision INTEGER NOT NULL CHECK (revision > 0),
    -- Names the last write, so that its writer can look up whether it landed.
    tag BLOB NOT NULL CHECK (length(tag) = 16)
) STRICT;

-- A shard without a row was never owned.
CREATE TABLE shards (
    shard INTEGER PRIMARY KEY CHECK (shard BETWEEN 0 AND 65535),
    epoch INTEGER NOT NULL CHECK (epoch >= 0),
    state TEXT NOT NULL CHECK (state IN ('unassigned', 'owned', 'releasing')),
    executor TEXT CHECK ((executor IS NULL) = (state = 'unassigned')),
    -- The revision that took a releasing shard out of its executor's set.
    since INTEGER CHECK ((since IS NULL) = (state <> 'releasing'))
) STRICT;

CREATE TABLE executors (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    address TEXT NOT NULL,
    zone TEXT,
    weight INTEGER NOT NULL,
    lease_length_ms INTEGER NOT NULL,
    key_hash BLOB NOT NULL CHECK (length(key_hash) = 32),
    draining INTEGER NOT NULL CHECK (draining IN (0, 1)),
    superseded INTEGER NOT NULL CHECK (superseded IN (0, 1)),
    registered_at_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
