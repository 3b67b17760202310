// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The pool of pool.h on a medium, for each policy. `Memory` stands for the medium and what the kernel knows about this
/// process; simulations bring their own.

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <ctime>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "base/ordered_copy.h"
#include "progress/lifecycle.h"
#include "progress/waiter.h"
#include "transport/pool/medium/any_policy.h"
#include "transport/pool/medium/block_table.h"
#include "transport/pool/medium/borrows.h"
#include "transport/pool/medium/directory.h"
#include "transport/pool/medium/free_unused_blocks.h"
#include "transport/pool/medium/host_lock.h"
#include "transport/pool/medium/line_ring.h"
#include "transport/pool/medium/pool.h"
#include "transport/pool/medium/pool_clock.h"
#include "transport/pool/medium/pool_doorbell.h"
#include "transport/pool/medium/pool_memory.h"

namespace nupa::pool {

/// How often a process looks for what dead ones left, by the time of beat().
inline constexpr int64_t kSweepNs = 1'000'000'000;
/// How long join() watches the heartbeat of another boot, and how often.
inline constexpr int64_t kWatchNs = 2'500'000'000;
inline constexpr int64_t kWatchPauseNs = 50'000'000;
/// How long leave() waits for a thread that is writing to a ring.
inline constexpr int64_t kLeaveNs = 2'000'000;

template <CachePolicy Policy, class Memory = PoolMemory>
class OpenPool final : public Pool {
 public:
  OpenPool(std::unique_ptr<Memory> memory, const Geometry& geometry, Policy policy, PoolClock clock)
      : memory_(std::move(memory)),
        geometry_(geometry),
        policy_(policy),
        clock_(std::move(clock)),
        lock_(memory_->fd(), memory_->spec().host),
        directory_(policy, memory_->lines(), geometry, memory_->spec().host),
        blocks_(policy, directory_.at(geometry.block_line(memory_->spec().host, 0)), geometry.blocks()),
        last_key_(memory_->random_key() >> 32 << 32) {}
  ~OpenPool() override {
    OpenPool::leave();
    borrows_->close();
  }

  uint16_t host() const override { return directory_.host(); }
  uint16_t hosts() const override { return geometry_.hosts(); }
  Gid gid_of(uint16_t host) const override {
    // RFC 4193: the prefix fd00::/8, 40 bits of the pool's own, 16 bits of subnet, 64 bits of interface.
    constexpr size_t kUuidBytes = 7;
    Gid gid;
    gid.raw[0] = 0xfd;
    std::copy_n(geometry_.header().uuid.begin(), kUuidBytes, gid.raw.begin() + 1);
    gid.raw[15] = static_cast<uint8_t>(host + 1);
    return gid;
  }
  bool is_coherent() const override { return memory_->caches() == Caches::kCoherent; }

  Result<ProcessId> join(const Description& description) override {
    std::lock_guard mutex(mutex_);
    if (is_joined_.load() || has_left_.load()) return fail(EALREADY, "the process has joined the pool before");
    HeldHostLock held(lock_);
    if (!held.is_held()) return fail(held.error());
    const auto incarnation = take_number();
    if (!incarnation) return tl::unexpected(incarnation.error());
    sweep();
    for (uint16_t record = 0; record < geometry_.records(); ++record) {
      if (directory_.instance_of(host(), record) != 0 || !lock_.take_record(record)) continue;
      const ProcessLine mine = memory_->describe_process(memory_->random_key(), *incarnation);
      doorbell_.start(*memory_, record, mine.instance);
      directory_.begin_process(record, mine, description, clock_.now_ns());
      is_joined_.store(true);
      return directory_.self();
    }
    return fail(ENOSPC, "all ", geometry_.records(), " process records of host ", host(), " in the pool ",
                memory_->spec().medium(), " are in use");
  }

  Result<void> update(const Description& description) override {
    std::lock_guard mutex(mutex_);
    if (!is_usable()) return fail(ENOTCONN, "the process has not joined the pool");
    directory_.publish(description);
    return {};
  }

