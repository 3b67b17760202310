find_package(GTest QUIET)

# A GoogleTest program in build/tests.
function(nupa_add_tests name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE nupa_flags GTest::gtest GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_precompile_headers(${name} PRIVATE <gtest/gtest.h>)
  nupa_link_as_is(${name})
endfunction()
