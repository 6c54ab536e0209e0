# SPDX-License-Identifier: Apache-2.0
# The device "cuda" (docs/gpu.md), a library beside the program's backend. It is built where libtorch is one for CUDA and the headers of CUDA's
# runtime are there: those that pip installs beside PyTorch, or a CUDA toolkit's, of the version that libtorch was built with. It is compiled by
# the host's compiler, and links to libtorch alone.
file(GLOB beside_libtorch "${PENSTOCK_LIBTORCH}/../nvidia/cu*" "${PENSTOCK_LIBTORCH}/../nvidia/cuda_runtime" "${PENSTOCK_LIBTORCH}/../nvidia/cuda_nvcc")
list(REVERSE beside_libtorch)  # the newest first
set(toolkits $ENV{CUDA_HOME} $ENV{CUDA_PATH} /usr/local/cuda)

# The compiler of kernels, which only src/run/cuda/kernels.cu needs, and NVRTC can stand in for: PyTorch's neighbour before one that happens to be installed.
find_program(PENSTOCK_NVCC nvcc HINTS ${beside_libtorch} ${toolkits} PATH_SUFFIXES bin DOC "NVIDIA's compiler")

# The major version of CUDA of which libtorch wants the runtime, from what its library is linked to.
function(penstock_libtorch_cuda out)
  set(${out} "" PARENT_SCOPE)
  set(library "${PENSTOCK_LIBTORCH}/lib/libc10_cuda.so")
  if(EXISTS "${library}")
    execute_process(COMMAND "${CMAKE_READELF}" -d "${library}" OUTPUT_VARIABLE needed COMMAND_ERROR_IS_FATAL ANY)
    if(needed MATCHES "libcudart[^]]*[.]so[.]([0-9]+)")
      set(${out} ${CMAKE_MATCH_1} PARENT_SCOPE)
    endif()
  endif()
endfunction()

# A folder with the headers of that version; "": there is none.
function(penstock_cuda_headers out version)
  set(${out} "" PARENT_SCOPE)
  foreach(folder ${beside_libtorch} ${toolkits})
    if(EXISTS "${folder}/include/cuda_runtime_api.h")
      file(STRINGS "${folder}/include/cuda_runtime_api.h" line REGEX "define CUDART_VERSION +[0-9]+")
      if(line MATCHES "CUDART_VERSION +${version}[0-9][0-9][0-9]")
        set(${out} "${folder}/include" PARENT_SCOPE)
        return()
      endif()
    endif()
  endforeach()
endfunction()

# These texts are compiled as the program runs (cuda/runtime_compiler.h): generated kernels' headers and, for builds without nvcc, our own kernels.
function(penstock_embed_kernel_texts target)
  penstock_embed_into(${target} cuda::kKernelsText cuda/runtime_compiler.h ${PROJECT_SOURCE_DIR}/src/run/cuda/kernels.cu)
  penstock_embed_into(${target} cuda::kElementTypeText cuda/runtime_compiler.h ${PROJECT_SOURCE_DIR}/src/run/torch/element_type.h)
  penstock_embed_into(${target} cuda::kPreludeText cuda/runtime_compiler.h ${PROJECT_SOURCE_DIR}/src/run/cuda/prelude.cuh)
  penstock_embed_into(${target} cuda::kBlocksText cuda/runtime_compiler.h ${PROJECT_SOURCE_DIR}/src/run/cuda/blocks.cuh)
  penstock_embed_into(${target} cuda::kChainText cuda/runtime_compiler.h ${PROJECT_SOURCE_DIR}/src/run/cuda/chain.cuh)
endfunction()

penstock_libtorch_cuda(cuda_version)
if(cuda_version)
  penstock_cuda_headers(cuda_headers ${cuda_version})
  if(NOT cuda_headers)
    message(STATUS "No device cuda: libtorch is one for CUDA ${cuda_version}, whose headers are not there; pip install 'nvidia-cuda-runtime==${cuda_version}.*' "
                   "(before 13: nvidia-cuda-runtime-cu${cuda_version})")
  endif()
endif()
if(cuda_headers)
  file(GLOB cuda_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/run/cuda/*.cpp)
  add_library(penstock_cuda MODULE ${cuda_sources})
  target_include_directories(penstock_cuda SYSTEM PRIVATE "${cuda_headers}")
  target_link_libraries(penstock_cuda PRIVATE "${PENSTOCK_LIBTORCH}/lib/libtorch_cuda.so" "${PENSTOCK_LIBTORCH}/lib/libc10_cuda.so" penstock_libtorch)
  set_target_properties(penstock_cuda PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})
  penstock_embed_kernel_texts(penstock_cuda)
  message(STATUS "Device cuda: CUDA ${cuda_version}, headers in ${cuda_headers}")
  # A binary of another version's compiler might ask for a newer driver than libtorch does.
  set(nvcc_says "")
  if(PENSTOCK_NVCC)
    execute_process(COMMAND "${PENSTOCK_NVCC}" --version OUTPUT_VARIABLE nvcc_says ERROR_QUIET)
  endif()
  if(nvcc_says MATCHES "release ${cuda_version}[.]")
    include(cmake/kernels.cmake)
    penstock_add_kernels(penstock_cuda)
    message(STATUS "Our own kernels for it: by ${PENSTOCK_NVCC}")
  else()
    message(STATUS "Our own kernels for it: by NVRTC as the program runs, as nvcc of CUDA ${cuda_version} is not there; pip install "
                   "'nvidia-cuda-nvcc==${cuda_version}.*' 'nvidia-nvvm==${cuda_version}.*' 'nvidia-cuda-crt==${cuda_version}.*' saves its seconds")
  endif()
endif()
