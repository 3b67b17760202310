// SPDX-License-Identifier: Apache-2.0
/// progress::EventDescriptor: a descriptor that counts events for the program.
#include "progress/event_descriptor.h"

#include <gtest/gtest.h>

#include <memory>

namespace nupa::progress {
namespace {

TEST(ProgressEventDescriptor, TakeBack_TakesOneAndNeverWaits) {
  const auto events = EventDescriptor::open().value();
  EXPECT_FALSE(events->take_back()) << "nothing waits";
  events->count(3);
  EXPECT_EQ(events->waiting(), 3u);
  for (uint32_t left = 3; left-- > 0;) {
    EXPECT_TRUE(events->take_back());
    EXPECT_EQ(events->waiting(), left);
  }
  EXPECT_FALSE(events->take_back());
}

}  // namespace
}  // namespace nupa::progress
