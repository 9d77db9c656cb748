# shellcheck shell=bash
# scripts/setup.sh
# Sourced by scripts/test and scripts/bench: finds what is missing on this machine and installs it where it may (root on
# Debian, with apt; nvcc from PyPI), goes on without what is optional, or says exactly what is missing and stops with status 2.
# Nothing here waits long for a network that is not there.

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
ROOT=$PWD
JOBS=$(nproc 2>/dev/null || echo 2)
export CTEST_PARALLEL_LEVEL=$JOBS CMAKE_BUILD_PARALLEL_LEVEL=$JOBS

# Debian package | how to see that it is there where dpkg does not know of it: a program, a header after '#', what clang must be
# able to link after '!', what python3 must be able to import after '@', or '^': the headers of Python
readonly PACKAGES="
g++|g++
cmake|cmake
ninja-build|ninja
ccache|ccache
git|git
python3|python3
python3-venv|@venv, ensurepip
python3-dev|^
ca-certificates|update-ca-certificates
nlohmann-json3-dev|#nlohmann/json.hpp
libfmt-dev|#fmt/format.h
libcli11-dev|#CLI/CLI.hpp
libgtest-dev|#gtest/gtest.h
libhwy-dev|#hwy/highway.h
libpng-dev|#png.h
librapidcheck-dev|#rapidcheck.h
clang-format-19|clang-format-19
clang-19|clang++-19
libclang-rt-19-dev|!-fsanitize=thread
libomp-19-dev|!-fopenmp
llvm-19|llvm-symbolizer-19
shellcheck|shellcheck
debootstrap|debootstrap
chromium|chromium
python3-sphinx|sphinx-build
python3-myst-parser|@myst_parser
furo|@furo
"
# What both commands build with, and what Keyhole builds and passes without.
# shellcheck disable=SC2034
readonly BUILD_NEEDS=(g++ cmake ninja-build python3 nlohmann-json3-dev libfmt-dev libcli11-dev)
# shellcheck disable=SC2034
readonly BUILD_LIKES=(ccache git libhwy-dev libpng-dev)

say() { printf '%s\n' "$*"; }

has_apt() { command -v dpkg-query >/dev/null && command -v apt-get >/dev/null; }

is_installed() {
  if has_apt && dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; then return 0; fi
  local probe
  probe=$(sed -n "s/^$1|//p" <<<"$PACKAGES")
  case "$probe" in
    \#*) printf '#include <%s>\n' "${probe#\#}" | "${CXX:-c++}" -std=c++20 -E -x c++ - >/dev/null 2>&1 ;;
    !*) printf 'int main() {}\n' | clang++-19 "${probe#!}" -x c++ - -o /dev/null >/dev/null 2>&1 ;;
    ^) python3 -c 'import os, sysconfig; os.stat(sysconfig.get_path("include") + "/Python.h")' 2>/dev/null ;;
    @*) python3 -c "import ${probe#@}" 2>/dev/null ;;
    *) command -v "$probe" >/dev/null ;;
  esac
}

# Those that this system's apt knows: one that it does not have is no reason to miss the others.
install_packages() {
  local package known=() apt=(apt-get -q -o Acquire::Retries=1 -o Acquire::http::Timeout=20 -o Acquire::https::Timeout=20)
  export DEBIAN_FRONTEND=noninteractive
  "${apt[@]}" update
  for package in "$@"; do
    if apt-cache show "$package" >/dev/null; then known+=("$package"); fi
  done
  "${apt[@]}" install -y --no-install-recommends "${known[@]}"
}

# find_missing NEEDED... -- LIKED...: sets missing and unmissed.
find_missing() {
  local package must=true
  missing=() unmissed=()
  for package in "$@"; do
    if [ "$package" = -- ]; then must=false; continue; fi
    if is_installed "$package"; then continue; fi
    if $must; then missing+=("$package"); else unmissed+=("$package"); fi
  done
}

