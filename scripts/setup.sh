# shellcheck shell=bash
# scripts/setup.sh
# Sourced by scripts/test and scripts/bench: finds what is missing on this machine and installs it where
# it may (root on Debian, with apt), or says exactly what is missing and stops with status 2.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
ROOT=$PWD
JOBS=$(nproc 2>/dev/null || echo 2)
export CTEST_PARALLEL_LEVEL=$JOBS CMAKE_BUILD_PARALLEL_LEVEL=$JOBS

# Debian package | how to see without dpkg that it is there: a program, or a header after '#'
readonly PACKAGES="
g++|g++
cmake|cmake
ninja-build|ninja
ccache|ccache
git|git
python3|python3
nlohmann-json3-dev|#nlohmann/json.hpp
libfmt-dev|#fmt/format.h
libcli11-dev|#CLI/CLI.hpp
libgtest-dev|#gtest/gtest.h
libhwy-dev|#hwy/highway.h
libpng-dev|#png.h
librapidcheck-dev|#rapidcheck.h
libbenchmark-dev|#benchmark/benchmark.h
clang-format-19|clang-format-19
clang-19|clang++-19
libclang-rt-19-dev|clang++-19
libomp-19-dev|clang++-19
shellcheck|shellcheck
python3-venv|python3
ca-certificates|python3
"

say() { printf '%s\n' "$*"; }

install_packages() {
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q && apt-get install -q -y --no-install-recommends "$@"
}

# need PACKAGE...: returns when all are there.
need() {
  local package missing=()
  if command -v dpkg-query >/dev/null && command -v apt-get >/dev/null; then
    for package in "$@"; do
      dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing+=("$package")
    done
    if [ ${#missing[@]} -eq 0 ]; then return 0; fi
    if [ "$(id -u)" -ne 0 ]; then
      say "These Debian packages are missing, and installing them needs root:"
      say "  ${missing[*]}"
      say "Install them, then run this again:"
      say "  sudo apt-get update && sudo apt-get install --no-install-recommends ${missing[*]}"
      exit 2
    fi
    say "Installing ${#missing[@]} packages: ${missing[*]}"
    mkdir -p out
    if ! install_packages "${missing[@]}" >out/apt.log 2>&1; then
      tail -n 20 out/apt.log
      say "apt-get could not install: ${missing[*]}"
      say "Its messages are above and in out/apt.log. The package names are those of Debian 12."
      exit 2
    fi
    say "Installed in $SECONDS s"
    return 0
  fi

  local line probe
  for package in "$@"; do
    line=$(grep "^${package//+/\\+}|" <<<"$PACKAGES") || line="$package|$package"
    probe=${line#*|}
    if [ "${probe#\#}" = "$probe" ]; then
      command -v "$probe" >/dev/null || missing+=("$probe (program; Debian: $package)")
    elif ! printf '#include <%s>\n' "${probe#\#}" | "${CXX:-c++}" -std=c++20 -E -x c++ - >/dev/null 2>&1; then
      missing+=("<${probe#\#}> (header; Debian: $package)")
    fi
  done
  if [ ${#missing[@]} -ne 0 ]; then
    say "This machine has no apt, so nothing was installed. Missing:"
    printf '  %s\n' "${missing[@]}"
    say "Install them with this system's package manager, then run this again."
    exit 2
  fi
}

# configure PRESET [ARGUMENT...]
configure() {
  local preset=$1
  shift
  if command -v ccache >/dev/null; then
    set -- -DCMAKE_CXX_COMPILER_LAUNCHER=ccache "$@"
  fi
  cmake --preset "$preset" "$@"
}

readonly BUILD_PACKAGES=(g++ cmake ninja-build ccache git python3 nlohmann-json3-dev libfmt-dev libcli11-dev
  libhwy-dev libpng-dev libbenchmark-dev)
