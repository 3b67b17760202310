// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The pool of pool.h on a medium, for each policy. `Memory` stands for the medium and what the kernel knows about this
/// process; simulations bring their own.

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/log.h"
#include "transport/pool/medium/any_policy.h"
#include "transport/pool/medium/block_table.h"
#include "transport/pool/medium/borrows.h"
#include "transport/pool/medium/directory.h"
#include "transport/pool/medium/free_unused_blocks.h"
#include "transport/pool/medium/host_lock.h"
#include "transport/pool/medium/membership.h"
#include "transport/pool/medium/open_channel.h"
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
    if (membership_.has_joined()) return fail(EALREADY, "the process has joined the pool before");
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
      membership_.join();
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
    // Without a goodbye, a later process of this host ends the record: the ring is written until this process has
    // exited.
    if (!membership_.leave()) return;
    Policy policy = policy_;
    const ProcessId self = directory_.self();
    Line* const line = directory_.line(self.host, self.record, kProcessLine);
    if (membership_.is_lost() || policy.poll(line) != self.instance) return;
    policy.full_fence();
    clear_line(policy, line);
  }

  void beat(int64_t now_ns) override {
    std::lock_guard mutex(mutex_);
    if (!is_usable()) return;
    if (memory_->is_lost() || !directory_.is_still_there()) {
      membership_.lose();
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
    return membership_.is_lost() ? Life::kEnded : directory_.life(process);
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
    const auto inbox_line = directory_.at(*inbox);
    auto channel = with_ring_policy(policy_, [&](auto policy) -> std::unique_ptr<Channels> {
      return std::make_unique<RingPair<Policy, decltype(policy)>>(around_, policy, peer, index, inbox_line);
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
      for (const Channels* channel : channels_)
        if (channel != nullptr && channel->peer().host == host) news->rang.push_back(channel->peer());
    });
    if (std::exchange(looks_at_all_offers_, false)) looks.fill(true);
    for (uint16_t host = 0; host < hosts(); ++host)
      if (looks[host]) has_news = find_offers(host, news) || has_news;
    return has_news;
  }

  void close_channel(std::unique_ptr<Channel> closed) override {
    if (closed == nullptr || !membership_.is_of_this_process()) return;
    std::lock_guard mutex(mutex_);
    const auto* const channel = static_cast<Channels*>(closed.get());
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
    HeldHostLock held(lock_, false);
    if (!held.is_held()) return false;
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
  using Channels = OpenChannel<Policy>;

  bool is_usable() const { return membership_.is_usable(); }

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
      const bool is_own = membership_.has_joined() && record == directory_.self().record;
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
      const bool is_answered = std::any_of(channels_.begin(), channels_.end(), [&](const Channels* channel) {
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
  Membership membership_;
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
  std::array<Channels*, kMaxChannels> channels_{};
  BellNumbers bells_{memory_->random_key()};
  ChannelSurroundings<Policy> around_{membership_, geometry_, policy_, directory_, doorbell_, bells_, mutex_};
};

}  // namespace nupa::pool
