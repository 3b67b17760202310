// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A service thread that is stopped.
#ifndef NUPA_TEST_DROPIN
#include <atomic>

#include "shm_fixture.h"

namespace nupa::core {

/// While it is there the service thread of this process does nothing, as if the process were stopped.
class ServiceThreadStands {
 public:
  explicit ServiceThreadStands(host::Node& node) {
    EXPECT_TRUE(node.loop().post([this] {
      stands_ = true;
      soon([this] { return goes_on_.load(); });
      stands_ = false;
    }));
    EXPECT_TRUE(soon([this] { return stands_.load(); }));
  }
  ~ServiceThreadStands() { go_on(); }
  void go_on() {
    goes_on_ = true;
    EXPECT_TRUE(soon([this] { return !stands_.load(); }));
  }

 private:
  std::atomic<bool> stands_{false};
  std::atomic<bool> goes_on_{false};
};

}  // namespace nupa::core
#endif
