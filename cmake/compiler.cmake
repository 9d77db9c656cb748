# cmake/compiler.cmake
# keyhole_compile_options(target): warnings, hardening and sanitizers for our own code, private to it.
# No -march in what is shipped: Highway chooses the instructions at run time.

# Sanitizers must see every file of a program, so they are set for the whole directory.
if(KEYHOLE_SANITIZE)
  add_compile_options(-fsanitize=${KEYHOLE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${KEYHOLE_SANITIZE})
  if(KEYHOLE_SANITIZE MATCHES "undefined")
    # Checks at every access, a third of the time to compile. The address sanitizer stops at most of what they find.
    add_compile_options(-fno-sanitize=null,object-size,vptr)
  endif()
  if(CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64)$")
    # The presets compile kernels for one instruction set, the compiler's own (HWY_COMPILE_ONLY_STATIC). Without these it
    # is one that Highway emulates number by number: slow to compile and to run, and nothing that is shipped.
    add_compile_options(-msse4.2 -maes -mpclmul)
  endif()
endif()

function(keyhole_compile_options target)
  target_compile_features(${target} PRIVATE cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wshadow -Wnon-virtual-dtor)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
    target_compile_options(${target} PRIVATE -Wno-restrict)  # g++ 12 sees overlaps in "text" + string
  endif()
  if(NOT target MATCHES "^keyhole(_cuda_host|_python)?$")
    target_compile_options(${target} PRIVATE ${KEYHOLE_PROGRAM_FLAGS})
  endif()
  if(KEYHOLE_WERROR)
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  if(KEYHOLE_HARDENING)
    target_compile_options(${target} PRIVATE -fstack-protector-strong)
    target_compile_definitions(${target} PRIVATE _GLIBCXX_ASSERTIONS)
    if(NOT KEYHOLE_SANITIZE)
      # Needs optimisation, and hides calls from the sanitizers. -U first: some distributions set it.
      target_compile_options(${target} PRIVATE $<$<CONFIG:Release,RelWithDebInfo>:-U_FORTIFY_SOURCE
                                               -D_FORTIFY_SOURCE=2>)
    endif()
  endif()
endfunction()

# keyhole_unite(target [APART FILE...]): where KEYHOLE_UNITE is on, the C++ files of a folder are compiled as one. Headers are
# then read, and templates compiled, once a folder. A file that shares a private name with a neighbour is named after APART
# and stays alone; so do the kernels, which are slow for what they are and not for their headers.
function(keyhole_unite target)
  if(NOT KEYHOLE_UNITE OR (KEYHOLE_UNITE STREQUAL "PROGRAMS" AND target MATCHES "^keyhole(_cuda_host)?$"))
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 given "" "" "APART")
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    get_filename_component(name "${source}" NAME)
    if(NOT source MATCHES "\\.cpp$" OR source MATCHES "/kernels/(cpu|simple|sm80|sm90)/" OR name IN_LIST given_APART)
      continue()
    endif()
    file(RELATIVE_PATH path "${PROJECT_SOURCE_DIR}" "${source}")
    get_filename_component(folder "${path}" DIRECTORY)
    string(REPLACE "/" "_" group "${folder}")
    set_source_files_properties("${source}" PROPERTIES UNITY_GROUP ${group})
  endforeach()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()
