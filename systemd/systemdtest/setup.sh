# Becomes PID 1 of an instance. Runs in the new namespaces; $1 is the instance's folder.
dir=$1 root=/mnt/root
mount --make-rprivate /
mount -t tmpfs -o mode=755 tmpfs /mnt
mkdir $root /mnt/state /mnt/log

# The host's files: its root and those mounts that tests and apps keep files on.
mount --bind / $root
for d in /tmp /home /root /var /srv /opt; do
	if mountpoint -q $d; then mount --bind $d $root$d; fi
done

mount -t proc -o nosuid,nodev,noexec proc $root/proc
mount --bind $root/proc/sys $root/proc/sys
mount -o remount,bind,ro $root/proc/sys
mount -t sysfs -o ro,nosuid,nodev,noexec sysfs $root/sys
mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 $root/sys/fs/cgroup

# Devices without disks, consoles and the kernel's log.
mount -t tmpfs -o mode=755,nosuid,noexec tmpfs $root/dev
for n in null zero full random urandom tty; do
	: > $root/dev/$n
	mount --bind /dev/$n $root/dev/$n
done
mkdir $root/dev/pts $root/dev/shm
mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5 devpts $root/dev/pts
mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs $root/dev/shm
ln -s pts/ptmx $root/dev/ptmx
ln -s /proc/self/fd $root/dev/fd
ln -s fd/0 $root/dev/stdin
ln -s fd/1 $root/dev/stdout
ln -s fd/2 $root/dev/stderr

# What the instance writes and the host must not see.
mount --bind "$dir/run" $root/run
mount --bind "$dir/units" $root/etc/systemd/system
mount --bind /mnt/state $root/var/lib/systemd
if [ -d $root/var/log/journal ]; then mount --bind /mnt/log $root/var/log/journal; fi
mkdir -p $root/run/lock $root/run/systemd/journald.conf.d
printf '[Journal]\nStorage=volatile\nRateLimitBurst=0\n' > $root/run/systemd/journald.conf.d/test.conf
hostname mulligan-test

cd $root
pivot_root . mnt
cd /
umount -l /mnt
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin container=mulligan-test \
	SYSTEMD_UNIT_PATH=/etc/systemd/system:/run/systemd/transient:/run/systemd/system:/run/mulligan-test/units \
	SYSTEMD_GENERATOR_PATH=/run/mulligan-test/none SYSTEMD_LOG_TARGET=journal \
	/lib/systemd/systemd --system --unit=multi-user.target
