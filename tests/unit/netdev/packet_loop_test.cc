// SPDX-License-Identifier: Apache-2.0
// Packet loops and channels of several nodes in one process: what arrives, and what a hostile end or one that stands
// still costs the others.
#include <algorithm>
#include <future>
#include <random>

#include "packet_loop_fixture.h"

namespace nupa::netdev {
namespace {

using namespace packet_loop_test;

/// The number of the end that a frame comes from.
size_t source_of(const Frame& frame) { return std::to_integer<size_t>(frame[sizeof(VirtioHeader) + 15]) % 4; }

TEST_P(NetdevPacketLoop, FramesOfEverySize_ArriveInOrder) {
  End &one = make(), &other = make();
  join(one, other);
  for (int turn = 0; turn < 500; ++turn) {
    const size_t payload =
        turn % 5 == 0 ? 65500 - static_cast<size_t>(turn % 7) : static_cast<size_t>(turn * 37 % 4000);
    const Frame sent = frame(1, 2, payload, turn);
    one.give(sent);
    const Frame back = frame(2, 1, payload / 2, turn + 1);
    other.give(back);
    ASSERT_EQ(sent, other.take()) << turn;
    ASSERT_EQ(back, one.take()) << turn;
  }
  EXPECT_EQ(500u, one.traffic[0].sent.get());
  EXPECT_EQ(500u, one.traffic[0].received.get());
  EXPECT_EQ(one.traffic[0].sent_bytes.get(), other.traffic[0].received_bytes.get());
}

TEST_P(NetdevPacketLoop, DatagramSegments_PeerWithoutSupport_AreCut) {
  End &one = make(), &other = make(), &older = make();
  join(one, other);
  join(one, older, kMaxMtu, false);
  VirtioHeader header;
  header.flags = VirtioHeader::kNeedsChecksum;
  header.gso_type = VirtioHeader::kGsoUdp;
  header.gso_size = 1000;
  header.csum_start = 20;
  header.csum_offset = 6;
  for (const int to : {2, 3, 255}) {
    Frame large = frame(1, to, 8 + 2500, to);
    std::memcpy(large.data(), &header, sizeof header);
    one.give(large);
    if (to != 3) {
      EXPECT_EQ(large, other.take()) << to;
    }
    if (to == 2) continue;
    for (const size_t bytes : {1000u, 1000u, 500u}) {
      const Frame got = older.take();
      ASSERT_EQ(sizeof header + 28 + bytes, got.size()) << to;
      VirtioHeader small;
      std::memcpy(&small, got.data(), sizeof small);
      EXPECT_EQ(VirtioHeader::kGsoNone, small.gso_type);
      EXPECT_EQ(0, small.gso_size);
      EXPECT_EQ(VirtioHeader::kNeedsChecksum, small.flags);
      EXPECT_EQ(static_cast<std::byte>(to), got.back());
    }
  }
  EXPECT_TRUE(older.take(milliseconds(20)).empty());
}

TEST_P(NetdevPacketLoop, PacketWithoutAPeer_IsAnsweredAndBroadcast_ReachesEachPeer) {
  End &one = make(), &other = make(), &third = make();
  join(one, other);
  join(one, third);
  one.give(frame(1, 77, 100));
  const Frame answer = one.take();
  ASSERT_EQ(sizeof(VirtioHeader) + 20 + 8 + 120, answer.size());
  EXPECT_EQ(std::byte{1}, answer[sizeof(VirtioHeader) + 9]);  // ICMP
  EXPECT_EQ(1u, one.packet_loop->unroutable());
  const Frame to_all = frame(1, 255, 100);
  one.give(to_all);
  EXPECT_EQ(to_all, other.take());
  EXPECT_EQ(to_all, third.take());
}

TEST_P(NetdevPacketLoop, FrameWithAnotherSourceOrDestination_IsDropped) {
  End &one = make(), &other = make();
  join(one, other);
  one.give(frame(3, 2, 100));
  expect_passage(one, other);
  EXPECT_EQ(1u, other.traffic[0].wrong_source.get());
  EXPECT_EQ(1u, other.traffic[0].received.get());
}

TEST_P(NetdevPacketLoop, InvalidFrameFromTheInterface_IsDropped) {
  End &one = make(), &other = make(1280);
  join(one, other, 1280);
  std::mt19937 random(11);
  for (int turn = 0; turn < 3000; ++turn) {
    Frame garbage = frame(1, 2, random() % 3000);
    if (turn % 3 == 0) garbage.resize(random() % garbage.size() + 1);
    for (auto changes = turn % 3 == 0 ? garbage.size() : random() % 4; changes > 0; --changes)
      garbage[random() % std::min<size_t>(garbage.size(), 52)] = static_cast<std::byte>(random());
    one.give(garbage);
    if (turn % 50 == 0) {
      while (!one.take(milliseconds(0)).empty()) {
      }
      while (!other.take(milliseconds(1)).empty()) {
      }
    }
  }
  const Frame last = frame(1, 2, 500, 99);
  one.give(last);
  Frame taken;
  do {
    taken = other.take();
  } while (!taken.empty() && taken != last);
  EXPECT_EQ(last, taken);
  EXPECT_EQ(0, one.failures + other.failures);
  EXPECT_GT(other.traffic[0].malformed.get(), 0u);
}

TEST_P(NetdevPacketLoop, HostilePeer_BreaksOnlyItsOwnChannel) {
  End &one = make(), &other = make();
  join(one, other);
  // A tail that is not there, records that are none, words that say what cannot be.
  const std::vector<std::function<void()>> attacks = {
      [&] {
        const uint64_t tail = 64 * 1'000'000;
        hostile->write(0, &tail, sizeof tail);
        hostile->send_word(2u << 30);
      },
      [&] {
        const uint64_t tail = 63;
        hostile->write(0, &tail, sizeof tail);
        hostile->send_word(2u << 30);
      },
      [&] {
        const Record record{kMaxFrameBytes + 1, 0};
        hostile->write(sizeof(RingWords), &record, sizeof record);
        hostile->send_word(0u << 30 | 2048);
      },
      [&] {
        const Record records[] = {{0, 0}, {}, {}, {}, {}, {}, {}, {}, {Record::kSkip, 0}};  // the second line
        hostile->write(sizeof(RingWords), &records, sizeof records);
        hostile->send_word(0u << 30 | 2);
      },
      [&] { hostile->send_word(0u << 30 | 0x3fffffff); },
      [&] { hostile->send_word(1u << 30 | 5); },
      [&] { hostile->post(Opcode::kSend, 0, "no", 0); },
  };
  for (size_t i = 0; i < attacks.size(); ++i) {
    SCOPED_TRACE(i);
    be_hostile_to(one);
    attacks[i]();
    expect_broken(one, EPROTO);
    expect_passage(one, other);
    expect_passage(other, one);
    Link& link = one.links.back();
    one.packet_loop->call([&] {
      one.packet_loop->detach(link);
      one.packet_loop->unwatch(*one.channels.back());
    });
    one.links.pop_back();
    one.channels.pop_back();
    one.failures = 0;
    hostile.reset();
  }
}

TEST_P(NetdevPacketLoop, HostilePeer_InvalidHead_IsLimited) {
  End &one = make(), &other = make();
  join(one, other);
  be_hostile_to(one);
  auto* const words = static_cast<RingWords*>(hostile->region->addr());
  for (const uint64_t head : {uint64_t{1} << 60, UINT64_MAX, uint64_t{64} * 1000}) {
    words->head.store(head);
    for (int i = 0; i < 100; ++i) one.give(frame(1, 200, 60000));
    expect_passage(one, other);
  }
  EXPECT_EQ(0, one.channels.back()->error());
}

TEST_P(NetdevPacketLoop, PeerThatDoesNotRead_DelaysOthersBriefly) {
  End &one = make(), &stopped = make(), &third = make();
  join(one, stopped);
  join(one, third);
  std::promise<void> held, go;
  std::thread holds([&] {
    stopped.packet_loop->call([&] {
      held.set_value();
      go.get_future().wait();
    });
  });
  held.get_future().wait();
  // More than the ring and what is put aside take; meanwhile the interface is not read.
  constexpr int kFrames = 300;
  for (int i = 0; i < kFrames; ++i) one.give(frame(1, 2, 65000));
  expect_passage(one, third);
  EXPECT_GT(one.traffic[0].no_room.get(), 0u);
  const uint64_t lost = one.traffic[0].no_room.get();
  go.set_value();
  holds.join();
  const LinkStatistics& there = stopped.traffic[0];
  uint64_t taken = 0;
  const auto until = std::chrono::steady_clock::now() + kTimeout;
  // An interface that is full refuses some, as a kernel without memory may.
  while (taken < there.received.get() || there.received.get() + there.refused.get() + lost < kFrames) {
    if (!stopped.take(milliseconds(10)).empty()) ++taken;
    ASSERT_LT(std::chrono::steady_clock::now(), until) << taken << " taken, " << there.refused.get() << " refused";
  }
  EXPECT_GT(taken, 8u);
  expect_passage(one, stopped);
  EXPECT_EQ(0, one.failures + stopped.failures + third.failures);
}

TEST_P(NetdevPacketLoop, PeersThatFlood_TakeTurns) {
  End& victim = make();
  End *const many = &make(), *const few = &make();
  join(*many, victim);
  join(*few, victim);
  std::atomic<bool> stop{false};
  const auto flood = [&](End& from, size_t payload) {
    const Frame sent = frame(from.number, 1, payload);
    pollfd room{from.interface, POLLOUT, 0};
    while (!stop)
      if (::send(from.interface, sent.data(), sent.size(), 0) < 0) ::poll(&room, 1, 10);
  };
  std::thread one([&] { flood(*many, 8000); });
  std::thread other([&] { flood(*few, 8000); });
  uint64_t from[4] = {};
  constexpr uint64_t kEnough = 500;
  // How even it is depends on the threads that flood; none is left out.
  const auto until = std::chrono::steady_clock::now() + kTimeout;
  while ((from[2] < kEnough || from[3] < kEnough) && std::chrono::steady_clock::now() < until) {
    const Frame taken = victim.take();
    if (taken.empty()) break;
    ++from[source_of(taken)];
  }
  stop = true;
  one.join();
  other.join();
  EXPECT_GE(from[2], kEnough);
  EXPECT_GE(from[3], kEnough);
}

/// Over memory, where a frame that was sent is there.
class NetdevPacketLoopTurns : public NetdevPacketLoop {};

TEST_P(NetdevPacketLoopTurns, FramesThatWaitFromTwoPeers_AreTakenBatchByBatch) {
  constexpr size_t kBatch = 32, kFrames = 150;
  End &victim = make(), &one = make(), &other = make();
  join(one, victim);
  join(other, victim);
  std::promise<void> held, go;
  std::thread holds([&] {
    victim.packet_loop->call([&] {
      held.set_value();
      go.get_future().wait();
    });
  });
  held.get_future().wait();
  const auto until = std::chrono::steady_clock::now() + kTimeout;
  for (End* from : {&one, &other}) {
    for (size_t i = 0; i < kFrames; ++i) from->give(frame(from->number, 1, 1000));
    while (from->traffic[0].sent.get() < kFrames && std::chrono::steady_clock::now() < until) usleep(100);
    EXPECT_EQ(kFrames, from->traffic[0].sent.get());
  }
  go.set_value();
  holds.join();
  size_t taken[4] = {}, run = 0, longest = 0, before = 0;
  while (taken[one.number] < kFrames && taken[other.number] < kFrames) {
    const Frame next = victim.take();
    ASSERT_FALSE(next.empty());
    const size_t from = source_of(next);
    run = from == before ? run + 1 : 1;
    longest = std::max(longest, run);
    before = from;
    ++taken[from];
  }
  // Each round begins with another peer: the last one of a round may be the first one of the next.
  EXPECT_LE(longest, 2 * kBatch);
}

INSTANTIATE_TEST_SUITE_P(Ways, NetdevPacketLoopTurns, ::testing::Values("shm"),
                         [](const auto& way) { return std::string(way.param); });
INSTANTIATE_TEST_SUITE_P(Ways, NetdevPacketLoop, ::testing::Values("shm", "roce"),
                         [](const auto& way) { return std::string(way.param); });

}  // namespace
}  // namespace nupa::netdev
