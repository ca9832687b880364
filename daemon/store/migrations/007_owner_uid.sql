-- A name that was given to another uid is another owner.
DROP INDEX apps_slug;
CREATE UNIQUE INDEX apps_slug ON apps (json_extract(spec, '$.owner'), owner_uid, slug) WHERE removed_at IS NULL;
