# The conformance suite under mpirun, as comm.mpi_conformance_N.
add_executable(comm_mpi_conformance ${CMAKE_CURRENT_SOURCE_DIR}/comm/mpi_conformance.cpp)
target_link_libraries(comm_mpi_conformance PRIVATE lockstep_comm)

set(mpi_environment
    OMPI_MCA_rmaps_base_oversubscribe=1
    OMPI_ALLOW_RUN_AS_ROOT=1
    OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    OMPI_MCA_btl_vader_single_copy_mechanism=none
    ASAN_OPTIONS=detect_leaks=0) # MPI's own
set(mpi_flags --oversubscribe --allow-run-as-root --bind-to none)

foreach(ranks 2 3 4)
  add_test(NAME comm.mpi_conformance_${ranks}
           COMMAND ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} ${ranks} ${mpi_flags} $<TARGET_FILE:comm_mpi_conformance> ${ranks})
  set_tests_properties(comm.mpi_conformance_${ranks} PROPERTIES LABELS mpi TIMEOUT 120 PROCESSORS 2 ENVIRONMENT "${mpi_environment}")
endforeach()

# A world of another size must not pass for one that was tested.
add_test(NAME comm.mpi_conformance_refuses_a_world_of_another_size
         COMMAND bash -c "if \"$@\" > world.log 2>&1; then exit 1; fi; grep 'the world has 2 ranks, not 3' world.log" --
                 ${MPIEXEC_EXECUTABLE} ${MPIEXEC_NUMPROC_FLAG} 2 ${mpi_flags} $<TARGET_FILE:comm_mpi_conformance> 3)
set_tests_properties(comm.mpi_conformance_refuses_a_world_of_another_size PROPERTIES LABELS mpi TIMEOUT 60 ENVIRONMENT "${mpi_environment}")
