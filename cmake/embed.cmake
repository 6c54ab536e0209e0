# SPDX-License-Identifier: Apache-2.0
# Puts the text of files, one after the other, into `target` as `std::string_view penstock::<name>`, which `header` declares.
# A raw string literal may not be too long for every compiler; gcc and clang take any.
function(penstock_embed_into target name header)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${ARGN})
  set(text "")
  foreach(file ${ARGN})
    file(READ "${file}" part)
    string(APPEND text "${part}")
  endforeach()
  string(MAKE_C_IDENTIFIER "${name}" source)
  set(source "${PROJECT_BINARY_DIR}/embedded/${source}.cpp")
  file(CONFIGURE OUTPUT "${source}" @ONLY
       CONTENT "#include \"${header}\"\n\nnamespace penstock {\n\nconst std::string_view ${name} = R\"~text(@text@)~text\";\n\n}  // namespace penstock\n")
  target_sources(${target} PRIVATE "${source}")
endfunction()

function(penstock_embed)
  penstock_embed_into(penstock_core ${ARGN})
endfunction()
