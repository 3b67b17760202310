find_package(GTest QUIET)

# All that scripts/test runs under a sanitizer.
add_custom_target(test_programs)

# A GoogleTest program in build/tests.
function(nupa_add_tests name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE nupa_flags GTest::gtest GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_precompile_headers(${name} PRIVATE <gtest/gtest.h>)
  nupa_link_as_is(${name})
  add_dependencies(test_programs ${name})
endfunction()
