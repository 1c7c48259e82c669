# A job of ranks that need neither MPI nor a model: what the supervisor test starts, watches, freezes and kills.
add_executable(launcher_fake_job ${CMAKE_CURRENT_LIST_DIR}/fake_job.cpp)
target_link_libraries(launcher_fake_job PRIVATE lockstep_launcher)
target_compile_definitions(launcher_supervisor_test PRIVATE FAKE_JOB="$<TARGET_FILE:launcher_fake_job>")
add_dependencies(launcher_supervisor_test launcher_fake_job)
