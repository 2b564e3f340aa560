#!/bin/bash
# Boot systemd as PID 1 of a throw-away machine whose root is an overlay of /: boot.sh DIR.
#
# DIR/pid gets the machine's PID 1 as seen from here. DIR/setup, an executable, is given the machine's root
# before it boots. SIGKILL of PID 1 ends all of it; nothing outlives its namespaces but an empty cgroup.
set -eu
export DIR=$1
CG=/sys/fs/cgroup/unified
[ -f /sys/fs/cgroup/cgroup.controllers ] && CG=/sys/fs/cgroup
if mkdir "$CG/helix-machine-$$" 2>/dev/null; then
    echo "$CG/helix-machine-$$" > "$DIR/cgroup"
    echo $$ > "$CG/helix-machine-$$/cgroup.procs"
fi
exec unshare --mount --propagation private --pid --fork --kill-child=SIGKILL --uts --ipc --net --cgroup \
    bash "$(dirname "$(readlink -f "$0")")/inside.sh"
