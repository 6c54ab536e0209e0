# Makes `source`, a C++ file that defines `std::string_view penstock::<name>` (declared in `header`) as the text of `file`.
# A raw string literal may not be too long for every compiler; gcc and clang take any.
function(penstock_embed file name header source)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
  file(READ "${file}" text)
  get_filename_component(shown "${file}" NAME)
  file(CONFIGURE OUTPUT "${source}" @ONLY
       CONTENT "// Made from ${shown} by the build.\n#include \"${header}\"\n\nnamespace penstock {\n\nconst std::string_view ${name} = R\"text(@text@)text\";\n\n}  // namespace penstock\n")
endfunction()
