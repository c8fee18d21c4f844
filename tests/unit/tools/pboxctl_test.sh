#!/bin/sh
# pboxctl_test.sh PBOXCTL GOLDEN_FOLDER: pboxctl prints the golden plan, plans this machine, accepts
# settings as options, and answers mistakes with the right status and a remedy.
set -eu
pboxctl=$1
golden=$2/pbox-2x14-10nic
. "$(dirname "$0")/expect.sh"

"$pboxctl" plan --config "$golden.conf" --topology "$golden.xml" > "$folder/plan"
diff "$golden.plan" "$folder/plan"

: > "$folder/empty.conf"
expect 0 'Plan for this machine' "$pboxctl" plan --config "$folder/empty.conf"
expect 0 '"pipelines": [' "$pboxctl" plan --config "$folder/empty.conf" -o json
expect 0 'pipeline.pin = on: pinned' "$pboxctl" plan --config "$folder/empty.conf" --pipeline.pin=on
# A plan with DPDK lists the capabilities of the devices, or the reason why they were not asked.
dpdk='--data.port=dpdk --dpdk.no_huge=true --pipeline.count=1 --security.insecure=true
  --security.insecure_off_loopback=true'
expect 0 'the capabilities of the devices are unknown' \
  "$pboxctl" plan --config "$folder/empty.conf" $dpdk \
  '--dpdk.devices=net_no_such0 10.9.0.1/24'
if ! grep -qF 'built without DPDK' "$folder/out"; then
  expect 0 'link up, packets find their queue by udp-port' "$pboxctl" plan \
    --config "$folder/empty.conf" $dpdk '--dpdk.devices=net_null0 10.9.0.1/24'
  expect 0 'device net_null0: results are copied before they are sent' "$pboxctl" plan \
    --config "$folder/empty.conf" $dpdk '--dpdk.devices=net_null0 10.9.0.1/24'
fi

expect 0 'plan' "$pboxctl" --help
expect 0 '--topology FILE' "$pboxctl" plan --help
expect 2 'Usage' "$pboxctl"
expect 2 'unknown command paln' "$pboxctl" paln
expect 2 'did you mean data.mtu?' "$pboxctl" plan --config "$folder/empty.conf" --data.mut=1
expect 2 'no-such.conf' "$pboxctl" plan --config "$folder/no-such.conf"
expect 1 'no-such.xml' "$pboxctl" plan --config "$folder/empty.conf" \
  --topology "$folder/no-such.xml"
expect 1 'pipeline.cores = 900' "$pboxctl" plan --config "$folder/empty.conf" --pipeline.cores=900

expect 0 '--to BOX[:PORT]' "$pboxctl" doctor --help
expect 2 'must be BOX, BOX:PORT or [IPV6]:PORT' "$pboxctl" doctor --to box:port
expect 2 'must be BOX, BOX:PORT or [IPV6]:PORT' "$pboxctl" doctor --to '[::1]9541'
expect 2 'must be from 1 to 600' "$pboxctl" doctor --to box --seconds 0
expect 2 'which doctor --to does not use' "$pboxctl" doctor --to box --data.mtu=1500
expect 2 'not both' "$pboxctl" doctor --to box --config "$folder/empty.conf"
expect 2 'did you mean data.mtu?' "$pboxctl" doctor --config "$folder/empty.conf" --data.mut=1

# Every command explains itself, refuses unknown options, and explains how to name a box.
for command in boxes jobs metrics stragglers top workers; do
  expect 0 "Usage: pboxctl $command" "$pboxctl" "$command" --help
  expect 1 'give the HOST:PORT that pboxd prints as admin=' "$pboxctl" "$command" \
    --admin 127.0.0.1:1
  expect 2 "pboxctl $command: unknown option --wrong" "$pboxctl" "$command" --wrong
  expect 2 '--output is text or json' "$pboxctl" "$command" -o yaml
done
expect 2 "unexpected argument 'too'" "$pboxctl" jobs too
expect 2 "unexpected argument 'many'" "$pboxctl" workers too many
expect 2 'must be 1 to 3600' "$pboxctl" top --interval 0
expect 0 'control protocol' "$pboxctl" version
expect 0 '"control_protocol":' "$pboxctl" version -o json
expect 0 'control protocol' "$pboxctl" --version

# The man page has no warnings and names every command and option, and so does the completion.
"$pboxctl" docs man > "$folder/pboxctl.1"
if command -v man >/dev/null; then
  LC_ALL=C.UTF-8 MANWIDTH=100 man --warnings -E UTF-8 -l "$folder/pboxctl.1" \
    > "$folder/man" 2> "$folder/warnings"
  if [ -s "$folder/warnings" ]; then
    cat "$folder/warnings"
    exit 1
  fi
fi
"$pboxctl" docs completion > "$folder/completion"
complete() {  # complete WORD...: prints the completions that bash offers for the last word
  bash -c '. "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _pboxctl; echo "${COMPREPLY[*]}"' \
    "$folder/completion" "$@"
}
expect 0 'stragglers' complete pboxctl str
expect 0 '--output' complete pboxctl jobs --o
expect 0 'json' complete pboxctl jobs -o j
expect 0 '--interval' complete pboxctl top --in
for command in $("$pboxctl" --help | sed -n '/^Commands/,/^$/s/^  \([a-z]*\) .*/\1/p'); do
  expect 0 "$command" complete pboxctl "$command"
  grep -q "^.SS pboxctl $command " "$folder/pboxctl.1"
  for option in $("$pboxctl" "$command" --help |
    sed -n 's/^  \(-[a-z] \[ \)\{0,1\}\(--[a-z]*\).*/\2/p'); do
    expect 0 "$option" complete pboxctl "$command" "$option"
  done
done
expect 2 '--tensors is not valid UTF-8' "$pboxctl" sync job asp --tensors "$(printf '\377')"
