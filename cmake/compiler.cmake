# cmake/compiler.cmake
# keyhole_compile_options(target): warnings, hardening and sanitizers for our own code, private to it.
# No -march in what is shipped: Highway chooses the instructions at run time.

# Sanitizers must see every file of a program, so they are set for the whole directory.
if(KEYHOLE_SANITIZE)
  add_compile_options(-fsanitize=${KEYHOLE_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer)
  add_link_options(-fsanitize=${KEYHOLE_SANITIZE})
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
  if(NOT target MATCHES "^keyhole(_python)?$")
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