  void leave() override {
    if (!own_.holds() || !is_joined_.load() || has_left_.exchange(true)) return;
    // A thread that writes to a ring has set its flag before it looks at has_left_.
    const auto is_writing = [&] {
      return std::any_of(writing_.begin(), writing_.end(), [](const auto& each) { return each.load(); });
    };
    // Without a goodbye, a later process of this host ends the record: the ring is written until this process has
    // exited.
    if (!progress::wait_for([&] { return !is_writing(); }, progress::kHolderPolicy,
                            progress::Deadline::in_ns(kLeaveNs)))
      return;
    Policy policy = policy_;
    const ProcessId self = directory_.self();
    Line* const line = directory_.line(self.host, self.record, kProcessLine);
    if (is_lost_.load() || policy.poll(line) != self.instance) return;
    policy.full_fence();
    clear_line(policy, line);
  }

  void beat(int64_t now_ns) override {
    std::lock_guard mutex(mutex_);
    if (!is_usable()) return;
    if (memory_->is_lost() || !directory_.is_still_there()) {
      is_lost_.store(true);
      NUPA_ERROR("pool %s: %s; this process does not use the pool any more", memory_->spec().medium().c_str(),
                 memory_->is_lost() ? "its file became shorter" : "another boot of this host has taken its number");
      return;
    }
    directory_.beat(now_ns);
    if (now_ns - last_sweep_ns_ < kSweepNs) return;
    last_sweep_ns_ = now_ns;
    looks_at_all_offers_ = true;
    HeldHostLock held(lock_, false);
    if (held.is_held()) sweep();
  }

  std::optional<ProcessId> find(const Gid& gid, uint32_t slot) override {
    std::optional<ProcessId> found;
    each_with(gid, &Description::gids, [&](const ProcessId& process, const Description& description) {
      if (std::find(description.slots.begin(), description.slots.end(), slot) == description.slots.end()) return true;
      found = process;
      return false;
    });
    return found;
  }
  std::vector<ProcessId> find_all(const Gid& gid) override {
    std::vector<ProcessId> found;
    each_with(gid, &Description::gids, [&](const ProcessId& process, const Description&) {
      found.push_back(process);
      return true;
    });
    return found;
  }
  std::vector<ProcessId> members(const Gid& group) override {
    std::vector<ProcessId> found;
    each_with(group, &Description::groups, [&](const ProcessId& process, const Description&) {
      if (process != directory_.self()) found.push_back(process);
      return true;
    });
    return found;
  }
  std::optional<ProcessId> find_record(uint16_t host, uint16_t record) override {
    std::lock_guard mutex(mutex_);
    return directory_.find_record(host, record);
  }
  std::optional<Description> describe(const ProcessId& process) override {
    std::lock_guard mutex(mutex_);
    return directory_.describe(process);
  }
  Life life(const ProcessId& process) override {
    std::lock_guard mutex(mutex_);
    return is_lost_.load() ? Life::kEnded : directory_.life(process);
  }

  Result<std::unique_ptr<Channel>> open_channel(const ProcessId& peer) override {
    std::lock_guard mutex(mutex_);
    if (!is_usable()) return fail(ENOTCONN, "the process has not joined the pool");
    if (directory_.life(peer) == Life::kEnded)
      return fail(ECONNREFUSED, "process ", peer.record, " of host ", peer.host, " in the pool has ended");
    const auto free = std::find(channels_.begin(), channels_.end(), nullptr);
    if (free == channels_.end()) return fail(ENOSPC, "this process has ", kMaxChannels, " channels in the pool");
    HeldHostLock held(lock_);
    if (!held.is_held()) return fail(held.error());
    const auto inbox = take_inbox(peer);
    if (!inbox) return tl::unexpected(inbox.error());
    const auto index = static_cast<uint32_t>(free - channels_.begin());
    auto channel = with_ring_policy(policy_, [&](auto policy) -> std::unique_ptr<OpenChannel> {
      return std::make_unique<RingPair<decltype(policy)>>(*this, policy, peer, index, *inbox);
    });
    OfferLine offer;
    offer.key = ++last_key_;
    offer.peer_instance = peer.instance;
    offer.offset = *inbox;
    offer.peer_host = peer.host;
    offer.peer_record = peer.record;
    offer.lines = geometry_.ring_lines();
    directory_.offer(index, offer);
    *free = channel.get();
    channel->open();
    channel->ring_bell();
    return channel;
  }

