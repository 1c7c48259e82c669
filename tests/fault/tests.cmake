# The program itself, with real ranks and a tiny model.
target_link_libraries(fault_job_test PRIVATE lockstep_test_support)
target_compile_definitions(fault_job_test PRIVATE LOCKSTEP_PROGRAM="$<TARGET_FILE:lockstep>" LOCKSTEP_MPIEXEC="${MPIEXEC_EXECUTABLE}")
add_dependencies(fault_job_test lockstep)
