# cmake/install.cmake
# Installs the library, its public headers and the CMake package "keyhole" (component "library"), and
# the command line (component "cli").

include(CMakePackageConfigHelpers)
set(keyhole_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/keyhole")

set(library COMPONENT library)
install(TARGETS keyhole EXPORT keyholeTargets RUNTIME ${library} LIBRARY ${library} ARCHIVE ${library})
install(DIRECTORY include/keyhole DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" ${library}
        FILES_MATCHING PATTERN "*.h")
install(EXPORT keyholeTargets NAMESPACE keyhole:: DESTINATION "${keyhole_package_dir}" ${library})
if(TARGET keyhole_cli)
  install(TARGETS keyhole_cli RUNTIME COMPONENT cli)
endif()

# A static library leaves its own dependencies to whoever links it; a shared one has them inside.
set(KEYHOLE_PACKAGE_NEEDS "")
if(NOT BUILD_SHARED_LIBS)
  string(APPEND KEYHOLE_PACKAGE_NEEDS "find_dependency(Threads)\n")
  if(OpenMP_CXX_FOUND)
    string(APPEND KEYHOLE_PACKAGE_NEEDS "find_dependency(OpenMP COMPONENTS CXX)\n")
  endif()
  if(hwy_FOUND)
    string(APPEND KEYHOLE_PACKAGE_NEEDS "find_dependency(hwy)\n")
  endif()
  if(keyhole_has_cuda)
    string(APPEND KEYHOLE_PACKAGE_NEEDS "include(\"\${CMAKE_CURRENT_LIST_DIR}/cudart.cmake\")\n")
    install(FILES cmake/cudart.cmake DESTINATION "${keyhole_package_dir}" ${library})
  endif()
endif()
configure_package_config_file(cmake/keyholeConfig.cmake.in
                              "${CMAKE_CURRENT_BINARY_DIR}/keyholeConfig.cmake"
                              INSTALL_DESTINATION "${keyhole_package_dir}")
write_basic_package_version_file("${CMAKE_CURRENT_BINARY_DIR}/keyholeConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_CURRENT_BINARY_DIR}/keyholeConfig.cmake"
              "${CMAKE_CURRENT_BINARY_DIR}/keyholeConfigVersion.cmake"
        DESTINATION "${keyhole_package_dir}" ${library})
