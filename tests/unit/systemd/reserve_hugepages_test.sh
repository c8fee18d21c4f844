#!/bin/sh
# reserve_hugepages_test.sh SYSTEMD_FOLDER: reserve-hugepages gives each node its share, never takes
# pages away, skips a node without that page size, and refuses wrong percentages.
set -eu
script=$1/reserve-hugepages
nodes=$(mktemp -d)
trap 'rm -rf "$nodes"' EXIT

add_node() {  # add_node INDEX MEMORY_KIB PAGES
  mkdir -p "$nodes/node$1/hugepages/hugepages-2048kB"
  echo "Node $1 MemTotal:  $2 kB" > "$nodes/node$1/meminfo"
  echo "$3" > "$nodes/node$1/hugepages/hugepages-2048kB/nr_hugepages"
}
expect() {  # expect INDEX PAGES
  actual=$(cat "$nodes/node$1/hugepages/hugepages-2048kB/nr_hugepages")
  [ "$actual" = "$2" ] || { echo "node$1 has $actual hugepages, not $2"; exit 1; }
}

add_node 0 2048000 0
add_node 1 4096000 9
add_node 2 2048000 900
mkdir -p "$nodes/node3"
"$script" 50 "$nodes" > /dev/null
expect 0 500
expect 1 1000
expect 2 900

for percent in '' -5 half 95; do
  if "$script" "$percent" "$nodes" > /dev/null 2>&1; then
    echo "$percent percent was accepted"
    exit 1
  fi
done
expect 0 500
