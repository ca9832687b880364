#!/bin/sh
# Builds the initial RAM disk of a tiny guest: busybox, the virtio modules of the
# kernel $1 and, if there is one, the guest agent, into the file $2.
set -e
kernel=$1 out=$2
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
cd "$root"
mkdir -p bin dev proc sys run tmp etc lib/modules sbin usr/sbin var/run a b
cp /bin/busybox bin/busybox
for module in virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk virtio_console failover net_failover virtio_net; do
	file=$(find "/lib/modules/$kernel" -name "$module.ko*" | head -n 1)
	[ -z "$file" ] || cp "$file" lib/modules/
done
if [ -x /usr/sbin/qemu-ga ]; then
	cp /usr/sbin/qemu-ga usr/sbin/
	for lib in $(ldd /usr/sbin/qemu-ga | grep -o '/[^ )]*'); do
		mkdir -p ".$(dirname "$lib")"
		cp -L "$lib" ".$lib"
	done
fi
cat >init <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin:/usr/sbin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev; mount -t tmpfs run /run
ln -sf /proc/mounts /etc/mtab
for m in virtio_ring virtio virtio_pci_modern_dev virtio_pci_legacy_dev virtio_pci virtio_blk virtio_console failover net_failover virtio_net; do
	[ ! -e /lib/modules/$m.ko ] || insmod /lib/modules/$m.ko
done
tries=0
while [ ! -e /dev/vda ] && [ $tries -lt 100 ]; do usleep 50000; tries=$((tries + 1)); done
mount -t ext4 /dev/vda /a
[ ! -e /dev/vdb ] || mount -t ext4 /dev/vdb /b
mkdir -p /dev/virtio-ports
for p in /sys/class/virtio-ports/*; do
	[ ! -e $p/name ] || ln -sf /dev/${p##*/} /dev/virtio-ports/$(cat $p/name)
done
# The power button works only with acpid: what shuts the guest down is its agent, by
# the one command that it knows.
if [ -e /dev/virtio-ports/org.qemu.guest_agent.0 ]; then
	qemu-ga -m virtio-serial -p /dev/virtio-ports/org.qemu.guest_agent.0 -d -f /run/qga.pid -t /run
	tries=0 # it opens the port after it has gone to the background
	while ! ls -l /proc/$(cat /run/qga.pid)/fd 2>/dev/null | grep -q vport && [ $tries -lt 600 ]; do usleep 20000; tries=$((tries + 1)); done
fi
cat >/sbin/shutdown <<'S'
#!/bin/sh
sync; umount /a; umount /b; sync; poweroff -f
S
chmod +x /sbin/shutdown
value() { echo "$(cat /a/value 2>/dev/null) $(cat /b/value 2>/dev/null)"; }
exec 3<>/dev/virtio-ports/app.0
echo "READY" >&3
while :; do
	if read -r cmd arg <&3; then
		case "$cmd" in
		set) for d in /a /b; do
				grep -q " $d " /proc/mounts || continue
				echo "$arg" >$d/value.new && sync $d/value.new && mv $d/value.new $d/value && sync
			done; echo "ok $(value)" >&3 ;;
		get) echo "ok $(value)" >&3 ;;
		sh) echo "ok $(sh -c "$arg" 2>&1 | tr '\n' '|')" >&3 ;;
		*) echo "err $cmd" >&3 ;;
		esac
	else
		usleep 50000
	fi
done
INIT
chmod +x init
find . | cpio -o -H newc 2>/dev/null >"$out" # an emulated processor would be long at unpacking it
