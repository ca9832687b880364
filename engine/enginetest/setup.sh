# Becomes PID 1 of an instance. Runs in the new namespaces, which have a network of their own; $1 is the instance's folder.
dir=$1
mount --make-rprivate /
mount -t proc -o nosuid,nodev,noexec proc /proc
mount -t sysfs -o nosuid,nodev,noexec sysfs /sys
mkdir -p /sys/fs/cgroup
mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 /sys/fs/cgroup
# Processes and controllers cannot both be in a group that has groups below it: this one is left to the engine.
mkdir /sys/fs/cgroup/init
echo $$ > /sys/fs/cgroup/init/cgroup.procs
# What engines keep there must not meet that of the host's own engine.
mount -t tmpfs tmpfs /run
mkdir -p /run/lock /run/containers
mount --bind /dev/null /etc/resolv.conf 2>/dev/null || :
ip link set lo up
ulimit -n 4096
: > "$dir/ready"
# Bash reaps what containers leave behind.
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin bash -c 'sleep infinity & while :; do wait; done'
