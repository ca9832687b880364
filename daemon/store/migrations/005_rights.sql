-- folder_uid is whom the workspace belonged to when it was registered (-1: not
-- noted), and by_root whether root said what the app consists of.
ALTER TABLE apps ADD COLUMN folder_uid INTEGER NOT NULL DEFAULT -1;
ALTER TABLE apps ADD COLUMN by_root INTEGER NOT NULL DEFAULT 0;
