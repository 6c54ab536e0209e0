# SPDX-License-Identifier: Apache-2.0
# Our own kernels for NVIDIA's cards (src/run/cuda/kernels.cu): compiled by PENSTOCK_NVCC for those of these cards that it knows, and to PTX, which a
# driver compiles, for later ones.
set(PENSTOCK_KERNEL_CARDS 80 90 100)

# Gives `target` the fat binary, as `extern "C" const char penstock_kernels[]`, and defines PENSTOCK_KERNELS.
function(penstock_add_kernels target)
  set(folder ${PROJECT_SOURCE_DIR}/src/run/cuda)
  set(image ${PROJECT_BINARY_DIR}/embedded/kernels.fatbin)
  execute_process(COMMAND ${PENSTOCK_NVCC} --list-gpu-code OUTPUT_VARIABLE known COMMAND_ERROR_IS_FATAL ANY)
  set(cards)
  foreach(card ${PENSTOCK_KERNEL_CARDS})
    if(known MATCHES "sm_${card}[^0-9]")
      list(APPEND cards -gencode arch=compute_${card},code=sm_${card})
      set(newest ${card})
    endif()
  endforeach()
  list(APPEND cards -gencode arch=compute_${newest},code=compute_${newest})
  add_custom_command(OUTPUT ${image} DEPENDS ${folder}/kernels.cu ${folder}/prelude.cuh ${folder}/blocks.cuh ${PROJECT_SOURCE_DIR}/src/run/torch/element_type.h VERBATIM
                     COMMAND ${PENSTOCK_NVCC} -std=c++20 -fatbin -Xfatbin=-compress-all ${cards} ${folder}/kernels.cu -o ${image})
  set(source ${PROJECT_BINARY_DIR}/embedded/kernels.cpp)
  file(CONFIGURE OUTPUT ${source} @ONLY CONTENT
       "asm(R\"(.pushsection .rodata\n.balign 64\n.global penstock_kernels\n.hidden penstock_kernels\npenstock_kernels: .incbin \"@image@\"\n.popsection)\");\n")
  set_source_files_properties(${source} PROPERTIES OBJECT_DEPENDS ${image})
  target_sources(${target} PRIVATE ${source})
  target_compile_definitions(${target} PRIVATE PENSTOCK_KERNELS)
endfunction()
