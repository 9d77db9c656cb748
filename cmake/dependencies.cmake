# cmake/dependencies.cmake
# Finds what is on the machine; downloads nothing. Each optional package is left out with
# -DCMAKE_DISABLE_FIND_PACKAGE_<name>=ON. Gives keyhole_link_dependencies(target) for the library.

find_package(Threads REQUIRED)
find_package(nlohmann_json 3.7 QUIET)
if(NOT nlohmann_json_FOUND)
  message(FATAL_ERROR "nlohmann_json is needed to build Keyhole (headers only; programs that use the "
                      "library do not need it). Debian: apt-get install nlohmann-json3-dev. Elsewhere: "
                      "set CMAKE_PREFIX_PATH to where it is installed.")
endif()
find_package(OpenMP QUIET COMPONENTS CXX)
find_package(hwy QUIET)

set(keyhole_feature_definitions "")
if(hwy_FOUND)
  list(APPEND keyhole_feature_definitions KEYHOLE_HAVE_HWY=1)
endif()

function(keyhole_link_dependencies target)
  # nlohmann_json is used inside .cpp files only: the installed package must not ask for it.
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:nlohmann_json::nlohmann_json>
                                          Threads::Threads)
  if(OpenMP_CXX_FOUND)
    # The flag for the one file that uses it: the others are then the same with and without OpenMP, and
    # ccache compiles them once for both builds.
    target_link_libraries(${target} PRIVATE $<LINK_ONLY:OpenMP::OpenMP_CXX>)
    set_source_files_properties(src/base/parallel.cpp PROPERTIES COMPILE_OPTIONS "${OpenMP_CXX_FLAGS}")
  endif()
  if(hwy_FOUND)
    target_link_libraries(${target} PRIVATE hwy::hwy)
  endif()
  target_compile_definitions(${target} PRIVATE ${keyhole_feature_definitions})
endfunction()

# Below: for the programs around the library only.
if(KEYHOLE_BUILD_CLI)
  find_package(fmt QUIET)
  find_package(CLI11 QUIET)
  find_package(PNG QUIET)
  if(KEYHOLE_BUILD_CLI STREQUAL "AUTO")
    set(KEYHOLE_BUILD_CLI OFF)
    if(fmt_FOUND AND CLI11_FOUND)
      set(KEYHOLE_BUILD_CLI ON)
    endif()
  endif()
endif()
if(KEYHOLE_BUILD_CLI)
  if(NOT fmt_FOUND OR NOT CLI11_FOUND)
    message(FATAL_ERROR "The command line needs fmt and CLI11 (found: fmt '${fmt_VERSION}', CLI11 "
                        "'${CLI11_VERSION}'). Debian: apt-get install libfmt-dev libcli11-dev. Without "
                        "the command line: -DKEYHOLE_BUILD_CLI=OFF.")
  endif()
endif()

if(KEYHOLE_BUILD_TESTS)
  find_package(GTest QUIET)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  if(NOT GTest_FOUND OR NOT Python3_FOUND)
    message(FATAL_ERROR "The tests need GoogleTest and a Python 3 interpreter. Debian: apt-get install "
                        "libgtest-dev python3. Without the tests: -DKEYHOLE_BUILD_TESTS=OFF.")
  endif()
  if(NOT CMAKE_DISABLE_FIND_PACKAGE_rapidcheck)
    find_package(rapidcheck QUIET CONFIG)
    if(NOT TARGET rapidcheck)  # some builds of it install no CMake files
      find_library(KEYHOLE_RAPIDCHECK_LIBRARY rapidcheck)
      find_path(KEYHOLE_RAPIDCHECK_INCLUDE_DIR rapidcheck.h)
      mark_as_advanced(KEYHOLE_RAPIDCHECK_LIBRARY KEYHOLE_RAPIDCHECK_INCLUDE_DIR)
      if(KEYHOLE_RAPIDCHECK_LIBRARY AND KEYHOLE_RAPIDCHECK_INCLUDE_DIR)
        add_library(rapidcheck UNKNOWN IMPORTED)
        set_target_properties(
          rapidcheck PROPERTIES IMPORTED_LOCATION "${KEYHOLE_RAPIDCHECK_LIBRARY}"
                                INTERFACE_INCLUDE_DIRECTORIES "${KEYHOLE_RAPIDCHECK_INCLUDE_DIR}")
      endif()
    endif()
  endif()
endif()