  bool poll_bells(News* news) override {
    std::lock_guard mutex(mutex_);
    if (!is_usable()) return false;
    std::array<bool, kMaxHosts> looks{};
    bool has_news = directory_.poll_bells([&](uint16_t host) {
      looks[host] = true;
      for (const OpenChannel* channel : channels_)
        if (channel != nullptr && channel->peer().host == host) news->rang.push_back(channel->peer());
    });
    if (std::exchange(looks_at_all_offers_, false)) looks.fill(true);
    for (uint16_t host = 0; host < hosts(); ++host)
      if (looks[host]) has_news = find_offers(host, news) || has_news;
    return has_news;
  }

  void close_channel(std::unique_ptr<Channel> closed) override {
    if (closed == nullptr || !own_.holds()) return;
    std::lock_guard mutex(mutex_);
    const auto* const channel = static_cast<OpenChannel*>(closed.get());
    channels_[channel->index()] = nullptr;
    if (!is_usable()) return;
    directory_.withdraw(channel->index());
    directory_.stop_writing(channel->index());
    closed->ring_bell();
    // If the lock is held, sweep() finds the inbox later.
    HeldHostLock held(lock_, false);
    if (held.is_held()) free_unused_blocks(directory_, blocks_, lock_);
  }

  int doorbell() const override { return doorbell_.fd(); }
  void announce_sleep(bool sleeps) override {
    std::lock_guard mutex(mutex_);
    if (is_usable()) doorbell_.announce(sleeps);
    policy_.full_fence();
  }
  void take_rings() override { doorbell_.take(); }
  bool is_rung_by_all() override {
    std::lock_guard mutex(mutex_);
    return is_usable() && doorbell_.is_rung_by_all();
  }

