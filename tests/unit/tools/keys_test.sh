#!/bin/sh
# keys_test.sh PBOXCTL: pboxctl keys makes keys that only their owner can read, shows what they are
# for, keeps keys that are there, and answers mistakes with the right status and a remedy.
set -eu
pboxctl=$1
. "$(dirname "$0")/expect.sh"

mode_is() {  # mode_is MODE FILE
  if [ "$(stat -c %a "$2")" != "$1" ]; then
    echo "$2 has mode $(stat -c %a "$2"), expected $1"
    exit 1
  fi
}

ca=$folder/ca
umask 022
expect 0 'authority of cluster rack, until 20' "$pboxctl" keys init "$ca" --cluster rack
mode_is 600 "$ca/ca-key.pem"
mode_is 644 "$ca/ca.pem"
authority=$(sed -n 's/^authority //p' "$folder/out")

expect 0 'pbox://rack/box/a, until 20' "$pboxctl" keys box "$ca" a --out "$folder/a"
mode_is 600 "$folder/a/key.pem"
cmp "$ca/ca.pem" "$folder/a/ca.pem"
expect 0 'pbox://rack/box/b, until 20' "$pboxctl" keys box "$ca" b --out "$folder/b" \
  --hosts b.example.com,10.0.0.7
for name in DNS:b DNS:b.example.com 'IP Address:10.0.0.7'; do
  openssl x509 -noout -ext subjectAltName -in "$folder/b/cert.pem" | grep -q "$name"
done
expect 2 "has the item 'b c'" "$pboxctl" keys box "$ca" c --out "$folder/new" --hosts 'a,b c'
expect 2 '--hosts is for boxes' "$pboxctl" keys viewer "$ca" --out "$folder/new" --hosts a
expect 0 'pbox://rack/tenant/acme/job/resnet-*/rank/0-63' "$pboxctl" keys job "$ca" \
  'acme/resnet-*' --ranks 0-63 --out "$folder/w"
expect 0 'pbox://rack/tenant/acme/job/x/rank/*' "$pboxctl" keys job "$ca" acme/x --out "$folder/x"
expect 0 'pbox://rack/operator' "$pboxctl" keys operator "$ca" --out "$folder/o" --days 1
expect 0 'pbox://rack/viewer' "$pboxctl" keys viewer "$ca" --out "$folder/v"

expect 0 'identity  pbox://rack/box/a' "$pboxctl" keys show "$folder/a"
expect 0 "authority $authority" "$pboxctl" keys show "$folder/a"
expect 0 'in 90 days' "$pboxctl" keys show "$folder/a"
expect 0 'in 1 days' "$pboxctl" keys show "$folder/o"
chmod 644 "$folder/v/key.pem"
expect 1 "chmod 600 $folder/v/key.pem" "$pboxctl" keys show "$folder/v"

# A token is one line that holds all that a folder of keys holds, and only its owner can read it.
token=$folder/acme.token
expect 0 'pbox://rack/tenant/acme/job/resnet-*/rank/0-3' "$pboxctl" keys token "$ca" \
  'acme/resnet-*' --ranks 0-3 --out "$token"
mode_is 600 "$token"
test "$(wc -l < "$token")" = 1
expect 0 'identity  pbox://rack/tenant/acme/job/resnet-*/rank/0-3' "$pboxctl" keys show "$token"
expect 0 "authority $authority" "$pboxctl" keys show "$token"
cp "$token" "$folder/kept"
expect 1 "$token exists already" "$pboxctl" keys token "$ca" acme/x --out "$token"
cmp "$folder/kept" "$token"
expect 0 'job/x/rank' "$pboxctl" keys token "$ca" acme/x --out "$token" --force
expect 0 'identity  pbox://rack/tenant/acme/job/x/rank/*' "$pboxctl" keys show "$token"
expect 2 'keys token FOLDER TENANT/JOB' "$pboxctl" keys token "$ca" --out "$folder/new"
expect 1 'is neither a folder of keys nor a token' "$pboxctl" keys show "$ca/ca-key.pem"

