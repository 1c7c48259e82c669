target_link_libraries(e2e_example_model_test PRIVATE lockstep_test_support)
target_compile_definitions(e2e_example_model_test PRIVATE LOCKSTEP_PROGRAM="$<TARGET_FILE:lockstep>" LOCKSTEP_EXAMPLES="${CMAKE_SOURCE_DIR}/examples")
add_dependencies(e2e_example_model_test lockstep)

# Scoring by the program itself, with real ranks and a tiny model.
target_link_libraries(e2e_score_job_test PRIVATE lockstep_test_support)
target_compile_definitions(e2e_score_job_test PRIVATE LOCKSTEP_PROGRAM="$<TARGET_FILE:lockstep>" LOCKSTEP_MPIEXEC="${MPIEXEC_EXECUTABLE}")
add_dependencies(e2e_score_job_test lockstep)
