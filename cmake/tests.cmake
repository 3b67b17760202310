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
  target_precompile_headers(${name} PRIVATE <gtest/gtest.h> <algorithm> <array> <atomic> <chrono> <cstring> <functional>
    <map> <memory> <mutex> <optional> <span> <string> <thread> <vector>)
endfunction()

# nupa_without_one_thread(LIST): ThreadSanitizer's build leaves out the files of tests in which threads share nothing.
function(nupa_without_one_thread list)
  if(NOT NUPA_SANITIZE MATCHES thread)
    return()
  endif()
  file(STRINGS ${CMAKE_SOURCE_DIR}/tests/unit/one_thread.txt alone REGEX "^unit/")
  list(TRANSFORM alone PREPEND ${CMAKE_SOURCE_DIR}/tests/)
  list(REMOVE_ITEM ${list} ${alone})
  set(${list} ${${list}} PARENT_SCOPE)
endfunction()

# The objects of the tests can be those of another build, whose folder this is. It has to be built before.
set(NUPA_TEST_OBJECTS "" CACHE PATH "Build folder whose objects of tests are linked; empty: they are compiled")
if(NUPA_TEST_OBJECTS)
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/headers/no_tests.cc CONTENT "" @ONLY)
endif()

set(nupa_unless_debug $<NOT:$<CONFIG:Debug>>)
set(nupa_quick_tests $<${nupa_unless_debug}:-O1>)
set(nupa_unoptimised_tests $<${nupa_unless_debug}:-O0>)
if(NUPA_SANITIZE MATCHES undefined AND NOT NUPA_SANITIZE_ALL_CHECKS)
  # Undefined behaviour is looked for in the library's objects only: in the tests it takes half of the compiler's time.
  list(APPEND nupa_quick_tests -fno-sanitize=undefined)
  list(APPEND nupa_unoptimised_tests -fno-sanitize=undefined)
endif()
if(GTest_FOUND)
  nupa_test_headers(test_headers ${nupa_quick_tests})
  nupa_test_headers(test_headers_unoptimised ${nupa_unoptimised_tests})
endif()

# For programs that refuse memory to the shared libraries (tests/support/allocation_steps.h). A sanitizer has its own malloc().
if(GTest_FOUND AND NOT NUPA_SANITIZE AND NOT NUPA_FUZZ)
  add_library(test_library_malloc SHARED ${CMAKE_SOURCE_DIR}/tests/support/library_malloc.cc)
  target_link_libraries(test_library_malloc PRIVATE nupa_flags ${CMAKE_DL_LIBS})
  set_target_properties(test_library_malloc PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/support)
endif()

# nupa_add_tests(NAME [UNOPTIMISED] [CALLER] FILES...): a GoogleTest program in build/tests. UNOPTIMISED: for tests that run
# quickly: the compiler takes longer than they do. CALLER: they call the shared libraries as programs of users do. ThreadSanitizer
# has to see all accesses of the library to find no race where there is none, and code of headers is in the objects of other tests.
function(nupa_add_tests name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "UNOPTIMISED;CALLER" "" "")
  if(NUPA_TEST_OBJECTS AND (arg_CALLER OR NOT NUPA_SANITIZE MATCHES thread))
    # They come behind the library's objects, so that code of headers is the library's, which is watched.
    file(STRINGS ${NUPA_TEST_OBJECTS}/objects/${name}.txt objects)
    add_executable(${name} ${CMAKE_BINARY_DIR}/headers/no_tests.cc)
    target_link_libraries(${name} PRIVATE ${objects})
  else()
    add_executable(${name} ${arg_UNPARSED_ARGUMENTS})
    file(GENERATE OUTPUT ${CMAKE_BINARY_DIR}/objects/${name}.txt CONTENT "$<JOIN:$<TARGET_OBJECTS:${name}>,\n>\n")
    if(arg_UNOPTIMISED)
      target_compile_options(${name} PRIVATE ${nupa_unoptimised_tests})
      target_precompile_headers(${name} REUSE_FROM test_headers_unoptimised)
    else()
      target_compile_options(${name} PRIVATE ${nupa_quick_tests})
      target_precompile_headers(${name} REUSE_FROM test_headers)
    endif()
  endif()
  target_link_libraries(${name} PRIVATE nupa_flags test_main GTest::gtest)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  # Some tests replace operator new, and Clang's ThreadSanitizer has one that is no weak symbol. The first one is taken.
  if(NUPA_SANITIZE MATCHES thread AND CMAKE_CXX_COMPILER_ID STREQUAL Clang)
    target_link_options(${name} PRIVATE -Wl,--allow-multiple-definition)
  endif()
  add_dependencies(test_programs ${name})
endfunction()
