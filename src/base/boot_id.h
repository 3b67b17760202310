// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cstdint>

#include "base/unique_fd.h"

namespace nupa::base {

/// The UUID that the kernel makes when it starts (random(4)). Zeros: it cannot be read.
inline std::array<uint8_t, 16> boot_id() {
  std::array<uint8_t, 16> id{};
  const UniqueFd fd(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  char text[64];
  const ssize_t length = fd ? read(fd.get(), text, sizeof text) : 0;
  size_t digits = 0;
  for (ssize_t i = 0; i < length && digits < 2 * id.size(); ++i) {
    const char c = text[i];
    if ((c < '0' || c > '9') && (c < 'a' || c > 'f')) continue;
    const int digit = c <= '9' ? c - '0' : c - 'a' + 10;
    id[digits / 2] = static_cast<uint8_t>(id[digits / 2] << 4 | digit);
    ++digits;
  }
  return id;
}

}  // namespace nupa::base
