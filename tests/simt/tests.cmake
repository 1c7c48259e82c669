# Whole models; the others need no engine.
foreach(name contract decode_cost failure fast program)
  target_link_libraries(simt_${name}_test PRIVATE lockstep_test_support)
endforeach()

# The program itself, with the emulated GPUs as its plug-in.
target_compile_definitions(simt_program_test PRIVATE LOCKSTEP_PROGRAM="$<TARGET_FILE:lockstep>"
                           LOCKSTEP_EMULATED_PLUGIN="$<TARGET_FILE:lockstep_cuda_emulated_plugin>")
add_dependencies(simt_program_test lockstep lockstep_cuda_emulated_plugin)
