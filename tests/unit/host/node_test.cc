// SPDX-License-Identifier: Apache-2.0
// Two nodes in one process, each with its service thread, whose messages do not fit into their sockets.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "../../support/loop_by_hand.h"
#include "../../support/soon.h"
#include "base/clock.h"
#include "base/shared_file.h"
#include "host/node.h"
#include "host/outbox.h"

namespace nupa::host {
namespace {

constexpr std::chrono::milliseconds kMeeting{5000};

using nupa::test::soon;

struct Letter {
  uint32_t sender;
  uint32_t number;
  uint32_t is_answer;
};

Payload mad_of(const Letter& letter) {
  Payload payload{};
  std::memcpy(payload.data(), &letter, sizeof letter);
  return payload;
}

/// Counts what comes from each sender; what is not the next one of its sender is out of order.
class End : public NodeEvents {
 public:
  static constexpr uint32_t kMostSenders = 4;
  void on_attention() override {}
  void on_peer_exit(Peer&) override { gone_ = true; }
  void on_payload(Peer& peer, const Payload& payload) override {
    while (stopped) std::this_thread::yield();
    if (pause != pause.zero()) std::this_thread::sleep_for(pause);  // sleep: a process that is slow to read
    Letter letter;
    std::memcpy(&letter, payload.data(), sizeof letter);
    std::atomic<uint32_t>& count = letter.is_answer != 0 ? answers : got[letter.sender];
    if (count++ != letter.number) in_order = false;
    if (letter.is_answer != 0 || !answers_each) return;
    letter.is_answer = 1;
    if (!node->send_payload(peer, mad_of(letter))) lost = true;
  }
  bool is_gone() const { return gone_; }

  std::unique_ptr<Node> node;
  std::chrono::milliseconds pause{0};  ///< for each message; set while stopped
  std::atomic<bool> stopped{false}, answers_each{false}, in_order{true}, lost{false};
  std::array<std::atomic<uint32_t>, kMostSenders> got{};
  std::atomic<uint32_t> answers{0};

 private:
  std::atomic<bool> gone_{false};
};

class NodeTest : public testing::Test {
 protected:
  void SetUp() override {
    char folder[] = "/tmp/nupa-node-test-XXXXXX";
    ASSERT_NE(nullptr, mkdtemp(folder));
    folder_ = folder;
    if (const char* before = getenv("NUPA_RUNTIME_DIR"); before != nullptr) before_ = before;
    setenv("NUPA_RUNTIME_DIR", folder, 1);
    auto file = base::make_shared_file("nupa-node-test");
    ASSERT_TRUE(file);
    region_ = std::move(*file);
    for (End* end : {&there_, &here_}) {  // fork() minds the one that was opened last
      auto node = Node::open(region_.get(), {}, *end);
      ASSERT_TRUE(node) << node.error().what();
      end->node = std::move(*node);
      ASSERT_TRUE(end->node->serve());
    }
    const auto met = here_.node->connect(there_.node->slot(), kMeeting);
    ASSERT_TRUE(met) << met.error().what();
    peer_ = *met;
  }
  void TearDown() override {
    here_.stopped = there_.stopped = false;
    here_.node.reset();
    there_.node.reset();
    if (before_.empty())
      unsetenv("NUPA_RUNTIME_DIR");
    else
      setenv("NUPA_RUNTIME_DIR", before_.c_str(), 1);
    std::filesystem::remove_all(folder_);
  }

  bool send(uint32_t sender, uint32_t number) { return send(here_, *peer_, sender, number); }
  static bool send(End& from, Peer& to, uint32_t sender, uint32_t number) {
    return from.node->send_payload(to, mad_of({sender, number, 0})).has_value();
  }

