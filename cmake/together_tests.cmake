# SPDX-License-Identifier: Apache-2.0
# cmake -DOUT=FILE -DTESTS=DIR "-DFILES=a.cpp;b.cpp" -P together_tests.cmake writes files of tests/ into one, for penstock_tests_together.
# Each one's unnamed namespace gets the name of its folder and file, so that files may use the same names for what they keep to themselves.
set(text "")
foreach(file IN LISTS FILES)
  file(READ "${TESTS}/${file}" own)
  string(REGEX REPLACE "\\.cpp$" "" name "${file}")
  string(MAKE_C_IDENTIFIER "${name}" name)
  string(REPLACE "\nnamespace {\n" "\nnamespace ${name} {\n" own "${own}")
  string(APPEND text "#line 1 \"tests/${file}\"\n${own}")
endforeach()
file(WRITE "${OUT}" "${text}")
