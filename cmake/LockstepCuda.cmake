# The CUDA and NCCL backend: the same sources, device/cuda and comm/cuda, for GPUs as a plug-in (LOCKSTEP_CUDA) and for the host as a library
# that runs on the emulator of tests/simt (LOCKSTEP_SIMT).
file(GLOB LOCKSTEP_CUDA_SOURCES CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/device/cuda/*.cpp ${CMAKE_SOURCE_DIR}/device/cuda/*.cu
     ${CMAKE_SOURCE_DIR}/comm/cuda/*.cpp ${CMAKE_SOURCE_DIR}/comm/cuda/*.cu)

if(LOCKSTEP_CUDA)
  # Machine code for the GPUs that the toolkit knows, and PTX for those to come, unless the environment names others (CUDAARCHS, as CMake has it).
  if(NOT DEFINED ENV{CUDAARCHS})
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100 CACHE STRING "GPUs to compile for, as in CMAKE_CUDA_ARCHITECTURES")
  endif()
  enable_language(CUDA)
  if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # before CMake 3.26
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  endif()
  find_package(CUDAToolkit REQUIRED)
  find_path(NCCL_INCLUDE nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
  find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR} REQUIRED)
  if(CUDAToolkit_VERSION VERSION_LESS 12.8 AND 100 IN_LIST CMAKE_CUDA_ARCHITECTURES)
    list(REMOVE_ITEM CMAKE_CUDA_ARCHITECTURES 100)
    list(APPEND CMAKE_CUDA_ARCHITECTURES 90-virtual)
  endif()

  # What the plug-in is made of, and what test programs link.
  add_library(lockstep_cuda_backend STATIC ${LOCKSTEP_CUDA_SOURCES})
  set_target_properties(lockstep_cuda_backend PROPERTIES CUDA_RUNTIME_LIBRARY Shared)
  # The numeric contract (docs/numerics.md, N9): what is fused is written as fmaf; divisions and roots round correctly.
  set(LOCKSTEP_CUDA_OPTIONS -fmad=false -prec-div=true -prec-sqrt=true -ftz=false -Xcompiler=-ffp-contract=off)
  target_compile_options(lockstep_cuda_backend PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:${LOCKSTEP_CUDA_OPTIONS}>)
  target_include_directories(lockstep_cuda_backend SYSTEM PUBLIC ${NCCL_INCLUDE})
  target_link_libraries(lockstep_cuda_backend PUBLIC lockstep_comm lockstep_device CUDA::cudart CUDA::cublasLt ${NCCL_LIBRARY})

  add_library(lockstep_cuda MODULE $<TARGET_OBJECTS:lockstep_cuda_backend>)
  set_target_properties(lockstep_cuda PROPERTIES LINKER_LANGUAGE CXX)
  target_link_options(lockstep_cuda PRIVATE -Wl,--no-undefined)
  target_link_libraries(lockstep_cuda PRIVATE lockstep_comm lockstep_device CUDA::cudart CUDA::cublasLt ${NCCL_LIBRARY})
  install(TARGETS lockstep_cuda LIBRARY DESTINATION lib/lockstep)
endif()

if(LOCKSTEP_SIMT)
  # Headers only: no compiler, no library, no driver.
  set(places /usr/local/cuda ENV CUDA_PATH ENV CUDA_HOME)
  find_path(CUDA_HEADERS cuda_runtime.h HINTS ${places} PATH_SUFFIXES include targets/x86_64-linux/include)
  find_path(CUDA_BF16_HEADERS cuda_bf16.h HINTS ${CUDA_HEADERS} ${places} PATH_SUFFIXES include targets/x86_64-linux/include)
  find_path(CUBLASLT_HEADERS cublasLt.h HINTS ${CUDA_HEADERS} ${places} PATH_SUFFIXES include targets/x86_64-linux/include)
  find_path(NCCL_HEADERS nccl.h HINTS ${CUDA_HEADERS} ${places} PATH_SUFFIXES include targets/x86_64-linux/include)
  if(CUDA_HEADERS AND CUDA_BF16_HEADERS AND CUBLASLT_HEADERS AND NCCL_HEADERS)
    add_subdirectory(tests/simt)
  else()
    message(STATUS "LOCKSTEP_SIMT: cuda_runtime.h, cuda_bf16.h, cublasLt.h and nccl.h are not all here: no emulated GPU, no simt tests")
  endif()
endif()
