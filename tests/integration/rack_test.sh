#!/bin/sh
# rack_test.sh PBOX_PERF: checks that shaped racks work end to end, with every sum checked. No rack
# may leave anything behind, neither one that ends by itself nor one whose owner is killed.
set -eu
perf=$1

skip() {
  echo "skipped: $1"
  exit 77
}
[ "$(id -u)" = 0 ] || skip "network namespaces need root"
command -v ip >/dev/null && command -v tc >/dev/null || skip "ip and tc are absent (iproute2)"
unshare --net true 2>/dev/null || skip "this kernel makes no network namespace"
unshare --net sh -c 'ip link add left0 type veth peer name right0 &&
  ip link add switch type bridge &&
  tc qdisc add dev left0 root tbf rate 1mbit burst 20k limit 20k' 2>/dev/null ||
  skip "this kernel has no veth, bridge or tbf"

# All processes that a rack starts inherit this mark.
export PBOX_RACK_TEST="rack-test-$$"
marked() {
  for environment in /proc/[0-9]*/environ; do
    process=${environment#/proc/}
    process=${process%/environ}
    [ "$process" = $$ ] && continue
    { tr '\0' '\n' <"$environment" | grep -qx "PBOX_RACK_TEST=$PBOX_RACK_TEST"; } 2>/dev/null &&
      readlink "/proc/$process/exe" 2>/dev/null | grep -q pbox && echo "$process"
  done
  return 0
}
expect_nothing_left() {
  tries=0
  while [ -n "$(marked)" ]; do
    tries=$((tries + 1))
    [ $tries -lt 50 ] || { echo "$1 left processes behind: $(marked)"; exit 1; }
    sleep 0.2
  done
  if ip link show switch >/dev/null 2>&1; then
    echo "$1 left a bridge behind"
    exit 1
  fi
}

"$perf" rack --model 1mib --workers 2 --turns 2 --no-peers --json
expect_nothing_left "the exchange"

"$perf" p3 --model 1mib --workers 2 --compute-ms 20 --ratios 1 --iterations 3 --turns 1 --json
expect_nothing_left "the trace"

"$perf" levels --model 1mib --ranks 1 --turns 1 --json
expect_nothing_left "two levels of boxes"

if [ -x "$(dirname "$0")/../../build/deb/etcd-server/usr/bin/etcd" ]; then
  "$perf" psld --model 1mib --scale 1 --setting imbalanced_assignment --still-iterations 4 \
    --moving-iterations 12 --json
  expect_nothing_left "the boxes whose parts move"
  "$perf" failover --model 1mib --scale 1 --turns 1 --iterations 12 --json
  expect_nothing_left "the boxes that are killed"
  "$perf" phub --part placement --model 1mib --scale 1 --workers 2 --turns 1 --iterations 3 \
    --whole --json
  expect_nothing_left "sharded and colocated boxes"
fi

"$perf" phub --part chunks --model 1mib --scale 1 --turns 1 --iterations 2 --json
expect_nothing_left "the chunks"
"$perf" phub --part tenants --turns 1 --json
expect_nothing_left "the tenants"

"$perf" p3 --model 1mib --workers 2 --compute-ms 100 --ratios 1 --iterations 1000 --turns 1 &
owner=$!
tries=0
until [ "$(marked | wc -l)" -ge 10 ]; do  # pbox-perf, pboxd, two ranks in each of four jobs
  tries=$((tries + 1))
  [ $tries -lt 100 ] || { echo "the rack to be killed did not start"; exit 1; }
  sleep 0.2
done
kill -KILL $owner
expect_nothing_left "a killed owner"
echo "nothing was left behind"
