# SPDX-License-Identifier: Apache-2.0
# Flags that every target shares.
add_library(nupa_flags INTERFACE)
target_compile_options(nupa_flags INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wcast-qual -fno-plt)
# Macros of infiniband/verbs.h mix enumerations.
target_compile_options(nupa_flags INTERFACE $<$<CXX_COMPILER_ID:Clang>:-Wno-deprecated-enum-enum-conversion>)
if(NUPA_WERROR)
  target_compile_options(nupa_flags INTERFACE -Werror)
endif()
if(NUPA_SANITIZE)
  target_compile_options(nupa_flags INTERFACE -fsanitize=${NUPA_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(nupa_flags INTERFACE -fsanitize=${NUPA_SANITIZE})
  # What the compiler derives from flow is wrong where that was instrumented; the other builds have this warning.
  target_compile_options(nupa_flags INTERFACE "$<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized;-Wno-array-bounds;-Wno-stringop-overflow>")
  if(NUPA_SANITIZE MATCHES address)
    # Else each function begins with a look at a variable of the sanitizer. The linker puts it into the program's own
    # data, where a page that the library moves away for a moment may have it, and the thread that moves waits for itself.
    target_compile_options(nupa_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:--param=asan-use-after-return=0>
      $<$<CXX_COMPILER_ID:Clang>:-fsanitize-address-use-after-return=never>)
  endif()
  if(NUPA_SANITIZE MATCHES undefined AND NOT NUPA_SANITIZE_ALL_CHECKS)
    # With these checks the compiler takes three times as long. A null pointer ends in a fault without them, too.
    target_compile_options(nupa_flags INTERFACE -fno-sanitize=null,alignment,vptr,pointer-overflow,object-size,return
      $<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=function>)
  endif()
  if(NUPA_SANITIZE MATCHES thread)
    # Fences pair with atomics that the tool does see.
    target_compile_options(nupa_flags INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  endif()
endif()
if(NUPA_FUZZ)
  target_compile_options(nupa_flags INTERFACE -fsanitize=fuzzer-no-link -fno-sanitize-recover=all)
endif()
# For shared libraries: all that they call is known. With Clang, the functions of a sanitizer are in the program alone.
set(nupa_link_complete -Wl,-z,defs)
if(NUPA_SANITIZE AND CMAKE_CXX_COMPILER_ID STREQUAL Clang)
  set(nupa_link_complete "")
endif()

# nupa_link_cxx_in(TARGET [MAP]): links the C++ library into a shared library. A program may bring an older C++ library, or
# load a newer one later. MAP: exports the symbols of namespace nupa alone; otherwise the target has its own version script.
function(nupa_link_cxx_in target)
  if(NOT NUPA_STATIC_CXX OR NUPA_SANITIZE OR NUPA_FUZZ)
    return()
  endif()
  # libgcc stays shared: to unwind a thread that is cancelled takes one library for all frames.
  target_link_options(${target} PRIVATE -static-libstdc++ -Wl,--exclude-libs,libstdc++.a)
  if("MAP" IN_LIST ARGN)
    target_link_options(${target} PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/nupa.map)
    set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/nupa.map)
  endif()
endfunction()

# nupa_optimise_at_link(TARGETS...): a post crosses a dozen small files, and link-time optimisation makes one straight path of
# them. It takes as long as compiling them once more, so it is for what a post or a poll crosses. Programs that are not about
# speed, and tests, link the objects as they are.
function(nupa_optimise_at_link)
  if(NOT CMAKE_BUILD_TYPE STREQUAL Release OR NOT NUPA_LTO OR NOT CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    return()
  endif()
  foreach(target IN LISTS ARGN)
    set_target_properties(${target} PROPERTIES INTERPROCEDURAL_OPTIMIZATION ON)
    target_compile_options(${target} PRIVATE -ffat-lto-objects)
  endforeach()
endfunction()
target_link_options(nupa_flags INTERFACE $<$<NOT:$<BOOL:$<TARGET_PROPERTY:INTERPROCEDURAL_OPTIMIZATION>>>:-fno-lto>)
# Of programs that call what is fast, and are not fast themselves.
function(nupa_compile_quickly target)
  target_compile_options(${target} PRIVATE $<$<NOT:$<CONFIG:Debug>>:-O1>)
endfunction()

# For tracers: src/base/probe.h.
find_path(SDT_INCLUDE sys/sdt.h)
if(SDT_INCLUDE)
  target_compile_definitions(nupa_flags INTERFACE NUPA_WITH_PROBES)
else()
  message(STATUS "nupa: probes for tracers are off (needs systemtap-sdt-dev)")
endif()

find_package(Threads REQUIRED)
target_link_libraries(nupa_flags INTERFACE Threads::Threads)

# Takes a third of the time, but hides a missing include.
set(NUPA_COMPILE_TOGETHER OFF CACHE STRING "Compile several files as one: OFF, TESTS (those of the tests and the nupa program) or ON")
if(NOT NUPA_COMPILE_TOGETHER STREQUAL OFF)
  # A frame of a coroutine may well hold what is local to its file, and a function have a name that another file has.
  target_compile_options(nupa_flags INTERFACE "$<$<BOOL:$<TARGET_PROPERTY:UNITY_BUILD>>:$<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>;-Wno-shadow>")
endif()
# nupa_compile_together(TARGET [BATCH N] APART FILES...): for targets of many files, N (16) at a time; those whose local names are
# others' too stay apart. nupa_compile_tests_together(): the same of a test program or the nupa program.
function(nupa_compile_together target)
  if(NUPA_COMPILE_TOGETHER STREQUAL ON)
    nupa_compile_tests_together(${target} ${ARGN})
  endif()
endfunction()
# nupa_precompile_standard_headers(TARGET FLAGS): to read them takes a quarter of the time of a file. All targets with the
# same FLAGS, an interface library, share what is precompiled.
function(nupa_precompile_standard_headers target flags)
  if(NOT NUPA_COMPILE_TOGETHER STREQUAL ON)
    return()
  endif()
  if(NOT TARGET ${flags}_headers)
    set(source ${CMAKE_BINARY_DIR}/headers/${flags}.cc)
    file(CONFIGURE OUTPUT ${source} CONTENT "" @ONLY)
    add_library(${flags}_headers OBJECT ${source})
    target_link_libraries(${flags}_headers PRIVATE ${flags})
    target_precompile_headers(${flags}_headers PRIVATE <algorithm> <array> <atomic> <bit> <cerrno> <cstdint> <cstring>
      <functional> <map> <memory> <mutex> <optional> <span> <string> <string_view> <vector>)
  endif()
  target_precompile_headers(${target} REUSE_FROM ${flags}_headers)
endfunction()
function(nupa_compile_tests_together target)
  cmake_parse_arguments(arg "" BATCH APART ${ARGN})
  if(NOT arg_BATCH)
    set(arg_BATCH 16)
  endif()
  if(NUPA_COMPILE_TOGETHER STREQUAL ON OR NUPA_COMPILE_TOGETHER STREQUAL TESTS)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${arg_BATCH})
    set_source_files_properties(${arg_APART} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    # The compiler looks for unused memory again and again otherwise, which takes a fifth of the time. Needs 0.3 GB.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:--param=ggc-min-heapsize=524288>)
  endif()
endfunction()
