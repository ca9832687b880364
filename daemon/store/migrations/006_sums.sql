-- A checkpoint's snapshots are a part of its record, so that one sum covers
-- all of it, and none can get lost by itself.
ALTER TABLE checkpoints ADD COLUMN snapshots TEXT NOT NULL DEFAULT '[]'; -- [store.Snapshot]
UPDATE checkpoints SET snapshots = (
    SELECT json_group_array(json_object('layer', layer, 'id', id, 'driver', driver, 'hash', lower(hex(hash)),
        'position', position, 'quiesced', json(iif(quiesced, 'true', 'false'))))
    FROM (SELECT * FROM snapshots WHERE checkpoint_id = checkpoints.id ORDER BY layer));
DROP TABLE snapshots;

-- rev grows with each change. The content store holds the same record with the
-- same number: the one with the higher number is the newer.
ALTER TABLE checkpoints ADD COLUMN rev INTEGER NOT NULL DEFAULT 0;
ALTER TABLE apps ADD COLUMN rev INTEGER NOT NULL DEFAULT 0;

-- What is to be dropped: by a delete or a prune that the audit trail has, by
-- the end of an operation, or because a capture begins that may not end. A row goes
-- when what it names is gone, or has become part of a checkpoint.
CREATE TABLE disposals (
    kind   TEXT NOT NULL,    -- snapshot, restore, checkpoint or app
    id     TEXT NOT NULL,
    app_id TEXT NOT NULL,
    layer  TEXT NOT NULL,    -- of a snapshot
    cause  TEXT NOT NULL,    -- in words
    at     INTEGER NOT NULL,
    PRIMARY KEY (kind, id)
) STRICT, WITHOUT ROWID;

-- The number of this schema, beside user_version: a bit that flips in one of
-- them must not pass for another version.
CREATE TABLE schema_version (version INTEGER NOT NULL) STRICT;
INSERT INTO schema_version VALUES (6);

-- Each row's sum, see sums.go. Triggers set it.
ALTER TABLE apps ADD COLUMN sum BLOB NOT NULL DEFAULT x'';
ALTER TABLE checkpoints ADD COLUMN sum BLOB NOT NULL DEFAULT x'';
ALTER TABLE operations ADD COLUMN sum BLOB NOT NULL DEFAULT x'';
ALTER TABLE turns ADD COLUMN sum BLOB NOT NULL DEFAULT x'';
ALTER TABLE calls ADD COLUMN sum BLOB NOT NULL DEFAULT x'';
ALTER TABLE tokens ADD COLUMN sum BLOB NOT NULL DEFAULT x'';
ALTER TABLE conversations ADD COLUMN sum BLOB NOT NULL DEFAULT x'';
ALTER TABLE own_writes ADD COLUMN sum BLOB NOT NULL DEFAULT x'';
ALTER TABLE disposals ADD COLUMN sum BLOB NOT NULL DEFAULT x'';
