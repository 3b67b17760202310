// SPDX-License-Identifier: Apache-2.0
/// Tests of the parts of a port that need no socket: the demultiplexer, busy receivers, delayed answers, and turns in
/// flow windows.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/gid.h"
#include "progress/late_events.h"
#include "transport/roce/port/ack_scheduler.h"
#include "progress/alarm.h"
#include "transport/roce/port/demultiplexer.h"
#include "transport/roce/port/flow_windows.h"
#include "transport/roce/port/holds.h"

namespace nupa::roce {
namespace {

constexpr uint32_t kPartQpn = 0x1105;

/// Records what the port does with it.
class PartReceiver final : public QpReceiver {
 public:
  explicit PartReceiver(uint32_t number = kPartQpn) : number_(number) {}
  uint32_t number() const override { return number_; }
  bool enter() override {
    if (held) return false;
    did += "enter ";
    return true;
  }
  void leave() override { did += progress::LateEvents::begun() ? "leave " : "leave-without-events "; }
  void deliver(Packet& packet, const net::UdpSocket::Received&, int64_t) override {
    did += "packet" + std::to_string(packet.psn) + " ";
  }
  void transmit(int64_t, TransmitBatch&, bool answers) override { did += answers ? "answer " : "send "; }
  bool owes_answers() const override { return owes; }
  void on_timer(int64_t) override {}
  void count_unexpected() override {}
  void take_turn(FlowWindow& window, int64_t, TransmitBatch&) override {
    did += "turn ";
    if (takes != 0) window.take(takes, takes);
  }
  void leave_wait_queues() override {}
  Peer* peer() override { return nullptr; }
  int64_t deadline() const override { return wanted_at; }

  std::string did;
  bool held = false;
  bool owes = false;
  uint64_t takes = 0;
  int64_t wanted_at = INT64_MAX;

