# SPDX-License-Identifier: Apache-2.0
# The manual pages and the completion of the commands, in build/share. scripts/manual runs the nupa program, so builds that
# cannot run it, or in which it is slow, have none.
if(NOT TARGET nupa_cli OR NUPA_SANITIZE OR NUPA_FUZZ OR CMAKE_CROSSCOMPILING)
  return()
endif()
find_package(Python3 COMPONENTS Interpreter QUIET)
if(NOT Python3_Interpreter_FOUND)
  message(STATUS "nupa: no manual pages and no completion (needs python3)")
  return()
endif()
file(GLOB manual_parts CONFIGURE_DEPENDS scripts/manual_parts/*.py)
set(share ${CMAKE_BINARY_DIR}/share)
add_custom_command(OUTPUT ${share}/written
  COMMAND Python3::Interpreter -B scripts/manual --program $<TARGET_FILE:nupa_cli> --output ${share}
  COMMAND ${CMAKE_COMMAND} -E touch ${share}/written
  DEPENDS nupa_cli scripts/manual ${manual_parts} docs/reference/environment.md include/nupa/ccl.h
  WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} COMMENT "Writing manual pages and completion" VERBATIM)
add_custom_target(manual ALL DEPENDS ${share}/written)
install(DIRECTORY ${share}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR})
install(DIRECTORY ${share}/bash-completion/ DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion)
install(DIRECTORY ${share}/zsh/ DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh)
# Debian's zsh searches this folder instead, below /usr.
install(FILES ${share}/zsh/site-functions/_nupa DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions)
