# shellcheck shell=bash
# scripts/setup.sh
# Sourced by scripts/test and scripts/bench: finds what is missing on this machine and installs it where
# it may (root on Debian, with apt), or says exactly what is missing and stops with status 2.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
ROOT=$PWD
JOBS=$(nproc 2>/dev/null || echo 2)
export CTEST_PARALLEL_LEVEL=$JOBS CMAKE_BUILD_PARALLEL_LEVEL=$JOBS

# Debian package | how to see without dpkg that it is there: a program, a header after '#', or what
# clang must be able to link after '!'
readonly PACKAGES="
g++|g++
cmake|cmake
ninja-build|ninja
ccache|ccache
git|git
python3|python3
python3-venv|python3
ca-certificates|python3
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
libclang-rt-19-dev|!-fsanitize=thread
libomp-19-dev|!-fopenmp
shellcheck|shellcheck
chromium|chromium
"
# Keyhole builds and passes without these; they are installed where that is allowed, and never missed.
readonly OPTIONAL=" ccache git libhwy-dev libpng-dev librapidcheck-dev libbenchmark-dev shellcheck chromium "
# What both commands build with.
# shellcheck disable=SC2034
readonly BUILD_PACKAGES=(g++ cmake ninja-build python3 nlohmann-json3-dev libfmt-dev libcli11-dev ccache git
  libhwy-dev libpng-dev libbenchmark-dev)

say() { printf '%s\n' "$*"; }

has_apt() { command -v dpkg-query >/dev/null && command -v apt-get >/dev/null; }

is_installed() {
  if has_apt; then
    dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'
    return
  fi
  local probe
  probe=$(sed -n "s/^$1|//p" <<<"$PACKAGES")
  case "$probe" in
    \#*) printf '#include <%s>\n' "${probe#\#}" | "${CXX:-c++}" -std=c++20 -E -x c++ - >/dev/null 2>&1 ;;
    !*) printf 'int main() {}\n' | clang++-19 "${probe#!}" -x c++ - -o /dev/null >/dev/null 2>&1 ;;
    *) command -v "$probe" >/dev/null ;;
  esac
}

install_packages() {
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -q && apt-get install -q -y --no-install-recommends "$@"
}

# need PACKAGE...: returns when all that must be there is there.
need() {
  local package missing=() unmissed=()
  for package in "$@"; do
    if is_installed "$package"; then continue; fi
    if [ "${OPTIONAL/ $package /}" != "$OPTIONAL" ]; then unmissed+=("$package"); else missing+=("$package"); fi
  done
  if [ ${#missing[@]} -eq 0 ] && [ ${#unmissed[@]} -eq 0 ]; then return 0; fi

  if has_apt && [ "$(id -u)" -eq 0 ]; then
    missing+=("${unmissed[@]}")
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

  if [ ${#missing[@]} -eq 0 ]; then
    say "Going on without these optional packages (names of Debian 12): ${unmissed[*]}"
    return 0
  fi
  say "Missing packages (names of Debian 12): ${missing[*]}"
  if [ ${#unmissed[@]} -ne 0 ]; then say "Missing, but optional: ${unmissed[*]}"; fi
  if has_apt; then
    say "Installing them needs root:"
    say "  sudo apt-get update && sudo apt-get install --no-install-recommends ${missing[*]} ${unmissed[*]}"
  else
    say "This system has no apt: install what corresponds to them with its own package manager."
  fi
  say "Then run this again."
  exit 2
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