 private:
  const uint32_t number_;
};

TEST(RoceDemultiplexer, Find_Number_ReturnsItsReceiver) {
  Demultiplexer queue_pairs;
  PartReceiver first, second(kPartQpn + 1), of_another_slot(kPartQpn + 3 * shm::kSlotQp);
  EXPECT_EQ(queue_pairs.find(kPartQpn), nullptr);
  EXPECT_TRUE(queue_pairs.make_place(kPartQpn));
  EXPECT_FALSE(queue_pairs.make_place(kPartQpn + 1)) << "the slot has places";
  EXPECT_TRUE(queue_pairs.make_place(of_another_slot.number()));
  EXPECT_EQ(queue_pairs.places(), 2 * size_t{shm::kSlotQp});
  for (PartReceiver* each : {&first, &second, &of_another_slot}) queue_pairs.add(*each);
  EXPECT_EQ(queue_pairs.find(kPartQpn), &first);
  EXPECT_EQ(queue_pairs.find(kPartQpn + 1), &second);
  EXPECT_EQ(queue_pairs.find(of_another_slot.number()), &of_another_slot);
  EXPECT_EQ(queue_pairs.find(kPartQpn + 2), nullptr);
  EXPECT_EQ(queue_pairs.find(kPartQpn + shm::kSlotQp), nullptr) << "the same place of a slot that has none";
}

TEST(RoceDemultiplexer, Remove_Receiver_IsNeitherFoundNorVisited) {
  Demultiplexer queue_pairs;
  PartReceiver first, second(kPartQpn + 1);
  queue_pairs.make_place(kPartQpn);
  queue_pairs.add(first);
  queue_pairs.add(second);
  queue_pairs.remove(first);
  EXPECT_EQ(queue_pairs.find(kPartQpn), nullptr);
  std::vector<QpReceiver*> seen;
  queue_pairs.each([&](QpReceiver& each) { return seen.push_back(&each), true; });
  EXPECT_EQ(seen, std::vector<QpReceiver*>{&second});
}

TEST(RoceDemultiplexer, Each_VisitorReturnsFalse_Stops) {
  Demultiplexer queue_pairs;
  PartReceiver first, second(kPartQpn + 1);
  queue_pairs.make_place(kPartQpn);
  queue_pairs.add(first);
  queue_pairs.add(second);
  int visits = 0;
  queue_pairs.each([&](QpReceiver&) { return ++visits, false; });
  EXPECT_EQ(visits, 1);
}

class RoceDemultiplexerTimers : public ::testing::Test {
 protected:
  void SetUp() override {
    queue_pairs.make_place(kPartQpn);
    for (PartReceiver* each : {&near, &beside, &far}) queue_pairs.add(*each);
  }
  void expect(PartReceiver& queue_pair, int64_t at) {
    queue_pair.wanted_at = at;
    queue_pairs.expect(queue_pair, at);
  }
  /// The earliest time that is left.
  int64_t run(int64_t now, std::optional<int64_t> again = {}) {
    ran.clear();
    return queue_pairs.run_timers(now, [&](QpReceiver& queue_pair) {
      ran.push_back(&queue_pair);
      if (!again) static_cast<PartReceiver&>(queue_pair).wanted_at = INT64_MAX;
      return again;
    });
  }
  using Ran = std::vector<QpReceiver*>;
  Demultiplexer queue_pairs;
  PartReceiver near, beside{kPartQpn + 1}, far{kPartQpn + 1000};
  Ran ran;
};

TEST_F(RoceDemultiplexerTimers, RunTimers_DeadlineHasPassed_RunsThatReceiverOnly) {
  expect(near, 100);
  expect(beside, 200);
  expect(far, 300);
  EXPECT_EQ(run(99), 100);
  EXPECT_EQ(ran, Ran{});
  EXPECT_EQ(run(100), 200);
  EXPECT_EQ(ran, Ran{&near});
  EXPECT_EQ(run(300), INT64_MAX);
  EXPECT_EQ(ran, (Ran{&beside, &far}));
}

TEST_F(RoceDemultiplexerTimers, RunTimers_ReceiverIsBusy_IsTriedAgain) {
  expect(far, 100);
  EXPECT_EQ(run(150, 180), 180);
  EXPECT_EQ(run(179), 180);
  EXPECT_EQ(ran, Ran{});
  EXPECT_EQ(run(180), INT64_MAX);
  EXPECT_EQ(ran, Ran{&far});
}

TEST_F(RoceDemultiplexerTimers, RunTimers_DeadlineWasPostponed_RunsAtTheNewTime) {
  expect(near, 100);
  near.wanted_at = 500;
  EXPECT_EQ(run(100), 500);
  EXPECT_EQ(ran, Ran{});
  EXPECT_EQ(run(500), INT64_MAX);
  EXPECT_EQ(ran, Ran{&near});
}

class RoceHolds : public ::testing::Test {
 protected:
  /// A packet without payload.
  bool keep(PartReceiver& to, uint32_t psn) {
    Packet packet;
    packet.psn = psn;
    return holds.keep(to, packet, {}, 1);
  }
  PacketPool pool{8};
  progress::Alarm alarm;
  std::vector<QpReceiver*> caught_up;
  Holds holds{pool, alarm, [this](QpReceiver& each) { caught_up.push_back(&each); }};
  PartReceiver queue_pair, other{kPartQpn + 1};
};

TEST_F(RoceHolds, Take_SameReceiverTwice_EntersOnce) {
  {
    Hold hold(holds);
    EXPECT_TRUE(hold.take(queue_pair));
    EXPECT_TRUE(hold.take(queue_pair));
    EXPECT_EQ(queue_pair.did, "enter ");
    EXPECT_TRUE(progress::LateEvents::begun());
  }
  EXPECT_EQ(queue_pair.did, "enter leave ") << "its scope is over";
  EXPECT_FALSE(progress::LateEvents::begun());
}

TEST_F(RoceHolds, Take_AnotherReceiver_LeavesTheFirst) {
  Hold hold(holds);
  EXPECT_TRUE(hold.take(queue_pair));
  EXPECT_TRUE(hold.take(other));
  EXPECT_EQ(queue_pair.did, "enter leave ");
  EXPECT_EQ(other.did, "enter ");
  hold.release();
  EXPECT_EQ(other.did, "enter leave ");
}

TEST_F(RoceHolds, Take_ReceiverOfAnotherThread_IsRetriedWithGrowingPauses) {
  queue_pair.held = true;
  const int64_t before = base::now_ns();
  Hold hold(holds);
  EXPECT_FALSE(hold.take(queue_pair));
  EXPECT_TRUE(holds.any());
  EXPECT_GE(alarm.earliest(), before + 50'000);
  EXPECT_LT(alarm.earliest(), INT64_MAX);
  EXPECT_EQ(holds.put_off_try(0), 50'000);
  EXPECT_EQ(holds.put_off_try(0), 100'000);
  for (int i = 0; i < 10; ++i) holds.put_off_try(0);
  EXPECT_EQ(holds.put_off_try(0), 1'000'000) << "the longest";
  queue_pair.held = false;
  EXPECT_TRUE(hold.take(queue_pair));
  EXPECT_FALSE(holds.any());
  EXPECT_EQ(holds.put_off_try(0), INT64_MAX);
  EXPECT_EQ(holds.next_try(0), 50'000) << "from the beginning";
}

TEST_F(RoceHolds, TryAgain_PacketsInTheInbox_AreDeliveredFirstAndInOrder) {
  queue_pair.held = true;
  Hold hold(holds);
  EXPECT_FALSE(hold.take(queue_pair));
  EXPECT_TRUE(keep(queue_pair, 1));
  EXPECT_TRUE(keep(queue_pair, 2));
  EXPECT_EQ(holds.try_again(), 0u);
  queue_pair.held = false;
  EXPECT_EQ(holds.try_again(), 2u);
  EXPECT_EQ(queue_pair.did, "enter packet1 packet2 leave ");
  EXPECT_EQ(caught_up, std::vector<QpReceiver*>{&queue_pair});
  EXPECT_EQ(holds.try_again(), 0u);
}

TEST_F(RoceHolds, Take_EmptyInbox_OwesNothing) {
  queue_pair.held = true;
  Hold hold(holds);
  EXPECT_FALSE(hold.take(queue_pair));
  queue_pair.held = false;
  EXPECT_TRUE(hold.take(queue_pair));
  EXPECT_EQ(caught_up, std::vector<QpReceiver*>{});
}

TEST_F(RoceHolds, Keep_InboxIsFull_DropsFurtherPackets) {
  queue_pair.held = true;
  for (uint32_t i = 0; i < HeldPackets::kMostOfOne; ++i) ASSERT_TRUE(keep(queue_pair, i)) << i;
  EXPECT_FALSE(keep(queue_pair, HeldPackets::kMostOfOne));
  EXPECT_TRUE(keep(other, 0)) << "others have room";
  queue_pair.held = false;
  EXPECT_EQ(holds.try_again(), HeldPackets::kMostOfOne + 1);
}

TEST_F(RoceHolds, Remove_BusyReceiver_IsNotRetried) {
  queue_pair.held = true;
  EXPECT_TRUE(keep(queue_pair, 1));
  holds.remove(queue_pair);
  queue_pair.held = false;
  EXPECT_FALSE(holds.any());
  EXPECT_EQ(holds.try_again(), 0u);
  EXPECT_EQ(queue_pair.did, "");
}

class RoceAckScheduler : public RoceHolds {
 protected:
  using Due = AckScheduler::Due;
  static constexpr uint32_t kShare = 400'000;
  static constexpr int64_t kNow = 1'000'000'000;
  void answer(bool all = true) {
    Hold hold(holds);
    acks.answer(hold, batch, kNow, all);
  }
  std::vector<net::UdpSocket> none;
  TransmitBatch batch{none, false};
  AckScheduler acks;
};

TEST_F(RoceAckScheduler, Due_PacketsAndBytesOfALook_DecideWhenToAnswer) {
  struct Case {
    const char* what;
    uint32_t packets, bytes;  ///< of one look
    bool for_program;
    Due due;
  };
  constexpr Case kCases[] = {
      {"nothing", 0, 0, true, Due::kNone},
      {"nothing, for the port's thread", 0, 0, false, Due::kNone},
      {"a ping-pong", 1, 64, true, Due::kSome},
      {"two packets", 2, 128, true, Due::kSome},
      {"three packets", 3, 192, true, Due::kAll},
      {"one packet, and no thread polls", 1, 64, false, Due::kAll},
      {"the beginning of a stream", 8, 32'768, true, Due::kNone},
      {"the same, and no thread polls", 8, 32'768, false, Due::kNone},
      {"just less than a stream", 7, 99'999, true, Due::kAll},
      {"a quarter of what may be under way", 8, 100'000, true, Due::kAll},
      {"a byte less", 8, 99'999, true, Due::kNone},
  };
  for (const Case& each : kCases) {
    AckScheduler fresh;
    fresh.came(each.packets, each.bytes);
    EXPECT_EQ(fresh.due(each.packets, each.for_program, kShare, kNow), each.due) << each.what;
  }
}

TEST_F(RoceAckScheduler, Due_StreamPauses_IsAnsweredAfterAMoment) {
  acks.touch(queue_pair);
  acks.came(8, 1000);
  EXPECT_TRUE(acks.streams());
  EXPECT_EQ(acks.due(8, true, kShare, kNow), Due::kNone);
  EXPECT_TRUE(acks.gathers());
  acks.came(0, 0);
  EXPECT_EQ(acks.due(0, true, kShare, kNow + 3'999), Due::kNone);
  EXPECT_EQ(acks.due(0, true, kShare, kNow + 4'000), Due::kAll);
  answer();
  EXPECT_FALSE(acks.gathers());
  EXPECT_FALSE(acks.owes_stream());
  EXPECT_EQ(acks.due(0, true, kShare, kNow + 8'000), Due::kNone) << "answered";
}

TEST_F(RoceAckScheduler, Answer_FewPackets_MayBeDelayedOnce) {
  queue_pair.owes = true;
  acks.touch(queue_pair);
  acks.touch(other);
  acks.touch(queue_pair);
  answer(false);
  EXPECT_EQ(queue_pair.did, "enter send leave ");
  EXPECT_EQ(other.did, "enter send leave ");
  EXPECT_TRUE(acks.owes());
  answer(true);
  EXPECT_EQ(queue_pair.did, "enter send leave enter answer leave ");
  EXPECT_EQ(other.did, "enter send leave ") << "it owed nothing more";
  EXPECT_FALSE(acks.owes());
}

TEST_F(RoceAckScheduler, Answer_ReceiverOfAnotherThread_StillOwesIt) {
  acks.touch(queue_pair);
  queue_pair.held = true;
  answer();
  EXPECT_TRUE(acks.owes());
  queue_pair.held = false;
  answer();
  EXPECT_EQ(queue_pair.did, "enter answer leave ");
  EXPECT_FALSE(acks.owes());
}

TEST_F(RoceAckScheduler, Answer_RemovedReceiver_OwesNothing) {
  acks.touch(queue_pair);
  acks.came(8, 1000);
  acks.remove(queue_pair);
  EXPECT_FALSE(acks.owes());
  EXPECT_FALSE(acks.owes_stream());
  answer();
  EXPECT_EQ(queue_pair.did, "");
}

class RoceFlowWindows : public RoceAckScheduler {
 protected:
  int64_t serve() {
    Hold hold(holds);
    return windows.serve(hold, batch, kNow);
  }
  static constexpr Gid kHost = base::ipv4_gid(127, 0, 0, 1);
  FlowWindows windows{8 << 20};
};

TEST_F(RoceFlowWindows, PeerAt_PeerWithoutReferences_IsForgotten) {
  std::shared_ptr<Peer> peer = windows.peer_at(kHost, 1);
  EXPECT_EQ(windows.peer_at(kHost, 1), peer);
  EXPECT_NE(windows.peer_at(kHost, 2), peer);
  peer->window.take_anyway(1);
  peer.reset();
  EXPECT_EQ(windows.peer_at(kHost, 1)->window.used(), 0u) << "it is a new one";
}

TEST_F(RoceFlowWindows, Serve_WaiterThatWasNotNoted_HasNoTurn) {
  windows.for_responses()->wait(queue_pair);
  EXPECT_EQ(serve(), INT64_MAX);
  EXPECT_EQ(queue_pair.did, "");
  windows.note_waiter();
  EXPECT_EQ(serve(), INT64_MAX);
  EXPECT_EQ(queue_pair.did, "enter turn leave ");
}

TEST_F(RoceFlowWindows, Serve_WaiterOfAnotherThread_IsRetriedAndKeepsItsTurn) {
  const std::shared_ptr<Peer> peer = windows.peer_at(kHost, 1);
  peer->window.wait(queue_pair);
  windows.note_waiter();
  queue_pair.held = true;
  EXPECT_EQ(serve(), kNow + 50'000);
  EXPECT_TRUE(windows.anyone_waits());
  queue_pair.held = false;
  EXPECT_EQ(serve(), INT64_MAX);
  EXPECT_EQ(queue_pair.did, "enter turn leave ");
}

TEST_F(RoceFlowWindows, Serve_WindowIsFull_WaitsForRoom) {
  FlowWindow& window = *windows.for_responses();
  window.take_anyway(window.size());
  window.wait(queue_pair);
  windows.note_waiter();
  serve();
  EXPECT_EQ(queue_pair.did, "");
  window.give_back(window.used());
  serve();
  EXPECT_EQ(queue_pair.did, "enter turn leave ") << "it need not be noted again";
}

}  // namespace
}  // namespace nupa::roce
