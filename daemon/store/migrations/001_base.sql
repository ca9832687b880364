-- Times are nanoseconds since the epoch, UTC. JSON columns hold what is only
-- ever read and written whole.

CREATE TABLE apps (
    id         TEXT PRIMARY KEY,
    slug       TEXT NOT NULL,
    owner_uid  INTEGER NOT NULL,
    workspace  TEXT NOT NULL,
    spec       TEXT NOT NULL,    -- ipc.App
    created_at INTEGER NOT NULL,
    removed_at INTEGER           -- unregistered, its checkpoints kept
) STRICT;
CREATE UNIQUE INDEX apps_slug ON apps (slug) WHERE removed_at IS NULL;

CREATE TABLE checkpoints (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT, -- the order they were made in
    id         TEXT NOT NULL UNIQUE,
    app_id     TEXT NOT NULL REFERENCES apps (id),
    pinned     INTEGER NOT NULL DEFAULT 0,
    body       TEXT NOT NULL,    -- ipc.Checkpoint, less what is computed or kept beside it
    created_at INTEGER NOT NULL
) STRICT;
CREATE INDEX checkpoints_app ON checkpoints (app_id, seq);

CREATE TABLE snapshots (
    checkpoint_id TEXT NOT NULL REFERENCES checkpoints (id) ON DELETE CASCADE,
    layer         TEXT NOT NULL,
    id            TEXT NOT NULL UNIQUE,
    driver        TEXT NOT NULL,
    hash          BLOB NOT NULL,
    position      TEXT NOT NULL,
    quiesced      INTEGER NOT NULL,
    PRIMARY KEY (checkpoint_id, layer)
) STRICT, WITHOUT ROWID;

-- An operation that changes an app is a row here from before its first step
-- until after its last: what start-up finds is what a crash cut short.
CREATE TABLE operations (
    id         TEXT PRIMARY KEY,
    app_id     TEXT NOT NULL REFERENCES apps (id),
    kind       TEXT NOT NULL,
    plan       TEXT NOT NULL,
    created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE audit (
    seq    INTEGER PRIMARY KEY AUTOINCREMENT,
    at     INTEGER NOT NULL,
    app_id TEXT NOT NULL,
    body   TEXT NOT NULL,        -- ipc.AuditEntry
    hash   BLOB NOT NULL         -- of this entry and the hash before it
) STRICT;
CREATE INDEX audit_app ON audit (app_id, seq);
