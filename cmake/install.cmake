# SPDX-License-Identifier: Apache-2.0
# The program, and the package Penstock for programs with models of their own: find_package(Penstock), then Penstock::penstock.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Penstock)
set_target_properties(penstock_cli PROPERTIES EXPORT_NAME penstock)
# The libraries that compute go on finding the libtorch that they were linked to, also where that lies in the project's own .venv; in a wheel the one
# that is installed beside it; in a Debian package the one that it carries. Where CMake would change what it builds to install it, it ends it with
# an empty entry, which is the folder that a program happens to run in.
option(PENSTOCK_CARRY_LIBTORCH "Install libtorch's own libraries for CPUs beside the program's (Debian package)" OFF)
set(libtorch_folder "${PENSTOCK_LIBTORCH}/lib")
if(SKBUILD)
  set(libtorch_folder "$ORIGIN/../torch/lib")
elseif(PENSTOCK_CARRY_LIBTORCH)
  set(libtorch_folder "$ORIGIN")
endif()
set(loaded_libraries penstock_backend)
if(TARGET penstock_cuda)
  add_dependencies(penstock penstock_cuda)
  list(APPEND loaded_libraries penstock_cuda)
endif()
set_target_properties(${loaded_libraries} PROPERTIES INSTALL_RPATH "${libtorch_folder}" BUILD_WITH_INSTALL_RPATH ON)
set(backend_folder ${CMAKE_INSTALL_LIBDIR}/penstock)
file(RELATIVE_PATH from_program "/${CMAKE_INSTALL_BINDIR}" "/${backend_folder}")
set_source_files_properties(cli/loaded_backend.cpp PROPERTIES COMPILE_DEFINITIONS PENSTOCK_BACKEND_FOLDER="${from_program}")
install(TARGETS penstock COMPONENT program)
install(TARGETS ${loaded_libraries} DESTINATION ${backend_folder} COMPONENT program)
if(PENSTOCK_CARRY_LIBTORCH)
  file(GLOB carried "${PENSTOCK_LIBTORCH}/lib/libtorch_cpu.so" "${PENSTOCK_LIBTORCH}/lib/libc10.so" "${PENSTOCK_LIBTORCH}/lib/libgomp*.so*")
  install(FILES ${carried} DESTINATION ${backend_folder} COMPONENT program)
endif()
install(CODE "set(PROGRAM \"$<TARGET_FILE:penstock>\")
set(PREFIX \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}\")
include(\"${PROJECT_SOURCE_DIR}/cmake/own_pages.cmake\")" COMPONENT program)
install(TARGETS penstock_core penstock_torch penstock_libtorch penstock_cli EXPORT PenstockTargets)
install(DIRECTORY include/penstock DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT PenstockTargets NAMESPACE Penstock:: DESTINATION ${package_folder})
configure_package_config_file(cmake/PenstockConfig.cmake.in PenstockConfig.cmake INSTALL_DESTINATION ${package_folder})
write_basic_package_version_file(PenstockConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/PenstockConfig.cmake ${PROJECT_BINARY_DIR}/PenstockConfigVersion.cmake cmake/libtorch.cmake
        DESTINATION ${package_folder})

# Builds all that `cmake --install` copies.
add_custom_target(penstock_installed)
add_dependencies(penstock_installed penstock penstock_backend penstock_core penstock_torch penstock_cli)

# `make deb`: the program alone, with what it computes with; headers and static libraries are for `make install`.
if(PROJECT_IS_TOP_LEVEL)
  set(CPACK_GENERATOR DEB)
  set(CPACK_COMPONENTS_ALL program)
  set(CPACK_DEB_COMPONENT_INSTALL ON)
  set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
  set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
  set(CPACK_PACKAGE_CONTACT "The Penstock authors <penstock@localhost>")
  set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Trains one model across many devices with pipeline parallelism")
  set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
  set(CPACK_DEBIAN_PACKAGE_SECTION science)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
  set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "${PENSTOCK_LIBTORCH}/lib")
  set(CPACK_DEBIAN_COMPRESSION_TYPE zstd)  # of libtorch's 430 MB, in seconds
  include(CPack)
endif()
