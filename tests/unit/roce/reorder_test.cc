// SPDX-License-Identifier: Apache-2.0
// Tests of packets that arrive early: no buffer is lost.
#include <gtest/gtest.h>

#include "transport/roce/port/packet_pool.h"
#include "transport/roce/protocol/reorder.h"

namespace nupa::roce {
namespace {

constexpr uint32_t kBuffers = 4;
constexpr Seq kFrom = first_seq(7);

Packet packet_of(const std::vector<std::byte>& payload) {
  Packet packet;
  packet.payload = payload.data();
  packet.payload_length = static_cast<uint32_t>(payload.size());
  return packet;
}

TEST(RoceReorder, Keep_SamePlaceAgain_ReusesTheBuffer) {
  const std::vector<std::byte> payload(100, std::byte{1});
  PacketPool pool(kBuffers);
  Reorder reorder(pool);
  // A READ request takes many numbers at once: what came for one of them never has its turn.
  ASSERT_TRUE(reorder.keep(kFrom, packet_of(payload), false));
  ASSERT_TRUE(reorder.keep(kFrom + kBitmapBits, packet_of(payload), false));
  EXPECT_EQ(kBuffers - 1, pool.free());
  EXPECT_FALSE(reorder.has(kFrom));
  EXPECT_TRUE(reorder.has(kFrom + kBitmapBits));
  reorder.clear();
  EXPECT_TRUE(reorder.empty());
  EXPECT_EQ(kBuffers, pool.free());
}

TEST(RoceReorder, Pass_SeveralNumbers_FreesTheirBuffers) {
  const std::vector<std::byte> payload(100, std::byte{1});
  PacketPool pool(kBuffers);
  Reorder reorder(pool);
  for (const Seq seq : {kFrom, kFrom + 1, kFrom + 3}) ASSERT_TRUE(reorder.keep(seq, packet_of(payload), false));
  reorder.pass(kFrom + 1, kFrom + 3);
  EXPECT_TRUE(reorder.has(kFrom));
  EXPECT_FALSE(reorder.has(kFrom + 1));
  EXPECT_TRUE(reorder.has(kFrom + 3));
  EXPECT_EQ(kBuffers - 2, pool.free());
  reorder.pass(kFrom, kFrom + 1'000'000);
  EXPECT_TRUE(reorder.empty());
  EXPECT_EQ(kBuffers, pool.free());
}

TEST(RoceReorder, Bitmap_AtAnyStart_ShowsTheKeptPackets) {
  PacketPool pool(kBuffers);
  for (Seq from = kFrom; from < kFrom + 70; ++from) {
    Reorder reorder(pool);
    const std::vector<uint32_t> bits{1, 31, 32, 63, 500, kBitmapBits - 1};
    for (const uint32_t bit : bits) ASSERT_TRUE(reorder.keep(from + bit, packet_of({}), false));
    std::array<uint32_t, kBitmapWords> words;
    words.fill(UINT32_MAX);
    ASSERT_EQ(kBitmapWords, reorder.bitmap(from, words.data()));
    std::vector<uint32_t> found;
    for (uint32_t bit = 0; bit < kBitmapBits; ++bit)
      if ((words[bit / 32] >> bit % 32 & 1) != 0) found.push_back(bit);
    EXPECT_EQ(bits, found) << from;
  }
}

TEST(RoceReorder, KeepAndTake_WholeWindows_CanBeRepeated) {
  PacketPool pool(kBuffers);
  Reorder reorder(pool);
  for (Seq from = kFrom; from < kFrom + 3 * kBitmapBits; from += kBitmapBits) {
    for (Seq seq = from; seq < from + kBitmapBits; ++seq) {
      Packet packet = packet_of({});
      packet.psn = psn_of(seq);
      ASSERT_TRUE(reorder.keep(seq, packet, false));
    }
    for (Seq seq = from; seq < from + kBitmapBits; ++seq)
      ASSERT_TRUE(reorder.take(seq, [&](const Packet& packet, bool) { return packet.psn == psn_of(seq); }));
    EXPECT_TRUE(reorder.empty());
  }
}

TEST(RoceReorder, Take_ConsumerClears_FreesAllBuffers) {
  const std::vector<std::byte> payload(100, std::byte{1});
  PacketPool pool(kBuffers);
  Reorder reorder(pool);
  ASSERT_TRUE(reorder.keep(kFrom, packet_of(payload), false));
  ASSERT_TRUE(reorder.keep(kFrom + 1, packet_of(payload), false));
  reorder.take(kFrom, [&](const Packet&, bool) {
    reorder.clear();  // the packet is refused
    return true;
  });
  EXPECT_TRUE(reorder.empty());
  EXPECT_EQ(kBuffers, pool.free());
}

}  // namespace
}  // namespace nupa::roce
