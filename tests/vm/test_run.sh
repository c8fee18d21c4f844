#!/usr/bin/env bash
# Runs on the host. Checks that tests/vm/run returns output, errors and status, keeps its limit, and
# leaves nothing behind.
#
#   test_run.sh FOLDER     as tests/vm/run takes it
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
. "$here/guest/rack.sh"
folder=$1
"$here/prepare" "$folder" || exit $?  # its output is not the command's
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$here/run" --limit 120 "$folder" \
  "echo out; echo err >&2; pwd; touch '$scratch/from_guest' && ls '$scratch'; exit 7" \
  >"$scratch/out" 2>"$scratch/err"
status=$?
if [ "$status" = 77 ]; then
  cat "$scratch/out"
  exit 77
fi
is_text() { [ "$(cat "$1")" = "$2" ] || { cat "$1" && false; }; }
rack_check "the exit status is the command's" [ "$status" = 7 ]
rack_check "standard output, in the folder of the caller" is_text "$scratch/out" \
  "$(printf 'out\n%s\nerr\nfrom_guest\nout' "$PWD")"
rack_check "standard error" is_text "$scratch/err" err
rack_check "what the guest writes stays in the guest" [ ! -e "$scratch/from_guest" ]

"$here/run" --limit 20 "$folder" 'sleep 1000' >"$scratch/out" 2>"$scratch/err"
status=$?
rack_check "a command that does not end is ended" [ "$status" = 124 ]
rack_check "and the message says so" grep -q "left no exit status" "$scratch/err"

# Makes an emulator that crashes in the first boot, and is the real one in the second.
mkdir "$scratch/bin"
cat >"$scratch/bin/qemu-system-x86_64" <<CRASH
#!/bin/bash
[ -e "$scratch/crashed" ] || { touch "$scratch/crashed" && kill -SEGV \$\$; }
exec "$(command -v qemu-system-x86_64)" "\$@"
CRASH
chmod +x "$scratch/bin/qemu-system-x86_64"
PATH="$scratch/bin:$PATH" "$here/run" --limit 120 "$folder" 'echo out; exit 7' \
  >"$scratch/out" 2>"$scratch/err"
status=$?
rack_check "an emulator that crashes is started again" [ "$status" = 7 ]
rack_check "which is said" grep -q "qemu crashed; all is done again" "$scratch/err"
rack_done
