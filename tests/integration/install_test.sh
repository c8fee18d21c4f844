#!/bin/sh
# Checks that an installed tree works where it was installed: install_test.sh CMAKE BUILD_FOLDER CC
# C_PROGRAM
set -eu
cmake=$1 build=$2 cc=$3 program=$4
prefix=$(mktemp -d)
box=
trap 'if [ -n "$box" ]; then kill "$box"; wait "$box" || true; fi; rm -rf "$prefix"' EXIT

fail() {
  echo "failed: $*"
  exit 1
}

"$cmake" --install "$build" --prefix "$prefix" >/dev/null
dpdk=
[ -f "$build/lib/libpbox_dpdk.so.1" ] && dpdk=lib/libpbox_dpdk.so.1
for file in bin/pboxd bin/pboxctl lib/libpbox.so lib/libpbox.so.1 include/pbox/pbox.h \
  lib/python3/dist-packages/pbox/torch/hook.py lib/systemd/system/pboxd.service \
  lib/sysusers.d/pbox.conf lib/sysctl.d/10-pbox.conf lib/tmpfiles.d/pbox.conf \
  libexec/pbox/reserve-hugepages \
  share/doc/pbox/pboxd.conf.example share/doc/pbox/README.md $dpdk; do
  [ -f "$prefix/$file" ] || fail "$file was not installed"
done
for file in bin/pboxd bin/pboxctl lib/libpbox.so.1 $dpdk; do
  missing=$(ldd "$prefix/$file" | grep 'not found') && fail "$file: $missing"
done
# libnuma changes the memory policy of the thread that loads it, so a training process must not.
ldd "$prefix/lib/libpbox.so.1" | grep libnuma && fail "libpbox.so.1 loads libnuma"
find "$prefix" -name '*.a' -o -name __pycache__ | grep . \
  && fail "the files above must not be installed"

"$prefix/bin/pboxctl" plan >/dev/null || fail "the installed pboxctl plan failed"
: >"$prefix/out"  # must exist, because it is read before pboxd has written anything
"$prefix/bin/pboxd" --config="$prefix/share/doc/pbox/pboxd.conf.example" --control.port=0 \
  --admin.enabled=false --cluster.state_directory="$prefix/state" --data.port_first=0 \
  >"$prefix/out" 2>"$prefix/err" &
box=$!
for _ in $(seq 100); do
  where=$(sed -n 's/^pboxd ready control=\([^ ]*\).*/\1/p' "$prefix/out")
  [ -n "$where" ] && break
  sleep 0.1
done
[ -n "$where" ] || fail "pboxd did not start: $(cat "$prefix/err")"

"$cc" -std=c11 -Wall -Wextra -Wpedantic -Werror -I "$prefix/include" "$program" \
  -L "$prefix/lib" -lpbox -o "$prefix/program"
LD_LIBRARY_PATH="$prefix/lib" ldd "$prefix/program" | grep -q "libpbox.so.1 => $prefix/lib" \
  || fail "the program does not load libpbox.so.1"
LD_LIBRARY_PATH="$prefix/lib" "$prefix/program" "$where" || fail "the C program failed"

# Without PBOX_LIBRARY and outside a checkout, the package finds the library of its own prefix.
command -v python3 >/dev/null || exit 0
found=$(cd "$prefix" && env -u PBOX_LIBRARY -u PBOX_BUILD_DIR \
  PYTHONPATH="$prefix/lib/python3/dist-packages" \
  python3 -B -c 'from pbox import _library; print(_library.load()._name)') ||
  fail "Python cannot import the installed package pbox"
[ "$found" = "$prefix/lib/libpbox.so" ] || fail "the package loaded $found"
