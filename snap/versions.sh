#!/bin/sh
# versions.sh RELEASE PACKAGES DRIVER [TEST ARGS]: run a database driver's tests against the servers of
# another Debian release, in a system of its own. As root, with debootstrap. The systems are kept below
# MULLIGAN_TEST_CACHE.
#
#	snap/versions.sh trixie postgresql-17 postgres/logical -test.run 'TestConformance|TestInherited'
#	snap/versions.sh trixie mariadb-server mysql
#	snap/versions.sh bullseye postgresql-13 postgres/logical
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
program=$(mktemp)
trap 'rm -f "$program"' EXIT
(cd "$(dirname "$0")/.." && CGO_ENABLED=0 go test -c -o "$program" "./snap/$driver")
# What is mounted is gone with the namespace.
unshare -m sh -c 'root=$1 program=$2
	shift 2
	mount --make-rprivate /
	mount --rbind /dev "$root/dev"
	mount -t proc proc "$root/proc"
	mount -t tmpfs tmpfs "$root/tmp"
	chmod 1777 "$root/tmp"
	cp "$program" "$root/tmp/driver.test"
	chmod 755 "$root/tmp/driver.test"
	exec chroot "$root" /usr/bin/env HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin MULLIGAN_TEST_NOSKIP=1 /tmp/driver.test "$@"' sh "$root" "$program" "$@"
