# SPDX-License-Identifier: Apache-2.0
# libtorch, from the folder PENSTOCK_LIBTORCH, which has include/ and lib/. What runs on CPUs is linked by itself: PyTorch's own
# TorchConfig.cmake asks for CUDA's compiler and libraries wherever its build has kernels for it, as most that are installed have.

# Its version's two numbers, such as 2.13.
function(penstock_libtorch_version out)
  foreach(header include/torch/headeronly/version.h include/torch/csrc/api/include/torch/version.h)
    if(EXISTS "${PENSTOCK_LIBTORCH}/${header}")
      file(READ "${PENSTOCK_LIBTORCH}/${header}" text)
      if(text MATCHES "TORCH_VERSION_MAJOR ([0-9]+).*TORCH_VERSION_MINOR ([0-9]+)")
        set(${out} ${CMAKE_MATCH_1}.${CMAKE_MATCH_2} PARENT_SCOPE)
        return()
      endif()
    endif()
  endforeach()
  message(FATAL_ERROR "PENSTOCK_LIBTORCH: there is no libtorch in \"${PENSTOCK_LIBTORCH}\"; it is the folder with libtorch's include/ and lib/, "
                      "such as .venv/lib/python3.11/site-packages/torch")
endfunction()

# An interface target's users get its headers, whose warnings are not ours, and its libraries.
function(penstock_use_libtorch target)
  target_compile_definitions(${target} INTERFACE $<BUILD_INTERFACE:USE_DISTRIBUTED> $<BUILD_INTERFACE:USE_C10D_GLOO>)
  target_include_directories(${target} SYSTEM INTERFACE "$<BUILD_INTERFACE:${PENSTOCK_LIBTORCH}/include>"
                             "$<BUILD_INTERFACE:${PENSTOCK_LIBTORCH}/include/torch/csrc/api/include>")
  target_link_libraries(${target} INTERFACE "$<BUILD_INTERFACE:${PENSTOCK_LIBTORCH}/lib/libtorch_cpu.so>"
                        "$<BUILD_INTERFACE:${PENSTOCK_LIBTORCH}/lib/libc10.so>")
endfunction()
