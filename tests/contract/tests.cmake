target_compile_definitions(contract_contract_test PRIVATE LOCKSTEP_CONTRACT_TABLE="${CMAKE_CURRENT_SOURCE_DIR}/contract/pairwise.csv")
