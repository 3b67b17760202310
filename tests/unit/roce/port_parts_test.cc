// SPDX-License-Identifier: Apache-2.0
/// The parts of a port that need no socket: who a packet is for, channels that others hold, answers that are put off,
/// and turns in windows.
#ifndef NUPA_TEST_DROPIN
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

/// Writes down what the port does with it.
class PartChannel final : public Channel {
 public:
  explicit PartChannel(uint32_t number = kPartQpn) : number_(number) {}
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
  void transmit(int64_t, Burst&, bool answers) override { did += answers ? "answer " : "send "; }
  bool owes_answers() const override { return owes; }
  void on_timer(int64_t) override {}
  void count_stranger() override {}
  void take_turn(SharedWindow& window, int64_t, Burst&) override {
    did += "turn ";
    if (takes != 0) window.take(takes, takes);
  }
  void leave_lines() override {}
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

TEST(RoceDemultiplexer, NumberOfAChannel_FindsIt) {
  Demultiplexer channels;
  PartChannel first, second(kPartQpn + 1), of_another_slot(kPartQpn + 3 * shm::kSlotQp);
  EXPECT_EQ(channels.find(kPartQpn), nullptr);
  EXPECT_TRUE(channels.make_place(kPartQpn));
  EXPECT_FALSE(channels.make_place(kPartQpn + 1)) << "the slot has places";
  EXPECT_TRUE(channels.make_place(of_another_slot.number()));
  EXPECT_EQ(channels.places(), 2 * size_t{shm::kSlotQp});
  for (PartChannel* each : {&first, &second, &of_another_slot}) channels.add(*each);
  EXPECT_EQ(channels.find(kPartQpn), &first);
  EXPECT_EQ(channels.find(kPartQpn + 1), &second);
  EXPECT_EQ(channels.find(of_another_slot.number()), &of_another_slot);
  EXPECT_EQ(channels.find(kPartQpn + 2), nullptr);
  EXPECT_EQ(channels.find(kPartQpn + shm::kSlotQp), nullptr) << "the same place of a slot that has none";
}

TEST(RoceDemultiplexer, ChannelThatIsRemoved_IsNotFoundNorVisited) {
  Demultiplexer channels;
  PartChannel first, second(kPartQpn + 1);
  channels.make_place(kPartQpn);
  channels.add(first);
  channels.add(second);
  channels.remove(first);
  EXPECT_EQ(channels.find(kPartQpn), nullptr);
  std::vector<Channel*> seen;
  channels.each([&](Channel& each) { return seen.push_back(&each), true; });
  EXPECT_EQ(seen, std::vector<Channel*>{&second});
}

TEST(RoceDemultiplexer, VisitThatIsOver_GoesNoFurther) {
  Demultiplexer channels;
  PartChannel first, second(kPartQpn + 1);
  channels.make_place(kPartQpn);
  channels.add(first);
  channels.add(second);
  int visits = 0;
  channels.each([&](Channel&) { return ++visits, false; });
  EXPECT_EQ(visits, 1);
}

class RoceDemultiplexerTimers : public ::testing::Test {
 protected:
  void SetUp() override {
    channels.make_place(kPartQpn);
    for (PartChannel* each : {&near, &beside, &far}) channels.add(*each);
  }
  void expect(PartChannel& channel, int64_t at) {
    channel.wanted_at = at;
    channels.expect(channel, at);
  }
  /// The earliest time that is left.
  int64_t run(int64_t now, std::optional<int64_t> again = {}) {
    ran.clear();
    return channels.run_timers(now, [&](Channel& channel) {
      ran.push_back(&channel);
      if (!again) static_cast<PartChannel&>(channel).wanted_at = INT64_MAX;
      return again;
    });
  }
  using Ran = std::vector<Channel*>;
  Demultiplexer channels;
  PartChannel near, beside{kPartQpn + 1}, far{kPartQpn + 1000};
  Ran ran;
};

TEST_F(RoceDemultiplexerTimers, DeadlineThatHasCome_RunsThatChannelAlone) {
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

TEST_F(RoceDemultiplexerTimers, ChannelThatCannotBeRun_IsTriedAgain) {
  expect(far, 100);
  EXPECT_EQ(run(150, 180), 180);
  EXPECT_EQ(run(179), 180);
  EXPECT_EQ(ran, Ran{});
  EXPECT_EQ(run(180), INT64_MAX);
  EXPECT_EQ(ran, Ran{&far});
}

TEST_F(RoceDemultiplexerTimers, DeadlineThatWasPutOff_IsLookedAtOnceMore) {
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
  bool keep(PartChannel& to, uint32_t psn) {
    Packet packet;
    packet.psn = psn;
    return holds.keep(to, packet, {}, 1);
  }
  PacketPool pool{8};
  progress::Alarm alarm;
  std::vector<Channel*> caught_up;
  Holds holds{pool, alarm, [this](Channel& each) { caught_up.push_back(&each); }};
  PartChannel channel, other{kPartQpn + 1};
};

TEST_F(RoceHolds, ChannelThatIsTakenTwice_IsEnteredOnce) {
  {
    Hold hold(holds);
    EXPECT_TRUE(hold.take(channel));
    EXPECT_TRUE(hold.take(channel));
    EXPECT_EQ(channel.did, "enter ");
    EXPECT_TRUE(progress::LateEvents::begun());
  }
  EXPECT_EQ(channel.did, "enter leave ") << "its scope is over";
  EXPECT_FALSE(progress::LateEvents::begun());
}

TEST_F(RoceHolds, AnotherChannel_LetsTheFirstOneGo) {
  Hold hold(holds);
  EXPECT_TRUE(hold.take(channel));
  EXPECT_TRUE(hold.take(other));
  EXPECT_EQ(channel.did, "enter leave ");
  EXPECT_EQ(other.did, "enter ");
  hold.release();
  EXPECT_EQ(other.did, "enter leave ");
}

TEST_F(RoceHolds, ChannelOfAnotherThread_IsTriedAgainByTheClockAndLaterEachTime) {
  channel.held = true;
  const int64_t before = base::now_ns();
  Hold hold(holds);
  EXPECT_FALSE(hold.take(channel));
  EXPECT_TRUE(holds.any());
  EXPECT_GE(alarm.earliest(), before + 50'000);
  EXPECT_LT(alarm.earliest(), INT64_MAX);
  EXPECT_EQ(holds.put_off_try(0), 50'000);
  EXPECT_EQ(holds.put_off_try(0), 100'000);
  for (int i = 0; i < 10; ++i) holds.put_off_try(0);
  EXPECT_EQ(holds.put_off_try(0), 1'000'000) << "the longest";
  channel.held = false;
  EXPECT_TRUE(hold.take(channel));
  EXPECT_FALSE(holds.any());
  EXPECT_EQ(holds.put_off_try(0), INT64_MAX);
  EXPECT_EQ(holds.next_try(0), 50'000) << "from the beginning";
}

TEST_F(RoceHolds, PacketsOfItsInbox_ComeFirstAndInOrder) {
  channel.held = true;
  Hold hold(holds);
  EXPECT_FALSE(hold.take(channel));
  EXPECT_TRUE(keep(channel, 1));
  EXPECT_TRUE(keep(channel, 2));
  EXPECT_EQ(holds.try_again(), 0u);
  channel.held = false;
  EXPECT_EQ(holds.try_again(), 2u);
  EXPECT_EQ(channel.did, "enter packet1 packet2 leave ");
  EXPECT_EQ(caught_up, std::vector<Channel*>{&channel});
  EXPECT_EQ(holds.try_again(), 0u);
}

TEST_F(RoceHolds, ChannelWithoutPacketsInItsInbox_OwesNothing) {
  channel.held = true;
  Hold hold(holds);
  EXPECT_FALSE(hold.take(channel));
  channel.held = false;
  EXPECT_TRUE(hold.take(channel));
  EXPECT_EQ(caught_up, std::vector<Channel*>{});
}

TEST_F(RoceHolds, FullInbox_DropsAndHoldsWhatItHas) {
  channel.held = true;
  for (uint32_t i = 0; i < HeldPackets::kMostOfOne; ++i) ASSERT_TRUE(keep(channel, i)) << i;
  EXPECT_FALSE(keep(channel, HeldPackets::kMostOfOne));
  EXPECT_TRUE(keep(other, 0)) << "others have room";
  channel.held = false;
  EXPECT_EQ(holds.try_again(), HeldPackets::kMostOfOne + 1);
}

TEST_F(RoceHolds, ChannelThatIsGone_IsNotTried) {
  channel.held = true;
  EXPECT_TRUE(keep(channel, 1));
  holds.remove(channel);
  channel.held = false;
  EXPECT_FALSE(holds.any());
  EXPECT_EQ(holds.try_again(), 0u);
  EXPECT_EQ(channel.did, "");
}

class RoceAckScheduler : public RoceHolds {
 protected:
  using Due = AckScheduler::Due;
  static constexpr uint32_t kShare = 400'000;
  static constexpr int64_t kNow = 1'000'000'000;
  void answer(bool all = true) {
    Hold hold(holds);
    acks.answer(hold, burst, kNow, all);
  }
  std::vector<net::UdpSocket> none;
  Burst burst{none, false};
  AckScheduler acks;
};

TEST_F(RoceAckScheduler, AnswersAreDue_ByWhatCame) {
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
      {"one packet, and nobody polls", 1, 64, false, Due::kAll},
      {"the beginning of a stream", 8, 32'768, true, Due::kNone},
      {"the same, and nobody polls", 8, 32'768, false, Due::kNone},
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

TEST_F(RoceAckScheduler, StreamThatPauses_IsAnsweredAfterAMoment) {
  acks.touch(channel);
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

TEST_F(RoceAckScheduler, AnswersOfAFewPackets_MayBePutOffOnce) {
  channel.owes = true;
  acks.touch(channel);
  acks.touch(other);
  acks.touch(channel);
  answer(false);
  EXPECT_EQ(channel.did, "enter send leave ");
  EXPECT_EQ(other.did, "enter send leave ");
  EXPECT_TRUE(acks.owes());
  answer(true);
  EXPECT_EQ(channel.did, "enter send leave enter answer leave ");
  EXPECT_EQ(other.did, "enter send leave ") << "it owed nothing more";
  EXPECT_FALSE(acks.owes());
}

TEST_F(RoceAckScheduler, ChannelOfAnotherThread_OwesItsAnswerStill) {
  acks.touch(channel);
  channel.held = true;
  answer();
  EXPECT_TRUE(acks.owes());
  channel.held = false;
  answer();
  EXPECT_EQ(channel.did, "enter answer leave ");
  EXPECT_FALSE(acks.owes());
}

TEST_F(RoceAckScheduler, ChannelThatIsGone_OwesNothing) {
  acks.touch(channel);
  acks.came(8, 1000);
  acks.remove(channel);
  EXPECT_FALSE(acks.owes());
  EXPECT_FALSE(acks.owes_stream());
  answer();
  EXPECT_EQ(channel.did, "");
}

class RoceFlowWindows : public RoceAckScheduler {
 protected:
  int64_t serve() {
    Hold hold(holds);
    return windows.serve(hold, burst, kNow);
  }
  static constexpr Gid kHost = base::ipv4_gid(127, 0, 0, 1);
  FlowWindows windows{8 << 20};
};

TEST_F(RoceFlowWindows, ProcessThatNobodyKeeps_IsForgotten) {
  std::shared_ptr<Peer> peer = windows.peer_at(kHost, 1);
  EXPECT_EQ(windows.peer_at(kHost, 1), peer);
  EXPECT_NE(windows.peer_at(kHost, 2), peer);
  peer->window.take_anyway(1);
  peer.reset();
  EXPECT_EQ(windows.peer_at(kHost, 1)->window.used(), 0u) << "it is a new one";
}

TEST_F(RoceFlowWindows, WaiterThatNobodyNotes_HasNoTurn) {
  windows.for_responses()->wait(channel);
  EXPECT_EQ(serve(), INT64_MAX);
  EXPECT_EQ(channel.did, "");
  windows.note_waiter();
  EXPECT_EQ(serve(), INT64_MAX);
  EXPECT_EQ(channel.did, "enter turn leave ");
}

TEST_F(RoceFlowWindows, WaiterOfAnotherThread_IsTriedAgainAndKeepsItsTurn) {
  const std::shared_ptr<Peer> peer = windows.peer_at(kHost, 1);
  peer->window.wait(channel);
  windows.note_waiter();
  channel.held = true;
  EXPECT_EQ(serve(), kNow + 50'000);
  EXPECT_TRUE(windows.anyone_waits());
  channel.held = false;
  EXPECT_EQ(serve(), INT64_MAX);
  EXPECT_EQ(channel.did, "enter turn leave ");
}

TEST_F(RoceFlowWindows, WindowWithoutRoom_GivesNoTurnUntilThereIs) {
  SharedWindow& window = *windows.for_responses();
  window.take_anyway(window.size());
  window.wait(channel);
  windows.note_waiter();
  serve();
  EXPECT_EQ(channel.did, "");
  window.give_back(window.used());
  serve();
  EXPECT_EQ(channel.did, "enter turn leave ") << "it need not be noted again";
}

}  // namespace
}  // namespace nupa::roce
#endif
