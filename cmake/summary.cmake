# cmake/summary.cmake
# One summary at the end of configure: what was found, and what it switches.
if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()

function(keyhole_summary label value)
  string(LENGTH "${label}" length)
  math(EXPR pad "14 - ${length}")
  string(REPEAT " " ${pad} spaces)
  message(STATUS "  ${label}${spaces}${value}")
endfunction()

# found / not found, each with what follows from it
function(keyhole_summary_found label found yes no)
  if(found)
    keyhole_summary("${label}" "${yes}")
  else()
    keyhole_summary("${label}" "${no}")
  endif()
endfunction()

set(png_found FALSE)
if(KEYHOLE_BUILD_CLI AND PNG_FOUND)
  set(png_found TRUE)
endif()
set(rapidcheck_found FALSE)
if(TARGET rapidcheck)
  set(rapidcheck_found TRUE)
endif()
set(library_kind "static")
if(BUILD_SHARED_LIBS)
  set(library_kind "shared")
endif()
set(sanitize_note "")
if(KEYHOLE_SANITIZE)
  set(sanitize_note ", sanitizers ${KEYHOLE_SANITIZE}")
endif()

message(STATUS "Keyhole ${PROJECT_VERSION}")
keyhole_summary("build" "${CMAKE_BUILD_TYPE}, ${library_kind} library, ${CMAKE_CXX_COMPILER_ID} ${CMAKE_CXX_COMPILER_VERSION}${sanitize_note}")
keyhole_summary("CUDA backend" "${keyhole_cuda_summary}")
keyhole_summary_found("OpenMP" "${OpenMP_CXX_FOUND}" "${OpenMP_CXX_VERSION}: the cpu backend uses all cores"
                      "not found: the cpu backend uses one thread")
keyhole_summary_found("Highway" "${hwy_FOUND}" "${hwy_VERSION}: SIMD chosen at run time"
                      "not found: plain C++ kernels, slower")
if(KEYHOLE_BUILD_CLI)
  keyhole_summary("command line" "yes (fmt ${fmt_VERSION}, CLI11 ${CLI11_VERSION})")
  keyhole_summary_found("libpng" "${png_found}" "${PNG_VERSION_STRING}: keyhole show --png"
                        "not found: no keyhole show --png (text, SVG and HTML work)")
else()
  keyhole_summary("command line" "no (KEYHOLE_BUILD_CLI=OFF)")
endif()
if(KEYHOLE_BUILD_TESTS)
  keyhole_summary("tests" "yes (GoogleTest ${GTest_VERSION})")
  keyhole_summary_found("rapidcheck" "${rapidcheck_found}" "found: property tests"
                        "not found: no property tests, all others run")
else()
  keyhole_summary("tests" "no (KEYHOLE_BUILD_TESTS=OFF)")
endif()
if(KEYHOLE_BUILD_BENCH)
  keyhole_summary_found("benchmark" "${benchmark_FOUND}" "${benchmark_VERSION}: micro-benchmarks"
                        "not found: no micro-benchmarks (keyhole bench works)")
endif()
