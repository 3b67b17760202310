// SPDX-License-Identifier: Apache-2.0
/// Tests of requests to an owner of memory whose service thread is stopped: each is done once, or given up.
#include <cstddef>
#include <deque>

#include "core/qp.h"
#include "core/quiesce.h"
#include "shm_fixture.h"
#include "stopped_service.h"

namespace nupa::core {
namespace {

using host::AgentCall;
using host::kNotServedYet;
using shm::AgentOp;

/// Requests to the service thread, which here is this process's own.
class StoppedOwner : public ShmTest {
 protected:
  host::Peer& self() { return process().node().self(); }
  uint64_t address() const { return reinterpret_cast<uint64_t>(memory + 4096); }
  uint64_t& word() { return *reinterpret_cast<uint64_t*>(memory + 4096); }
  /// One try to add 1 to the word.
  WcStatus add(AgentCall& call) {
    uint64_t operand = 1;
    return call.attempt([&] { return call.atomic(self(), AgentOp::kFetchAdd, address(), &operand, 0); });
  }
  WcStatus write(AgentCall& call, uint64_t at, char* from, uint64_t length) {
    return call.attempt([&] { return call.copy(self(), true, at, reinterpret_cast<std::byte*>(from), length); });
  }
  WcStatus read(AgentCall& call, char* to, uint64_t at, uint64_t length) {
    return call.attempt([&] { return call.copy(self(), false, at, reinterpret_cast<std::byte*>(to), length); });
  }
  AgentCall& make_call() { return calls_.emplace_back(process().memories().agent()); }
  void TearDown() override {
    calls_.clear();
    ShmTest::TearDown();
  }

 private:
  std::deque<AgentCall> calls_;
};

TEST_F(StoppedOwner, Atomic_ServiceThreadIsStopped_IsDoneOnceLater) {
  AgentCall& call = make_call();
  word() = 40;
  {
    ServiceThreadStopped stopped(process().node());
    for (int i = 0; i < 3; ++i) EXPECT_EQ(add(call), kNotServedYet);
    EXPECT_TRUE(call.is_waiting());
  }
  EXPECT_TRUE(soon([&] { return add(call) == WcStatus::kSuccess; }));
  EXPECT_EQ(word(), 41u);
  EXPECT_FALSE(call.is_waiting());
}

TEST_F(StoppedOwner, Copy_GivenUp_IsNotDoneLater) {
  AgentCall& call = make_call();
  word() = 0;
  {
    ServiceThreadStopped stopped(process().node());
    std::strcpy(memory, "given up");
    EXPECT_EQ(write(call, address(), memory, 8), kNotServedYet);
    call.forget();
  }
  AgentCall& other = make_call();
  EXPECT_TRUE(soon([&] { return add(other) == WcStatus::kSuccess; })) << "the service thread goes round";
  EXPECT_EQ(word(), 1u);
}

TEST_F(StoppedOwner, Copy_KeyIsRevokedMeanwhile_IsNotDoneLater) {
  AgentCall& call = make_call();
  word() = 0;
  {
    ServiceThreadStopped stopped(process().node());
    std::strcpy(memory, "revoked");
    EXPECT_EQ(write(call, address(), memory, 8), kNotServedYet);
    // As ibv_dereg_mr does, after which the memory is the program's.
    EXPECT_TRUE(quiesce(process().node()));
  }
  AgentCall& other = make_call();
  EXPECT_TRUE(soon([&] { return add(other) == WcStatus::kSuccess; })) << "the service thread goes round";
  EXPECT_EQ(word(), 1u);
  EXPECT_TRUE(soon([&] { return write(call, address(), memory, 8) == WcStatus::kSuccess; }))
      << "with a key that is looked up anew";
  EXPECT_STREQ(memory + 4096, "revoked");
}

TEST_F(StoppedOwner, Request_AnotherByTheSameCall_ReplacesTheFirst) {
  AgentCall& call = make_call();
  word() = 7;
  {
    ServiceThreadStopped stopped(process().node());
    EXPECT_EQ(add(call), kNotServedYet);
    EXPECT_EQ(read(call, memory, address(), 8), kNotServedYet);
  }
  EXPECT_TRUE(soon([&] { return read(call, memory, address(), 8) == WcStatus::kSuccess; }));
  EXPECT_EQ(*reinterpret_cast<uint64_t*>(memory), 7u) << "nothing was added";
}

TEST_F(StoppedOwner, RequestOfTwoSteps_DoesEachOnce) {
  AgentCall& call = make_call();
  word() = 0;
  uint64_t& second = *reinterpret_cast<uint64_t*>(memory + 2048);
  second = 0;
  std::unique_ptr<ServiceThreadStopped> stopped;
  bool was_stopped = false;
  const auto both = [&] {
    return call.attempt([&] {
      uint64_t one = 1, two = 2;
      const WcStatus status = call.atomic(self(), AgentOp::kFetchAdd, address(), &one, 0);
      if (status != WcStatus::kSuccess) return status;
      if (!std::exchange(was_stopped, true)) stopped = std::make_unique<ServiceThreadStopped>(process().node());
      return call.atomic(self(), AgentOp::kFetchAdd, reinterpret_cast<uint64_t>(memory + 2048), &two, 0);
    });
  };
  call.set_wait(0);  // each try comes back at once
  EXPECT_TRUE(soon([&] { return both() == kNotServedYet && was_stopped; })) << "the first step was done";
  stopped.reset();
  EXPECT_TRUE(soon([&] { return both() == WcStatus::kSuccess; }));
  EXPECT_EQ(word(), 1u);
  EXPECT_EQ(second, 2u);
  EXPECT_TRUE(soon([&] { return both() == WcStatus::kSuccess; })) << "and the next request again";
  EXPECT_EQ(word(), 2u);
  EXPECT_EQ(second, 4u);
}

/// The service thread of this process serves its own requests as well.
TEST_F(StoppedOwner, Requests_MoreThanPlaces_AreAllServed) {
  std::vector<AgentCall*> all;
  for (uint32_t i = 0; i < 3 * shm::kAgents; ++i) all.push_back(&make_call());
  word() = 0;
  {
    ServiceThreadStopped stopped(process().node());
    for (AgentCall* each : all) EXPECT_EQ(add(*each), kNotServedYet);
  }
  const size_t count = all.size();
  EXPECT_TRUE(soon([&] {
    std::erase_if(all, [&](AgentCall* each) { return add(*each) == WcStatus::kSuccess; });
    return all.empty();
  }));
  EXPECT_EQ(word(), count) << "those that lost their places asked anew, and were served once";
}

}  // namespace
}  // namespace nupa::core
