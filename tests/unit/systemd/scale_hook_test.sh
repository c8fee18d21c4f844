#!/bin/sh
# scale_hook_test.sh SYSTEMD_FOLDER: the example of a scale hook starts and stops the unit on the
# host that its line of JSON names, and fails if there is none. ssh is a script that records calls.
set -eu
hook=$1/scale_hook.example
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
printf '#!/bin/sh\necho "$@" >> "%s/called"\nexit "${SSH_STATUS:-0}"\n' "$folder" > "$folder/ssh"
chmod +x "$folder/ssh"
PATH=$folder:$PATH

out='{"event": "scale_out", "boxes": ["a"], "switched_off": ["c", "d"], "reason": "it is full"}'
in='{"event": "scale_in", "box": "b", "boxes": ["a", "b"], "switched_off": [], "reason": "empty"}'
none='{"event": "scale_out", "boxes": ["a"], "switched_off": [], "reason": "it is full"}'

fail() { echo "$1" && exit 1; }
"$hook" "$out"
"$hook" "$in"
cat > "$folder/expected" <<'END'
-o BatchMode=yes c sudo systemctl start pboxd
-o BatchMode=yes b sudo systemctl stop pboxd
END
diff "$folder/expected" "$folder/called"
"$hook" "$none" 2> "$folder/errors" && fail "the hook succeeds without a host to start"
grep -q 'add a host' "$folder/errors" || fail "the hook does not report that a host is missing"
SSH_STATUS=255 "$hook" "$in" && fail "the hook succeeds although ssh fails"
exit 0
