# SPDX-License-Identifier: Apache-2.0
# What CTest knows: each test program over each transport, each check, each end-to-end script, by these labels:
#   fast     two minutes of unit tests, conformance tests and checks, without root
#   unit, conformance, collectives, simulation, model, cli, check, e2e    the kinds
#   packets  over RoCEv2 packets
# scripts/test runs the same and sanitizers, and leaves some of the long cases out.
enable_testing()
set(nupa_alone ${CMAKE_SOURCE_DIR}/tests/support/alone)

# nupa_test(NAME COMMAND... [LABELS LABELS...] [WITH VARIABLE=VALUE...])
function(nupa_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "COMMAND;LABELS;WITH")
  add_test(NAME ${name} COMMAND ${arg_COMMAND} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" ENVIRONMENT "${arg_WITH}" TIMEOUT 1800)
endfunction()

# nupa_test_program(PROGRAM NAME LABELS...): the program if it is built, by shared memory where it can be had and over packets if
# one of the labels is "packets".
function(nupa_test_program program name)
  if(NOT TARGET ${program})
    return()
  endif()
  set(labels ${ARGN})
  list(FIND labels packets packets)
  list(REMOVE_ITEM labels packets)
  nupa_test(${name} COMMAND ${nupa_alone} $<TARGET_FILE:${program}> LABELS ${labels})
  if(NOT packets EQUAL -1)
    list(REMOVE_ITEM labels fast)
    nupa_test(${name}-packets COMMAND ${nupa_alone} $<TARGET_FILE:${program}> LABELS ${labels} packets WITH NUPA_TRANSPORT=roce)
  endif()
endfunction()

# Unit tests that wait for limits of seconds.
set(waits ShmXrcStopped.* ShmStopped.* StoppedTwo.* StoppedThread.* ShmRecovery.* NetdevNode.PeerThatIsAway* NodeTest.* CmNode.*
  CmProcesses.* CmCompletionPort.* NetdevRing.FramesComeInTheirOrderWhole CoreConnectionsPackets.* *RemapperLimits.* RemapperUnprivileged.*)
list(JOIN waits ":" waits)
if(TARGET unit_tests)
  set(unit_tests ${nupa_alone} $<TARGET_FILE:unit_tests>)
  nupa_test(unit COMMAND ${unit_tests} --gtest_filter=-${waits} LABELS unit fast)
  nupa_test(unit-waits COMMAND ${unit_tests} --gtest_filter=${waits} LABELS unit)
endif()
nupa_test_program(verbs_tests verbs conformance fast packets)
if(TARGET verbs_tests)
  nupa_test(verbs-copies COMMAND ${nupa_alone} $<TARGET_FILE:verbs_tests> LABELS conformance
    WITH NUPA_COPY_ENGINE=thread NUPA_COPY_ENGINE_BYTES=1)
endif()
nupa_test_program(rdmacm_tests rdmacm conformance fast packets)
nupa_test_program(rsockets_tests rsockets unit fast)
nupa_test_program(rsockets_api_tests rsockets_api conformance fast packets)
nupa_test_program(rsockets_preload_tests rsockets_preload conformance packets)
nupa_test_program(ccl_tests ccl collectives)
nupa_test_program(ccl_job_tests ccl_job collectives packets)
nupa_test_program(sim_tests sim simulation)
nupa_test_program(model_tests model model)
nupa_test_program(cli_tests cli cli)

file(GLOB checks CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}/tests/checks ${CMAKE_SOURCE_DIR}/tests/checks/*_test.py)
foreach(check IN LISTS checks)
  string(REPLACE _test.py "" name ${check})
  nupa_test(check-${name} COMMAND ${CMAKE_SOURCE_DIR}/tests/checks/${check} LABELS check fast)
endforeach()
file(GLOB scripts CONFIGURE_DEPENDS RELATIVE ${CMAKE_SOURCE_DIR}/tests/e2e ${CMAKE_SOURCE_DIR}/tests/e2e/run_*.py)
foreach(script IN LISTS scripts)
  string(REGEX REPLACE "^run_|[.]py$" "" name ${script})
  nupa_test(e2e-${name} COMMAND ${CMAKE_SOURCE_DIR}/tests/e2e/${script} LABELS e2e WITH NUPA_BUILD=${CMAKE_BINARY_DIR})
  set_tests_properties(e2e-${name} PROPERTIES RUN_SERIAL ON)
endforeach()
