# tests/consumer/run.cmake
# cmake -DMODE=find_package|add_subdirectory ... -P: builds tests/consumer against an installed copy or
# the sources, runs it and compares what it prints.
function(must)
  execute_process(COMMAND ${ARGV} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    list(JOIN ARGV " " command)
    message(FATAL_ERROR "failed: ${command}\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE "${WORK_DIR}")
set(how "")
if(MODE STREQUAL "find_package")
  must("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --prefix "${WORK_DIR}/prefix")
  file(GLOB installed RELATIVE "${WORK_DIR}/prefix" "${WORK_DIR}/prefix/*")
  foreach(folder IN LISTS installed)
    if(NOT folder MATCHES "^(bin|include|lib|lib64)$")
      message(FATAL_ERROR "installing Keyhole made PREFIX/${folder}; expected bin, include and lib only")
    endif()
  endforeach()
  file(GLOB_RECURSE package_files "${WORK_DIR}/prefix/*.cmake")
  foreach(file IN LISTS package_files)
    file(READ "${file}" text)
    if(text MATCHES "nlohmann|${SOURCE_DIR}/(src|include|build)")
      message(FATAL_ERROR "${file} speaks of nlohmann_json or of the source tree; an installed package "
                          "must need neither")
    endif()
  endforeach()
  set(how "-DCMAKE_PREFIX_PATH=${WORK_DIR}/prefix" "-DKEYHOLE_CUDART=${CUDART}")
else()
  # Compiling every GPU kernel for every architecture once more would prove nothing new.
  set(how "-DKEYHOLE_SOURCE_DIR=${SOURCE_DIR}" -DKEYHOLE_CUDA=OFF)
endif()

# The flags and packages of the build that is tested, so that ccache knows the objects already.
separate_arguments(without UNIX_COMMAND "${WITHOUT}")
must("${CMAKE_COMMAND}" -S "${SOURCE_DIR}/tests/consumer" -B "${WORK_DIR}/build" -G "${GENERATOR}" ${how}
     -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_COMPILER=${COMPILER}"
     "-DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER}" "-DCMAKE_CXX_FLAGS_RELEASE=${RELEASE_FLAGS}" -DKEYHOLE_WERROR=${WERROR}
     ${without})
must("${CMAKE_COMMAND}" --build "${WORK_DIR}/build")
must("${WORK_DIR}/build/consumer")
file(READ "${SOURCE_DIR}/tests/consumer/expected.txt" expected)
if(NOT output STREQUAL expected)
  message(FATAL_ERROR "the consumer printed\n${output}instead of\n${expected}")
endif()
message(STATUS "consumer built by ${MODE} printed what it should")
