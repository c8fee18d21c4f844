#!/bin/sh
# check_metrics.sh PROGRAM: checks the output of PROGRAM with Prometheus's own linter.
PATH=$PATH:$(dirname "$0")/../../../../build/deb/prometheus/usr/bin
if ! command -v promtool >/dev/null; then
  echo "skipped: no promtool here; tools/test unpacks Debian's package prometheus for it"
  exit 77
fi
text=$("$1") || exit 1
printf '%s\n' "$text" | promtool check metrics
