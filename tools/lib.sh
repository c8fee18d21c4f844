# Shell functions that tools/test, tools/demo and others share. Source it; it changes no directory.
#
#   pbox_install GROUP...        install what is missing of these groups of tools/packages
#   pbox_unpack GROUP...         unpack these groups below build/deb, without installing them
#   pbox_build PRESET [TARGET]   configure build/PRESET and build it
#   pbox_python MODULE...        the Python here that can import all of these
#   pbox_make_network NAME       a namespace with a cable for a box with DPDK
#   pbox_step NAME COMMAND...    run one step: number, name, time; its output goes to a log
#   pbox_summary                 times, what was skipped, what failed; status 1 if anything did
# shellcheck shell=bash

PBOX_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PBOX_LOGS=$PBOX_ROOT/build/logs
PBOX_JOBS=${PBOX_JOBS:-$(nproc)}
PBOX_STEP_INDEX=0
PBOX_STEP_COUNT=${PBOX_STEP_COUNT:-1}
PBOX_REPORT=()
# One entry of each per failed step.
PBOX_FAILED_NAMES=()
PBOX_FAILED_COMMANDS=()
PBOX_FAILED_LOGS=()
# "STEP: PROGRAM: WHY", of tests that did not run.
PBOX_SKIPPED=()
# Lines of a failed step's log that are worth the screen.
PBOX_TAIL_LINES=40

if command -v ccache >/dev/null && [ -z "${CMAKE_CXX_COMPILER_LAUNCHER+set}" ]; then
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
fi

pbox_say() { printf '%s\n' "$*"; }

pbox_die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# Runs a command as root: directly, or through sudo where that asks no question.
pbox_as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo --preserve-env=DEBIAN_FRONTEND "$@"
  else
    return 127
  fi
}

# The packages of the given groups, one per line, each once.
pbox_packages() {
  awk -v groups=" $* " '!/^#/ && NF && index(groups, " " $1 " ") && !seen[$2]++ { print $2 }' \
    "$PBOX_ROOT/tools/packages"
}

pbox_missing_packages() {
  local package
  pbox_packages "$@" | while read -r package; do
    dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | grep -qx installed ||
      pbox_say "$package"
  done
}

