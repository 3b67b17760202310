// SPDX-License-Identifier: Apache-2.0
// Arithmetic of the receive ring, the send window, the table of targets, and of lists of buffers.
#include <gtest/gtest.h>

#include <array>
#include <random>
#include <string>
#include <vector>

#include "rsockets/cursor.h"
#include "rsockets/receive_ring.h"
#include "rsockets/send_window.h"

using namespace nupa::rsockets;

TEST(RsocketsReceiveRing, PublishDue_AfterReset_OffersTheSecondHalf) {
  ReceiveRing ring;
  ring.reset(1024);
  EXPECT_TRUE(ring.publish_due());
  EXPECT_EQ(ring.publish_offset(), 512u);
  ring.published();
  EXPECT_FALSE(ring.publish_due());
}

TEST(RsocketsReceiveRing, PublishDue_HalfHasBeenRead_BecomesTrue) {
  ReceiveRing ring;
  ring.reset(1024);
  ring.published();
  ASSERT_TRUE(ring.arrived(600));
  ring.consume(511);
  EXPECT_FALSE(ring.publish_due());
  ring.consume(1);
  EXPECT_TRUE(ring.publish_due());
  EXPECT_EQ(ring.publish_offset(), 0u);
}

TEST(RsocketsReceiveRing, Arrived_MoreThanPublished_Fails) {
  ReceiveRing ring;
  ring.reset(1024);
  EXPECT_FALSE(ring.arrived(513));
  EXPECT_TRUE(ring.arrived(512));
  EXPECT_FALSE(ring.arrived(1));
}

TEST(RsocketsReceiveRing, Readable_DataAcrossTheEnd_IsInTwoParts) {
  ReceiveRing ring;
  ring.reset(1024);
  ring.published();
  ASSERT_TRUE(ring.arrived(1000));
  ring.consume(900);
  ring.published();
  ASSERT_TRUE(ring.arrived(300));
  EXPECT_EQ(ring.available(), 400u);
  EXPECT_EQ(ring.readable().offset, 900u);
  EXPECT_EQ(ring.readable().length, 124u);
  EXPECT_EQ(ring.readable(124).offset, 0u);
  EXPECT_EQ(ring.readable(124).length, 276u);
  EXPECT_EQ(ring.readable(400).length, 0u);
}

TEST(RsocketsReceiveRing, Readable_WritesWherePublished_AreReadInOrder) {
  constexpr uint32_t kSize = 256;
  ReceiveRing ring;
  ring.reset(kSize);
  std::array<std::byte, kSize> memory;
  std::mt19937 random(7);
  uint64_t granted = kSize / 2;
  uint64_t written = 0;
  uint64_t read = 0;
  for (int step = 0; step < 100000; ++step) {
    if (ring.publish_due()) {
      ASSERT_EQ(ring.publish_offset(), granted % kSize);
      ring.published();
      granted += kSize / 2;
    }
    const auto put = static_cast<uint32_t>(std::min<uint64_t>(random() % 40, granted - written));
    for (uint32_t i = 0; i < put; ++i) memory[(written + i) % kSize] = static_cast<std::byte>(written + i);
    ASSERT_TRUE(ring.arrived(put));
    written += put;
    const auto span = ring.readable();
    const auto take = std::min<uint32_t>(span.length, random() % 50);
    for (uint32_t i = 0; i < take; ++i) ASSERT_EQ(memory[span.offset + i], static_cast<std::byte>(read + i));
    ring.consume(take);
    read += take;
    ASSERT_LE(written - read, kSize);
  }
  EXPECT_GT(read, uint64_t{1000} * kSize) << "what is read is published again";
}

TEST(RsocketsSendWindow, HasCredit_AllowedMessagesAreSent_IsFalse) {
  SendWindow window;
  window.reset(16, 4096);
  EXPECT_FALSE(window.has_credit());
  window.allow(2);
  bool signaled;
  window.post(0, true, &signaled);
  window.post(0, false, &signaled);  // a write without a message takes none
  EXPECT_TRUE(window.has_credit());
  window.post(0, true, &signaled);
  EXPECT_FALSE(window.has_credit());
}

