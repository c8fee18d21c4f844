#!/usr/bin/env bash
# lib_test.sh TOOLS_FOLDER: tests the shell functions of tools/lib.sh.
set -uo pipefail
# shellcheck source=tools/lib.sh
. "$1/lib.sh"
PBOX_LOGS=$(mktemp -d)
trap 'rm -rf "$PBOX_LOGS"' EXIT

fail() {
  printf 'failed: %s\n' "$*"
  exit 1
}

# The summary prints the exact command of a failed step, whatever characters its arguments contain.
pbox_count_arguments() { return $(($# + 40)); }
pbox_step "one" pbox_count_arguments -L 'unit|integration' "two words" "" >/dev/null
[ $? = 44 ] || fail "a step did not return its command's status"
pbox_step "two" true >/dev/null || fail "a step that succeeds was reported as failed"
report=$(pbox_summary)
[ $? = 1 ] || fail "a summary with a failed step did not return 1"
again=$(sed -n 's/^  again: (\. tools\/lib\.sh && \(.*\))$/\1/p' <<<"$report")
eval "set -- $again"
[ "$#" = 5 ] && [ "$3" = 'unit|integration' ] && [ "$4" = "two words" ] && [ -z "$5" ] ||
  fail "the printed command does not repeat the step: $again"
grep -q "log:   $PBOX_LOGS/one.log" <<<"$report" || fail "$report"
# The summary prints no command for a function of the caller, which would not exist elsewhere.
own() { return 1; }
pbox_step "three" own >/dev/null
report=$(pbox_summary)
grep -q 'failed: three' <<<"$report" || fail "$report"
grep -q 'again: .*own' <<<"$report" && fail "$report"

# A failed step shows the output of its failed tests, however much output follows.
ctest_like() {
  printf '      Start  1: first\n1/3 Test  #1: first ....   Passed    0.01 sec\n'
  printf '      Start  2: second\n      Start  3: third\n'
  printf '2/3 Test  #2: second ....***Failed    0.02 sec\nthe reason of the second\n\n'
  printf '3/3 Test  #3: third ....   Passed    0.03 sec\n'
  for _ in $(seq "$PBOX_TAIL_LINES"); do printf 'the summary\n'; done
  return 8
}
shown=$(pbox_step "tests" ctest_like)
grep -q '| the reason of the second$' <<<"$shown" ||
  fail "the output of a failed test is missing: $shown"
grep -q 'third' <<<"$shown" && fail "the output of a test that passed is shown: $shown"
not_ctest() { printf 'the end\n' && return 1; }
shown=$(pbox_step "other" not_ctest)
grep -q '| the end$' <<<"$shown" || fail "the end of a log of another program is missing: $shown"

# With pbox_resume, a step that passed on the same commit does not run again, one that failed does.
PBOX_PASSED=$PBOX_LOGS/passed
skipping() { printf 'skipped: test_a: no device\n'; }
pbox_step "five six" skipping >/dev/null
pbox_step "seven" own >/dev/null
PBOX_SKIPPED=()
(PBOX_PASSED= && pbox_resume) 2>/dev/null && fail "pbox_resume accepted a tree with changes"
pbox_resume
pbox_step "five six" own >/dev/null || fail "a step that passed before ran again"
[ "${PBOX_SKIPPED[*]}" = "five six: test_a: no device" ] || fail "${PBOX_SKIPPED[*]}"
pbox_step "five" own >/dev/null &&
  fail "a step was left out because another step's name begins with its own"
pbox_step "seven" own >/dev/null && fail "a step that failed before was left out"

# pbox_python names a Python only if it can import every module.
python=$(pbox_python json sys) || fail "no Python imports json"
"$python" -c 'import json, sys' || fail "$python"
pbox_python json no_such_module_here && fail "a module was found that does not exist"

exit 0
