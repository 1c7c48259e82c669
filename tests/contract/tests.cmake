target_compile_definitions(contract_contract_test PRIVATE LOCKSTEP_CONTRACT_TABLE="${CMAKE_CURRENT_SOURCE_DIR}/contract/pairwise.csv")

# A few rows of the table, for builds in which all of them take too long.
add_test(NAME contract.a_few_rows COMMAND contract_contract_test --gtest_filter=Contract.*)
set_tests_properties(contract.a_few_rows PROPERTIES LABELS contract-small TIMEOUT 600 ENVIRONMENT "LOCKSTEP_CONTRACT_PART=1;LOCKSTEP_CONTRACT_PARTS=9")