# need NEEDED... -- LIKED...: returns when all that must be there is there.
need() {
  local missing unmissed
  find_missing "$@"
  local all=("${missing[@]}" "${unmissed[@]}")
  if [ ${#all[@]} -eq 0 ]; then return 0; fi

  if has_apt && [ "$(id -u)" -eq 0 ]; then
    say "Installing ${#all[@]} packages: ${all[*]}"
    mkdir -p out
    install_packages "${all[@]}" >out/apt.log 2>&1 || true
    find_missing "$@"
    if [ ${#missing[@]} -eq 0 ] && [ ${#unmissed[@]} -eq 0 ]; then
      say "Installed in $SECONDS s"
      return 0
    fi
    say "apt-get did not install all of them; see out/apt.log."
  fi

  if [ ${#unmissed[@]} -ne 0 ]; then say "Missing, but optional (names of Debian 12): ${unmissed[*]}"; fi
  if [ ${#missing[@]} -eq 0 ]; then
    say "Going on without."
    return 0
  fi
  say "Missing and needed (names of Debian 12): ${missing[*]}"
  if ! has_apt; then
    say "This system has no apt: install what corresponds to them with its own package manager."
  elif [ "$(id -u)" -ne 0 ]; then
    say "Installing them needs root:"
    say "  sudo apt-get update && sudo apt-get install --no-install-recommends ${all[*]}"
  fi
  say "Then run this again."
  exit 2
}

# from_pypi ARGUMENT...: what pip installs with these arguments, into .venv, because Debian's Python takes no packages of
# its own from pip. What this machine's Python has already, torch above all, is used from there.
from_pypi() {
  export PIP_RETRIES=${PIP_RETRIES:-1} PIP_DEFAULT_TIMEOUT=${PIP_DEFAULT_TIMEOUT:-20} PIP_DISABLE_PIP_VERSION_CHECK=1
  mkdir -p out
  {
    printf '\n== pip install %s\n' "$*"
    { [ -x .venv/bin/pip ] || python3 -m venv --system-site-packages .venv; } && .venv/bin/pip install --quiet "$@"
  } >>out/pip.log 2>&1
}

# The nvcc of this machine, 13 or newer, or the one that find_nvcc has put into .venv.
nvcc_here() {
  local nvcc
  for nvcc in "${CUDACXX:-}" nvcc "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" /usr/local/cuda/bin/nvcc \
    "$ROOT"/.venv/lib/python3*/site-packages/nvidia/cu13/bin/nvcc; do
    if "$nvcc" --version 2>/dev/null | grep -qE 'release (1[3-9]|[2-9][0-9])\.'; then
      command -v "$nvcc"
      return 0
    fi
  done
  return 1
}

# find_nvcc: exports CUDACXX, which CMake takes; where there is no nvcc it comes from PyPI. Status 1: neither is to be had.
find_nvcc() {
  # One that came from there before is asked for again: the list may have grown, and pip has nothing to do if not.
  if ! CUDACXX=$(nvcc_here) || [[ $CUDACXX == "$ROOT"/.venv/* ]]; then
    say "Taking nvcc from PyPI into .venv"
    if ! from_pypi -r scripts/nvcc_requirements.txt; then
      say "No CUDA: nvcc 13 is not here, and pip could not install it (out/pip.log)."
      return 1
    fi
    # nvcc passes lib64 to the linker; the wheels have lib.
    local toolkit
    for toolkit in .venv/lib/python3*/site-packages/nvidia/cu13; do ln -sfn lib "$toolkit/lib64"; done
    if ! CUDACXX=$(nvcc_here); then
      say "No CUDA: the nvcc that pip installed does not start."
      return 1
    fi
  fi
  export CUDACXX
}

# find_disassembler: for scripts/sass_facts.py, which reads machine code; not every toolkit has one. Optional.
find_disassembler() {
  if scripts/sass_facts.py --tools >/dev/null 2>&1; then return 0; fi
  say "Taking cuobjdump from PyPI into .venv"
  from_pypi -r scripts/sass_requirements.txt || say "No cuobjdump: pip could not install it (out/pip.log)."
}

# configure PRESET [ARGUMENT...]
configure() {
  local preset=$1
  shift
  if command -v ccache >/dev/null; then
    set -- -DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_CUDA_COMPILER_LAUNCHER=ccache "$@"
  fi
  cmake --preset "$preset" "$@"
}
