# Lists the workspace in the current folder: kinds, modes, links and contents of files, and the database as SQL.
{
	find . ! -name '*.db*' ! -path './.mulligan*' -printf '%p %y %m %l\n'
	find . -type f ! -name '*.db*' ! -path './.mulligan*' -printf '%p written %T@, %n names\n'
	find . -type f ! -name '*.db*' ! -path './.mulligan*' -exec sha256sum {} +
	sqlite3 shop.db .dump
} | LC_ALL=C sort
