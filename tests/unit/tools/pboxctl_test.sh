#!/bin/sh
# pboxctl prints the golden plan, plans this machine, takes settings as flags, and answers mistakes
# with the status and the words that say what to do: pboxctl_test.sh PBOXCTL GOLDEN_FOLDER
set -eu
pboxctl=$1
golden=$2/pbox-2x14-10nic
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

expect() {  # expect STATUS WORDS COMMAND...: the exit status, and words in what is printed
  status=$1
  words=$2
  shift 2
  actual=0
  "$@" > "$folder/out" 2>&1 || actual=$?
  if [ "$actual" != "$status" ] || ! grep -qF -- "$words" "$folder/out"; then
    echo "$*: status $actual, expected $status and: $words"
    cat "$folder/out"
    exit 1
  fi
}

"$pboxctl" plan --config "$golden.conf" --topology "$golden.xml" > "$folder/plan"
diff "$golden.plan" "$folder/plan"

: > "$folder/empty.conf"
expect 0 'Plan for this machine' "$pboxctl" plan --config "$folder/empty.conf"
expect 0 '"pipelines": [' "$pboxctl" plan --config "$folder/empty.conf" --json
expect 0 'pipeline.pin = on: pinned' "$pboxctl" plan --config "$folder/empty.conf" --pipeline.pin=on
# A plan over DPDK says what the devices can do, or why they were not asked.
dpdk='--data.port=dpdk --dpdk.no_huge=true --pipeline.count=1 --security.insecure=true
  --security.insecure_off_loopback=true'
expect 0 'the devices were not asked' "$pboxctl" plan --config "$folder/empty.conf" $dpdk \
  '--dpdk.devices=net_no_such0 10.9.0.1/24'
if ! grep -qF 'built without DPDK' "$folder/out"; then
  expect 0 'link up, packets find their queue by udp-port' "$pboxctl" plan \
    --config "$folder/empty.conf" $dpdk '--dpdk.devices=net_null0 10.9.0.1/24'
  expect 0 'device net_null0: results are copied to be sent' "$pboxctl" plan \
    --config "$folder/empty.conf" $dpdk '--dpdk.devices=net_null0 10.9.0.1/24'
fi

expect 0 'plan' "$pboxctl" --help
expect 0 '--topology FILE' "$pboxctl" plan --help
expect 2 'Usage' "$pboxctl"
expect 2 'no command paln' "$pboxctl" paln
expect 2 'did you mean data.mtu?' "$pboxctl" plan --config "$folder/empty.conf" --data.mut=1
expect 2 'no-such.conf' "$pboxctl" plan --config "$folder/no-such.conf"
expect 1 'no-such.xml' "$pboxctl" plan --config "$folder/empty.conf" \
  --topology "$folder/no-such.xml"
expect 1 'pipeline.cores = 900' "$pboxctl" plan --config "$folder/empty.conf" --pipeline.cores=900

expect 0 '--to BOX[:PORT]' "$pboxctl" doctor --help
expect 2 'must be BOX, BOX:PORT or [IPV6]:PORT' "$pboxctl" doctor --to box:port
expect 2 'must be BOX, BOX:PORT or [IPV6]:PORT' "$pboxctl" doctor --to '[::1]9541'
expect 2 'must be 1 to 600' "$pboxctl" doctor --to box --seconds 0
expect 2 'are for doctor on the box' "$pboxctl" doctor --to box --data.mtu=1500
expect 2 'exclude each other' "$pboxctl" doctor --to box --config "$folder/empty.conf"
expect 2 'did you mean data.mtu?' "$pboxctl" doctor --config "$folder/empty.conf" --data.mut=1
