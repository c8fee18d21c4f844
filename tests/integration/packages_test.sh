#!/bin/bash
# Checks that the Debian packages can be built, contain what they should, satisfy lintian, and let
# other builds find the library: packages_test.sh CMAKE CPACK BUILD_FOLDER CC C_PROGRAM
set -euo pipefail
cmake=$1 cpack=$2 build=$3 cc=$4 program=$5
if ! command -v dpkg-shlibdeps >/dev/null; then
  echo "skipped: dpkg-shlibdeps is missing; it is in Debian's package dpkg-dev"
  exit 77
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

fail() {
  echo "failed: $*"
  exit 1
}

"$cpack" --config "$build/CPackConfig.cmake" -B "$folder/packages" > "$folder/log" 2>&1 ||
  fail "cpack failed: $(cat "$folder/log")"
packages=(pboxd pboxctl libpbox python3-pbox pbox-dashboards)
packages+=(libpbox-tls)
for kind in dpdk rdma; do
  [ ! -f "$build/lib/libpbox_$kind.so.1" ] || packages+=("libpbox-$kind")
done
for package in "${packages[@]}"; do
  file=$(echo "$folder/packages/${package}_"*.deb)
  [ -f "$file" ] || fail "there is no package $package"
  dpkg-deb -x "$file" "$folder/root"
done
for file in usr/bin/pboxd usr/bin/pboxctl usr/lib/systemd/system/pboxd.service \
  usr/share/doc/pbox/pboxd.conf.example usr/share/doc/pbox/docs/metrics.md \
  usr/share/man/man1/pboxctl.1.gz usr/share/bash-completion/completions/pboxctl \
  usr/lib/libpbox.so.1 usr/include/pbox/pbox.h usr/lib/pkgconfig/pbox.pc \
  usr/lib/cmake/pbox/pbox-config.cmake usr/lib/python3/dist-packages/pbox/client.py \
  usr/share/pbox/dashboards/pbox-stragglers.json usr/share/pbox/prometheus/pbox.rules.yml; do
  [ -f "$folder/root/$file" ] || fail "$file is in no package"
done
depends=$(dpkg-deb -f "$folder"/packages/pboxd_*.deb Depends)
case $depends in
  *libc6*pboxctl* | *pboxctl*libc6*) ;;
  *) fail "pboxd depends on: $depends" ;;
esac

# A training image installs libpbox and python3-pbox, and gets neither DPDK nor rdma-core nor
# OpenSSL with them.
for package in libpbox python3-pbox; do
  depends=$(dpkg-deb -f "$folder/packages/${package}_"*.deb Depends)
  case $depends in
    *librte* | *ibverbs* | *rdma* | *libssl* | *libpbox-*) fail "$package depends on: $depends" ;;
    *libpbox* | *libc6*) ;;
    *) fail "$package depends on: $depends" ;;
  esac
done
for package in "${packages[@]:5}"; do
  depends=$(dpkg-deb -f "$folder/packages/${package}_"*.deb Depends)
  case $package:$depends in
    libpbox-dpdk:*librte*) ;;
    libpbox-tls:*libssl3*) ;;
    libpbox-rdma:*libibverbs1*) ;;
    *) fail "$package depends on: $depends" ;;
  esac
done

# Two packages that contain the same file cannot be installed together.
twice=$(for file in "$folder"/packages/*.deb; do
  dpkg-deb -c "$file" | awk '!/\/$/ { print $6 }'
done | sort | uniq -d)
[ -z "$twice" ] || fail "files in two packages: $twice"

PKG_CONFIG_PATH=$folder/root/usr/lib/pkgconfig pkg-config --cflags --libs pbox > "$folder/flags"
read -ra flags < "$folder/flags"
"$cc" -std=c11 "$program" "${flags[@]}" -o "$folder/with_pkg_config" ||
  fail "the program does not build with the flags of pkg-config"
mkdir "$folder/project"
cp "$program" "$folder/project/main.c"
cat > "$folder/project/CMakeLists.txt" <<'PROJECT'
cmake_minimum_required(VERSION 3.16)
project(user LANGUAGES C)
find_package(pbox REQUIRED)
add_executable(main main.c)
target_link_libraries(main PRIVATE pbox::pbox)
PROJECT
"$cmake" -S "$folder/project" -B "$folder/project/build" -DCMAKE_C_COMPILER="$cc" \
  -Dpbox_DIR="$folder/root/usr/lib/cmake/pbox" > "$folder/log" 2>&1 &&
  "$cmake" --build "$folder/project/build" >> "$folder/log" 2>&1 ||
  fail "the build with find_package failed: $(cat "$folder/log")"
for made in with_pkg_config project/build/main; do
  # Read into a variable first: if the reader stopped early, ldd would die of SIGPIPE and pipefail
  # would report that as a failure.
  loaded=$(LD_LIBRARY_PATH=$folder/root/usr/lib ldd "$folder/$made")
  case $loaded in
    *"libpbox.so.1 => $folder/root/usr/lib"*) ;;
    *) fail "$made does not load the packaged library: $loaded" ;;
  esac
done

if ! command -v lintian >/dev/null; then
  echo "skipped: lintian is not installed"
  exit 77
fi
lintian --no-cfg --allow-root --fail-on error "$folder"/packages/*.deb > "$folder/lintian" 2>&1 ||
  fail "lintian: $(cat "$folder/lintian")"