pbox_install() {
  command -v dpkg-query >/dev/null || {
    pbox_say "not a Debian system: what tools/packages lists must be installed by hand"
    return 0
  }
  local missing=() install=(apt-get install -y -q --no-install-recommends)
  mapfile -t missing < <(pbox_missing_packages "$@")
  if [ ${#missing[@]} -eq 0 ]; then
    pbox_say "nothing is missing"
    return 0
  fi
  pbox_say "installing: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # The lists may be absent (a fresh container) or stale: they are fetched only where that shows.
  pbox_as_root "${install[@]}" "${missing[@]}" ||
    { pbox_as_root apt-get update -q && pbox_as_root "${install[@]}" "${missing[@]}"; } ||
    { pbox_say "remedy: as root, apt-get update && apt-get install ${missing[*]}" && return 1; }
}

# For packages whose installation would start a server: their programs end up below
# build/deb/PACKAGE.
pbox_unpack() {
  local package folder=$PBOX_ROOT/build/deb
  command -v dpkg-deb >/dev/null || return 0
  mkdir -p "$folder" && cd "$folder" || return 1
  for package in $(pbox_packages "$@"); do
    [ -d "$package" ] && continue
    pbox_say "unpacking: $package"
    apt-get download -q "$package" ||
      { pbox_as_root apt-get update -q && apt-get download -q "$package"; } || return 1
    rm -rf "$package.part"
    dpkg-deb -x "$package"_*.deb "$package.part" && mv "$package.part" "$package" || return 1
    rm -f "$package"_*.deb
  done
}

# The first of the usual Pythons that can import all the modules: the one in PATH may be a bare one,
# while the packages of the system belong to the system's. Status 1 if none can.
pbox_python() {
  local python modules
  modules=$(IFS=, && printf '%s' "$*")
  for python in python3 /usr/bin/python3; do
    if command -v "$python" >/dev/null && "$python" -c "import $modules" 2>/dev/null; then
      command -v "$python"
      return 0
    fi
  done
  return 1
}

# A cable in a network namespace of its own, 10.77.0.0/24: the end box0 is left to a box with the
# arguments PBOX_NETWORK_BOX, the end worker0 is the kernel's. As root. `ip netns del` removes it.
PBOX_NETWORK_BOX=(--box.listen=127.0.0.1 --data.port=dpdk --data.port_first=9542 --data.mtu=9000
  '--dpdk.devices=net_af_packet0,iface=box0 10.77.0.1/24' --dpdk.no_huge=true
  --security.insecure=true --security.insecure_off_loopback=true)
pbox_make_network() {
  local name=$1
  ip netns add "$name" && ip -n "$name" link set lo up &&
    ip -n "$name" link add box0 mtu 9000 type veth peer name worker0 mtu 9000 &&
    ip -n "$name" addr add 10.77.0.2/24 dev worker0 &&
    # The kernel would answer at the box's end too, and leave checksums to a NIC that is none.
    ip netns exec "$name" sysctl -qw net.ipv6.conf.box0.disable_ipv6=1 &&
    ip netns exec "$name" ethtool -K worker0 tx off tx-udp-segmentation off >/dev/null &&
    ip -n "$name" link set box0 up && ip -n "$name" link set worker0 up
}

pbox_build() {
  local preset=$1
  shift
  (cd "$PBOX_ROOT" && cmake --preset "$preset" &&
    cmake --build --preset "$preset" --parallel "$PBOX_JOBS" ${1:+--target "$@"})
}

# Test programs share the machine's cores with the boxes they start: two at once, no more.
pbox_ctest() {
  local preset=$1
  shift
  (cd "$PBOX_ROOT" && ctest --test-dir "build/$preset" --output-on-failure -j2 --timeout 600 \
    --no-tests=error "$@")
  local status=$?
  pbox_skipped_tests "$PBOX_ROOT/build/$preset/Testing/Temporary/LastTest.log"
  return $status
}

# pbox_skipped_tests CTEST_LOG: "skipped: PROGRAM: WHY" for what did not run here, in whole or in
# part; such programs print "skipped: WHY", which ctest keeps to its log.
pbox_skipped_tests() {
  awk '/^[0-9]+\/[0-9]+ Test(ing)?: / { name = $NF; delete seen }
    sub(/^ *skipped: /, "") && !seen[$0]++ { print "skipped: " name ": " $0 }' "$1"
}

# pbox_failure LOG: what of a failed step's log says why: what each failed test printed, or the end.
pbox_failure() {
  local tests
  tests=$(awk -v most="$PBOX_TAIL_LINES" '/^ *Start +[0-9]+: / { shown = most; next }
    /^ *[0-9]+\/[0-9]+ Test +#[0-9]+: / { shown = /\*\*\*/ ? 0 : most }
    shown++ < most' "$1")
  if grep -q '[*][*][*]' <<<"$tests"; then
    printf '%s\n' "$tests"
  else
    tail -n "$PBOX_TAIL_LINES" "$1"
  fi
}

pbox_step() {
  local name=$1 started=$SECONDS log status=0
  shift
  PBOX_STEP_INDEX=$((PBOX_STEP_INDEX + 1))
  mkdir -p "$PBOX_LOGS"
  log=$PBOX_LOGS/$(tr -c 'a-z0-9\n' '-' <<<"$name").log
  printf '[%d/%d] %s ... ' "$PBOX_STEP_INDEX" "$PBOX_STEP_COUNT" "$name"
  if [ -n "${PBOX_VERBOSE:-}" ]; then
    printf '\n'
    { "$@" 2>&1 && true; } | tee "$log"
    status=${PIPESTATUS[0]}
  else
    "$@" >"$log" 2>&1 || status=$?
  fi
  local seconds=$((SECONDS - started)) verdict=ok
  if [ "$status" -ne 0 ]; then
    verdict=FAILED
    PBOX_FAILED_NAMES+=("$name")
    PBOX_FAILED_COMMANDS+=("$(printf '%q ' "$@")")
    PBOX_FAILED_LOGS+=("$log")
  fi
  PBOX_REPORT+=("$(printf '%-44s %6d s  %s' "$name" "$seconds" "$verdict")")
  printf '%s, %d s\n' "$verdict" "$seconds"
  grep -E '^[0-9]+% tests passed' "$log" | sed 's/^/      /' || true
  local skipped
  while read -r skipped; do
    PBOX_SKIPPED+=("$name: ${skipped#skipped: }")
  done < <(grep '^skipped: ' "$log")
  if [ "$status" -ne 0 ] && [ -z "${PBOX_VERBOSE:-}" ]; then
    pbox_failure "$log" | sed 's/^/      | /'
  fi
  return "$status"
}

pbox_summary() {
  local index
  printf '\n'
  printf '%s\n' "${PBOX_REPORT[@]}"
  printf '%-44s %6d s\n' total "$SECONDS"
  if [ ${#PBOX_SKIPPED[@]} -ne 0 ]; then
    printf '\nskipped here: %d\n' "${#PBOX_SKIPPED[@]}"
    printf '  %s\n' "${PBOX_SKIPPED[@]}"
  fi
  [ ${#PBOX_FAILED_NAMES[@]} -eq 0 ] && return 0
  for index in "${!PBOX_FAILED_NAMES[@]}"; do
    printf '\nfailed: %s\n  log:   %s\n' "${PBOX_FAILED_NAMES[$index]}" \
      "${PBOX_FAILED_LOGS[$index]}"
    case ${PBOX_FAILED_COMMANDS[$index]} in  # others are the caller's own
      pbox_*) printf '  again: (. tools/lib.sh && %s)\n' "${PBOX_FAILED_COMMANDS[$index]% }" ;;
    esac
  done
  return 1
}
