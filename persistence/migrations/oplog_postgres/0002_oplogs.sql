-- Executors' oplogs: many clusters in one database, in the schema "leasehold_oplogs", which the search path leads to.
-- Version 2: builds that know 1 only would read stubs as entries, and refuse this one.

CREATE TABLE clusters (
    id INTEGER GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name TEXT COLLATE "C" NOT NULL UNIQUE
);

-- One per oplog, never removed: who may write it, and where it goes on. Every write begins by updating this row, so
-- writers of one oplog come one after the other. `state`: 0 suspended, 1 running, 2 deleted.
-- Entries below `base` belong to a life that was deleted: they do not exist for any reader.
-- Entries before the greater of `primary_from` and `base` are in the archive layer.
CREATE TABLE records (
    id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    cluster INTEGER NOT NULL,
    agent TEXT COLLATE "C" NOT NULL,
    shard BIGINT NOT NULL CHECK (shard BETWEEN 0 AND 4294967295),
    epoch BIGINT NOT NULL CHECK (epoch >= 1),
    executor BYTEA NOT NULL CHECK (length(executor) = 16),
    state SMALLINT NOT NULL CHECK (state IN (0, 1, 2)),
    base BIGINT NOT NULL CHECK (base >= 1),
    primary_from BIGINT NOT NULL DEFAULT 1 CHECK (primary_from >= 1 AND primary_from <= next),
    next BIGINT NOT NULL CHECK (next >= base),
    -- The newest snapshot of this life.
    snapshot BIGINT CHECK (snapshot >= base AND snapshot < next),
    UNIQUE (cluster, agent)
    -- Room for the next version of a row beside it: an append then touches no index of this table.
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX records_by_shard ON records (cluster, shard, state, agent);

-- `kind`: 1 invocation, 2 snapshot. Archived entries with a key are left as stubs, whose bodies are empty, so that it stays unique and found.
CREATE TABLE entries (
    oplog BIGINT NOT NULL,
    idx BIGINT NOT NULL CHECK (idx >= 1),
    epoch BIGINT NOT NULL,
    executor BYTEA NOT NULL,
    kind SMALLINT NOT NULL CHECK (kind IN (1, 2)),
    key TEXT COLLATE "C",
    body BYTEA NOT NULL,
    PRIMARY KEY (oplog, idx)
);
CREATE UNIQUE INDEX entries_key ON entries (oplog, key) WHERE key IS NOT NULL;

-- The list of chunks: the bytes themselves, or the path of the object in blob storage that has them.
CREATE TABLE chunks (
    oplog BIGINT NOT NULL,
    first BIGINT NOT NULL CHECK (first >= 1),
    last BIGINT NOT NULL CHECK (last >= first),
    object TEXT,
    content BYTEA,
    PRIMARY KEY (oplog, last),
    CHECK ((object IS NULL) <> (content IS NULL))
);
