# shellcheck shell=bash
# scripts/counts.sh
# Sourced by scripts/test and scripts/gpu: what the logs of ctest, of pytest and of scripts/test's own checks say of how many
# tests were run, and why some were not.

# count_tests LOG...: sets num_passed, num_failed and num_skipped, of all logs together.
count_tests() {
  # ctest says "96% tests passed, 2 tests failed out of 57" (ctest 4: "100% tests passed out of 57", "96% tests passed, 2 tests
  # failed out of 57"), with the skipped ones among the passed, and lists those as
  # "12 - name (Skipped)"; pytest ends with "2 failed, 55 passed, 3 skipped in 9.01s"; `check` of scripts/test says
  # "check ...: ok" or "failed".
  read -r num_passed num_failed num_skipped < <(awk '
    /^[0-9]+% tests passed.* out of [0-9]+$/ { all += $NF; if (match($0, /[0-9]+ tests? failed/)) failed += substr($0, RSTART) + 0 }
    /^[[:space:]]+[0-9]+ - .* \(Skipped\)$/ { skipped++ }
    /^check .*: (ok|failed)$/ { all++; failed += /failed$/ }
    /^(=+ )?[0-9]+ [a-z]+(, [0-9]+ [a-z]+)* in [0-9.]+s/ {
      sub(/^=+ /, "")
      count = split($0, word, /[ ,]+/)
      for (i = 1; i < count; i += 2) {
        if (word[i + 1] !~ /^(passed|failed|errors?|skipped)$/) continue
        all += word[i]
        if (word[i + 1] == "skipped") skipped += word[i]
        if (word[i + 1] ~ /^(failed|error)/) failed += word[i]
      }
    }
    END { print all - failed - skipped, failed + 0, skipped + 0 }' "$@")
}

# say_why_skipped BUILD: the reasons that GoogleTest gave, which ctest keeps to itself.
say_why_skipped() {
  awk '/: Skipped$/ { getline; count[$0]++ } END { for (why in count) print count[why] " tests skipped: " why }' \
    "$1/Testing/Temporary/LastTest.log"
}

# say_why_pytest_skipped LOG...: of pytest -rs, which says "SKIPPED [3] tests/python/test_x.py:12: the reason".
say_why_pytest_skipped() {
  sed -nE 's/^SKIPPED \[([0-9]+)\] [^:]*(:[0-9]+)?: /\1 /p' "$@" |
    awk '{ number = $1; sub(/^[0-9]+ /, ""); count[$0] += number } END { for (why in count) print count[why] " tests skipped: " why }'
}
