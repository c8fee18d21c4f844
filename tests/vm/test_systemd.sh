#!/usr/bin/env bash
# Builds the Debian packages and takes them to a guest that systemd runs:
# test_systemd.sh VM_FOLDER CPACK BUILD_FOLDER PROGRAM
set -euo pipefail
debs=$(mktemp -d -p "$3")
trap 'rm -rf "$debs"' EXIT
"$2" --config "$3/CPackConfig.cmake" -B "$debs" >"$debs/log" 2>&1 ||
  { cat "$debs/log" && exit 1; }
"$(dirname "${BASH_SOURCE[0]}")/run" --limit 1500 --systemd "$1" "PBOX_DEBS='$debs' '$4'"
