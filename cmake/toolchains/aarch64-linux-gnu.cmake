# SPDX-License-Identifier: Apache-2.0
# Debian's cross compiler for arm64. NUPA_ARM64_ROOT is a folder with unpacked libraries of the target (scripts/test-arm64);
# without it they are those that apt has installed (libgtest-dev:arm64, ...).
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES NUPA_ARM64_ROOT)

if(NOT NUPA_ARM64_ROOT AND EXISTS ${CMAKE_BINARY_DIR}/root)
  set(NUPA_ARM64_ROOT ${CMAKE_BINARY_DIR}/root)
endif()
# Packages for every processor (headers alone) are found on this machine.
if(NUPA_ARM64_ROOT)
  list(APPEND CMAKE_FIND_ROOT_PATH ${NUPA_ARM64_ROOT})
  add_link_options(-L${NUPA_ARM64_ROOT}/usr/lib/aarch64-linux-gnu
    -Wl,-rpath-link,${NUPA_ARM64_ROOT}/usr/lib/aarch64-linux-gnu)
endif()
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static;-L;/usr/aarch64-linux-gnu)
