#!/usr/bin/env bash
# Two hosts, alpha and beta, on one machine: a network namespace, host name, /dev/shm, TMPDIR and process table each, joined by a cable.
#   hosts.sh FOLDER COMMAND...      runs the command on alpha; FOLDER/agent HOST COMMAND... is how it reaches the other (no ssh)
# Everything lives in namespaces of this one process: when it ends, all of it is gone, whatever happened inside.
set -euo pipefail
if [ -z "${INSIDE_HOSTS:-}" ]; then
    INSIDE_HOSTS=1 exec unshare ${HOSTS_USER---user --map-root-user} --net --mount --uts --ipc --pid --fork --kill-child --mount-proc bash "$0" "$@"
fi
folder=$1; shift
export TMPDIR=/mnt          # process numbers begin anew on every host: what earlier runs left in /tmp would be taken for one's own

cat >"$folder/hosts" <<'END'
127.0.0.1 localhost
10.211.7.1 alpha
10.211.7.2 beta
END
rm -f "$folder"/*.ready
declare -A host
for name in alpha beta; do
    unshare --net --uts --mount --ipc --pid --fork --kill-child --mount-proc bash -c "
        hostname $name; mount -t tmpfs none /dev/shm; mount -t tmpfs none /mnt; mount --bind '$folder/hosts' /etc/hosts; ip link set lo up
        touch '$folder/$name.ready'; exec sleep infinity" &
    outer=$!
    until [ -e "$folder/$name.ready" ] || ! kill -0 $outer; do sleep 0.01; done
    host[$name]=$(tr -d ' ' <"/proc/$outer/task/$outer/children")
    echo "${host[$name]}" >"$folder/$name.pid"
done
ip link add to-beta netns "${host[alpha]}" type veth peer name to-alpha netns "${host[beta]}"
nsenter -t "${host[alpha]}" -n bash -c 'ip addr add 10.211.7.1/24 dev to-beta; ip link set to-beta up'
nsenter -t "${host[beta]}" -n bash -c 'ip addr add 10.211.7.2/24 dev to-alpha; ip link set to-alpha up'

cat >"$folder/agent" <<END
#!/usr/bin/env bash
# mpirun's launch agent: as "ssh HOST COMMAND", into the namespaces of that host.
host=\$1; shift
pid=\$(cat "$folder/\$host.pid") && TMPDIR=/mnt exec nsenter -t "\$pid" -n -u -m -i -p -- bash -c "\$*"
END
chmod +x "$folder/agent"
# The command sees this level's processes, so that it can end a host or unplug its cable.
nsenter -t "${host[alpha]}" -n -u -m -i -- mount -t proc none /proc
status=0
nsenter -t "${host[alpha]}" -n -u -m -i -- "$@" || status=$?
for name in alpha beta; do
    if kill -0 "${host[$name]}" 2>/dev/null; then
        echo "left in shared memory of $name: $(nsenter -t "${host[$name]}" -m ls /dev/shm | tr '\n' ' ')"
    fi
done
exit $status
