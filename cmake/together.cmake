# SPDX-License-Identifier: Apache-2.0
# Files of one folder are compiled several at a time: most of a small file's time is that of the headers it includes. So what files of a folder keep
# to themselves has names that differ. PENSTOCK_TOGETHER=OFF compiles each by itself, which shows includes that are missing: `make soak` does.
option(PENSTOCK_TOGETHER "Compile several files of a folder at a time" ON)

# Gives the group of each file: that many files of a folder, as they follow each other, are one group.
function(penstock_groups out at_once)
  set(groups "")
  foreach(file ${ARGN})
    get_filename_component(folder ${file} DIRECTORY)
    if(NOT folder STREQUAL last_folder)
      set(number 0)
    endif()
    set(last_folder ${folder})
    get_filename_component(name ${folder} NAME)
    math(EXPR group "${number} / ${at_once}")
    list(APPEND groups ${name}_${group})
    math(EXPR number "${number} + 1")
  endforeach()
  set(${out} ${groups} PARENT_SCOPE)
endfunction()

function(penstock_together target at_once)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${PENSTOCK_TOGETHER} UNITY_BUILD_MODE GROUP)
  penstock_groups(groups ${at_once} ${ARGN})
  foreach(source group IN ZIP_LISTS ARGN groups)
    set_property(SOURCE ${source} PROPERTY UNITY_GROUP ${group})
  endforeach()
endfunction()

# The same for files of tests/, given from there, whose names need not differ: what is compiled is written by together_tests.cmake. What is no test,
# but is shared by some, is compiled by itself.
function(penstock_tests_together target at_once)
  set(alone ${ARGN})
  set(tests "")
  if(PENSTOCK_TOGETHER)
    set(tests ${ARGN})
    list(FILTER tests INCLUDE REGEX "_test[.]cpp$")
    list(FILTER alone EXCLUDE REGEX "_test[.]cpp$")
  endif()
  target_sources(${target} PRIVATE ${alone})
  set(script ${PROJECT_SOURCE_DIR}/cmake/together_tests.cmake)
  penstock_groups(groups ${at_once} ${tests})
  foreach(file group IN ZIP_LISTS tests groups)
    list(APPEND ${group} ${file})
  endforeach()
  list(REMOVE_DUPLICATES groups)
  foreach(group ${groups})
    set(out ${CMAKE_CURRENT_BINARY_DIR}/together/${group}.cpp)
    add_custom_command(OUTPUT ${out} DEPENDS ${${group}} ${script} VERBATIM
                       COMMAND ${CMAKE_COMMAND} -DOUT=${out} -DTESTS=${CMAKE_CURRENT_SOURCE_DIR} "-DFILES=${${group}}" -P ${script})
    target_sources(${target} PRIVATE ${out})
  endforeach()
endfunction()
