# A folder for files of the test, and how commands are checked. To be sourced.
# shellcheck shell=sh

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

expect() {  # expect STATUS WORDS COMMAND...: the exit status, and words that the output contains
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
