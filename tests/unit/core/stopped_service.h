// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A service thread that is stopped.
#include <atomic>

#include "shm_fixture.h"

namespace nupa::core {

/// While it is there the service thread of this process does nothing, as if the process were stopped.
class ServiceThreadStopped {
 public:
  explicit ServiceThreadStopped(host::Node& node) {
    EXPECT_TRUE(node.loop().post([this] {
      stopped_ = true;
      soon([this] { return continues_.load(); });
      stopped_ = false;
    }));
    EXPECT_TRUE(soon([this] { return stopped_.load(); }));
  }
  ~ServiceThreadStopped() { go_on(); }
  void go_on() {
    continues_ = true;
    EXPECT_TRUE(soon([this] { return !stopped_.load(); }));
  }

 private:
  std::atomic<bool> stopped_{false};
  std::atomic<bool> continues_{false};
};

}  // namespace nupa::core
