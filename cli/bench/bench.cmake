# cli/bench/bench.cmake: gives keyhole_cli_parts two headers made in the build tree: the case files, so
# that an installed program has them, and the commit, looked up in each build.
set(generated "${PROJECT_BINARY_DIR}/generated")
target_include_directories(keyhole_cli_parts PRIVATE "${generated}")

set(case_texts "// Made by cli/bench/bench.cmake from bench/cases/.\n#pragma once\n")
foreach(kind cpu gpu)
  set(case_file "${PROJECT_SOURCE_DIR}/bench/cases/${kind}.txt")
  file(READ "${case_file}" text)
  string(APPEND case_texts "inline constexpr char k_${kind}_cases[] = R\"cases(${text})cases\";\n")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${case_file}")
endforeach()
file(CONFIGURE OUTPUT "${generated}/cli/bench/case_texts.h" CONTENT "${case_texts}" @ONLY)

add_custom_target(
  keyhole_commit
  COMMAND "${CMAKE_COMMAND}" -D "source=${PROJECT_SOURCE_DIR}" -D
          "header=${generated}/cli/bench/commit.h" -P "${CMAKE_CURRENT_LIST_DIR}/commit.cmake"
  BYPRODUCTS "${generated}/cli/bench/commit.h"
  COMMENT "Looking up the commit"
  VERBATIM)
add_dependencies(keyhole_cli_parts keyhole_commit)