  uint64_t largest_allocation() override {
    std::lock_guard mutex(mutex_);
    if (!is_usable()) return 0;
    HeldHostLock held(lock_);
    return held.is_held() ? room_for_programs() * geometry_.block_bytes() : 0;
  }
  Result<Block> allocate(uint64_t bytes) override {
    if (bytes == 0) return fail(EINVAL, "an allocation in the pool has 0 bytes");
    uint64_t offset = 0;
    {
      std::lock_guard mutex(mutex_);
      if (!is_usable()) return fail(ENOTCONN, "the process has not joined the pool");
      HeldHostLock held(lock_);
      if (!held.is_held()) return fail(held.error());
      if (geometry_.blocks_for(bytes) > room_for_programs()) {
        sweep();
        if (geometry_.blocks_for(bytes) > room_for_programs()) return fail_room(bytes);
      }
      BlockLine wanted;
      wanted.word = block_word(BlockKind::kProgram, 0, directory_.self().record);
      wanted.owner_instance = directory_.self().instance;
      const auto block = take_blocks(bytes, wanted);
      if (!block) return tl::unexpected(block.error());
      offset = geometry_.block(host(), *block);
    }
    // Without the locks: nobody else uses the blocks, and others wait for the locks.
    const uint64_t rounded = geometry_.blocks_for(bytes) * geometry_.block_bytes();
    Policy policy = policy_;
    policy.refresh(directory_.at(offset), lines_of(rounded));
    put_zeros(policy, offset, rounded);
    return Block{offset, bytes, reinterpret_cast<std::byte*>(directory_.at(offset))};
  }
  bool free(const Block& block) override {
    std::lock_guard mutex(mutex_);
    if (!is_usable() || !geometry_.is_in_blocks(host(), block.offset, block.bytes)) return true;
    const uint32_t number = number_of(block.offset);
    HeldHostLock held(lock_);
    if (!held.is_held()) return true;
    const auto found = blocks_.find(number);
    if (!found || !is_of(*found, directory_.self().instance)) return true;
    if (lock_.is_borrowed(number)) return false;
    blocks_.free(number, block_count(found->word));
    return true;
  }
  std::shared_ptr<std::byte> borrow(uint64_t instance, uint64_t offset, uint64_t bytes) override {
    std::lock_guard mutex(mutex_);
    if (!is_usable() || !geometry_.is_in_blocks(host(), offset, bytes)) return nullptr;
    const uint32_t number = number_of(offset);
    if (geometry_.block(host(), number) != offset) return nullptr;
    HeldHostLock held(lock_);
    if (!held.is_held()) return nullptr;
    const auto found = blocks_.find(number);
    if (!found || !is_of(*found, instance) || geometry_.blocks_for(bytes) > block_count(found->word)) return nullptr;
    if (!borrows_->take(number)) return nullptr;
    return {reinterpret_cast<std::byte*>(directory_.at(offset)),
            [borrows = borrows_, number](std::byte*) { borrows->give_back(number); }};
  }
  std::optional<Place> place_of(const std::byte* at, uint64_t bytes) const override {
    const auto* const begin = reinterpret_cast<const std::byte*>(memory_->lines());
    if (at < begin || at >= begin + geometry_.bytes()) return std::nullopt;
    const auto offset = static_cast<uint64_t>(at - begin);
    if (!geometry_.is_in_blocks(host(), offset, bytes)) return std::nullopt;
    return Place{host(), offset, bytes};
  }
  std::byte* reach(const Place& place) override {
    if (!is_coherent() || !geometry_.is_in_blocks(place.host, place.offset, place.bytes)) return nullptr;
    return reinterpret_cast<std::byte*>(memory_->lines()) + place.offset;
  }
  void write_back(const std::byte* at, uint64_t bytes) override {
    const auto place = place_of(at, bytes);
    if (!place || bytes == 0 || !is_usable()) return;
    Policy policy = policy_;
    const auto [first, number] = lines_around(place->offset, bytes);
    policy.write_back(first, number);
  }
  bool load(const Place& place, std::byte* to) override {
    if (!geometry_.is_in_blocks(place.host, place.offset, place.bytes)) return false;
    if (place.bytes == 0) return true;
    Policy policy = policy_;
    const auto [first, number] = lines_around(place.offset, place.bytes);
    policy.refresh(first, number);
    policy.load(to, reinterpret_cast<const std::byte*>(memory_->lines()) + place.offset, place.bytes);
    return true;
  }

 private:
  /// A channel. `open()` is called under the pool's mutex, and the other functions by the engine's threads.
  class OpenChannel : public Channel {
   public:
    OpenChannel(OpenPool& pool, const ProcessId& peer, uint32_t index, uint64_t inbox)
        : pool_(pool),
          peer_(peer),
          index_(index),
          inbox_(inbox),
          bell_(pool.directory_.bell_of(peer)),
          doorbell_(pool.doorbell_.peer(peer)) {}

    const ProcessId& peer() const final { return peer_; }
    uint32_t index() const { return index_; }
    bool has_accepted() const { return is_open_.load(std::memory_order_relaxed); }
    bool is_open() const final {
      if (!is_open_.load(std::memory_order_acquire)) {
        std::lock_guard mutex(pool_.mutex_);
        if (!pool_.is_usable() || !const_cast<OpenChannel*>(this)->open()) return false;
      }
      return pool_.is_usable();
    }
    uint32_t lines() const final { return pool_.geometry_.ring_lines(); }
    void place(std::byte* to, const std::byte* from, uint64_t bytes) final {
      if (const Writing writing(*this); writing) base::copy_in_order(to, from, bytes);
    }
    void ring_bell() final {
      if (!pool_.is_usable()) return;
      Policy policy = pool_.policy_;
      put_word(policy, bell_, pool_.next_bell());
      wake();
    }
    bool has_doorbells() const final { return doorbell_.has_value(); }

