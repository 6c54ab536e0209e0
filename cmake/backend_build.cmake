# SPDX-License-Identifier: Apache-2.0
# cmake -DREADELF=PROGRAM -DLIBRARY=FILE -DOUT=FILE -P backend_build.cmake writes the library's build id as the constant that cli/loaded_backend.cpp compares.
execute_process(COMMAND "${READELF}" -n "${LIBRARY}" OUTPUT_VARIABLE notes COMMAND_ERROR_IS_FATAL ANY)
if(NOT notes MATCHES "Build ID: ([0-9a-f]+)")
  message(FATAL_ERROR "${LIBRARY} has no build id, which the linker makes with --build-id")
endif()
file(WRITE "${OUT}" "namespace penstock {\nextern const char kBackendBuild[];\nconst char kBackendBuild[] = \"${CMAKE_MATCH_1}\";\n}  // namespace penstock\n")
