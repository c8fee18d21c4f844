# Shell functions of tools/test, tools/demo and others. Source this file; it keeps the current
# directory.
#
#   pbox_install GROUP...        installs the missing packages of these groups of tools/packages
#   pbox_unpack GROUP...         unpacks these groups below build/deb, without installing them
#   pbox_build PRESET [TARGET]   configures build/PRESET and builds it; with PBOX_WERROR=ON warnings
#                                are errors
#   pbox_python MODULE...        prints the first Python that can import all these modules
#   pbox_pip_python NAME PACKAGE...  prints a Python of build/NAME that has packages from PyPI
#   pbox_make_network NAME       makes a network namespace with a cable for a box with DPDK
#   pbox_step NAME COMMAND...    runs a step: prints number, name and time, and logs its output
#   pbox_record_steps MODE       records the steps that pass, by commit and mode
#   pbox_resume                  from now on, leaves out the steps that passed on this commit, in
#                                the same mode
#   pbox_summary                 prints times, skipped tests and failures; status 1 if a step failed
# shellcheck shell=bash

PBOX_ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PBOX_LOGS=$PBOX_ROOT/build/logs
PBOX_JOBS=${PBOX_JOBS:-$(nproc)}
PBOX_STEP_INDEX=0
PBOX_STEP_COUNT=${PBOX_STEP_COUNT:-1}
PBOX_REPORT=()
# A file with a line "SECONDS NAME" for each step that passed on this commit; empty: not recorded.
PBOX_PASSED=
PBOX_RESUME=
# These three arrays have one entry for each failed step.
PBOX_FAILED_NAMES=()
PBOX_FAILED_COMMANDS=()
PBOX_FAILED_LOGS=()
# An entry "STEP: PROGRAM: WHY" for each test that did not run.
PBOX_SKIPPED=()
# Lines of a failed step's log that are shown on the screen.
PBOX_TAIL_LINES=40

if command -v ccache >/dev/null && [ -z "${CMAKE_CXX_COMPILER_LAUNCHER+set}" ]; then
  export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
fi

pbox_say() { printf '%s\n' "$*"; }

pbox_die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# Runs a command as root: directly, or through sudo.
pbox_as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo --preserve-env=DEBIAN_FRONTEND "$@"
  else
    return 127
  fi
}

