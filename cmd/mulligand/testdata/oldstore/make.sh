#!/usr/bin/env bash
# Makes the files that TestOldStore reads, as root: ./make.sh BIN, where BIN has mulligan and mulligand of an older version.
# Those here were made by commit 3297ce8 of 2026-11-22, whose records had no checksums.
set -euo pipefail
bin=$(realpath "$1")
here=$(realpath "$(dirname "$0")")
root=/tmp/mulligan-old-store
mkdir -m 0755 $root
trap 'rm -rf $root' EXIT
export HOME=$root XDG_CONFIG_HOME=$root/config MULLIGAN_SOCKET=$root/s.sock
mkdir $root/ws && cd $root/ws
"$bin/mulligand" --user --state-dir $root/state 2>$root/log &
daemon=$!
until "$bin/mulligan" status >/dev/null 2>&1; do sleep 0.1; done

mkdir -p lib/deep empty
echo one >word
ln word lib/second-name
ln -s ../word lib/deep/link
seq 1 30000 | sed 's/$/ a line of a file that changes little/' >lib/long
printf '#!/bin/sh\n' >lib/run.sh
chmod 755 lib/run.sh
touch -d '2020-02-02 02:02:02.123456789' lib/run.sh
chmod 600 lib/long
for i in $(seq 40); do echo "file $i" >lib/deep/f$i; done
chmod 700 empty
sqlite3 shop.db "PRAGMA journal_mode=WAL; CREATE TABLE items (id INTEGER PRIMARY KEY, name TEXT, data BLOB);
	INSERT INTO items VALUES (1, 'tea', x'00ff'), (2, 'milk', NULL);" >/dev/null
"$bin/mulligan" app add --slug shop --dir $root/ws --db sqlite:shop.db >/dev/null
bash "$here/listing.sh" >"$here/one.txt"
"$bin/mulligan" create --notes one --pin >/dev/null

echo two >word
sed -i 's/^15000 .*/15000 another line/' lib/long
rm lib/deep/f7
mv lib/deep/f8 lib/moved
rmdir empty
sqlite3 shop.db "INSERT INTO items VALUES (3, 'bread', zeroblob(50)); UPDATE items SET name = 'coffee' WHERE id = 1;
	ALTER TABLE items ADD COLUMN price REAL DEFAULT 1.5"
bash "$here/listing.sh" >"$here/two.txt"
"$bin/mulligan" create --notes two >/dev/null

echo three >word
echo new >lib/added
sqlite3 shop.db 'DROP TABLE items; CREATE TABLE orders (n)'
bash "$here/listing.sh" >"$here/three.txt"
"$bin/mulligan" rollback 2 >/dev/null
"$bin/mulligan" list --json >"$here/list.json"
kill $daemon
wait $daemon
cd $root
tar --format=posix --sparse -cJf "$here/state.tar.xz" state ws
