# The PTX wrappers are compiled as kernels are: by nvcc, or as C++ for the emulator.
set(wrappers ${CMAKE_CURRENT_SOURCE_DIR}/gpu/wrappers_test.cu)
add_executable(gpu_wrappers_test ${wrappers})
set_target_properties(gpu_wrappers_test PROPERTIES LINKER_LANGUAGE CXX CUDA_RUNTIME_LIBRARY Shared)
if(TARGET lockstep_cuda_emulated)
  set_source_files_properties(${wrappers} PROPERTIES LANGUAGE CXX)
  target_compile_options(gpu_wrappers_test PRIVATE -Wno-unknown-pragmas)
  target_link_libraries(gpu_wrappers_test PRIVATE lockstep_options lockstep_cuda_emulated GTest::gtest_main)
  set(label simt)
else()
  target_compile_options(gpu_wrappers_test PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:${LOCKSTEP_CUDA_OPTIONS}>)
  target_link_libraries(gpu_wrappers_test PRIVATE lockstep_options lockstep_cuda_backend GTest::gtest_main)
  set(label gpu)
endif()
gtest_discover_tests(gpu_wrappers_test TEST_PREFIX "gpu." DISCOVERY_MODE PRE_TEST PROPERTIES LABELS ${label} TIMEOUT 300)

# Writes the model that scripts/gpu-check.sh measures.
add_executable(gpu_make_model ${CMAKE_CURRENT_SOURCE_DIR}/gpu/make_model.cpp)
target_link_libraries(gpu_make_model PRIVATE lockstep_options lockstep_test_support)

get_property(all_tests DIRECTORY PROPERTY BUILDSYSTEM_TARGETS)
list(FILTER all_tests INCLUDE REGEX "^gpu_")
add_custom_target(gpu_tests DEPENDS ${all_tests})
