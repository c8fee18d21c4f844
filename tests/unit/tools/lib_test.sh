#!/usr/bin/env bash
# The functions of tools/lib.sh that the tools share: lib_test.sh TOOLS_FOLDER
set -uo pipefail
# shellcheck source=tools/lib.sh
. "$1/lib.sh"
PBOX_LOGS=$(mktemp -d)
trap 'rm -rf "$PBOX_LOGS"' EXIT

fail() {
  printf 'failed: %s\n' "$*"
  exit 1
}

# The command to run a failed step again is the command that was run, whatever its arguments hold.
count_arguments() { return $(($# + 40)); }
pbox_step "one" count_arguments -L 'unit|integration' "two words" "" >/dev/null
[ $? = 44 ] || fail "a step returns its command's status"
pbox_step "two" true >/dev/null || fail "a step that succeeds"
report=$(pbox_summary)
[ $? = 1 ] || fail "a summary with a failed step has status 1"
again=$(sed -n 's/^  again: (\. tools\/lib\.sh && \(.*\))$/\1/p' <<<"$report")
eval "set -- $again"
[ "$#" = 5 ] && [ "$3" = 'unit|integration' ] && [ "$4" = "two words" ] && [ -z "$5" ] ||
  fail "again: $again"
grep -q "log:   $PBOX_LOGS/one.log" <<<"$report" || fail "$report"

# A Python is named only if it imports every module.
python=$(pbox_python json sys) || fail "no Python imports json"
"$python" -c 'import json, sys' || fail "$python"
pbox_python json no_such_module_here && fail "a module that nobody has was found"

exit 0
