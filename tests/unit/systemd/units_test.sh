#!/bin/sh
# units_test.sh SYSTEMD_FOLDER: the units load without a warning, the daemon's exposure is below the
# agreed bound, and sysusers and tmpfiles make the account and the folder that the units need.
set -eu
units=$1
for program in systemd-analyze systemd-sysusers systemd-tmpfiles; do
  command -v "$program" >/dev/null && continue
  echo "skipped: $program is not here (package systemd)"
  exit 77
done
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# `verify` needs every program to exist, and ours may not be installed here.
for unit in pboxd.service pbox-hugepages.service; do
  sed -e 's#/usr/bin/pboxd#/bin/true#; s#/usr/libexec/pbox/reserve-hugepages#/bin/true#' \
    "$units/$unit" > "$folder/$unit"
done
output=$(systemd-analyze verify --man=no "$folder/pboxd.service" "$folder/pbox-hugepages.service" \
  2>&1) || { echo "$output"; exit 1; }
if [ -n "$output" ]; then
  echo "systemd-analyze verify: $output"
  exit 1
fi
# pboxctl looks for the UNIX socket where the unit has it.
socket=$(sed -n 's/^ExecStart=.* --admin\.socket=//p' "$units/pboxd.service")
grep -qF "\"$socket\"" "$units/../tools/pboxctl/admin_client.cc" || {
  echo "pboxctl does not look for the unit's socket '$socket'"
  exit 1
}
# 20 means 2.0. The network and the capability for large buffers remain open.
systemd-analyze security --offline=true --threshold=20 "$folder/pboxd.service" \
  > "$folder/security" || { cat "$folder/security"; exit 1; }

# With the drop-in for DPDK, only VFIO, verbs and raw packets are open in addition.
mkdir -p "$folder/pboxd.service.d"
cp "$units/pboxd-dpdk.conf" "$folder/pboxd.service.d/dpdk.conf"
output=$(systemd-analyze verify --man=no "$folder/pboxd.service" 2>&1) \
  || { echo "$output"; exit 1; }
if [ -n "$output" ]; then
  echo "systemd-analyze verify with pboxd-dpdk.conf: $output"
  exit 1
fi
systemd-analyze security --offline=true --threshold=25 "$folder/pboxd.service" \
  > "$folder/security" || { cat "$folder/security"; exit 1; }
grep -q 'char-vfio:rw' "$folder/security" || { echo "pboxd-dpdk.conf opens no VFIO"; exit 1; }

# With the drop-in for RDMA, only verbs are open in addition.
rm "$folder/pboxd.service.d/dpdk.conf"
cp "$units/pboxd-rdma.conf" "$folder/pboxd.service.d/rdma.conf"
output=$(systemd-analyze verify --man=no "$folder/pboxd.service" 2>&1) \
  || { echo "$output"; exit 1; }
if [ -n "$output" ]; then
  echo "systemd-analyze verify with pboxd-rdma.conf: $output"
  exit 1
fi
systemd-analyze security --offline=true --threshold=22 "$folder/pboxd.service" \
  > "$folder/security" || { cat "$folder/security"; exit 1; }
grep -q 'char-infiniband_verbs:rw' "$folder/security" \
  || { echo "pboxd-rdma.conf opens no verbs"; exit 1; }
! grep -q 'char-vfio' "$folder/security" || { echo "pboxd-rdma.conf opens VFIO"; exit 1; }

mkdir -p "$folder/root/etc"
systemd-sysusers --root="$folder/root" "$units/pbox.sysusers"
grep -q '^pbox:.*:/usr/sbin/nologin$' "$folder/root/etc/passwd" \
  || { echo "sysusers made no pbox account without a shell"; exit 1; }
if [ "$(id -u)" = 0 ]; then
  systemd-tmpfiles --root="$folder/root" --create "$units/pbox.tmpfiles"
  mode=$(stat -c %a "$folder/root/etc/pbox")
  [ "$mode" = 750 ] || { echo "/etc/pbox has mode $mode, not 750"; exit 1; }
fi
