# Instructions of a decode step, by callgrind. Regenerate: scripts/step-instructions.py build/release/tests/cost_decode_steps --update
add_executable(cost_decode_steps ${CMAKE_CURRENT_SOURCE_DIR}/cost/decode_steps.cpp)
target_link_libraries(cost_decode_steps PRIVATE lockstep_test_support)
find_package(Python3 COMPONENTS Interpreter)
if(Python3_FOUND AND CMAKE_BUILD_TYPE STREQUAL Release AND NOT LOCKSTEP_SANITIZE)
  add_test(NAME cost.DecodeStepInstructions COMMAND ${Python3_EXECUTABLE} ${CMAKE_SOURCE_DIR}/scripts/step-instructions.py $<TARGET_FILE:cost_decode_steps>)
  set_tests_properties(cost.DecodeStepInstructions PROPERTIES LABELS cost SKIP_RETURN_CODE 77 TIMEOUT 300)
endif()
