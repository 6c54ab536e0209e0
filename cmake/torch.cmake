# SPDX-License-Identifier: Apache-2.0
# libtorch from a Python environment (PENSTOCK_PYTHON, default .venv), or PENSTOCK_LIBTORCH.
set(PENSTOCK_PYTHON "${PROJECT_SOURCE_DIR}/.venv/bin/python" CACHE FILEPATH "A Python that can import torch; also runs the tests against PyTorch")
if(SKBUILD)
  set(PENSTOCK_PYTHON "${Python_EXECUTABLE}" CACHE FILEPATH "" FORCE)
endif()
if(NOT PENSTOCK_LIBTORCH AND EXISTS "${PENSTOCK_PYTHON}")
  # -I: what an isolated build of a wheel puts in the way of what is installed is passed by.
  execute_process(COMMAND "${PENSTOCK_PYTHON}" -I -c "from importlib.util import find_spec; print(find_spec('torch').submodule_search_locations[0])"
                  OUTPUT_VARIABLE libtorch OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
endif()
set(PENSTOCK_LIBTORCH "${libtorch}" CACHE PATH "libtorch's folder, with include/ and lib/")
include(cmake/libtorch.cmake)
penstock_libtorch_version(PENSTOCK_LIBTORCH_VERSION)
add_library(penstock_libtorch INTERFACE)
penstock_use_libtorch(penstock_libtorch)

file(GLOB torch_sources CONFIGURE_DEPENDS src/run/torch/*.cpp)
add_library(penstock_torch STATIC ${torch_sources})
target_link_libraries(penstock_torch PUBLIC penstock_core PRIVATE penstock_libtorch)
target_compile_options(penstock_torch PRIVATE $<$<CONFIG:Release>:-O2>)  # where a step's time goes; for the rest -O1 is as fast and a fifth less to compile
list(REMOVE_ITEM torch_sources ${PROJECT_SOURCE_DIR}/src/run/torch/gloo_transport.cpp)  # the slowest
penstock_together(penstock_torch 9 ${torch_sources})

# Where operators of tensors are included, the headers of single operations instead of all two thousand: half of the time of compiling.
set_source_files_properties(src/run/torch/kernels_normalisation.cpp src/run/torch/kernels_optimiser.cpp PROPERTIES COMPILE_DEFINITIONS AT_PER_OPERATOR_HEADERS)

# Our own loops, once per instruction set; the machine that runs them chooses. NaN and infinity keep their meaning. gcc 12 warns about its
# own AVX-512 header (bug 105593).
set(vector_options -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math -Wno-uninitialized -Wno-maybe-uninitialized)
set_source_files_properties(src/run/torch/vector_generic.cpp PROPERTIES COMPILE_OPTIONS "${vector_options}")
set(avx2_options ${vector_options} -mavx2 -mfma)
set(avx512_options ${avx2_options} -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set_source_files_properties(src/run/torch/vector_avx2.cpp PROPERTIES COMPILE_OPTIONS "${avx2_options}")
  set_source_files_properties(src/run/torch/vector_avx512.cpp PROPERTIES COMPILE_OPTIONS "${avx512_options}")
  set_source_files_properties(src/run/torch/vector_avx512_bf16.cpp PROPERTIES COMPILE_OPTIONS "${avx512_options};-mavx512bf16")
  set_source_files_properties(src/run/torch/vector.cpp PROPERTIES COMPILE_DEFINITIONS PENSTOCK_X86)
else()
  set_source_files_properties(src/run/torch/vector_avx2.cpp src/run/torch/vector_avx512.cpp src/run/torch/vector_avx512_bf16.cpp PROPERTIES HEADER_FILE_ONLY ON)
endif()

# The commands. A user's own program links them with libtorch, and calls penstock::run with its models.
file(GLOB cli_sources CONFIGURE_DEPENDS cli/*.cpp)
list(FILTER cli_sources EXCLUDE REGEX "/main.cpp|backend")
set(version_source ${PROJECT_BINARY_DIR}/version.cpp)
add_custom_target(penstock_version BYPRODUCTS ${version_source} VERBATIM  # asked at each build, written where it changed
                  COMMAND ${CMAKE_COMMAND} -DVERSION=${PROJECT_VERSION} -DLIBTORCH=${PENSTOCK_LIBTORCH_VERSION} -DFOLDER=${PROJECT_SOURCE_DIR}
                          -DOUT=${version_source} -P ${PROJECT_SOURCE_DIR}/cmake/version.cmake)
add_library(penstock_commands OBJECT ${cli_sources} ${version_source})
add_dependencies(penstock_commands penstock_version)
penstock_together(penstock_commands 10 ${cli_sources})
target_include_directories(penstock_commands PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(penstock_commands PRIVATE penstock_core)
add_library(penstock_cli STATIC $<TARGET_OBJECTS:penstock_commands> cli/linked_backend.cpp)
target_include_directories(penstock_cli PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(penstock_cli PUBLIC penstock_torch)
add_library(Penstock::penstock ALIAS penstock_cli)

# The program itself loads what needs libtorch, in a library that takes from the program what both have (cli/backend.h).
add_library(penstock_backend MODULE cli/backend_library.cpp)
target_link_libraries(penstock_backend PRIVATE penstock_torch)
set(backend_build ${PROJECT_BINARY_DIR}/backend_build.cpp)
add_custom_command(OUTPUT ${backend_build} DEPENDS penstock_backend ${PROJECT_SOURCE_DIR}/cmake/backend_build.cmake VERBATIM
                   COMMAND ${CMAKE_COMMAND} -DREADELF=${CMAKE_READELF} -DLIBRARY=$<TARGET_FILE:penstock_backend> -DOUT=${backend_build}
                           -P ${PROJECT_SOURCE_DIR}/cmake/backend_build.cmake)
add_executable(penstock cli/main.cpp cli/loaded_backend.cpp ${backend_build} $<TARGET_OBJECTS:penstock_commands>)
target_include_directories(penstock PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(penstock PRIVATE penstock_core ${CMAKE_DL_LIBS})
target_link_options(penstock PRIVATE "LINKER:--dynamic-list=${PROJECT_SOURCE_DIR}/cli/exported_symbols.txt")
set_target_properties(penstock penstock_backend PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR} LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}
                      LINK_DEPENDS ${PROJECT_SOURCE_DIR}/cli/exported_symbols.txt)
target_link_options(penstock PRIVATE LINKER:--build-id)
target_link_options(penstock_backend PRIVATE LINKER:--build-id)
if(PROJECT_IS_TOP_LEVEL)
  add_subdirectory(examples)
endif()
