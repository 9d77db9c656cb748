# cmake/run_and_compare.cmake
# cmake -DPROGRAM=... -DEXPECTED=file -P: runs the program; fails when it fails, or when the file
# exists and differs from what was printed.
execute_process(COMMAND "${PROGRAM}" OUTPUT_VARIABLE got ERROR_VARIABLE got RESULT_VARIABLE status)
message("${got}")
if(NOT status EQUAL 0)
  message(FATAL_ERROR "${PROGRAM} ended with '${status}'")
endif()
if(EXISTS "${EXPECTED}")
  file(READ "${EXPECTED}" expected)
  if(NOT got STREQUAL expected)
    message(FATAL_ERROR "it should have printed (${EXPECTED}):\n${expected}")
  endif()
endif()
