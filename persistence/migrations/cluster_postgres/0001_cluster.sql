-- The manager's store: many clusters in one database, in the schema "leasehold", which the search path leads to.

CREATE TABLE head (
    id INTEGER GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    cluster TEXT NOT NULL UNIQUE,
    -- NULL until the first write.
    shard_count BIGINT CHECK (shard_count BETWEEN 1 AND 65536),
    revision BIGINT NOT NULL DEFAULT 0 CHECK (revision >= 0 AND (revision = 0) = (shard_count IS NULL)),
    -- Names the last write, so that its writer can look up whether it landed.
    tag BYTEA CHECK (length(tag) = 16),
    -- Only who took over last may write, and only on its newest connection (docs/decisions/0007).
    owner BYTEA NOT NULL CHECK (length(owner) = 16),
    writer BIGINT NOT NULL,
    -- Where the owner is reached over gRPC, for people.
    owner_address TEXT
);

-- A shard without a row was never owned.
CREATE TABLE shards (
    cluster INTEGER NOT NULL,
    shard BIGINT NOT NULL CHECK (shard BETWEEN 0 AND 65535),
    epoch BIGINT NOT NULL CHECK (epoch >= 0),
    state TEXT NOT NULL CHECK (state IN ('unassigned', 'owned', 'releasing')),
    executor TEXT CHECK ((executor IS NULL) = (state = 'unassigned')),
    -- The revision that took a releasing shard out of its executor's set.
    since BIGINT CHECK ((since IS NULL) = (state <> 'releasing')),
    PRIMARY KEY (cluster, shard)
);

CREATE TABLE executors (
    cluster INTEGER NOT NULL,
    id TEXT NOT NULL,
    name TEXT NOT NULL,
    address TEXT NOT NULL,
    zone TEXT,
    weight BIGINT NOT NULL,
    lease_length_ms BIGINT NOT NULL,
    key_hash BYTEA NOT NULL CHECK (length(key_hash) = 32),
    draining BOOLEAN NOT NULL,
    superseded BOOLEAN NOT NULL,
    registered_at_ms BIGINT NOT NULL,
    PRIMARY KEY (cluster, id)
);
