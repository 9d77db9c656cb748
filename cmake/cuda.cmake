# cmake/cuda.cmake
# The CUDA switch. KEYHOLE_CUDA=AUTO takes nvcc when it is found, ON insists on it, OFF does not look.
# Sets keyhole_has_cuda, keyhole_gpu_definitions and keyhole_cuda_summary; gives keyhole_add_cuda(target), which adds the GPU kernels
# (src/kernels/<backend>/*.cu) and their runtime (src/runtime/cuda/) to the library.

# Real code for each of these, and PTX of the newest for GPUs that come after it. Kernels that need a newer
# architecture than one listed are not compiled for that one. The numbers are generic on purpose: PTX of an
# architecture with a letter (90a) runs on no newer GPU, so the letter belongs to the backend that needs it.
set(KEYHOLE_CUDA_ARCHITECTURES "AUTO" CACHE STRING "GPU architectures to compile for, as 75;80;90; ALL: 75 to 90; AUTO: those of this machine's GPUs, or ALL where it has none")
set(keyhole_all_architectures 75 80 86 89 90)

option(KEYHOLE_CUDA_OLDEST_ONLY "compile a backend only for the oldest of these architectures that it serves: enough to see that it compiles" OFF)

set(keyhole_has_cuda FALSE)
set(keyhole_gpu_definitions "")
set(keyhole_cuda_summary "off (KEYHOLE_CUDA=OFF)")
if(NOT KEYHOLE_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "KEYHOLE_CUDA is '${KEYHOLE_CUDA}'; it takes AUTO, ON or OFF.")
endif()
set(keyhole_whose_architectures "")
if(KEYHOLE_CUDA_ARCHITECTURES STREQUAL "AUTO" AND NOT KEYHOLE_CUDA STREQUAL "OFF")
  find_program(KEYHOLE_PYTHON3 python3)
  mark_as_advanced(KEYHOLE_PYTHON3)
  set(gpus "")
  if(KEYHOLE_PYTHON3)
    execute_process(COMMAND "${KEYHOLE_PYTHON3}" "${CMAKE_CURRENT_LIST_DIR}/../scripts/gpu_architectures.py"
                    OUTPUT_VARIABLE gpus OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  endif()
  if(gpus)
    set(keyhole_whose_architectures " (the GPUs of this machine; KEYHOLE_CUDA_ARCHITECTURES=ALL: 75 to 90)")
    set(KEYHOLE_CUDA_ARCHITECTURES "${gpus}")  # the cache keeps AUTO
  else()
    set(keyhole_whose_architectures " (no GPU here: all; KEYHOLE_CUDA_ARCHITECTURES=90: one)")
  endif()
endif()
if(KEYHOLE_CUDA_ARCHITECTURES MATCHES "^(AUTO|ALL)$")
  set(KEYHOLE_CUDA_ARCHITECTURES ${keyhole_all_architectures})
endif()
foreach(architecture IN LISTS KEYHOLE_CUDA_ARCHITECTURES)
  if(NOT architecture MATCHES "^[0-9]+$")
    message(FATAL_ERROR "KEYHOLE_CUDA_ARCHITECTURES has '${architecture}'; it takes numbers such as 80 or 90, ALL or AUTO.")
  elseif(architecture LESS 75)
    message(FATAL_ERROR "KEYHOLE_CUDA_ARCHITECTURES has ${architecture}; CUDA 13 compiles for 75 and newer, so that "
                        "GPUs of compute capability 7.0 and older are served by the cpu backend only.")
  endif()
endforeach()

if(NOT KEYHOLE_CUDA STREQUAL "OFF")
  set(nvcc nvcc)
  if(NOT "$ENV{CUDACXX}" STREQUAL "")
    set(nvcc "$ENV{CUDACXX}")
  endif()
  find_program(KEYHOLE_NVCC "${nvcc}" HINTS "$ENV{CUDA_HOME}/bin" /usr/local/cuda/bin)
  mark_as_advanced(KEYHOLE_NVCC)
  set(keyhole_nvcc_version "")
  if(KEYHOLE_NVCC)
    execute_process(COMMAND "${KEYHOLE_NVCC}" --version OUTPUT_VARIABLE output ERROR_QUIET)
    if(output MATCHES "release ([0-9]+\\.[0-9]+)")
      set(keyhole_nvcc_version "${CMAKE_MATCH_1}")
    endif()
  endif()
  set(keyhole_cuda_trouble "")
  if(NOT keyhole_nvcc_version)
    set(keyhole_cuda_trouble "${nvcc} not found")
  elseif(keyhole_nvcc_version VERSION_LESS 13.0)
    set(keyhole_cuda_trouble "nvcc ${keyhole_nvcc_version} found; 13.0 or newer is needed")
  elseif(KEYHOLE_SANITIZE)
    set(keyhole_cuda_trouble "sanitizers do not see GPU code")
  endif()
  if(keyhole_cuda_trouble)
    if(KEYHOLE_CUDA STREQUAL "ON")
      message(FATAL_ERROR "KEYHOLE_CUDA=ON, but: ${keyhole_cuda_trouble}. Set CUDACXX to the path of nvcc or "
                          "CUDA_HOME to the toolkit, or build without CUDA: -DKEYHOLE_CUDA=OFF.")
    endif()
    set(keyhole_cuda_summary "off (${keyhole_cuda_trouble})")
  else()
    set(CMAKE_CUDA_COMPILER "${KEYHOLE_NVCC}" CACHE FILEPATH "nvcc")
    set(CMAKE_CUDA_HOST_COMPILER "${CMAKE_CXX_COMPILER}" CACHE FILEPATH "nvcc's host compiler")
    if(NOT CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80)  # for CMake's own probes; targets have their own lists
    endif()
    enable_language(CUDA)
    include("${CMAKE_CURRENT_LIST_DIR}/cudart.cmake")
    # For C++ that calls CUDA's runtime; nvcc knows the headers.
    add_library(keyhole_cuda_runtime INTERFACE)
    target_include_directories(keyhole_cuda_runtime SYSTEM INTERFACE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
    target_link_libraries(keyhole_cuda_runtime INTERFACE keyhole::cudart)
    set(keyhole_has_cuda TRUE)
    list(JOIN KEYHOLE_CUDA_ARCHITECTURES ", " architectures)
    # One architecture takes about 27 minutes of one core, measured on an x86_64 server.
    list(LENGTH KEYHOLE_CUDA_ARCHITECTURES count)
    cmake_host_system_information(RESULT cores QUERY NUMBER_OF_LOGICAL_CORES)
    math(EXPR minutes "(27 * ${count} + ${cores} - 1) / ${cores}")
    set(keyhole_cuda_summary "nvcc ${keyhole_nvcc_version}, architectures ${architectures}${keyhole_whose_architectures}, about ${minutes} min on ${cores} cores")
    set(keyhole_gpu_definitions KEYHOLE_HAVE_CUDA=1)
    if(90 IN_LIST KEYHOLE_CUDA_ARCHITECTURES)
      list(APPEND keyhole_gpu_definitions KEYHOLE_HAVE_SM90=1)
    endif()
  endif()
endif()

# Real code for what is in the list and at least `lowest`, PTX of the newest. KEYHOLE_CUDA_OLDEST_ONLY: the oldest alone.
function(keyhole_architectures lowest result)
  set(chosen "")
  set(newest 0)
  foreach(architecture IN LISTS KEYHOLE_CUDA_ARCHITECTURES)
    if(NOT architecture LESS lowest)
      list(APPEND chosen "${architecture}-real")
      if(architecture GREATER newest)
        set(newest ${architecture})
      endif()
    endif()
  endforeach()
  if(newest EQUAL 0)
    message(FATAL_ERROR "KEYHOLE_CUDA_ARCHITECTURES is '${KEYHOLE_CUDA_ARCHITECTURES}'; at least one must be ${lowest} "
                        "or newer.")
  endif()
  if(KEYHOLE_CUDA_OLDEST_ONLY)
    list(SORT chosen COMPARE NATURAL)
    list(GET chosen 0 chosen)
  else()
    list(APPEND chosen "${newest}-virtual")
  endif()
  set(${result} "${chosen}" PARENT_SCOPE)
endfunction()

# An object library of .cu files, for what is in the list of architectures and at least `lowest`.
# KEYHOLE_CUDA_OLDEST_ONLY: those of the checkout as one file, in a tenth of the time for device/. Headers are then read,
# and what several files instantiate is compiled, once.
function(keyhole_add_cuda_objects target lowest)
  keyhole_architectures(${lowest} architectures)
  set(sources ${ARGN})
  if(KEYHOLE_CUDA_OLDEST_ONLY)
    set(apart "")
    set(text "// Made by cmake/cuda.cmake.\n")
    foreach(source IN LISTS ARGN)
      string(FIND "${source}" "${CMAKE_CURRENT_BINARY_DIR}/" found)
      if(found EQUAL 0)
        list(APPEND apart "${source}")  # made from the list of kernels
      else()
        string(APPEND text "#include \"${source}\"\n")
      endif()
    endforeach()
    set(united "${CMAKE_CURRENT_BINARY_DIR}/kernels/${target}.cu")
    file(CONFIGURE OUTPUT "${united}" CONTENT "${text}" @ONLY)
    set(sources "${united}" ${apart})
  endif()
  add_library(${target} OBJECT ${sources})
  set_target_properties(${target} PROPERTIES CUDA_ARCHITECTURES "${architectures}" POSITION_INDEPENDENT_CODE ON)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}/src" "${PROJECT_SOURCE_DIR}/include")
  set(effort -lineinfo)
  if(KEYHOLE_CUDA_OLDEST_ONLY AND lowest LESS 90)
    # Nothing runs or measures these. ptxas still reads every instruction; optimising them would take twice the time.
    # Hopper's are optimised: that they do not spill and do not serialise products is checked without a GPU.
    set(effort --Ofast-compile=max)
  endif()
  target_compile_options(
    # -std: CMake 3.25 does not know C++20 for this compiler.
    ${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-std=c++20 --expt-relaxed-constexpr ${effort}
                      -Xcompiler=-Wall,-Wextra>)
  if(KEYHOLE_WERROR)
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>)
  endif()
endfunction()

include("${CMAKE_CURRENT_LIST_DIR}/../src/kernels/instantiations.cmake")

set(strict_nvcc "${CMAKE_CURRENT_LIST_DIR}/strict_nvcc.sh")

function(keyhole_add_cuda target)
  file(GLOB_RECURSE runtime_sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/src/runtime/cuda/*.cpp")
  # The tables of GPU kernels, and what chooses among them: no device code. They and the runtime are a library of their own:
  # CUDA's headers are for them alone. All other files are then compiled in the same way with and without CUDA, and ccache
  # compiles them once.
  add_library(keyhole_cuda_host OBJECT ${runtime_sources})
  keyhole_compile_options(keyhole_cuda_host)
  target_include_directories(keyhole_cuda_host PRIVATE include src)
  target_link_libraries(keyhole_cuda_host PRIVATE keyhole_cuda_runtime)
  set_target_properties(keyhole_cuda_host PROPERTIES POSITION_INDEPENDENT_CODE ON)
  set(backends simple mma sm80)
  if(90 IN_LIST KEYHOLE_CUDA_ARCHITECTURES)
    list(APPEND backends sm90)
  endif()
  foreach(backend IN LISTS backends)
    file(GLOB tables CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/src/kernels/${backend}/*entries.cpp"
                                       "${CMAKE_CURRENT_SOURCE_DIR}/src/kernels/${backend}/*launch.cpp")
    target_sources(keyhole_cuda_host PRIVATE ${tables})
  endforeach()
  keyhole_unite(keyhole_cuda_host)
  target_sources(${target} PRIVATE $<TARGET_OBJECTS:keyhole_cuda_host>)
  # For the files that ask alone, for the same reason.
  set_source_files_properties(src/runtime/no_cuda.cpp src/runtime/registry.cpp src/runtime/select_registry.cpp
                              PROPERTIES COMPILE_DEFINITIONS "${keyhole_gpu_definitions}")
  # The static runtime and no libcuda: the program starts on a machine without a driver.
  target_link_libraries(${target} PRIVATE keyhole::cudart)
  foreach(backend_and_lowest device:75 simple:75 mma:80 sm80:80)
    string(REPLACE ":" ";" pair ${backend_and_lowest})
    list(GET pair 0 backend)
    list(GET pair 1 lowest)
    file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/src/kernels/${backend}/*.cu")
    keyhole_instantiate(${backend} instantiations)
    keyhole_add_cuda_objects(keyhole_${backend} ${lowest} ${sources} ${instantiations})
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:keyhole_${backend}>)
  endforeach()
  # A kernel that waits for something that never comes ends with an error: in builds that have tests.
  # A build that only compiles, for want of a GPU, compiles what is shipped.
  set(waits_are_bounded FALSE)
  if(KEYHOLE_BUILD_TESTS AND NOT KEYHOLE_CUDA_OLDEST_ONLY)
    set(waits_are_bounded TRUE)
    target_compile_definitions(keyhole_mma PRIVATE KEYHOLE_BOUNDED_WAITS=1)
    target_compile_definitions(keyhole_sm80 PRIVATE KEYHOLE_BOUNDED_WAITS=1)
  endif()
  if(90 IN_LIST KEYHOLE_CUDA_ARCHITECTURES)
    file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/src/kernels/sm90/*.cu")
    keyhole_instantiate(sm90 instantiations)
    keyhole_add_cuda_objects(keyhole_sm90 90 ${sources} ${instantiations})
    # What is shipped waits without a bound, so its registers are judged as well.
    set(hopper_targets keyhole_sm90)
    if(waits_are_bounded)
      target_compile_definitions(keyhole_sm90 PRIVATE KEYHOLE_BOUNDED_WAITS=1)
      if(KEYHOLE_WERROR)
        keyhole_add_cuda_objects(keyhole_sm90_as_shipped 90 ${sources} ${instantiations})
        list(APPEND hopper_targets keyhole_sm90_as_shipped)
      endif()
    endif()
    foreach(hopper_target IN LISTS hopper_targets)
      # Hopper's own instructions, which no GPU before or after it has: no PTX.
      set_target_properties(${hopper_target} PROPERTIES CUDA_ARCHITECTURES 90a-real)
      # Tuned for one architecture: its registers must suffice. What runs on many may spill a few.
      target_compile_options(${hopper_target} PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-Xptxas=-warn-spills>)
      if(KEYHOLE_WERROR)
        # That it serialises products ptxas says in notes, which no flag turns into errors.
        set(launchers "${strict_nvcc}" ${CMAKE_CUDA_COMPILER_LAUNCHER})
        set_target_properties(${hopper_target} PROPERTIES CUDA_COMPILER_LAUNCHER "${launchers}")
      endif()
    endforeach()
    target_sources(${target} PRIVATE $<TARGET_OBJECTS:keyhole_sm90>)
  endif()
endfunction()
