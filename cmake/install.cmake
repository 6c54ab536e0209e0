# The program, and the package Penstock for programs with models of their own: find_package(Penstock), then Penstock::penstock.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(package_folder ${CMAKE_INSTALL_LIBDIR}/cmake/Penstock)
set_target_properties(penstock_cli PROPERTIES EXPORT_NAME penstock)
# The library that computes goes on finding the libtorch that it was linked to, also where that lies in the project's own .venv. Where CMake would
# change it to install, it ends what it builds with an empty entry, which is the folder that a program happens to run in.
set_target_properties(penstock_backend PROPERTIES INSTALL_RPATH "${PENSTOCK_LIBTORCH}/lib" BUILD_WITH_INSTALL_RPATH ON)
set(backend_folder ${CMAKE_INSTALL_LIBDIR}/penstock)
if(TARGET penstock_cuda)
  set_target_properties(penstock_cuda PROPERTIES INSTALL_RPATH "$<IF:$<BOOL:${SKBUILD}>,$ORIGIN/../torch/lib,${PENSTOCK_LIBTORCH}/lib>"
                        BUILD_WITH_INSTALL_RPATH ON)
  add_dependencies(penstock penstock_cuda)
  install(TARGETS penstock_cuda DESTINATION ${backend_folder})
endif()
file(RELATIVE_PATH from_program "/${CMAKE_INSTALL_BINDIR}" "/${backend_folder}")
set_source_files_properties(cli/loaded_backend.cpp PROPERTIES COMPILE_DEFINITIONS PENSTOCK_BACKEND_FOLDER="${from_program}")
install(TARGETS penstock)
install(TARGETS penstock_backend DESTINATION ${backend_folder})
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
