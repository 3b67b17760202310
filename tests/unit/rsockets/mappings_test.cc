// SPDX-License-Identifier: Apache-2.0
// Announcements of mapped buffers to the peer. This file replaces the functions that register memory.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <memory>

#include "rsockets/mappings.h"

namespace {
std::map<ibv_mr*, std::unique_ptr<ibv_mr>> registered;
}  // namespace

#undef ibv_reg_mr
extern "C" ibv_mr* ibv_reg_mr(ibv_pd* pd, void* addr, size_t length, int access) {
  static_cast<void>(access);
  static uint32_t last_key = 0;
  auto region = std::make_unique<ibv_mr>();
  region->pd = pd;
  region->addr = addr;
  region->length = length;
  region->rkey = ++last_key;
  ibv_mr* const result = region.get();
  registered.emplace(result, std::move(region));
  return result;
}
extern "C" ibv_mr* ibv_reg_mr_iova2(ibv_pd* pd, void* addr, size_t length, uint64_t, unsigned int access) {
  return ibv_reg_mr(pd, addr, length, static_cast<int>(access));
}
extern "C" int ibv_dereg_mr(ibv_mr* region) { return registered.erase(region) == 1 ? 0 : EINVAL; }

namespace nupa::rsockets {
namespace {

class RsocketsMappings : public testing::Test {
 protected:
  RsocketsMappings() { mappings.set_table({0, 0, 1}); }
  ~RsocketsMappings() override {
    mappings.clear();
    EXPECT_TRUE(registered.empty());
  }

  Mappings mappings;
  char first[16], second[16];
};

TEST_F(RsocketsMappings, Announced_IndexTakenAgainMeanwhile_TheNewBufferIsStillToBeAnnounced) {
  ASSERT_EQ(mappings.add(nullptr, first, sizeof first, true, 1), 0);
  Mappings::Announcement announcement;
  ASSERT_TRUE(mappings.next(&announcement));
  EXPECT_EQ(announcement.mapping.offset, 1u);
  // Another thread, while the message is on its way.
  ASSERT_EQ(mappings.remove(first, sizeof first), 0);
  ASSERT_EQ(mappings.add(nullptr, second, sizeof second, true, 2), 0);
  mappings.announced(announcement);
  EXPECT_TRUE(mappings.pending());
  Mappings::Announcement next;
  ASSERT_TRUE(mappings.next(&next));
  EXPECT_EQ(next.index, announcement.index);
  EXPECT_EQ(next.mapping.offset, 2u);
  EXPECT_EQ(next.mapping.buffer.addr, reinterpret_cast<uintptr_t>(second));
  mappings.announced(next);
  EXPECT_FALSE(mappings.pending());
  EXPECT_FALSE(mappings.next(&next));
}

TEST_F(RsocketsMappings, Announced_BufferMappedAgain_IsAnnouncedWithItsNewKey) {
  ASSERT_EQ(mappings.add(nullptr, first, sizeof first, true, 1), 0);
  Mappings::Announcement announcement, next;
  ASSERT_TRUE(mappings.next(&announcement));
  ASSERT_EQ(mappings.remove(first, sizeof first), 0);
  ASSERT_EQ(mappings.add(nullptr, first, sizeof first, true, 1), 0);
  mappings.announced(announcement);
  ASSERT_TRUE(mappings.next(&next));
  EXPECT_NE(next.mapping.buffer.key, announcement.mapping.buffer.key);
}

}  // namespace
}  // namespace nupa::rsockets