# Keys that are there are kept: no file changes, not even one that is missing is written.
cp "$ca/ca-key.pem" "$folder/kept"
expect 1 "$ca/ca-key.pem exists already" "$pboxctl" keys init "$ca" --cluster other
cmp "$folder/kept" "$ca/ca-key.pem"
cp "$folder/a/key.pem" "$folder/kept"
rm "$folder/a/cert.pem"
expect 1 '--force' "$pboxctl" keys box "$ca" a --out "$folder/a"
cmp "$folder/kept" "$folder/a/key.pem"
test ! -e "$folder/a/cert.pem"
expect 0 'pbox://rack/box/a' "$pboxctl" keys box "$ca" a --out "$folder/a" --force
mode_is 600 "$folder/a/key.pem"
if cmp -s "$folder/kept" "$folder/a/key.pem"; then
  echo 'keys --force kept the former key'
  exit 1
fi

expect 2 'name a subcommand' "$pboxctl" keys
expect 2 "'bax' is unknown" "$pboxctl" keys bax "$ca"
expect 2 "--cluster is ''" "$pboxctl" keys init "$folder/new"
expect 2 "--cluster is 'a b'" "$pboxctl" keys init "$folder/new" --cluster 'a b'
expect 2 'keys box FOLDER NAME' "$pboxctl" keys box "$ca" --out "$folder/new"
expect 2 'with --out' "$pboxctl" keys box "$ca" a
expect 2 "'pbox://rack/box/a/b'" "$pboxctl" keys box "$ca" a/b --out "$folder/new"
expect 2 "the job ''" "$pboxctl" keys job "$ca" acme --out "$folder/new"
expect 2 "the job 'a b'" "$pboxctl" keys job "$ca" 'acme/a b' --out "$folder/new"
expect 2 "the ranks '3-2'" "$pboxctl" keys job "$ca" acme/x --ranks 3-2 --out "$folder/new"
expect 2 '--days is 0' "$pboxctl" keys viewer "$ca" --days 0 --out "$folder/new"
expect 2 '--days is 3651' "$pboxctl" keys viewer "$ca" --days 3651 --out "$folder/new"
expect 1 'ca.pem' "$pboxctl" keys viewer "$folder/none" --out "$folder/new"
test ! -e "$folder/new"

expect 0 'until 20' "$pboxctl" keys init "$folder/short" --cluster rack --days 2
expect 1 'give fewer days' "$pboxctl" keys box "$folder/short" a --out "$folder/new"
cp "$folder/short/ca-key.pem" "$ca/ca-key.pem"
expect 1 'private key that belongs to it' "$pboxctl" keys viewer "$ca" --out "$folder/new"

# The authority is replaced in three steps, each of which may be repeated and none left out.
root=$folder/root
expect 0 'until 20' "$pboxctl" keys init "$root" --cluster rack
expect 0 'box/a' "$pboxctl" keys box "$root" a --out "$folder/ra" --days 7 \
  --hosts a.example.com,10.1.2.3,fd00::7
expect 0 'rank/*' "$pboxctl" keys job "$root" acme/x --out "$folder/rw"
expect 0 'rotation  none' "$pboxctl" keys show "$root"
expect 1 'the replacement of the authority has not begun' "$pboxctl" keys rotate "$root" --issue
expect 2 'are two steps' "$pboxctl" keys rotate "$root" --issue --finish
expect 2 'keys rotate FOLDER' "$pboxctl" keys rotate
cp "$root/ca-key.pem" "$folder/first-key"
expect 0 "keys rotate $root --issue" "$pboxctl" keys rotate "$root" "$folder/ra"
cp "$root/ca.pem" "$folder/both"
expect 0 'step 1 of 3' "$pboxctl" keys rotate "$root" "$folder/ra" "$folder/rw"
cmp "$folder/both" "$root/ca.pem"
cmp "$folder/first-key" "$root/ca-key.pem"
cmp "$root/ca.pem" "$folder/rw/ca.pem"
mode_is 600 "$root/next-key.pem"
test "$(grep -c BEGIN "$root/ca.pem")" = 2
expect 1 'still signs all keys' "$pboxctl" keys rotate "$root" --finish
# Keys that are made now are the former authority's, as not all peers trust the next one yet.
expect 0 'box/b' "$pboxctl" keys box "$root" b --out "$folder/rb"
expect 0 'step 2 of 3' "$pboxctl" keys rotate "$root" --issue "$folder/ra"
if cmp -s "$folder/first-key" "$root/ca-key.pem"; then
  echo 'keys rotate --issue kept the former key'
  exit 1
