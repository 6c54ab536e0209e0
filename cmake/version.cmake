# SPDX-License-Identifier: Apache-2.0
# cmake -DVERSION=V -DLIBTORCH=V -DFOLDER=SOURCES -DOUT=FILE -P version.cmake writes what `penstock --version` says (cli/version.h), where that is not
# what the file has. Sources that were unpacked without their history have no commit to name.
execute_process(COMMAND git -C "${FOLDER}" describe --always --exclude=* --abbrev=10 --dirty=,\ changed OUTPUT_VARIABLE commit
                OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(commit)
  set(commit "commit ${commit}, ")
endif()
set(text "#include \"cli/version.h\"\n\nconst char* const penstock::kVersion = \"${VERSION} (${commit}libtorch ${LIBTORCH})\";\n")
set(known "")
if(EXISTS "${OUT}")
  file(READ "${OUT}" known)
endif()
if(NOT known STREQUAL text)
  file(WRITE "${OUT}" "${text}")
endif()
