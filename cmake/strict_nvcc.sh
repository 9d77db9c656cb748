#!/bin/sh
# cmake/strict_nvcc.sh COMMAND...
# Runs a compiler, and fails where ptxas notes that it serialises the products of a kernel or waits for them where the
# source does not (C75xx): such a kernel is right and several times too slow, and ptxas calls it information.
log=$(mktemp) || exit 1
"$@" >"$log" 2>&1
status=$?
cat "$log" >&2
if grep -q '(C75[0-9][0-9])' "$log"; then
  echo "strict_nvcc.sh: a note of ptxas on products (C75xx) is an error here" >&2
  status=1
fi
rm -f "$log"
if [ "$status" -ne 0 ]; then
  # No object may be left behind that looks as if it had been built.
  for argument in "$@"; do
    if [ "${previous-}" = -o ]; then rm -f "$argument"; fi
    previous=$argument
  done
fi
exit "$status"