fi
cmp "$folder/first-key" "$root/former-key.pem"
test ! -e "$root/next-key.pem"
cp "$folder/ra/cert.pem" "$folder/renewed"
for name in DNS:a DNS:a.example.com 'IP Address:10.1.2.3' 'IP Address:FD00:0:0:0:0:0:0:7'; do
  openssl x509 -noout -ext subjectAltName -in "$folder/renewed" | grep -qF "$name"
done
expect 0 'step 2 of 3' "$pboxctl" keys rotate "$root" --issue "$folder/ra"
cmp "$folder/renewed" "$folder/ra/cert.pem"
mode_is 600 "$folder/ra/key.pem"
expect 0 'in 7 days' "$pboxctl" keys show "$folder/ra"
expect 0 'identity  pbox://rack/box/a' "$pboxctl" keys show "$folder/ra"
expect 1 'renew it first' "$pboxctl" keys rotate "$root" --finish "$folder/ra" "$folder/rw"
expect 0 'new keys of pbox://rack/tenant/acme/job/x/rank/*' \
  "$pboxctl" keys rotate "$root" --issue "$folder/rw"
# A step that was interrupted before its last rename is completed.
mv "$root/ca-key.pem" "$root/next-key.pem"
cp "$root/former-key.pem" "$root/ca-key.pem"
expect 0 'step 2 of 3' "$pboxctl" keys show "$root"
test ! -e "$root/next-key.pem"

# Stolen keys of either authority are revoked.
expect 0 'pbox://rack/box/b: revoked' "$pboxctl" keys revoke "$root" "$folder/rb"
expect 0 'rank/*: revoked' "$pboxctl" keys revoke "$root" "$folder/rw/cert.pem"
cp "$root/crl.pem" "$folder/lists"
expect 0 'revoked already' "$pboxctl" keys revoke "$root" "$folder/rw"
cmp "$folder/lists" "$root/crl.pem"
expect 1 'another authority' "$pboxctl" keys revoke "$root" "$folder/a"
expect 1 'another authority' "$pboxctl" keys revoke "$root" "$token"
expect 0 'rank/*' "$pboxctl" keys token "$root" acme/y --out "$token" --force
expect 0 'job/y/rank/*: revoked' "$pboxctl" keys revoke "$root" "$token"
expect 0 'rank/*' "$pboxctl" keys token "$root" acme/y --out "$token" --force
expect 0 "job/y/rank/*" "$pboxctl" keys show "$token"  # the token holds the list of revoked keys
expect 2 "$token is a file" "$pboxctl" keys rotate "$root" --issue "$token"
expect 2 'keys revoke FOLDER KEYS' "$pboxctl" keys revoke "$root"
expect 0 'step 2 of 3' "$pboxctl" keys rotate "$root" --issue "$folder/ra"
cmp "$root/crl.pem" "$folder/ra/crl.pem"
expect 0 'box/a' "$pboxctl" keys show "$folder/ra"
cp "$root/ca.pem" "$folder/rb/ca.pem"
cp "$root/crl.pem" "$folder/rb/crl.pem"
expect 1 'it is revoked' "$pboxctl" keys show "$folder/rb"

expect 0 'rotation  none' "$pboxctl" keys rotate "$root" --finish "$folder/ra"
test ! -e "$root/former-key.pem"
test "$(grep -c BEGIN "$root/ca.pem")" = 1
test "$(grep -c BEGIN "$root/crl.pem")" = 1
cmp "$root/ca.pem" "$folder/ra/ca.pem"
expect 0 'identity  pbox://rack/box/a' "$pboxctl" keys show "$folder/ra"
expect 0 'rotation  none' "$pboxctl" keys rotate "$root" --finish
cp "$root/ca.pem" "$folder/rb/ca.pem"
rm "$folder/rb/crl.pem"
expect 1 'no authority in ca.pem has signed it' "$pboxctl" keys show "$folder/rb"
