# The first process of the machine: makes its root, and becomes its systemd.
set -eu
mkdir -p "$DIR/machine"
mount -t tmpfs -o size=2g tmpfs "$DIR/machine"
mkdir "$DIR/machine/upper" "$DIR/machine/work" "$DIR/machine/root"
R="$DIR/machine/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$DIR/machine/upper,workdir=$DIR/machine/work" "$R"
mount -t proc proc "$R/proc"
mount --bind "$R/proc/sys" "$R/proc/sys"
mount -o remount,bind,ro "$R/proc/sys"
mount -t sysfs sysfs "$R/sys" -o ro,nosuid,nodev,noexec
mount -t tmpfs tmpfs "$R/dev" -o mode=755,size=4m
for name in null zero full random urandom tty; do
    touch "$R/dev/$name"
    mount --bind "/dev/$name" "$R/dev/$name"
done
mkdir "$R/dev/pts" "$R/dev/shm"
mount -t devpts devpts "$R/dev/pts" -o newinstance,ptmxmode=0666,mode=620,gid=5
ln -s pts/ptmx "$R/dev/ptmx"
ln -s /proc/self/fd "$R/dev/fd"
for pair in 0:stdin 1:stdout 2:stderr; do ln -s "/proc/self/fd/${pair%%:*}" "$R/dev/${pair##*:}"; done
mount -t tmpfs tmpfs "$R/dev/shm" -o mode=1777,size=1g
mount -t tmpfs tmpfs "$R/run" -o mode=755,size=64m
mount -t tmpfs tmpfs "$R/tmp" -o mode=1777,size=256m
mount -t cgroup2 cgroup2 "$R/sys/fs/cgroup" -o rw,nosuid,nodev,noexec
: > "$R/etc/machine-id"
: > "$R/etc/fstab"
hostname helix-machine
# Whatever this system runs beside: not in here.
rm -rf "$R"/etc/systemd/system/*.wants "$R"/etc/systemd/system/*.requires
for unit in getty.target systemd-timesyncd.service systemd-udevd.service systemd-udev-trigger.service \
    systemd-networkd.service systemd-resolved.service systemd-pstore.service sys-kernel-debug.mount \
    sys-kernel-tracing.mount dev-hugepages.mount dev-mqueue.mount systemd-journald-audit.socket; do
    ln -sf /dev/null "$R/etc/systemd/system/$unit"
done
ip link set lo up 2>/dev/null || true
"$DIR/setup" "$R"
cd "$R"
mkdir -p mnt/old
pivot_root . mnt/old
umount -l /mnt/old
mount --make-rshared /
exec env -i container=helix-machine PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LANG=C.UTF-8 /lib/systemd/systemd --system --unit=multi-user.target --log-target=console --show-status=0
