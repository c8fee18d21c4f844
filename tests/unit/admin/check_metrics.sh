#!/bin/sh
# check_metrics.sh PROGRAM: does what PROGRAM prints pass Prometheus's own linter?
if ! command -v promtool >/dev/null; then
  echo "skipped: promtool is not installed; Debian has it in the package prometheus"
  exit 77
fi
text=$("$1") || exit 1
printf '%s\n' "$text" | promtool check metrics
