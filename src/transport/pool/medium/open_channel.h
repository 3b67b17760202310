// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A channel of a pool that this process has joined: a ring to the peer and one from it.

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>

#include "base/ordered_copy.h"
#include "transport/pool/medium/cache_policy.h"
#include "transport/pool/medium/directory.h"
#include "transport/pool/medium/layout.h"
#include "transport/pool/medium/line_ring.h"
#include "transport/pool/medium/membership.h"
#include "transport/pool/medium/pool.h"
#include "transport/pool/medium/pool_doorbell.h"

namespace nupa::pool {

/// The numbers that this process writes into bells. None comes twice, in later processes of its record neither. Any
/// thread.
class BellNumbers {
 public:
  explicit BellNumbers(uint64_t random) : base_(random >> 32 << 32) {}
  uint64_t next() { return base_ + rung_.fetch_add(1, std::memory_order_relaxed); }

 private:
  const uint64_t base_;
  std::atomic<uint64_t> rung_{1};
};

/// The parts of a pool that its channels use. The pool outlives them.
template <CachePolicy Policy>
struct ChannelSurroundings {
  Membership& membership;
  const Geometry& geometry;
  const Policy& policy;
  Directory<Policy>& directory;
  PoolDoorbell<Policy>& doorbell;
  BellNumbers& bells;
  std::mutex& mutex;  ///< guards the directory
};

/// A channel. `open()` is called under the pool's mutex, and the other functions by the engine's threads.
template <CachePolicy Policy>
class OpenChannel : public Channel {
 public:
  /// `inbox`: the first line of this process's inbox.
  OpenChannel(const ChannelSurroundings<Policy>& around, const ProcessId& peer, uint32_t index, Line* inbox)
      : around_(around),
        peer_(peer),
        index_(index),
        inbox_(inbox),
        bell_(around.directory.bell_of(peer)),
        doorbell_(around.doorbell.peer(peer)) {}

  const ProcessId& peer() const final { return peer_; }
  uint32_t index() const { return index_; }
  bool has_accepted() const { return is_open_.load(std::memory_order_relaxed); }
  bool is_open() const final {
    if (!is_open_.load(std::memory_order_acquire) && !try_open()) [[unlikely]]
      return false;
    return around_.membership.is_usable();
  }
  bool is_closed() const final {
    if (!is_open_.load(std::memory_order_acquire)) return false;
    std::lock_guard mutex(around_.mutex);
    return around_.membership.is_usable() && !around_.directory.stands(peer_, *accepted_);
  }
  uint32_t lines() const final { return around_.geometry.ring_lines(); }
  void place(std::byte* to, const std::byte* from, uint64_t bytes) final {
    if (const Writing writing(*this); writing) base::copy_in_order(to, from, bytes);
  }
  void ring_bell() final {
    if (!around_.membership.is_usable()) return;
    Policy policy = around_.policy;
    put_word(policy, bell_, around_.bells.next());
    wake();
  }
  bool has_doorbells() const final { return doorbell_.has_value(); }

  /// Opens the channel if the peer has offered its inbox.
  bool open() {
    if (is_open_.load(std::memory_order_relaxed)) return true;
    const auto offer = around_.directory.offer_of(peer_);
    if (!offer || !around_.directory.accept(index_, peer_, *offer)) return false;
    accepted_ = offer;
    make_rings(inbox_, around_.directory.at(offer->line.offset));
    is_open_.store(true, std::memory_order_release);
    return true;
  }

 protected:
  using Direction = Membership::Direction;
  /// Membership::Writing, if the channel is open.
  class Writing {
   public:
    explicit Writing(OpenChannel& channel, Direction direction = Direction::kRing)
        : writing_(channel.around_.membership, channel.index_, direction),
          may_(writing_ && channel.is_open_.load(std::memory_order_acquire)) {}
    explicit operator bool() const { return may_; }

   private:
    Membership::Writing writing_;
    bool may_;
  };

  /// wake(), by the type of the ring's policy.
  template <CachePolicy RingPolicy>
  void wake_by(RingPolicy policy) {
    if (doorbell_ && around_.membership.is_usable()) around_.doorbell.wake(policy, *doorbell_);
  }
  /// The inboxes of both. An inbox begins with the line in which its writer reports.
  virtual void make_rings(Line* mine, Line* theirs) = 0;

 private:
  [[gnu::noinline]] bool try_open() const {
    std::lock_guard mutex(around_.mutex);
    return around_.membership.is_usable() && const_cast<OpenChannel*>(this)->open();
  }

  const ChannelSurroundings<Policy>& around_;
  const ProcessId peer_;
  const uint32_t index_;
  Line* const inbox_;
  Line* const bell_;
  const std::optional<typename PoolDoorbell<Policy>::Peer> doorbell_;
  std::optional<typename Directory<Policy>::Offer> accepted_;  ///< constant as soon as the channel is open
  std::atomic<bool> is_open_{false};
};

/// The same with the policy of its rings.
template <CachePolicy Policy, CachePolicy RingPolicy>
class RingPair final : public OpenChannel<Policy> {
 public:
  RingPair(const ChannelSurroundings<Policy>& around, RingPolicy policy, const ProcessId& peer, uint32_t index,
           Line* inbox)
      : OpenChannel<Policy>(around, peer, index, inbox), policy_(policy) {}

  bool fits(uint16_t payload_lines) override { return this->is_open() && writer_->fits(payload_lines); }
  void store(uint64_t offset, const std::byte* from, uint64_t bytes) override {
    if (const Writing writing(*this); writing) writer_->store(offset, from, bytes);
  }
  void publish(const Header& header) override {
    if (const Writing writing(*this); writing) writer_->publish(header);
  }
  bool put(const Header& header) override {
    if (!this->is_open() || !writer_->fits(0)) return false;
    const Writing writing(*this);
    if (writing) writer_->publish(header);
    return true;
  }
  Channel::Look look(Header* header) override {
    if (!this->is_open()) return Channel::Look::kNothing;
    switch (reader_->look(header)) {
      case RingReader<RingPolicy>::Look::kNothing:
        return Channel::Look::kNothing;
      case RingReader<RingPolicy>::Look::kRecord:
        return Channel::Look::kRecord;
      case RingReader<RingPolicy>::Look::kGarbage:
        break;
    }
    return Channel::Look::kGarbage;
  }
  void load(uint64_t offset, std::byte* to, uint64_t bytes) override { reader_->load(offset, to, bytes); }
  std::array<std::span<const std::byte>, 2> payload(uint64_t bytes) const override { return reader_->payload(bytes); }
  void pop() override {
    reader_->pass();
    if (reader_->wants_report()) report();
  }
  void report() override {
    if (const Writing writing(*this, Direction::kReport); writing) reader_->report();
  }
  void wake() override { this->wake_by(policy_); }

 private:
  using typename OpenChannel<Policy>::Direction;
  using typename OpenChannel<Policy>::Writing;
  void make_rings(Line* mine, Line* theirs) override {
    writer_.emplace(policy_, theirs + 1, this->lines(), mine);
    reader_.emplace(policy_, mine + 1, this->lines(), theirs);
  }

  const RingPolicy policy_;
  std::optional<RingWriter<RingPolicy>> writer_;
  std::optional<RingReader<RingPolicy>> reader_;
};

}  // namespace nupa::pool
