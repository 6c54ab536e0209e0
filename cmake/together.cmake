# Files of one folder are compiled several at a time: most of a small file's time is that of the headers it includes. So what files of a folder keep
# to themselves has names that differ. PENSTOCK_TOGETHER=OFF compiles each by itself, which shows includes that are missing: `make soak` does.
option(PENSTOCK_TOGETHER "Compile several files of a folder at a time" ON)

function(penstock_together target at_once)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${PENSTOCK_TOGETHER} UNITY_BUILD_MODE GROUP)
  set(number 0)
  foreach(source ${ARGN})
    get_filename_component(folder ${source} DIRECTORY)
    if(NOT folder STREQUAL last_folder)
      set(number 0)
    endif()
    set(last_folder ${folder})
    get_filename_component(name ${folder} NAME)
    math(EXPR group "${number} / ${at_once}")
    set_property(SOURCE ${source} PROPERTY UNITY_GROUP ${name}_${group})
    math(EXPR number "${number} + 1")
  endforeach()
endfunction()
