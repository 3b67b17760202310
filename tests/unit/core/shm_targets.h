// SPDX-License-Identifier: Apache-2.0
#pragma once
/// An initiator whose targets are queue pairs of its own process.
#include "core/seam/shared_target.h"
#include "shm_fixture.h"

namespace nupa::core {

class ShmTarget : public ShmTest {
 protected:
  /// The peer of `from` does not answer: the request fails, and memory does not change.
  void expect_unanswered(Qp& from) {
    std::memset(memory + 4096, 0, 8);
    std::strcpy(memory, "refused");
    ASSERT_EQ(write(from, 9), 0);
    const WorkCompletion wc = next();
    EXPECT_EQ(wc.wr_id, 9u);
    EXPECT_EQ(wc.status, WcStatus::kRetryExcErr);
    EXPECT_EQ(memory[4096], 0);
  }
  void expect_served(Qp& from) {
    std::strcpy(memory, "served");
    ASSERT_EQ(write(from, 8), 0);
    const WorkCompletion wc = next();
    EXPECT_EQ(wc.wr_id, 8u);
    EXPECT_EQ(wc.status, WcStatus::kSuccess);
    EXPECT_STREQ(memory + 4096, "served");
  }
  /// What an initiator has of queue pair `qp`.
  SharedTarget target_of(Qp& qp) {
    Process& here = process();
    return {here.node(), here.memories(), here.node().self(), qp.index(), &due};
  }
  bool takes_requests(SharedTarget& target, Qp& from) { return target.ready(process().slot(), from.number()); }

  host::DueEvent due;
};

}  // namespace nupa::core
