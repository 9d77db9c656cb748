# cmake/cuda.cmake
# The CUDA switch. KEYHOLE_CUDA=AUTO takes nvcc when it is found, ON insists on it, OFF does not look.
# Sets keyhole_cuda_summary. CUDA kernels are the .cu files below src/kernels; there are none yet.

set(keyhole_cuda_summary "off (KEYHOLE_CUDA=OFF)")
if(NOT KEYHOLE_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "KEYHOLE_CUDA is '${KEYHOLE_CUDA}'; it takes AUTO, ON or OFF.")
endif()

if(NOT KEYHOLE_CUDA STREQUAL "OFF")
  find_program(KEYHOLE_NVCC nvcc HINTS "$ENV{CUDACXX}" "$ENV{CUDA_HOME}/bin" /usr/local/cuda/bin)
  mark_as_advanced(KEYHOLE_NVCC)
  set(keyhole_nvcc_version "")
  if(KEYHOLE_NVCC)
    execute_process(COMMAND "${KEYHOLE_NVCC}" --version OUTPUT_VARIABLE output ERROR_QUIET)
    if(output MATCHES "release ([0-9]+\\.[0-9]+)")
      set(keyhole_nvcc_version "${CMAKE_MATCH_1}")
    endif()
  endif()

  file(GLOB_RECURSE keyhole_cuda_sources CONFIGURE_DEPENDS
       "${CMAKE_CURRENT_SOURCE_DIR}/src/kernels/*.cu")
  if(NOT keyhole_nvcc_version)
    if(KEYHOLE_CUDA STREQUAL "ON")
      message(FATAL_ERROR "KEYHOLE_CUDA=ON, but nvcc was not found. Set CUDACXX to the path of nvcc or "
                          "CUDA_HOME to the toolkit, or build without CUDA: -DKEYHOLE_CUDA=OFF.")
    endif()
    set(keyhole_cuda_summary "off (nvcc not found)")
  elseif(NOT keyhole_cuda_sources)
    if(KEYHOLE_CUDA STREQUAL "ON")
      message(FATAL_ERROR "KEYHOLE_CUDA=ON, but Keyhole ${PROJECT_VERSION} has no CUDA kernels yet. Set "
                          "-DKEYHOLE_CUDA=AUTO or OFF; the cpu backend serves every pattern.")
    endif()
    set(keyhole_cuda_summary "off (nvcc ${keyhole_nvcc_version} found; no CUDA kernels in this version yet)")
  endif()
endif()
