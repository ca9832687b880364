-- A turn is kept as long as its checkpoint may be, or as it is among the newest.
CREATE TABLE turns (
    seq      INTEGER PRIMARY KEY AUTOINCREMENT,
    app_id   TEXT NOT NULL REFERENCES apps (id) ON DELETE CASCADE,
    id       TEXT NOT NULL,       -- the agent's own, or minted
    open     INTEGER NOT NULL,    -- it has not ended
    body     TEXT NOT NULL,       -- store.Turn
    UNIQUE (app_id, id)
) STRICT;
CREATE INDEX turns_open ON turns (app_id, open);

CREATE TABLE calls (
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    turn    INTEGER NOT NULL REFERENCES turns (seq) ON DELETE CASCADE,
    id      TEXT NOT NULL,
    body    TEXT NOT NULL,        -- store.Call
    UNIQUE (turn, id)
) STRICT;
