-- Version 2: builds that know 1 only would read stubs as entries, and refuse this one.

-- Executors' identities, so that an entry names its writer in a byte or two.
CREATE TABLE writers (
    id INTEGER PRIMARY KEY,
    executor BLOB NOT NULL UNIQUE CHECK (length(executor) = 16)
) STRICT;

-- One per oplog, never removed: who may write it. `state`: 0 suspended, 1 running, 2 deleted.
-- Entries below `base` belong to a life that was deleted: they do not exist for any reader.
-- Entries before the greater of `primary_from` and `base` are in the archive layer.
CREATE TABLE records (
    id INTEGER PRIMARY KEY,
    agent TEXT NOT NULL UNIQUE,
    shard INTEGER NOT NULL CHECK (shard BETWEEN 0 AND 4294967295),
    epoch INTEGER NOT NULL CHECK (epoch >= 1),
    writer INTEGER NOT NULL,
    state INTEGER NOT NULL CHECK (state IN (0, 1, 2)),
    base INTEGER NOT NULL CHECK (base >= 1),
    primary_from INTEGER NOT NULL DEFAULT 1 CHECK (primary_from >= 1)
) STRICT;
CREATE INDEX records_running ON records (shard, agent) WHERE state = 1;

-- The next index is not stored: it is one past the greatest, so that an append writes nothing but its entries.
-- `kind`: 1 invocation, 2 snapshot. Of archived entries some are left as stubs, whose bodies are empty: those with a key, so that it stays
-- unique and found; the newest snapshot; and the oplog's very last entry, which tells the next index.
CREATE TABLE entries (
    oplog INTEGER NOT NULL,
    idx INTEGER NOT NULL CHECK (idx >= 1),
    epoch INTEGER NOT NULL,
    writer INTEGER NOT NULL,
    kind INTEGER NOT NULL CHECK (kind IN (1, 2)),
    key TEXT,
    body BLOB NOT NULL,
    PRIMARY KEY (oplog, idx)
) STRICT, WITHOUT ROWID;
CREATE UNIQUE INDEX entries_key ON entries (oplog, key) WHERE key IS NOT NULL;
CREATE INDEX entries_snapshot ON entries (oplog, idx) WHERE kind = 2;

-- The list of chunks: the bytes themselves, or the path of the object in blob storage that has them.
CREATE TABLE chunks (
    oplog INTEGER NOT NULL,
    first INTEGER NOT NULL CHECK (first >= 1),
    last INTEGER NOT NULL CHECK (last >= first),
    object TEXT,
    content BLOB,
    PRIMARY KEY (oplog, last),
    CHECK ((object IS NULL) <> (content IS NULL))
) STRICT;
