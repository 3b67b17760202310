// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Channels whose two ends are in one process.
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "ccl/channel/shm_channel.h"

namespace nupa::ccl {

struct Unmap {
  size_t bytes = 0;
  void operator()(std::byte* memory) const { munmap(memory, bytes); }
};
using Memory = std::unique_ptr<std::byte, Unmap>;

/// Memory that is never touched is never there.
inline Memory zeroed(size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return Memory(static_cast<std::byte*>(memory), {bytes});
}

/// A layout whose pieces are small, and so its channels.
inline const ChannelLayout kSmall(4096);

constexpr WaitRules kRules{0, true};

/// Both ends of a channel between ranks 0 and 1.
struct MappedPair {
  explicit MappedPair(const ChannelLayout& layout = kSmall)
      : here(zeroed(layout.offset(0, ChannelKind::kMessage))),
        there(zeroed(layout.offset(0, ChannelKind::kMessage))),
        ends{{here.get(), there.get(), 1, layout, kRules}, {there.get(), here.get(), 0, layout, kRules}} {}
  Memory here;
  Memory there;
  ShmChannel ends[2];
};

inline void send_text(MessageChannel& channel, const std::string& text) {
  std::memcpy(channel.room(), text.data(), text.size());
  channel.send(text.size());
}

/// Ranks of one process that send each other pieces: each has a channel to each other one.
class ChannelWorld {
 public:
  explicit ChannelWorld(uint32_t ranks) {
    for (uint32_t from = 0; from < ranks; ++from)
      for (uint32_t to = from + 1; to < ranks; ++to) pairs_[{from, to}] = std::make_unique<MappedPair>();
    std::vector<uint32_t> members;
    for (uint32_t rank = 0; rank < ranks; ++rank) members.push_back(rank);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      provider_.push_back(std::make_unique<Provider>(*this, rank));
      groups_.push_back(std::make_unique<ChannelGroup>(rank, members, *provider_.back()));
    }
  }
  ChannelGroup& group(uint32_t rank) { return *groups_[rank]; }
  MessageChannel& channel(uint32_t rank, uint32_t other) {
    auto& pair = *pairs_[{std::min(rank, other), std::max(rank, other)}];
    return pair.ends[rank < other ? 0 : 1];
  }

 private:
  class Provider final : public ChannelGroup::Provider {
   public:
    Provider(ChannelWorld& world, uint32_t rank) : world_(world), rank_(rank) {}
    void want(uint32_t) override {}
    Wait ready(uint32_t rank) override { return {&there_, 0, rank}; }
    MessageChannel& channel(uint32_t rank) override { return world_.channel(rank_, rank); }
    uint32_t ahead() const override { return kSmall.ahead(); }
    bool is_used(uint32_t rank) const override { return world_.channel(rank_, rank).is_used(); }

   private:
    ChannelWorld& world_;
    const uint32_t rank_;
    const std::atomic<uint32_t> there_{1};
  };

  std::map<std::pair<uint32_t, uint32_t>, std::unique_ptr<MappedPair>> pairs_;
  std::vector<std::unique_ptr<Provider>> provider_;
  std::vector<std::unique_ptr<ChannelGroup>> groups_;
};

inline const Reducer kSum{{Type::kUint32, Operator::kSum}};

}  // namespace nupa::ccl
