// SPDX-License-Identifier: Apache-2.0
/// What the packet loop puts aside, and how it sleeps, wakes and notices failures.
#include <fcntl.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "../../support/soon.h"
#include "base/unique_fd.h"
#include "packet_loop_fixture.h"
#include "packet_loop_rules.h"

namespace nupa::netdev {
namespace {

using namespace packet_loop_test;

TEST_P(NetdevPacketLoopRules, PutAside_PeerReadsWhileThePacketLoopSleeps_GetsTheRestThoughNothingElseComes) {
  End& node = make_node();
  const Peer& peer = join(node, {"10.77.0.2"});
  join(node, {"10.77.0.3"});
  const Frame frame = packet_of("10.77.0.1", "10.77.0.2", 60000);
  // One more than the ring takes: so few put aside do not keep the pump from its interface.
  uint64_t given = 0;
  do {
    node.give(frame);
    await_read(node);
    ++given;
  } while (peer.traffic().sent.get() == given);
  // The pump asks for room before it sleeps.
  const auto* const words = reinterpret_cast<const RingWords*>(peer.channel->info().address);
  EXPECT_TRUE(await_counts([&] { return words->waits.load() != 0; }));
  for (uint64_t taken = 0; taken < given; ++taken) ASSERT_EQ(frame.size(), peer.take().size()) << taken;
  EXPECT_EQ(0u, peer.traffic().no_room.get());
}

TEST_P(NetdevPacketLoopRules, PutAside_WhatIsSentLater_KeepsItsOrderAndGivesItsRoomBack) {
  End& node = make_node();
  const Peer& peer = join(node, {"10.77.0.2"});
  join(node, {"10.77.0.3"});
  // A ring and most of what may be put aside, several times: the peer reads only in between.
  constexpr size_t kPayload = 60000;
  constexpr uint64_t kFrames = 140;
  uint64_t sent = 0;
  for (int round = 0; round < 3; ++round) {
    Frame frame = packet_of("10.77.0.1", "10.77.0.2", kPayload);
    for (uint64_t i = 0; i < kFrames; ++i) {
      frame.back() = static_cast<std::byte>(i);
      node.give(frame);
    }
    for (uint64_t i = 0; i < kFrames; ++i) {
      // All of them have been read before the first one is taken.
      const auto until = std::chrono::steady_clock::now() + kTimeout;
      pollfd unread{node.inner, POLLIN, 0};
      while (i == 0 && ::poll(&unread, 1, 0) == 1 && std::chrono::steady_clock::now() < until)
        std::this_thread::yield();
      const Frame taken = peer.take();
      ASSERT_EQ(frame.size(), taken.size()) << round << " " << i;
      ASSERT_EQ(static_cast<std::byte>(i), taken.back()) << round << " " << i;
    }
    sent += kFrames;
    node.packet_loop->call([] {});
    EXPECT_EQ(sent, peer.traffic().sent.get());
    EXPECT_EQ(sent * (kPayload + 20), peer.traffic().sent_bytes.get());
  }
  EXPECT_EQ(0u, peer.traffic().no_room.get());
}

/// While this lives, the pump waits in its read for the next frame of the interface, and does nothing else.
class ReadThatWaits {
 public:
  ReadThatWaits(const End& node, Frame last) : node_(node), last_(std::move(last)) { set(0); }
  ~ReadThatWaits() {
    set(O_NONBLOCK);
    node_.give(last_);  // the read that waits returns
  }
  ReadThatWaits(const ReadThatWaits&) = delete;
  ReadThatWaits& operator=(const ReadThatWaits&) = delete;

 private:
  void set(int flag) const { EXPECT_EQ(0, fcntl(node_.inner, F_SETFL, flag)); }

