# SPDX-License-Identifier: Apache-2.0
include(CMakePackageConfigHelpers)

install(TARGETS nupa EXPORT nupa-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET nupa_ccl)
  install(TARGETS nupa_ccl EXPORT nupa-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endif()
install(DIRECTORY include/nupa DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES README.md CONTRIBUTING.md CHANGELOG.md SECURITY.md CODE_OF_CONDUCT.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
install(DIRECTORY docs examples DESTINATION ${CMAKE_INSTALL_DOCDIR} PATTERN CMakeLists.txt EXCLUDE)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR} RENAME copyright)
install(EXPORT nupa-targets NAMESPACE nupa:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/nupa)
configure_package_config_file(cmake/nupa-config.cmake.in ${CMAKE_BINARY_DIR}/generated/nupa-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/nupa)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/generated/nupa-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/generated/nupa-config.cmake ${CMAKE_BINARY_DIR}/generated/nupa-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/nupa)
# The prefix is known only when files are installed (cmake --install --prefix, the package), so the file finds it from
# where it lies itself.
file(RELATIVE_PATH NUPA_PC_TO_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" NUPA_PC_TO_PREFIX "${NUPA_PC_TO_PREFIX}")
configure_file(cmake/nupa.pc.in ${CMAKE_BINARY_DIR}/generated/nupa.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/generated/nupa.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
if(TARGET nupa_ccl)
  configure_file(cmake/nupa_ccl.pc.in ${CMAKE_BINARY_DIR}/generated/nupa_ccl.pc @ONLY)
  install(FILES ${CMAKE_BINARY_DIR}/generated/nupa_ccl.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endif()

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME nupa)
set(CPACK_PACKAGE_CONTACT "NUPA developers <nupa@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "RDMA verbs in user space, with no adapter")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION
"Runs unmodified RDMA programs where there is no RDMA adapter.
A libibverbs for programs started by the nupa program, which move their
data by sharing memory, and a C++ interface with its headers. It needs
neither a kernel module nor root, and replaces no library of the system.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_INSTALL_CMAKE_PROJECTS "${CMAKE_BINARY_DIR};nupa;Unspecified;/")
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_BINARY_DIR}/lib)
# Written here and not generated: the generated list would also give out the libibverbs that only `nupa run` uses, and
# a generated postrm would keep the package in the state "config-files" after its removal. CPack writes no postinst and
# postrm of its own if it is told of others; that they do not exist costs two warnings.
set(nupa_control ${CMAKE_BINARY_DIR}/generated/debian)
file(CONFIGURE OUTPUT ${nupa_control}/shlibs
  CONTENT "libnupa 0 nupa (>= ${PROJECT_VERSION})\nlibnupa_ccl 0 nupa (>= ${PROJECT_VERSION})\n")
file(CONFIGURE OUTPUT ${nupa_control}/triggers CONTENT "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${nupa_control}/shlibs ${nupa_control}/triggers
  ${nupa_control}/none/postinst ${nupa_control}/none/postrm)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
# Only who writes C++ programs for it needs the headers of tl::expected.
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libexpected-dev, ibverbs-utils, perftest")
set(CPACK_DEBIAN_PACKAGE_SECTION net)
include(CPack)
