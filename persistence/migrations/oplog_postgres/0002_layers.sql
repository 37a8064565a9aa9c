-- Entries before the greater of `primary_from` and `base` are in the archive layer. Of those with a key the table `entries` keeps stubs, whose
-- bodies are empty, so that the key stays unique and found.
ALTER TABLE records ADD COLUMN primary_from BIGINT NOT NULL DEFAULT 1 CHECK (primary_from >= 1);

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