TEST(RsocketsSendWindow, Post_AnyLengths_LeaveASignaledRequestInFlight) {
  SendWindow window;
  window.reset(12, 4096);
  std::mt19937 random(3);
  std::vector<uint64_t> outstanding;
  uint32_t sent = 0;
  for (int step = 0; step < 200000; ++step) {
    window.allow(static_cast<uint16_t>(sent + 100));
    if (!window.open()) {
      ASSERT_FALSE(outstanding.empty());  // else it would be shut for ever
      window.completed(outstanding.front());
      outstanding.erase(outstanding.begin());
      continue;
    }
    const uint32_t bytes = std::min<uint32_t>(random() % 3000, window.room());
    const uint32_t offset = window.staging_offset();
    ASSERT_LT(offset, 4096u);
    bool signaled;
    const uint64_t id = window.post(bytes, true, &signaled);
    ASSERT_EQ(id & SendWindow::kControlId, 0u);
    ++sent;
    if (signaled) outstanding.push_back(id);
    ASSERT_LE(window.requests_in_flight(), 12u);
    ASSERT_LE(window.room(), 4096u);
  }
}

TEST(RsocketsSendWindow, Completed_LastRequest_CompletesAllBefore) {
  SendWindow window;
  window.reset(100, 4096);
  window.allow(100);
  bool signaled;
  uint64_t last = 0;
  for (int i = 0; i < 10; ++i) last = window.post(100, true, &signaled);
  EXPECT_EQ(window.requests_in_flight(), 10u);
  EXPECT_EQ(window.room(), 3096u);
  window.completed(last);
  EXPECT_EQ(window.requests_in_flight(), 0u);
  EXPECT_EQ(window.room(), 4096u);
}

TEST(RsocketsSendWindow, Open_AllRequestsInFlight_IsFalse) {
  constexpr uint32_t kRequests = 12;
  SendWindow window;
  window.reset(kRequests, 65536);
  window.allow(100);
  bool signaled;
  uint64_t first = 0;
  for (uint32_t i = 0; i < kRequests; ++i) {
    ASSERT_TRUE(window.open()) << i;
    const uint64_t id = window.post(1, true, &signaled);
    if (i == 0) first = id;
  }
  EXPECT_FALSE(window.open());
  EXPECT_FALSE(window.idle());
  window.completed(first);
  EXPECT_EQ(window.requests_in_flight(), kRequests - 1);
  EXPECT_TRUE(window.open());
}

TEST(RsocketsSendWindow, Open_RoomBelowLowWater_IsFalse) {
  SendWindow window;
  bool signaled;
  for (const uint32_t bytes : {4096u, 1024u}) {
    const uint32_t low = std::min(bytes, kLowWater);
    window.reset(100, bytes);
    window.allow(100);
    const uint64_t all = window.post(bytes - low, true, &signaled);
    EXPECT_EQ(window.room(), low);
    EXPECT_TRUE(window.open()) << bytes;
    window.post(1, true, &signaled);
    EXPECT_FALSE(window.open()) << bytes;
    window.completed(all);
    EXPECT_EQ(window.room(), bytes - 1);
  }
}

TEST(RsocketsSendWindow, Post_QuarterOfRequestsOrBytes_IsSignaled) {
  SendWindow window;
  bool signaled;
  window.reset(16, 4096);
  for (int i = 1; i <= 16; ++i) {
    window.post(0, true, &signaled);
    EXPECT_EQ(signaled, i % 4 == 0) << i;
  }
  window.reset(100, 4096);
  window.post(1023, true, &signaled);
  EXPECT_FALSE(signaled);
  window.post(1, true, &signaled);
  EXPECT_TRUE(signaled);
  window.post(1023, false, &signaled);
  EXPECT_FALSE(signaled);
  window.post(1, true, &signaled);
  EXPECT_TRUE(signaled);
  window.reset(3, 4096);
  window.post(0, true, &signaled);
  EXPECT_TRUE(signaled) << "each, where a quarter is less than one";
}

TEST(RsocketsSendWindow, HasCredit_CountOfMessagesWraps_StaysRight) {
  SendWindow window;
  window.reset(16, 4096);
  bool signaled;
  window.post(100, false, &signaled);
  EXPECT_FALSE(window.has_credit()) << "a write without a message takes none";
  for (uint32_t sent = 0; sent < 70'000; ++sent) {
    window.allow(static_cast<uint16_t>(sent + 1));
    ASSERT_TRUE(window.has_credit()) << sent;
    window.post(0, true, &signaled);
    ASSERT_FALSE(window.has_credit()) << sent;
  }
}