    /// Opens the channel if the peer has offered its inbox.
    bool open() {
      if (is_open_.load(std::memory_order_relaxed)) return true;
      const auto offer = pool_.directory_.offer_of(peer_);
      if (!offer || !pool_.directory_.accept(index_, peer_, *offer)) return false;
      make_rings(pool_.directory_.at(inbox_), pool_.directory_.at(offer->line.offset));
      is_open_.store(true, std::memory_order_release);
      return true;
    }

   protected:
    /// A store to the peer's inbox, or to memory that it has granted. leave() waits for it; false: the process has left
    /// the pool.
    class Writing {
     public:
      /// `direction`: 0 for the ring, 1 for the line that reports.
      explicit Writing(OpenChannel& channel, uint32_t direction = 0)
          : flag_(channel.pool_.writing_[2 * channel.index_ + direction]) {
        flag_.store(true);
        may_ = !channel.pool_.has_left_.load() && !channel.pool_.is_lost_.load() &&
               channel.is_open_.load(std::memory_order_acquire);
      }
      ~Writing() { flag_.store(false, std::memory_order_release); }
      Writing(const Writing&) = delete;
      Writing& operator=(const Writing&) = delete;
      explicit operator bool() const { return may_; }

     private:
      std::atomic<bool>& flag_;
      bool may_ = false;
    };

    /// wake(), by the type of the ring's policy.
    template <CachePolicy RingPolicy>
    void wake_by(RingPolicy policy) {
      if (doorbell_ && pool_.is_usable()) pool_.doorbell_.wake(policy, *doorbell_);
    }
    /// The inboxes of both. An inbox begins with the line in which its writer reports.
    virtual void make_rings(Line* mine, Line* theirs) = 0;

   private:
    OpenPool& pool_;
    const ProcessId peer_;
    const uint32_t index_;
    const uint64_t inbox_;
    Line* const bell_;
    const std::optional<typename PoolDoorbell<Policy>::Peer> doorbell_;
    std::atomic<bool> is_open_{false};
  };

  template <CachePolicy RingPolicy>
  class RingPair final : public OpenChannel {
   public:
    RingPair(OpenPool& pool, RingPolicy policy, const ProcessId& peer, uint32_t index, uint64_t inbox)
        : OpenChannel(pool, peer, index, inbox), policy_(policy) {}

    bool fits(uint16_t payload_lines) override { return this->is_open() && writer_->fits(payload_lines); }
    void store(uint64_t offset, const std::byte* from, uint64_t bytes) override {
      if (const Writing writing(*this); writing) writer_->store(offset, from, bytes);
    }
    void publish(const Header& header) override {
      if (const Writing writing(*this); writing) writer_->publish(header);
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
      if (const Writing writing(*this, 1); writing) reader_->pop();
    }
    void report() override {
      if (const Writing writing(*this, 1); writing) reader_->report();
    }
    void wake() override { this->wake_by(policy_); }

   private:
    using typename OpenChannel::Writing;
    void make_rings(Line* mine, Line* theirs) override {
      writer_.emplace(policy_, theirs + 1, this->lines(), mine);
      reader_.emplace(policy_, mine + 1, this->lines(), theirs);
    }

    const RingPolicy policy_;
    std::optional<RingWriter<RingPolicy>> writer_;
    std::optional<RingReader<RingPolicy>> reader_;
  };

  bool is_usable() const { return is_joined_.load() && !has_left_.load() && !is_lost_.load() && own_.holds(); }
  uint64_t next_bell() { return bell_base_ + bells_rung_.fetch_add(1, std::memory_order_relaxed); }

  template <class List, class Use>
  void each_with(const Gid& gid, List Description::*list, Use&& use) {
    std::lock_guard mutex(mutex_);
    directory_.each_process([&](const ProcessId& process, const Description& description) {
      const auto& gids = description.*list;
      return std::find(gids.begin(), gids.end(), gid) == gids.end() || use(process, description);
    });
  }