# Prints the packages of the given groups, one per line, each once.
pbox_packages() {
  local architecture
  architecture=$(dpkg --print-architecture 2>/dev/null)
  awk -v groups=" $* " -v suffix=":$architecture" '
    !/^#/ && NF { sub(suffix "$", "", $1) }
    !/^#/ && NF && index(groups, " " $1 " ") && !seen[$2]++ { print $2 }' \
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
    pbox_say "this is not a Debian system: install the packages that tools/packages lists by hand"
    return 0
  }
  local missing=() install=(apt-get install -y -q --no-install-recommends)
  mapfile -t missing < <(pbox_missing_packages "$@")
  if [ ${#missing[@]} -eq 0 ]; then
    pbox_say "all packages are installed"
    return 0
  fi
  pbox_say "installing: ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # The package lists may be absent, as in a fresh container, or stale. Fetch them only if
  # installing fails.
  pbox_as_root "${install[@]}" "${missing[@]}" ||
    { pbox_as_root apt-get update -q && pbox_as_root "${install[@]}" "${missing[@]}"; } ||
    {
      pbox_say "packages cannot be installed; as root: apt-get update &&" \
        "apt-get install ${missing[*]}"
      return 1
    }
}

# Unpacks packages whose installation would start a server. Their programs lie below
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

# Prints the first Python that can import all the modules. The one in PATH may lack the packages of
# the system, which belong to the system's Python. Status 1 if there is none.
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

# Prints the Python of the virtual environment build/NAME, after pip has installed the packages
# there. They are installed one after another, so that a package that needs torch finds the pinned
# one and does not fetch a build for CUDA, of several GB. Status 1 if pip cannot get one; its output
# goes to standard error.
pbox_pip_python() {
  local folder=$PBOX_ROOT/build/$1 package
  shift
  [ -x "$folder/bin/pip" ] || python3 -m venv "$folder" >&2 || return 1
  for package; do
    [ -e "$folder/has-$package" ] && continue
    "$folder/bin/pip" install -q "$package" >&2 && touch "$folder/has-$package" || return 1
  done
  printf '%s' "$folder/bin/python"
}

# Makes a network namespace with a cable (a veth pair), 10.77.0.0/24. The end box0 is for a box with
# the arguments PBOX_NETWORK_BOX, the kernel has the end worker0. Needs root. `ip netns del` removes
# it.
PBOX_NETWORK_BOX=(--box.listen=127.0.0.1 --data.port=dpdk --data.port_first=9542 --data.mtu=9000
  '--dpdk.devices=net_af_packet0,iface=box0 10.77.0.1/24' --dpdk.no_huge=true
  --security.insecure=true --security.insecure_off_loopback=true)
pbox_make_network() {
  local name=$1
  ip netns add "$name" && ip -n "$name" link set lo up &&
    ip -n "$name" link add box0 mtu 9000 type veth peer name worker0 mtu 9000 &&
    ip -n "$name" addr add 10.77.0.2/24 dev worker0 &&
    # Otherwise the kernel would answer at the box's end too, and would leave checksums to a NIC
    # that does not exist.
    ip netns exec "$name" sysctl -qw net.ipv6.conf.box0.disable_ipv6=1 &&
    ip netns exec "$name" ethtool -K worker0 tx off tx-udp-segmentation off >/dev/null &&
    ip -n "$name" link set box0 up && ip -n "$name" link set worker0 up
}

pbox_build() {
  local preset=$1
  shift
  (cd "$PBOX_ROOT" && cmake --preset "$preset" ${PBOX_WERROR:+-DPBOX_WERROR="$PBOX_WERROR"} &&
    cmake --build --preset "$preset" --parallel "$PBOX_JOBS" ${1:+--target "$@"})
}

# Runs the tests of a preset. At most two run at once, because the boxes that they start need cores
# too.
pbox_ctest() {
  local preset=$1
  shift
  (cd "$PBOX_ROOT" && ctest --test-dir "build/$preset" --output-on-failure -j2 --timeout 600 \
    --no-tests=error "$@")
  local status=$?
  pbox_skipped_tests "$PBOX_ROOT/build/$preset/Testing/Temporary/LastTest.log"
  return $status
}

# pbox_skipped_tests CTEST_LOG prints "skipped: PROGRAM: WHY" for each test that did not run, or ran
# in part. Such a program prints "skipped: WHY", which only ctest's log shows.
pbox_skipped_tests() {
  awk '/^[0-9]+\/[0-9]+ Test(ing)?: / { name = $NF; delete seen }
    sub(/^ *skipped: /, "") && !seen[$0]++ { print "skipped: " name ": " $0 }' "$1"
}

# pbox_failure LOG prints the part of a failed step's log that explains the failure: the output of
# each failed test, or the end of the log.
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

# Records the steps that pass, in a file for this commit. Status 1 if the tree has changes.
pbox_record_steps() {
  local commit changes
  PBOX_PASSED=
  commit=$(git -C "$PBOX_ROOT" rev-parse HEAD 2>/dev/null) &&
    changes=$(git -C "$PBOX_ROOT" status --porcelain) && [ -z "$changes" ] || return 1
  mkdir -p "$PBOX_LOGS" && PBOX_PASSED=$PBOX_LOGS/passed-$commit-$1
}

pbox_resume() {
  [ -n "$PBOX_PASSED" ] || pbox_die "the tree has changes: commit them, or leave out --resume"
  PBOX_RESUME=yes
}

# pbox_passed_before NAME prints the seconds that the step took when it passed, if it did.
pbox_passed_before() {
  [ -n "$PBOX_RESUME" ] && [ -e "$PBOX_PASSED" ] &&
    awk -v name="$1" '{ seconds = $1; sub(/^[0-9]+ /, "") } $0 == name { print seconds; found = 1 }
      END { exit !found }' "$PBOX_PASSED"
}

# Adds the tests that a step left out to the summary.
pbox_log_skipped() {
  local skipped
  while read -r skipped; do
    PBOX_SKIPPED+=("$1: ${skipped#skipped: }")
  done < <(grep -s '^skipped: ' "$2")
}

pbox_step() {
  local name=$1 started=$SECONDS log status=0 before
  shift
  PBOX_STEP_INDEX=$((PBOX_STEP_INDEX + 1))
  mkdir -p "$PBOX_LOGS"
  log=$PBOX_LOGS/$(tr -c 'a-z0-9\n' '-' <<<"$name").log
  printf '[%d/%d] %s ... ' "$PBOX_STEP_INDEX" "$PBOX_STEP_COUNT" "$name"
  if before=$(pbox_passed_before "$name"); then
    PBOX_REPORT+=("$(printf '%-44s %6d s  %s' "$name" "$before" "ok, before")")
    printf 'passed before, in %d s\n' "$before"
    pbox_log_skipped "$name" "$log"
    return 0
  fi
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
  [ "$status" = 0 ] && [ -n "$PBOX_PASSED" ] && pbox_say "$seconds $name" >>"$PBOX_PASSED"
  PBOX_REPORT+=("$(printf '%-44s %6d s  %s' "$name" "$seconds" "$verdict")")
  printf '%s, %d s\n' "$verdict" "$seconds"
  grep -E '^[0-9]+% tests passed' "$log" | sed 's/^/      /' || true
  pbox_log_skipped "$name" "$log"
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
    case ${PBOX_FAILED_COMMANDS[$index]} in  # only these functions exist outside of the caller
      pbox_*) printf '  again: (. tools/lib.sh && %s)\n' "${PBOX_FAILED_COMMANDS[$index]% }" ;;
    esac
  done
  return 1
}
