# For commands in the guest; source it. Makes the guest's devices ready for use.
#
#   rack_nics    the NICs' drivers; names them nic0 and nic1 (on node 0), nic2 and nic3 (on node 1),
#                with the addresses 10.9.0.1/24 to 10.9.0.4/24
#   rack_rdma    a Soft-RoCE device on each: rxe0 to rxe3. All are on one network, and packets from
#                one to another go over it
#   rack_dpdk    nic0 and nic2 without the kernel, as the README tells a user to do it
#   rack_workers the namespace "workers", with nic2 in it; takes nic3 down
#   rack_check NAME COMMAND...   "ok: NAME" or "FAILED: NAME"; rack_done: the status of all
# shellcheck shell=bash

rack_failures=0

rack_nic_of_mac() {
  local interface
  for interface in /sys/class/net/*; do
    [ "$(cat "$interface/address")" = "$1" ] && basename "$interface" && return 0
  done
  return 1
}

rack_nics() {
  local nic
  modprobe virtio_net || return 1
  for nic in 0 1 2 3; do
    ip link set "$(rack_nic_of_mac "52:54:00:00:00:0$((nic + 1))")" name "nic$nic" &&
      ip addr add "10.9.0.$((nic + 1))/24" dev "nic$nic" &&
      ip link set "nic$nic" up || return 1
    # Each NIC answers ARP for its own address only, and accepts packets of this kernel's others.
    sysctl -qw "net.ipv4.conf.nic$nic.accept_local=1" "net.ipv4.conf.nic$nic.rp_filter=0" \
      "net.ipv4.conf.nic$nic.arp_ignore=1" "net.ipv4.conf.nic$nic.arp_announce=2" || return 1
  done
}

rack_rdma() {
  local from to
  modprobe -a rdma_rxe ib_uverbs || return 1
  for from in 0 1 2 3; do
    rdma link add "rxe$from" type rxe netdev "nic$from" || return 1
    # Without rules that come first, packets between two addresses of this kernel would use lo.
    ip rule add pref 1 iif "nic$from" lookup local
    for to in 0 1 2 3; do
      [ "$from" = "$to" ] && continue
      ip rule add pref 2 from "10.9.0.$((from + 1))" to "10.9.0.$((to + 1))" lookup $((100 + from))
      ip route replace "10.9.0.$((to + 1))" dev "nic$from" src "10.9.0.$((from + 1))" \
        table $((100 + from))
    done
  done
  ip rule add pref 3 lookup local && ip rule del pref 0
  # The GID of an IPv4 address appears a moment after the device.
  for from in 0 1 2 3; do
    until grep -q "ffff:0a09:000$((from + 1))" "/sys/class/infiniband/rxe$from/ports/1/gids/1"; do
      sleep 0.1
    done
  done
}

rack_check() {
  local name=$1
  shift
  if "$@"; then
    echo "ok: $name"
  else
    echo "FAILED: $name"
    rack_failures=$((rack_failures + 1))
  fi
}

rack_done() { [ "$rack_failures" = 0 ]; }

rack_dpdk() {
  local nic
  # The kernel would leave checksums to a NIC, but no device on this switch computes them.
  for nic in nic1 nic3; do
    ethtool -K "$nic" tx off tx-udp-segmentation off >/dev/null || return 1
  done
  ip link set nic0 down && ip link set nic2 down && modprobe vfio-pci &&
    dpdk-devbind.py --bind=vfio-pci 0000:41:00.0 && dpdk-devbind.py --bind=vfio-pci 0000:81:00.0
}

rack_workers() {
  ip link set nic3 down && ip netns add workers && ip link set nic2 netns workers &&
    ip -n workers addr add 10.9.0.3/24 dev nic2 && ip -n workers link set nic2 up
}
