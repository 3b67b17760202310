include(CMakePackageConfigHelpers)

install(TARGETS nupa EXPORT nupa-targets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY include/nupa DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(EXPORT nupa-targets NAMESPACE nupa:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/nupa)
configure_package_config_file(cmake/nupa-config.cmake.in ${CMAKE_BINARY_DIR}/generated/nupa-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/nupa)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/generated/nupa-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/generated/nupa-config.cmake ${CMAKE_BINARY_DIR}/generated/nupa-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/nupa)
configure_file(cmake/nupa.pc.in ${CMAKE_BINARY_DIR}/generated/nupa.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/generated/nupa.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME nupa)
set(CPACK_PACKAGE_CONTACT "NUPA developers <nupa@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "RDMA verbs in user space, with no adapter")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_BINARY_DIR}/lib)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
include(CPack)
