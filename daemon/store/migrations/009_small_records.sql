-- Nothing changes in the database. Since this version the small records beside it (of supervised commands, forks and clusters) end with a line that has
-- their checksum. Programs that know version 8 only take such a record for a damaged one; so they refuse to start on a state folder that has some.
SELECT 1;
