// Packets that came before their turn: no buffer is lost, whatever comes.
#include <gtest/gtest.h>

#include "transport/roce/reorder.h"

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

TEST(RoceReorder, APacketThatWasPassedOverGivesItsBufferToTheNext) {
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

TEST(RoceReorder, ClearingIsPartOfUsing) {
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