  std::string folder_, before_;
  base::UniqueFd region_;
  End here_, there_;
  PeerRef peer_;
};

TEST_F(NodeTest, MessagesToAStoppedProcessArriveInOrderWhenItGoesOn) {
  constexpr uint32_t kEach = 1500;
  there_.stopped = true;
  std::vector<std::thread> threads;
  std::atomic<uint32_t> sent{0};
  for (uint32_t sender = 0; sender < End::kMostSenders; ++sender)
    threads.emplace_back([&, sender] {
      for (uint32_t number = 0; number < kEach; ++number) sent += send(sender, number) ? 1 : 0;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(End::kMostSenders * kEach, sent);
  there_.stopped = false;
  for (uint32_t sender = 0; sender < End::kMostSenders; ++sender)
    EXPECT_TRUE(soon([&] { return there_.got[sender] == kEach; })) << there_.got[sender];
  EXPECT_TRUE(there_.in_order);
}

TEST_F(NodeTest, TwoProcessesWithFullSocketsDoNotHoldEachOtherUp) {
  constexpr uint32_t kEach = 3000;
  PeerRef back;
  ASSERT_TRUE(soon([&] { return (back = there_.node->find(here_.node->slot())) != nullptr; }));
  here_.answers_each = there_.answers_each = true;
  here_.stopped = there_.stopped = true;
  for (uint32_t number = 0; number < kEach; ++number) {
    ASSERT_TRUE(send(here_, *peer_, 0, number));
    ASSERT_TRUE(send(there_, *back, 0, number));
  }
  here_.stopped = there_.stopped = false;
  EXPECT_TRUE(soon([&] { return here_.answers == kEach && there_.answers == kEach; }))
      << here_.answers << " and " << there_.answers;
  EXPECT_TRUE(here_.in_order && there_.in_order);
  EXPECT_FALSE(here_.lost || there_.lost);
}

TEST_F(NodeTest, BeyondTheBoundMessagesAreRefused) {
  there_.stopped = true;
  uint32_t sent = 0;
  while (sent < 2 * Outbox::kMostMessages && send(0, sent)) ++sent;
  EXPECT_GE(sent, Outbox::kMostMessages);
  EXPECT_LT(sent, 2 * Outbox::kMostMessages);
  there_.stopped = false;
  EXPECT_TRUE(soon([&] { return there_.got[0] == sent; })) << there_.got[0] << " of " << sent;
  EXPECT_TRUE(send(0, sent));
  EXPECT_TRUE(soon([&] { return there_.got[0] == sent + 1; }));
}

TEST_F(NodeTest, WhatWaitsStillLeavesWhenTheSenderCloses) {
  constexpr uint32_t kCount = 1000;
  there_.stopped = true;
  for (uint32_t number = 0; number < kCount; ++number) ASSERT_TRUE(send(0, number));
  there_.stopped = false;
  here_.node.reset();
  EXPECT_TRUE(soon([&] { return there_.is_gone(); }));
  EXPECT_EQ(kCount, there_.got[0]);
  EXPECT_TRUE(there_.in_order);
}

TEST_F(NodeTest, APeerThatReadsSlowly_GetsAllBeforeTheSenderEnds) {
  constexpr uint32_t kCount = 1000;
  there_.stopped = true;
  for (uint32_t number = 0; number < kCount; ++number) ASSERT_TRUE(send(0, number));
  there_.pause = std::chrono::milliseconds(2);  // most of the messages wait at the sender, for seconds
  there_.stopped = false;
  here_.node.reset();
  EXPECT_TRUE(soon([&] { return there_.is_gone(); }));
  EXPECT_EQ(kCount, there_.got[0]);
  EXPECT_TRUE(there_.in_order);
}

TEST_F(NodeTest, AProcessThatDoesNotReadHoldsUpNoEnd) {
  constexpr int64_t kShortNs = 10'000'000'000;
  there_.stopped = true;
  for (uint32_t number = 0; number < 1000; ++number) ASSERT_TRUE(send(0, number));
  const int64_t began = base::now_ns();
  here_.node.reset();
  EXPECT_LT(base::now_ns() - began, kShortNs);
}

TEST_F(NodeTest, AChildSendsNothingOfWhatWaits) {
  constexpr uint32_t kCount = 1000;
  there_.stopped = true;
  for (uint32_t number = 0; number < kCount; ++number) ASSERT_TRUE(send(0, number));
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) _exit(send(0, kCount) ? 1 : 0);
  int status = -1;
  EXPECT_EQ(child, waitpid(child, &status, 0));
  EXPECT_EQ(0, status);
  there_.stopped = false;
  EXPECT_TRUE(send(0, kCount));
  EXPECT_TRUE(soon([&] { return there_.got[0] == kCount + 1; })) << there_.got[0];
  EXPECT_TRUE(there_.in_order);
}

TEST_F(NodeTest, AThreadSleepsWhileMessagesWaitAndAfterwards) {
  // This thread is the service thread of one more process.
  End own;
  auto node = Node::open(region_.get(), {}, own);
  ASSERT_TRUE(node) << node.error().what();
  own.node = std::move(*node);
  const auto met = own.node->connect(there_.node->slot(), kMeeting);
  ASSERT_TRUE(met) << met.error().what();
  const auto turn = [&] { return progress::LoopByHand::turn(own.node->loop(), progress::Deadline::at(0)); };
  const auto turns_until_it_sleeps = [&] {
    constexpr int kMost = 10;
    int turns = 0;
    while (turns < kMost && turn()) ++turns;
    return turns;
  };
  constexpr uint32_t kCount = 1000;
  constexpr int kFew = 5;
  there_.stopped = true;
  for (uint32_t number = 0; number < kCount; ++number) ASSERT_TRUE(send(own, **met, 0, number));
  EXPECT_LE(turns_until_it_sleeps(), kFew);
  there_.stopped = false;
  ASSERT_TRUE(soon([&] {
    turn();
    return there_.got[0] == kCount;
  }));
  EXPECT_LE(turns_until_it_sleeps(), kFew);
}

TEST_F(NodeTest, TheSegmentOfOneThatHasGoneIsGivenBackAndHasZeros) {
  shm::SegmentHeader& header = *peer_->tables().header;
  const auto heap = peer_->heap(0, shm::kPage);
  ASSERT_EQ(header.instance, peer_->instance());
  there_.node.reset();
  ASSERT_TRUE(soon([&] { return here_.is_gone(); }));
  EXPECT_FALSE(peer_->alive());
  // Whoever has met it may look for a while, and write.
  EXPECT_EQ(header.instance, peer_->instance());
  ASSERT_TRUE(soon([&] { return std::atomic_ref(header.instance).load() == 0; }));
  EXPECT_EQ(header.closing.load(), 0u);
  header.attention.store(1);
  EXPECT_EQ(header.attention.load(), 1u);
  if (heap) std::memset(*heap, 1, shm::kPage);
  EXPECT_FALSE(peer_->signal_channel(0));
  peer_->signal_wakeup_fd();
}

}  // namespace
}  // namespace nupa::host