  std::pair<const Line*, size_t> lines_around(uint64_t offset, uint64_t bytes) {
    const uint64_t first = offset / kLineBytes;
    return {directory_.at(first * kLineBytes), (offset + bytes - 1) / kLineBytes - first + 1};
  }

  /// Makes this boot the one of the host's number. Returns its incarnation. Under the host's lock.
  Result<uint64_t> take_number() {
    HostLine mine;
    mine.boot_id = memory_->boot_id();
    mine.file_device = memory_->file_device();
    mine.file_inode = memory_->file_inode();
    mine.since_s = static_cast<uint64_t>(::time(nullptr));
    const auto there = directory_.host_line(host());
    const bool is_same_boot = there && there->boot_id == mine.boot_id;
    const bool is_same_file = there && there->file_device == mine.file_device && there->file_inode == mine.file_inode;
    if (is_same_boot && is_same_file) return there->incarnation;
    const uint16_t used = directory_.records_used(host());
    const auto in_use = [&](uint16_t record) { return directory_.instance_of(host(), record) != 0; };
    if (is_same_boot) {
      // Locks of another file show nothing about its processes.
      for (uint16_t record = 0; record < used; ++record)
        if (in_use(record))
          return fail(EADDRINUSE, "host ", host(), " of the pool ", memory_->spec().medium(),
                      " is in use by a process that opened the pool by another file (nupa pool clean frees its record "
                      "if it is dead)");
    } else if (there && is_beating(used)) {
      return fail(EADDRINUSE, "host ", host(), " of the pool ", memory_->spec().medium(),
                  " is in use by another machine: its heartbeat changes (give each machine its own host=N)");
    }
    for (uint16_t record = 0; record < used; ++record)
      if (in_use(record)) directory_.end_process(record);
    mine.incarnation = memory_->random_key();
    directory_.take_host(mine);
    return mine.incarnation;
  }

  /// Watches the heartbeats of another boot with this host's number.
  bool is_beating(uint16_t used) {
    std::vector<uint16_t> records;
    for (uint16_t record = 0; record < used; ++record)
      if (directory_.instance_of(host(), record) != 0) records.push_back(record);
    if (records.empty()) return false;
    const auto beats = [&] {
      std::vector<uint64_t> words{directory_.host_beat(host())};
      for (const uint16_t record : records) words.push_back(directory_.beat_of(host(), record));
      return words;
    };
    const auto before = beats();
    const int64_t until = clock_.now_ns() + kWatchNs;
    while (clock_.now_ns() < until) {
      clock_.sleep_ns(kWatchPauseNs);
      if (beats() != before) return true;
    }
    return false;
  }

