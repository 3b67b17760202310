# SPDX-License-Identifier: Apache-2.0
find_package(GTest QUIET)

# All that scripts/test runs under a sanitizer.
add_custom_target(test_programs)

# main() of each of them, which puts a limit on the time of each case.
if(GTest_FOUND)
  add_library(test_main OBJECT ${CMAKE_SOURCE_DIR}/tests/support/main.cc ${CMAKE_SOURCE_DIR}/tests/support/case_limit.cc
    ${CMAKE_SOURCE_DIR}/tests/support/asan_fork.cc)
  target_link_libraries(test_main PRIVATE nupa_flags GTest::gtest)
endif()

# A GoogleTest program in build/tests.
function(nupa_add_tests name)
  add_executable(${name} ${ARGN})
  target_link_libraries(${name} PRIVATE nupa_flags test_main GTest::gtest)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_precompile_headers(${name} PRIVATE <gtest/gtest.h>)
  nupa_compile_quickly(${name})
  # Each use of a pointer is watched in the library's objects only: in the tests it takes a third of the compiler's time.
  if(NUPA_SANITIZE MATCHES undefined)
    target_compile_options(${name} PRIVATE -fno-sanitize=null,alignment)
  endif()
  add_dependencies(test_programs ${name})
endfunction()

# For tests that run quickly: the compiler takes longer than they do. With both sanitizers an optimised file of tests takes
# three times as long to compile, and what a header holds is watched at each level.
function(nupa_leave_unoptimised name)
  target_compile_options(${name} PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O0>)
endfunction()

# Of tests that link a library as a program does: the library has all of its code in itself and is compiled as it ships.
# The tests are compiled without optimisation, and undefined behaviour is not looked for in them: each takes longer.
function(nupa_watch_library_only name)
  target_compile_options(${name} PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O0>)
  if(NUPA_SANITIZE MATCHES undefined)
    target_compile_options(${name} PRIVATE -fno-sanitize=undefined)
  endif()
endfunction()
