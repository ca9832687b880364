-- Where each conversation's checkpoint is: a pointer, and nothing else.
CREATE TABLE conversations (
    app_id     TEXT NOT NULL REFERENCES apps (id) ON DELETE CASCADE,
    id         TEXT NOT NULL,     -- the agent's own
    message_id TEXT NOT NULL,
    turn       INTEGER NOT NULL,  -- seq of the last turn before it
    set_at     INTEGER NOT NULL,
    PRIMARY KEY (app_id, id)
) STRICT, WITHOUT ROWID;

-- Stretches of an app's journal in which mulligan itself wrote: no call did.
CREATE TABLE own_writes (
    seq    INTEGER PRIMARY KEY AUTOINCREMENT,
    app_id TEXT NOT NULL REFERENCES apps (id) ON DELETE CASCADE,
    start  TEXT NOT NULL,
    end    TEXT NOT NULL,         -- '' while it goes on
    at     INTEGER NOT NULL
) STRICT;
CREATE INDEX own_writes_app ON own_writes (app_id, seq);