  const End& node_;
  const Frame last_;
};

TEST_P(NetdevPacketLoopRules, PutAside_RoomThatComesBetweenTwoPackets_IsLeftToThoseBefore) {
  End& node = make_node();
  const Peer& peer = join(node, {"10.77.0.2"});
  const Peer& other = join(node, {"10.77.0.3"});
  const Frame to_other = packet_of("10.77.0.1", "10.77.0.3", 100);
  uint8_t given = 0;
  const auto give = [&] {
    Frame frame = packet_of("10.77.0.1", "10.77.0.2", 60000);
    frame.back() = std::byte{++given};
    node.give(frame);
  };
  // Until one is put aside.
  do {
    give();
    await_read(node);
  } while (peer.traffic().sent.get() == given);
  uint8_t taken = 0;
  const auto take_to = [&](int last) {
    while (taken < last && !HasFailure()) {
      const Frame next = peer.take();
      EXPECT_EQ(std::byte{++taken}, next.empty() ? std::byte{} : next.back());
    }
  };
  {
    const ReadThatWaits read(node, to_other);
    // One more is put aside. When the other peer has its packet, the pump reads the next one, with no look at those
    // that are aside.
    give();
    node.give(to_other);
    ASSERT_EQ(to_other, other.take());
    take_to(given - 2);
    give();
    node.give(to_other);
    ASSERT_EQ(to_other, other.take());
  }
  take_to(given);
  EXPECT_EQ(0u, peer.traffic().no_room.get());
}

TEST_P(NetdevPacketLoopRules, PutAside_MoreThanAPeerMayHave_IsDroppedAndCounted) {
  End& node = make_node();
  const Peer& peer = join(node, {"10.77.0.2"});
  join(node, {"10.77.0.3"});
  constexpr uint64_t kFrames = 300, kMostAside = uint64_t{8} << 20;
  const Frame frame = packet_of("10.77.0.1", "10.77.0.2", 60000);
  for (uint64_t i = 0; i < kFrames; ++i) node.give(frame);
  const LinkStatistics& traffic = peer.traffic();
  await_read(node);
  EXPECT_GT(traffic.no_room.get(), 0u);
  const uint64_t before = traffic.sent.get();  // what the ring takes
  EXPECT_LE(before * record_bytes(frame.size()), kRingBytes);
  for (uint64_t taken = 0; taken + traffic.no_room.get() < kFrames; ++taken) {
    const Frame next = peer.take();
    if (next.empty()) break;
    EXPECT_EQ(frame.size(), next.size());
  }
  node.packet_loop->call([] {});
  EXPECT_EQ(kFrames, traffic.sent.get() + traffic.no_room.get());
  EXPECT_LE((traffic.sent.get() - before) * frame.size(), kMostAside);
}

TEST_P(NetdevPacketLoopRules, OnFailure_ChannelThatFailsBesideAFailedOne_IsReportedOnce) {
  End& node = make_node();
  const Peer& one = join(node, {"10.77.0.2"});
  const Peer& other = join(node, {"10.77.0.3"});
  const Peer& third = join(node, {"10.77.0.4"});
  // Nobody takes the failed ones away.
  int failures = 0;
  for (const Peer* peer : {&one, &other}) {
    EXPECT_TRUE(breaks(*peer));
    ++failures;
    EXPECT_TRUE(await_counts([&] { return node.failures >= failures; })) << failures;
  }
  const Frame passes = packet_of("10.77.0.4", "10.77.0.1", 100);
  EXPECT_EQ(std::vector<Frame>{passes}, delivered(node, third, {passes}));
  EXPECT_EQ(2, node.failures);
}

TEST_P(NetdevPacketLoopRules, OnFailure_FirstChannelOfAPeerWhoseSecondIsWell_IsReported) {
  End& node = make_node();
  const Peer& first = join(node, {"10.77.0.2"});
  const Peer& second = join(node, {"10.77.0.3"});
  node.packet_loop->call([&] {
    node.packet_loop->detach(*second.link);
    first.link->channels.push_back(second.link->channels.front());
  });
  EXPECT_TRUE(breaks(first));
  EXPECT_TRUE(await_counts([&] { return node.failures == 1; }));
}

TEST_P(NetdevPacketLoopRules, Sleep_CompletionThatCameBeforeTheQueueWasArmed_IsTakenFirst) {
  // Frames that are a batch and a stream, after which the pump sleeps as soon as there is nothing to do; and behind
  // them a record that breaks the channel, so that the test is called in between.
  constexpr uint32_t kFrames = 32, kBytes = 1000, kRecordBytes = record_bytes(kBytes);
  End& node = make_node();
  const Peer& peer = join(node, {"10.77.0.2"});
  be_hostile_to(node);
  ASSERT_TRUE(node.channels.back()->is_mapped());
  Link& broken = node.links.back();
  std::promise<void> called;
  node.packet_loop->call([&] {
    node.on_failure = [&] {
      node.packet_loop->detach(broken);
      peer.channel->probe();
      // An event that tells of it is over too.
      while (node.packet_loop->cq().channel()->wait()) {
      }
      called.set_value();
    };
    std::vector<std::byte> ring(kFrames * kRecordBytes + sizeof(Record));
    for (uint32_t i = 0; i <= kFrames; ++i) {
      const Record record{i < kFrames ? kBytes : kMaxFrameBytes + 1, 0};
      std::memcpy(&ring[i * kRecordBytes], &record, sizeof record);
    }
    hostile->write(sizeof(RingWords), ring.data(), static_cast<uint32_t>(ring.size()));
    const uint64_t tail = (kFrames + 1) * kRecordBytes;
    hostile->write(0, &tail, sizeof tail);
  });
  EXPECT_EQ(std::future_status::ready, called.get_future().wait_for(kTimeout));
  EXPECT_TRUE(await_counts(
      [&] {
        peer.turn();
        return peer.channel->round_trip_ns() != 0;
      },
      kTimeout / 2))
      << "the pump sleeps over a question";
  node.packet_loop->call([&] { node.on_failure = nullptr; });
}

/// By memory and by packets.
class NetdevPacketLoopChannels : public NetdevPacketLoopRules {};

TEST_P(NetdevPacketLoopChannels, Completions_OfManyChannelsWhileThePacketLoopIsAway_AllHaveRoom) {
  // A channel has 512 receives. A queue that is made for one channel takes 2048 completions.
  constexpr size_t kPeers = 5, kQuestions = 500;
  static_assert(kPeers * kQuestions > 2 * PeerChannel::kMaxCompletions);
  End& node = make_node();
  for (size_t i = 0; i < kPeers; ++i) join(node, {"10.77.0." + std::to_string(2 + i)});
  size_t sent = 0, answered = 0;
  const auto turn = [&] {
    bool broken = false;
    for (const Peer& peer : peers) {
      WorkCompletion done;
      while (peer.cq->poll(&done, 1) == 1) {
        ++((done.wc_flags & wc_flag::kWithImm) != 0 ? answered : sent);
        peer.channel->on_completion(done);
      }
      broken |= peer.channel->error() != 0;
    }
    return broken;
  };
  std::promise<void> held, go;
  std::thread holds([&] {
    node.packet_loop->call([&] {
      held.set_value();
      go.get_future().wait();
    });
  });
  held.get_future().wait();
  for (const Peer& peer : peers) {
    for (size_t i = 0; i < kQuestions; ++i) {
      peer.channel->probe();
      turn();
    }
  }
  EXPECT_TRUE(await_counts([&] { return turn() || sent == kPeers * kQuestions; }));
  EXPECT_EQ(0u, answered);
  go.set_value();
  holds.join();
  EXPECT_TRUE(await_counts([&] { return turn() || answered == kPeers * kQuestions; }));
  EXPECT_EQ(kPeers * kQuestions, answered);
  for (const Peer& peer : peers) EXPECT_EQ(0, peer.channel->error());
  node.packet_loop->call([&] {
    for (const auto& channel : node.channels) EXPECT_EQ(0, channel->error());
  });
  EXPECT_EQ(0, node.failures);
}

TEST_P(NetdevPacketLoopRules, Call_ToAStoppedLoop_IsNotRunLater) {
  End& node = make();
  node.packet_loop->stop();
  EXPECT_FALSE(node.packet_loop->call([] { ADD_FAILURE() << "it has stopped"; }));
  node.packet_loop->post([] { ADD_FAILURE() << "it has stopped"; });
  bool done = false;
  node.packet_loop->insist([&] { done = true; });
  EXPECT_TRUE(done) << "what it has to let go of";
}

TEST_P(NetdevPacketLoopRules, Post_ToAPacketLoopThatIsBusy_IsNotWaitedForAndComesBeforeTheNextCall) {
  End& node = make();
  std::atomic<bool> is_busy{false}, may_go_on{false}, posted_ran{false};
  std::thread holds([&] {
    node.packet_loop->call([&] {
      is_busy = true;
      is_busy.notify_one();
      may_go_on.wait(false);
    });
  });
  is_busy.wait(false);
  EXPECT_TRUE(node.packet_loop->post([&] { posted_ran = true; }));
  EXPECT_FALSE(posted_ran);
  may_go_on = true;
  may_go_on.notify_one();
  EXPECT_TRUE(node.packet_loop->call([&] { EXPECT_TRUE(posted_ran); }));
  holds.join();
}

TEST_P(NetdevPacketLoopRules, QueueAtItsEnd_IsReportedOnceAndWatchedNoMore) {
  // The pump reads and watches one end of a pipe here, whose end is told without anything to read, as TUN's is.
  int pipe_ends[2];
  ASSERT_EQ(0, pipe2(pipe_ends, O_CLOEXEC | O_NONBLOCK));
  const base::UniqueFd reads(pipe_ends[0]);
  base::UniqueFd writes(pipe_ends[1]);
  std::atomic<int> losses{0};
  auto packet_loop = PacketLoop::start(*device, reads.get(), LocalAddresses{{address_of(1)}, kMaxMtu},
                                       {{}, [&](int error) { losses += error == ENODEV ? 1 : 100; }});
  ASSERT_TRUE(packet_loop) << packet_loop.error().what();
  const auto turns_of = [&] {
    int turns = 0;
    EXPECT_TRUE((*packet_loop)->call([&] { turns = losses; }));
    return turns;
  };
  EXPECT_EQ(0, turns_of());
  writes.reset();
  ASSERT_TRUE(nupa::test::soon([&] { return losses != 0; }));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(1, turns_of());
}

INSTANTIATE_TEST_SUITE_P(Ways, NetdevPacketLoopChannels, ::testing::Values("shm", "roce"),
                         [](const auto& way) { return std::string(way.param); });

INSTANTIATE_TEST_SUITE_P(Ways, NetdevPacketLoopRules, ::testing::Values("shm"),
                         [](const auto& way) { return std::string(way.param); });

}  // namespace
}  // namespace nupa::netdev
