# cli/bench/commit.cmake: run as a script with `source` and `header`; writes the commit of the checkout
# into the header, and touches it only when it changed.
cmake_minimum_required(VERSION 3.25)
set(id unknown)
set(is_dirty 0)
find_program(git git)
if(git)
  # Git also reads a checkout of another owner: nothing is run from it.
  set(ask "${git}" -c "safe.directory=*" -C "${source}")
  execute_process(COMMAND ${ask} rev-parse --short=12 HEAD OUTPUT_VARIABLE found
                  OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed)
    set(id "${found}")
    execute_process(COMMAND ${ask} status --porcelain --untracked-files=no OUTPUT_VARIABLE changes
                    ERROR_QUIET)
    if(NOT changes STREQUAL "")
      set(is_dirty 1)
    endif()
  endif()
endif()
file(CONFIGURE OUTPUT "${header}" @ONLY CONTENT "// Made by cli/bench/commit.cmake in each build.
#pragma once
#define KEYHOLE_COMMIT \"@id@\"
#define KEYHOLE_COMMIT_IS_DIRTY @is_dirty@
")