TEST(RsocketsSendWindow, Post_TheCountOfRequestsWraps_HoldsExactlyItsRequests) {
  constexpr uint32_t kRequests = 4, kEnd = UINT32_C(1) << 30;
  SendWindow window;
  window.reset(kRequests, 4096, kEnd - kRequests - 2);
  window.allow(100);
  for (int round = 0; round < 4; ++round) {
    bool signaled;
    uint64_t last = 0;
    for (uint32_t i = 0; i < kRequests; ++i) {
      ASSERT_TRUE(window.open()) << round << " " << i;
      EXPECT_EQ(window.requests_in_flight(), i) << round;
      last = window.post(1, true, &signaled);
      EXPECT_TRUE(signaled) << "a quarter of the requests is one";
    }
    EXPECT_FALSE(window.open()) << round;
    window.completed(last);
    EXPECT_TRUE(window.idle()) << round;
  }
}

TEST(RsocketsTargets, Open_NextEntry_IsTakenAndCleared) {
  std::array<RemoteBuffer, kTargets> entries{};
  TargetTable table;
  table.reset(entries.data(), {0x1000, 7, 100});
  EXPECT_TRUE(table.open());
  EXPECT_EQ(table.left(), 100u);
  EXPECT_EQ(entries[0].length, 0u);
  EXPECT_EQ(table.addr(), 0x1000u);
  table.advance(100);
  EXPECT_FALSE(table.open());
  EXPECT_EQ(table.left(), 0u);
  entries[1] = {0x1064, 7, 100};
  EXPECT_TRUE(table.open());
  EXPECT_EQ(table.left(), 100u);
  EXPECT_EQ(table.addr(), 0x1064u);
}

TEST(RsocketsTargets, Open_EntryWithoutAddressOrLength_IsFalse) {
  std::array<RemoteBuffer, kTargets> entries{};
  TargetTable table;
  table.reset(entries.data(), {});
  entries[0].length = 10;
  EXPECT_FALSE(table.open());
  entries[0].addr = 0x10;
  EXPECT_TRUE(table.open());
  entries[0].length = 0;
  EXPECT_FALSE(table.open());
  EXPECT_EQ(table.left(), 0u);
}

TEST(RsocketsTargets, Open_EntriesInTurn_AreEachTakenOnce) {
  std::array<RemoteBuffer, kTargets> entries{};
  TargetTable table;
  table.reset(entries.data(), {0x1000, 7, 10});
  for (uint32_t i = 1; i < 6; ++i) {
    EXPECT_EQ(table.left(), 10u);
    table.advance(4);
    EXPECT_EQ(table.left(), 6u);
    EXPECT_EQ(table.addr(), 0x1000u * i + 4);
    EXPECT_EQ(table.key(), 6 + i);
    table.advance(6);
    EXPECT_FALSE(table.open()) << i;
    entries[i % kTargets] = {0x1000u * (i + 1), 7 + i, 10};
    EXPECT_TRUE(table.open());
  }
}

TEST(RsocketsCursor, CopyToAndFrom_EmptyParts_AreSkipped) {
  std::string a = "abc";
  std::string b;
  std::string c = "defgh";
  const iovec list[] = {{b.data(), 0}, {a.data(), a.size()}, {b.data(), 0}, {c.data(), c.size()}};
  const Pieces pieces{list, 4};
  EXPECT_EQ(pieces.bytes(), 8u);
  Cursor cursor(pieces);
  EXPECT_EQ(cursor.contiguous(), 3u);
  std::string out(8, ' ');
  cursor.copy_to(reinterpret_cast<std::byte*>(out.data()), 5);
  EXPECT_EQ(cursor.contiguous(), 3u);
  cursor.copy_to(reinterpret_cast<std::byte*>(out.data()) + 5, 3);
  EXPECT_EQ(out, "abcdefgh");
  EXPECT_TRUE(cursor.at_end());
  Cursor into(pieces);
  into.copy_from(reinterpret_cast<const std::byte*>("12345678"), 8);
  EXPECT_EQ(a + c, "12345678");
}
