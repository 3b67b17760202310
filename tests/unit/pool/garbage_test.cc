// SPDX-License-Identifier: Apache-2.0
/// A host that writes anything into the pool: the processes of the other host survive it, and stay in bounds.
#include <cstring>
#include <random>

#include "fixture.h"
#include "transport/pool/medium/directory.h"
#include "transport/pool/medium/medium_policy.h"

namespace nupa::pool {
namespace {

class PoolGarbage : public ::testing::Test {
 protected:
  PoolGarbage() : memory_(std::move(*PoolMemory::open(file_.spec(1)))), geometry_(*read_geometry(*memory_)) {
    one_.join(7, 1);
    other_.join(8, 2);
  }
  Line* at(uint64_t offset) { return memory_->lines() + offset / kLineBytes; }
  Line* record_line(uint32_t number) { return at(geometry_.record(1, other_.id().record)) + number; }
  /// Calls all that reads the pool.
  void use_all() {
    clock_.now_ns += 1'100'000'000;
    one_.beat();
    one_->find(gid_of(2), 8);
    one_->find_all(gid_of(2));
    one_->members(gid_of(3));
    one_->life(other_.id());
    one_->describe(other_.id());
    for (uint16_t record = 0; record <= geometry_.records(); ++record) one_->find_record(1, record);
    Pool::News news;
    one_->poll_bells(&news);
    for (const ProcessId& peer : news.offered) {
      auto channel = one_->open_channel(peer);
      if (!channel) continue;
      Header header;
      if ((*channel)->is_open() && (*channel)->fits(1)) (*channel)->publish({});
      (*channel)->look(&header);
      one_->close_channel(std::move(*channel));
    }
  }
  PoolFile file_;
  TestClock clock_;
  Process one_{file_, 0, clock_};
  Process other_{file_, 1, clock_};
  std::unique_ptr<PoolMemory> memory_;
  Geometry geometry_;
};

TEST_F(PoolGarbage, TerritoryOfTheOtherHost_RandomContent_IsSurvived) {
  for (uint64_t seed = 1; seed <= 30; ++seed) {
    std::mt19937_64 random(seed);
    const auto fill = [&](uint64_t offset, uint64_t bytes) {
      for (uint64_t i = 0; i < bytes / 8; ++i) {
        // Small numbers and ones pass more checks than any random ones.
        const uint64_t value = random();
        at(offset)[i / kLineWords].words[i % kLineWords] = value % 3 == 0 ? value % 5 : value % 3 == 1 ? ~0ull : value;
      }
    };
    fill(geometry_.host_page(1), kPageBytes);
    fill(geometry_.territory(1), geometry_.block(1, 0) - geometry_.territory(1));
    use_all();
  }
}

TEST_F(PoolGarbage, DescriptionWithImpossibleNumbers_IsBounded) {
  DescriptionData data;
  data.slots = data.gids = data.groups = 0xffff;
  auto* const version = record_line(kVersionLine);
  for (const uint32_t copy : {0u, 1u})
    std::memcpy(static_cast<void*>(record_line(kDescriptionLines + copy * kDescriptionCopyLines)), &data, sizeof data);
  ++version->words[0];
  const auto description = one_->describe(other_.id());
  ASSERT_TRUE(description);
  EXPECT_EQ(description->slots.size(), kMaxSlots);
  EXPECT_EQ(description->gids.size(), kMaxGids);
  EXPECT_EQ(description->groups.size(), kMaxGroups);
}

TEST_F(PoolGarbage, OfferOfAPlaceThatIsNoInbox_IsNoOffer) {
  const uint64_t kWrong[] = {0,
                             geometry_.territory(0),
                             geometry_.block(0, 0),
                             geometry_.territory(1),
                             geometry_.block(1, 0) + 64,
                             geometry_.block(1, geometry_.blocks() - 1) + geometry_.block_bytes(),
                             geometry_.bytes(),
                             UINT64_MAX - 63,
                             UINT64_MAX};
  uint64_t key = 1;
  for (const uint64_t offset : kWrong) {
    OfferLine offer;
    offer.key = ++key;
    offer.peer_instance = one_.id().instance;
    offer.peer_host = 0;
    offer.peer_record = one_.id().record;
    offer.lines = geometry_.ring_lines();
    offer.offset = offset;
    std::memcpy(static_cast<void*>(record_line(kOfferLines)), &offer, sizeof offer);
    record_line(kOffersLine)->words[0] = offers_word(key, 0xffff);
    auto channel = one_->open_channel(other_.id());
    ASSERT_TRUE(channel) << channel.error().what();
    EXPECT_FALSE((*channel)->is_open()) << "offset " << offset;
    one_->close_channel(std::move(*channel));
  }
}

TEST_F(PoolGarbage, RingWithRandomHeaders_IsGarbageAndNothingElse) {
  auto channel = std::move(*one_->open_channel(other_.id()));
  auto back = std::move(*other_->open_channel(one_.id()));
  ASSERT_TRUE(channel->is_open());
  // The first offer of this process names its inbox.
  OfferLine offer;
  std::memcpy(static_cast<void*>(&offer), at(geometry_.record(0, one_.id().record)) + kOfferLines, sizeof offer);
  Line* const ring = at(offer.offset) + 1;
  std::mt19937_64 random(1);
  uint32_t garbage = 0;
  for (int i = 0; i < 2000; ++i) {
    ring[0].words[0] = ring::word_of(1, static_cast<uint16_t>(random()), static_cast<uint16_t>(random()));
    Header header;
    const auto look = channel->look(&header);
    if (look == Channel::Look::kGarbage) ++garbage;
    if (look == Channel::Look::kRecord) {
      EXPECT_LT(header.payload_lines, ring::longest_record(channel->lines()));
    }
  }
  EXPECT_GT(garbage, 1000u);
  one_->close_channel(std::move(channel));
}

TEST_F(PoolGarbage, CreditOfMoreThanWasWritten_DoesNotOverrunTheRing) {
  auto channel = std::move(*one_->open_channel(other_.id()));
  auto back = std::move(*other_->open_channel(one_.id()));
  ASSERT_TRUE(channel->is_open());
  OfferLine offer;
  std::memcpy(static_cast<void*>(&offer), at(geometry_.record(0, one_.id().record)) + kOfferLines, sizeof offer);
  at(offer.offset)->words[0] = UINT64_MAX / 2;
  uint32_t written = 0;
  for (; written < 10 * channel->lines() && channel->fits(0); ++written) channel->publish({});
  EXPECT_EQ(written, channel->lines());
}

TEST_F(PoolGarbage, OwnBlockTableDestroyed_AllocationFails) {
  for (uint32_t i = 0; i < geometry_.blocks(); ++i) at(geometry_.block_line(0, i))->words[0] = ~0ull;
  EXPECT_FALSE(one_->allocate(4096));
  EXPECT_FALSE(one_->open_channel(other_.id()));
  use_all();
}

}  // namespace
}  // namespace nupa::pool
