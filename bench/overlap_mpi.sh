#!/usr/bin/env bash
# bench_overlap under mpirun: two network namespaces joined by a veth pair, shaped to RATE (as in tc, 1gbit unless told). As root.
# MPI takes TCP only, and each namespace has a host name of its own, so that it takes them for two machines.
set -euo pipefail
cd "$(dirname "$0")/.."
rate=${1:-1gbit}
[ "$(id -u)" -eq 0 ] || { echo "overlap_mpi.sh: network namespaces need root" >&2; exit 1; }
work=$(mktemp -d)
cleanup() {
  ip netns del weft0 2>/dev/null || true
  ip netns del weft1 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT
cleanup
mkdir -p "$work"
printf '127.0.0.1 localhost\n10.77.0.1 weft0\n10.77.0.2 weft1\n' >"$work/hosts"
ip netns add weft0
ip netns add weft1
ip link add veth0 netns weft0 type veth peer name veth1 netns weft1
for i in 0 1; do
  ip -n weft$i addr add 10.77.0.$((i + 1))/24 dev veth$i
  ip -n weft$i link set veth$i up
  ip -n weft$i link set lo up
  ip netns exec weft$i tc qdisc add dev veth$i root tbf rate "$rate" burst 256kb latency 50ms
done
# in NAMESPACE COMMAND...: with that namespace's network, host name and hosts file
cat >"$work/in" <<IN
#!/bin/bash
name=\$1; shift
exec ip netns exec "\$name" unshare -u -m bash -c 'hostname "\$0"; mount --bind $work/hosts /etc/hosts; exec "\$@"' "\$name" "\$@"
IN
# What mpirun calls instead of ssh: HOST COMMAND...
cat >"$work/agent" <<AGENT
#!/bin/bash
host=\$1; shift
exec $work/in "\$host" bash -c "\$*"
AGENT
chmod +x "$work/in" "$work/agent"
"$work/in" weft0 mpirun --allow-run-as-root --host weft0:1,weft1:1 -n 2 --bind-to none \
  --mca plm_rsh_agent "$work/agent" --mca plm rsh --mca btl tcp,self --mca pml ob1 \
  --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 \
  "$PWD/build/bench_overlap" "${@:2}"
