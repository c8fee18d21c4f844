#!/usr/bin/env bash
# Runs in the guest. Checks that it has what tests/vm/run promises.
. "$(dirname "${BASH_SOURCE[0]}")/guest/rack.sh"

nodes_have_cpus_and_hugepages() {
  [ "$(cat /sys/devices/system/node/node0/cpulist)" = 0-1 ] &&
    [ "$(cat /sys/devices/system/node/node1/cpulist)" = 2-3 ] &&
    [ "$(cat /sys/devices/system/node/node[01]/hugepages/hugepages-2048kB/nr_hugepages |
      tr '\n' ' ')" = "256 256 " ]
}

# The PCI device of nicN; a virtio NIC is one level below it.
pci_of() { dirname "$(readlink -f "/sys/class/net/$1/device")"; }

nic_is_on_node_with_4_queues() {
  [ "$(cat "$(pci_of "$1")/numa_node")" = "$2" ] && [ -d "$(pci_of "$1")/iommu_group" ] &&
    [ "$(find "/sys/class/net/$1/queues" -name 'rx-*' | wc -l)" = 4 ]
}

# The messages of ibv_rc_pingpong, from one device to another, each with a checked payload.
devices_talk() {
  local server status
  timeout 60 ibv_rc_pingpong -d "$1" -g 1 -n 50 -c >/dev/null &
  server=$!
  sleep 2
  timeout 60 ibv_rc_pingpong -d "$2" -g 1 -n 50 -c "$3" >/dev/null
  status=$?
  wait "$server" && [ "$status" = 0 ]
}

went_over_the_wire() { [ "$(cat "/sys/class/net/$1/statistics/tx_packets")" -gt 50 ]; }

rack_check "two NUMA nodes with two CPUs and 256 hugepages each" nodes_have_cpus_and_hugepages
rack_check "the NICs' drivers" rack_nics
for nic in 0 1 2 3; do
  rack_check "nic$nic on node $((nic / 2)), with 4 queue pairs, behind the IOMMU" \
    nic_is_on_node_with_4_queues "nic$nic" "$((nic / 2))"
done
rack_check "Soft-RoCE devices" rack_rdma
rack_check "RC messages between devices of two nodes" devices_talk rxe0 rxe2 10.9.0.1
rack_check "which went over the wire" went_over_the_wire nic2
rack_check "RC messages from a device to itself" devices_talk rxe1 rxe1 10.9.0.2
rack_done
