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

# The headers that each test reads, precompiled once for all programs with the same options: nupa_test_headers(NAME OPTIONS...). NAME
# is a program, because the options of programs and of libraries differ, and is not linked.
function(nupa_test_headers name)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/headers/${name}.cc CONTENT "int main() {}" @ONLY)
  add_executable(${name} EXCLUDE_FROM_ALL ${CMAKE_BINARY_DIR}/headers/${name}.cc)
  target_link_libraries(${name} PRIVATE nupa_flags GTest::gtest)
  target_compile_options(${name} PRIVATE ${ARGN})
  nupa_link_as_is(${name})
  target_precompile_headers(${name} PRIVATE <gtest/gtest.h> <algorithm> <array> <atomic> <chrono> <cstring> <functional>
    <map> <memory> <mutex> <optional> <span> <string> <thread> <vector>)
endfunction()

set(nupa_unless_debug $<NOT:$<CONFIG:Debug>>)
set(nupa_quick_tests $<${nupa_unless_debug}:-O1>)
set(nupa_unoptimised_tests $<${nupa_unless_debug}:-O0>)
if(NUPA_SANITIZE MATCHES undefined)
  # These checks are made in the library's objects only: in the tests they take a third of the compiler's time.
  set(unwatched -fno-sanitize=null,alignment,vptr,pointer-overflow,object-size,return)
  list(APPEND nupa_quick_tests ${unwatched})
  list(APPEND nupa_unoptimised_tests ${unwatched})
endif()
if(GTest_FOUND)
  nupa_test_headers(test_headers ${nupa_quick_tests})
  nupa_test_headers(test_headers_unoptimised ${nupa_unoptimised_tests})
endif()

# nupa_add_tests(NAME [UNOPTIMISED] [LIBRARY_ONLY] FILES...): a GoogleTest program in build/tests. UNOPTIMISED: for tests that run
# quickly: the compiler takes longer than they do. With both sanitizers an optimised file of tests takes three times as long to
# compile, and what a header holds is watched at each level. LIBRARY_ONLY: for unoptimised tests that link a library as a
# program does: it has all of its code in itself, and undefined behaviour is looked for in it alone.
function(nupa_add_tests name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "UNOPTIMISED;LIBRARY_ONLY" "" "")
  add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
  target_link_libraries(${name} PRIVATE nupa_flags test_main GTest::gtest)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  nupa_link_as_is(${name})
  if(arg_UNOPTIMISED OR arg_LIBRARY_ONLY)
    target_compile_options(${name} PRIVATE ${nupa_unoptimised_tests})
    target_precompile_headers(${name} REUSE_FROM test_headers_unoptimised)
  else()
    target_compile_options(${name} PRIVATE ${nupa_quick_tests})
    target_precompile_headers(${name} REUSE_FROM test_headers)
  endif()
  if(arg_LIBRARY_ONLY AND NUPA_SANITIZE MATCHES undefined)
    target_compile_options(${name} PRIVATE -fno-sanitize=undefined)
  endif()
  add_dependencies(test_programs ${name})
endfunction()
