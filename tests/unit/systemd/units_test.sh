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
# 15 means 1.5. The network and the placement of threads and memory remain open.
systemd-analyze security --offline=true --threshold=15 "$folder/pboxd.service" \
  > "$folder/security" || { cat "$folder/security"; exit 1; }

# Verifies the unit with one drop-in, and checks that its exposure is at most THRESHOLD tenths. The
# report of systemd-analyze is in the file `security` then.
#   with_drop_in FILE THRESHOLD
with_drop_in() {
  rm -rf "$folder/pboxd.service.d" && mkdir "$folder/pboxd.service.d"
  cp "$units/$1" "$folder/pboxd.service.d/"
  output=$(systemd-analyze verify --man=no "$folder/pboxd.service" 2>&1) \
    || { echo "$output"; exit 1; }
  if [ -n "$output" ]; then
    echo "systemd-analyze verify with $1: $output"
    exit 1
  fi
  systemd-analyze security --offline=true --threshold="$2" "$folder/pboxd.service" \
    > "$folder/security" || { cat "$folder/security"; exit 1; }
}

# With the drop-in for DPDK, only VFIO, verbs, raw packets and interfaces are open in addition.
with_drop_in pboxd-dpdk.conf 21
grep -q 'char-vfio:rw' "$folder/security" ||
  { echo "pboxd-dpdk.conf gives no access to VFIO devices"; exit 1; }

# With the drop-in for RDMA, only verbs are open in addition.
with_drop_in pboxd-rdma.conf 16
grep -q 'char-infiniband_verbs:rw' "$folder/security" \
  || { echo "pboxd-rdma.conf gives no access to RDMA devices"; exit 1; }
! grep -q 'char-vfio' "$folder/security" ||
  { echo "pboxd-rdma.conf gives access to VFIO devices"; exit 1; }

# With the drop-in for credentials the unit is as closed as before.
with_drop_in pboxd-credentials.conf 15

# The buffers that the daemon asks for by default must be within the limits that the package sets.
for limit in net.core.rmem_max net.core.wmem_max; do
  grep -q "^$limit = 8388608\$" "$units/pbox.sysctl" \
    || { echo "pbox.sysctl does not set $limit to 8 MiB"; exit 1; }
done

mkdir -p "$folder/root/etc"
systemd-sysusers --root="$folder/root" "$units/pbox.sysusers"
grep -q '^pbox:.*:/usr/sbin/nologin$' "$folder/root/etc/passwd" \
  || { echo "sysusers made no pbox account without a shell"; exit 1; }
if [ "$(id -u)" = 0 ]; then
  systemd-tmpfiles --root="$folder/root" --create "$units/pbox.tmpfiles"
  mode=$(stat -c %a "$folder/root/etc/pbox")
  [ "$mode" = 750 ] || { echo "/etc/pbox has mode $mode, not 750"; exit 1; }
fi
