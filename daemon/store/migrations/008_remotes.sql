-- Places in object stores to which the checkpoints of apps are sent. There is no reference to apps: a row is written before the app that
-- a clone makes.
CREATE TABLE remotes (
    app_id TEXT NOT NULL,
    name   TEXT NOT NULL,
    body   TEXT NOT NULL, -- JSON
    sum    BLOB NOT NULL DEFAULT x'',
    PRIMARY KEY (app_id, name)
) STRICT, WITHOUT ROWID;
