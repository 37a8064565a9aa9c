-- Entries before the greater of `primary_from` and `base` are in the archive layer. Of those the table `entries` keeps stubs, whose bodies are
-- empty: of entries with a key, so that it stays unique and found; of the newest snapshot; and of the oplog's very last entry, which
-- tells the next index.
ALTER TABLE records ADD COLUMN primary_from INTEGER NOT NULL DEFAULT 1 CHECK (primary_from >= 1);

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
