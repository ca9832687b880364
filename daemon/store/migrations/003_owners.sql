-- A token's secret is never here: only its SHA-256. It has 256 bits of chance
-- in it, so a slow hash would guard nothing that a fast one does not.
CREATE TABLE tokens (
    id         TEXT PRIMARY KEY,
    owner_uid  INTEGER NOT NULL,  -- whose rights it carries
    hash       BLOB NOT NULL,
    expires_at INTEGER NOT NULL,  -- 0: never
    body       TEXT NOT NULL      -- ipc.Token
) STRICT;
CREATE INDEX tokens_owner ON tokens (owner_uid);

-- A slug names an app among its owner's: that somebody else has one of the same
-- name is none of anybody's business.
DROP INDEX apps_slug;
CREATE UNIQUE INDEX apps_slug ON apps (json_extract(spec, '$.owner'), slug) WHERE removed_at IS NULL;