  /// Ends the records of this host's processes that were killed, and frees what nobody uses. Under the host's lock.
  void sweep() {
    const uint16_t used = directory_.records_used(host());
    for (uint16_t record = 0; record < used; ++record) {
      const bool is_own = is_joined_.load() && record == directory_.self().record;
      if (is_own || directory_.instance_of(host(), record) == 0 || lock_.is_taken(record)) continue;
      directory_.end_process(record);
    }
    free_unused_blocks(directory_, blocks_, lock_);
  }
  /// Under the host's lock.
  Result<uint32_t> take_blocks(uint64_t bytes, const BlockLine& wanted) {
    const uint64_t count = geometry_.blocks_for(bytes);
    if (count <= geometry_.blocks()) {
      if (const auto taken = blocks_.take(static_cast<uint32_t>(count), wanted)) return *taken;
      sweep();
      if (const auto taken = blocks_.take(static_cast<uint32_t>(count), wanted)) return *taken;
    }
    return fail_room(bytes);
  }
  tl::unexpected<Error> fail_room(uint64_t bytes) const {
    return fail(ENOSPC, "no ", bytes, " free bytes in the part of host ", host(), " of the pool ",
                memory_->spec().medium(), " (nupa pool status shows the blocks)");
  }
  uint32_t number_of(uint64_t offset) const {
    return static_cast<uint32_t>((offset - geometry_.block(host(), 0)) / geometry_.block_bytes());
  }
  static bool is_of(const BlockLine& line, uint64_t instance) {
    return block_kind(line.word) == BlockKind::kProgram && line.owner_instance == instance;
  }
  /// Blocks of the longest allocation for a program. Under the host's lock.
  uint64_t room_for_programs() {
    const auto room = blocks_.room();
    const uint32_t most = program_blocks(geometry_.blocks());
    return std::min(room.longest, most - std::min(most, room.programs));
  }
  void put_zeros(Policy& policy, uint64_t offset, uint64_t bytes) {
    static constexpr std::array<std::byte, kPageBytes> kZeros{};
    for (uint64_t done = 0; done < bytes; done += kZeros.size())
      policy.store(directory_.at(offset + done), kZeros.data(), std::min<uint64_t>(kZeros.size(), bytes - done));
    policy.full_fence();
  }
  /// An inbox of zeros, of which no dirty line is in a cache of this host. Under the host's lock.
  Result<uint64_t> take_inbox(const ProcessId& peer) {
    const auto writer = directory_.host_line(peer.host);
    if (!writer) return fail(ECONNREFUSED, "host ", peer.host, " of the pool has ended");
    BlockLine wanted;
    wanted.word = block_word(BlockKind::kInbox, 0, directory_.self().record);
    wanted.owner_instance = directory_.self().instance;
    wanted.writer_instance = peer.instance;
    wanted.writer_incarnation = writer->incarnation;
    wanted.writer_host = peer.host;
    wanted.writer_record = peer.record;
    const uint64_t bytes = inbox_bytes(geometry_.ring_lines());
    const auto block = take_blocks(bytes, wanted);
    if (!block) return tl::unexpected(block.error());
    const uint64_t offset = geometry_.block(host(), *block);
    put_zeros(policy_, offset, bytes);
    return offset;
  }

  /// Looks for offers of a host's processes that no channel of this process answers.
  bool find_offers(uint16_t host, News* news) {
    bool has_found = false;
    const uint16_t used = directory_.records_used(host);
    for (uint16_t record = 0; record < used; ++record) {
      const auto process = directory_.find_record(host, record);
      if (!process || *process == directory_.self()) continue;
      if (!directory_.offer_of(*process)) continue;
      // A channel that is not open yet opens with this offer.
      const bool is_answered = std::any_of(channels_.begin(), channels_.end(), [&](const OpenChannel* channel) {
        return channel != nullptr && channel->peer() == *process && !channel->has_accepted();
      });
      if (is_answered) continue;
      news->offered.push_back(*process);
      has_found = true;
    }
    return has_found;
  }

  const std::unique_ptr<Memory> memory_;
  const Geometry geometry_;
  Policy policy_;
  const PoolClock clock_;
  const progress::OfThisProcess own_;
  typename Memory::Lock lock_;
  const std::shared_ptr<Borrows<typename Memory::Lock>> borrows_ =
      std::make_shared<Borrows<typename Memory::Lock>>(lock_);
  mutable std::mutex mutex_;  ///< guards all below except atomics
  Directory<Policy> directory_;
  BlockTable<Policy> blocks_;
  PoolDoorbell<Policy> doorbell_{directory_};
  uint64_t last_key_;
  int64_t last_sweep_ns_ = 0;
  bool looks_at_all_offers_ = false;
  std::array<OpenChannel*, kMaxChannels> channels_{};
  std::atomic<bool> is_joined_{false};
  std::atomic<bool> has_left_{false};
  std::atomic<bool> is_lost_{false};
  std::array<std::atomic<bool>, 2 * kMaxChannels> writing_{};
  const uint64_t bell_base_ = memory_->random_key() >> 32 << 32;
  std::atomic<uint64_t> bells_rung_{1};
};

}  // namespace nupa::pool
