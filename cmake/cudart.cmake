# cmake/cudart.cmake
# keyhole::cudart, the static CUDA runtime: for the build, and installed with a static libkeyhole for whoever links it.
# Not find_package(CUDAToolkit): that of CMake 3.25 fails with CUDA 13, where it misses nvToolsExt.
if(TARGET keyhole::cudart)
  return()
endif()
find_library(KEYHOLE_CUDART cudart_static
             HINTS ${CMAKE_CUDA_HOST_IMPLICIT_LINK_DIRECTORIES} "$ENV{CUDA_HOME}/lib64" /usr/local/cuda/lib64)
mark_as_advanced(KEYHOLE_CUDART)
if(NOT KEYHOLE_CUDART)
  message(FATAL_ERROR "The static CUDA runtime, libcudart_static.a, was not found. Set CUDA_HOME to the CUDA toolkit, "
                      "or KEYHOLE_CUDART to the path of that file.")
endif()
find_package(Threads REQUIRED)
add_library(keyhole::cudart STATIC IMPORTED)
set_target_properties(
  keyhole::cudart
  PROPERTIES IMPORTED_LOCATION "${KEYHOLE_CUDART}"
             INTERFACE_LINK_LIBRARIES "Threads::Threads;${CMAKE_DL_LIBS};rt")
