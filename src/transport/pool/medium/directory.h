// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The directory of a pool: host lines, process records, descriptions, offers and bells. No I/O, no lock, no clock: the
/// caller brings them. One thread at a time. Functions that change what the host's processes share state that the
/// caller holds the host's lock.
///
/// Nothing that another host writes is trusted: lines are copied, and numbers are bounded by the layout.

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "transport/pool/medium/layout.h"
#include "transport/pool/medium/lines.h"
#include "transport/pool/medium/pool.h"
#include "transport/pool/medium/sleep.h"

namespace nupa::pool {

/// A heartbeat that has not changed for this time is silent.
inline constexpr int64_t kSilenceNs = 2'000'000'000;
/// Time counts for silence in steps of at most this, so that a stop of this process is no silence of the others.
inline constexpr int64_t kLongestStepNs = 250'000'000;

template <CachePolicy Policy>
class Directory {
 public:
  Directory(Policy policy, Line* pool, const Geometry& geometry, uint16_t host)
      : policy_(policy),
        pool_(pool),
        geometry_(geometry),
        host_(host),
        seen_(size_t{geometry.hosts()} * geometry.records()) {}

  const Geometry& geometry() const { return geometry_; }
  uint16_t host() const { return host_; }

  // Hosts.
  std::optional<HostLine> host_line(uint16_t host) { return copy_line<HostLine>(policy_, page(host, kHostLine)); }
  /// The host has this boot now. Under the host's lock, after end_process() for each record of an earlier boot.
  void take_host(const HostLine& line) {
    clear_line(policy_, page(host_, kHostLine));
    put_line(policy_, page(host_, kHostLine), line);
  }
  uint16_t records_used(uint16_t host) {
    const uint64_t used = policy_.poll(page(host, kRecordsUsedLine));
    return static_cast<uint16_t>(std::min<uint64_t>(used, geometry_.records()));
  }
  uint64_t host_beat(uint16_t host) { return policy_.poll(page(host, kHostBeatLine)); }

  // Process records.
  std::optional<ProcessLine> process_line(uint16_t host, uint16_t record) {
    return copy_line<ProcessLine>(policy_, line(host, record, kProcessLine));
  }
  /// The instance of the process, 0 if the record is free.
  uint64_t instance_of(uint16_t host, uint16_t record) { return policy_.poll(line(host, record, kProcessLine)); }
  uint64_t beat_of(uint16_t host, uint16_t record) { return policy_.poll(line(host, record, kBeatLine)); }

  /// This process is `process` from now on. The record is free. Under the host's lock.
  void begin_process(uint16_t record, const ProcessLine& process, const Description& description, int64_t now_ns) {
    self_ = {host_, record, process.instance};
    incarnation_ = process.incarnation;
    clear_channels(record);
    offers_used_ = 0;
    offer_changes_ = 0;
    put_word(policy_, own(kOffersLine), offers_word(offer_changes_, offers_used_));
    version_ = policy_.poll(own(kVersionLine));
    publish(description);
    put_word(policy_, own(kSleepLine), 0);
    put_word(policy_, own(kBeatLine), static_cast<uint64_t>(now_ns));
    for (uint16_t host = 0; host < geometry_.hosts(); ++host) bells_[host] = policy_.poll(own(kBellLines + host));
    put_line(policy_, own(kProcessLine), process);
    if (records_used(host_) <= record) put_word(policy_, page(host_, kRecordsUsedLine), record + 1u);
  }
  const ProcessId& self() const { return self_; }
  uint64_t incarnation() const { return incarnation_; }
  void publish(const Description& description) {
    ++version_;
    DescriptionData data;
    const auto copy = [](const auto& from, auto* to) {
      const size_t number = std::min(from.size(), to->size());
      std::copy_n(from.begin(), number, to->begin());
      return static_cast<uint16_t>(number);
    };
    data.slots = copy(description.slots, &data.slot);
    data.gids = copy(description.gids, &data.gid);
    data.groups = copy(description.groups, &data.group);
    data.receives_for_host = description.receives_for_host ? 1 : 0;
    policy_.store(description_copy(self_, version_), reinterpret_cast<const std::byte*>(&data), sizeof data);
    policy_.fence();
    put_word(policy_, own(kVersionLine), version_);
  }
  void beat(int64_t now_ns) {
    tick(now_ns);
    put_word(policy_, own(kBeatLine), static_cast<uint64_t>(now_ns));
    put_word(policy_, page(host_, kHostBeatLine), static_cast<uint64_t>(now_ns));
  }
  /// Time passes for silence.
  void tick(int64_t now_ns) {
    if (last_tick_ns_ != 0) lived_ns_ += std::clamp<int64_t>(now_ns - last_tick_ns_, 0, kLongestStepNs);
    last_tick_ns_ = now_ns;
  }
  void sleeps(bool sleeps) { put_sleep(policy_, own(kSleepLine), sleeps); }
  /// For begin_process() of that record, before it.
  void put_doorbell(uint16_t record, const DoorbellLine& doorbell) {
    clear_line(policy_, line(host_, record, kDoorbellLine));
    put_line(policy_, line(host_, record, kDoorbellLine), doorbell);
  }
  /// The doorbell that a process has published. Its kind can be any number.
  DoorbellLine doorbell_of(const ProcessId& process) {
    if (!is_valid(process.host, process.record)) return {};
    const auto found = copy_line<DoorbellLine>(policy_, line(process.host, process.record, kDoorbellLine));
    return found && found->instance == process.instance ? *found : DoorbellLine();
  }
  /// The processes of this host that are in the pool, and their doorbells. For a process that is not in it yet.
  template <class Use>
  void each_neighbour(Use&& use) {
    const uint16_t used = records_used(host_);
    for (uint16_t record = 0; record < used; ++record)
      if (const auto process = process_line(host_, record); process && process->instance != 0)
        use(*process, doorbell_of({host_, record, process->instance}));
  }
  /// False: another boot of the host has taken the number, or the record. This process must not write any more.
  bool is_still_there() {
    const uint64_t incarnation = policy_.poll(page(host_, kHostLine));
    return incarnation == incarnation_ && policy_.poll(own(kProcessLine)) == self_.instance;
  }

  /// Ends the record of a process of this host that has exited without a goodbye, or whose boot is over. Lines of the
  /// process in this host's caches are written back first. Under the host's lock.
  void end_process(uint16_t record) {
    for (uint32_t i = 0; i < kMaxChannels; ++i) {
      const Line* const at = line(host_, record, kAcceptLines + i);
      if (policy_.poll(at) == 0) continue;
      const auto accept = std::bit_cast<AcceptLine>(policy_.read(at));
      // A process that was killed between the words of this line has not written to the inbox.
      if (geometry_.is_inbox(accept.peer_host, accept.offset, accept.lines)) flush_inbox(accept.offset, accept.lines);
    }
    clear_channels(record);
    clear_line(policy_, line(host_, record, kProcessLine));
  }

  // Others.
  Life life(const ProcessId& process) {
    if (!is_valid(process.host, process.record)) return Life::kEnded;
    if (instance_of(process.host, process.record) != process.instance) return Life::kEnded;
    const uint64_t incarnation = policy_.poll(page(process.host, kHostLine));
    Seen& seen = look(process.host, process.record);
    // 0: the host is writing its line.
    if (seen.instance == process.instance && incarnation != 0 && incarnation != seen.incarnation) return Life::kEnded;
    return is_silent(process.host, process.record, &seen) ? Life::kSilent : Life::kAlive;
  }

  std::optional<Description> describe(const ProcessId& process) {
    if (!is_valid(process.host, process.record)) return std::nullopt;
    const Seen& seen = look(process.host, process.record);
    if (seen.instance != process.instance || !seen.is_described) return std::nullopt;
    return seen.description;
  }
  std::optional<ProcessId> find_record(uint16_t host, uint16_t record) {
    if (!is_valid(host, record)) return std::nullopt;
    const uint64_t incarnation = policy_.poll(page(host, kHostLine));
    const Seen& seen = look(host, record);
    if (seen.instance == 0 || seen.incarnation != incarnation) return std::nullopt;
    return ProcessId{host, record, seen.instance};
  }
  /// Calls `use(process, description)` for each living process until it returns false.
  template <class Use>
  void each_process(Use&& use) {
    for (uint16_t host = 0; host < geometry_.hosts(); ++host) {
      const uint64_t incarnation = policy_.poll(page(host, kHostLine));
      if (incarnation == 0) continue;
      const uint16_t used = records_used(host);
      for (uint16_t record = 0; record < used; ++record) {
        const Seen& seen = look(host, record);
        if (seen.instance == 0 || seen.incarnation != incarnation || !seen.is_described) continue;
        if (!use(ProcessId{host, record, seen.instance}, seen.description)) return;
      }
    }
  }

  // Offers.
  /// Offers an inbox in line `index` of this process, which is free.
  void offer(uint32_t index, const OfferLine& content) {
    put_line(policy_, own(kOfferLines + index), content);
    offers_used_ = std::max(offers_used_, index + 1);
    put_word(policy_, own(kOffersLine), offers_word(++offer_changes_, offers_used_));
  }
  void withdraw(uint32_t index) {
    clear_line(policy_, own(kOfferLines + index));
    put_word(policy_, own(kOffersLine), offers_word(++offer_changes_, offers_used_));
    policy_.full_fence();
  }
  struct Offer {
    uint32_t index = 0;
    OfferLine line;
  };
  /// The offer of a process to this one, the latest if there are several. No value: there is none that
  /// this process has not accepted before, or it breaks the rules.
  std::optional<Offer> offer_of(const ProcessId& peer) {
    if (!is_valid(peer.host, peer.record)) return std::nullopt;
    Seen& seen = look(peer.host, peer.record);
    if (seen.instance != peer.instance) return std::nullopt;
    const uint64_t word = policy_.poll(line(peer.host, peer.record, kOffersLine));
    if (seen.has_looked_for_offers && seen.offers == word) return seen.offer;
    seen.offer.reset();
    const uint32_t used = std::min(offers_used(word), kMaxChannels);
    for (uint32_t i = 0; i < used; ++i) {
      const auto found = copy_line<OfferLine>(policy_, line(peer.host, peer.record, kOfferLines + i));
      if (!found || found->peer_host != self_.host || found->peer_record != self_.record ||
          found->peer_instance != self_.instance || !geometry_.is_inbox(peer.host, found->offset, found->lines))
        continue;
      if (found->key <= seen.accepted_key) continue;
      if (!seen.offer || found->key > seen.offer->line.key) seen.offer = Offer{i, *found};
    }
    seen.offers = word;
    seen.has_looked_for_offers = true;
    return seen.offer;
  }
  /// States in line `index` that this process writes to the inbox. False: the peer has taken the offer back meanwhile,
  /// so this process must not write.
  bool accept(uint32_t index, const ProcessId& peer, const Offer& offer) {
    const OfferLine& from = offer.line;
    AcceptLine content;
    content.key = from.key;
    content.peer_instance = peer.instance;
    content.offset = from.offset;
    content.peer_host = peer.host;
    content.peer_record = peer.record;
    content.lines = from.lines;
    put_line(policy_, own(kAcceptLines + index), content);
    policy_.full_fence();
    // The peer does the opposite: it takes the offer back, and then looks for this line. One of both sees the other.
    if (stands(peer, offer)) {
      Seen& seen = look(peer.host, peer.record);
      seen.accepted_key = from.key;
      seen.offer.reset();
      return true;
    }
    clear_line(policy_, own(kAcceptLines + index));
    return false;
  }
  bool stands(const ProcessId& peer, const Offer& offer) {
    return policy_.poll(line(peer.host, peer.record, kOfferLines + offer.index)) == offer.line.key &&
           instance_of(peer.host, peer.record) == peer.instance;
  }
  /// This process does not write to the inbox any more.
  void stop_writing(uint32_t index) {
    policy_.full_fence();
    clear_line(policy_, own(kAcceptLines + index));
  }
  /// True while the writer of an inbox of this host may write to it, or its host's caches may. `offset`: of the inbox.
  bool is_written(const BlockLine& block, uint64_t offset) {
    if (!is_valid(block.writer_host, block.writer_record)) return false;
    const uint64_t incarnation = policy_.poll(page(block.writer_host, kHostLine));
    if (incarnation == 0) return true;  // the host is writing its line
    if (incarnation != block.writer_incarnation) return false;
    if (instance_of(block.writer_host, block.writer_record) != block.writer_instance) return false;
    const auto accepts = copies_of<AcceptLine>(line(block.writer_host, block.writer_record, kAcceptLines));
    return std::any_of(accepts.begin(), accepts.end(), [&](const AcceptLine& accept) {
      return accept.key != 0 && accept.peer_host == host_ && accept.offset == offset;
    });
  }
  /// True while a process may write to inboxes of that process of this host, and so to memory that it was granted. The
  /// process has ended, and nobody accepts an offer of it any more. Under the host's lock.
  bool is_reached(uint64_t instance) {
    for (uint16_t host = 0; host < geometry_.hosts(); ++host) {
      const uint64_t incarnation = policy_.poll(page(host, kHostLine));
      const uint16_t used = records_used(host);
      for (uint16_t record = 0; record < used; ++record) {
        if (instance_of(host, record) == 0) continue;
        const auto process = process_line(host, record);
        if (process && incarnation != 0 && process->incarnation != incarnation) continue;
        const auto accepts = copies_of<AcceptLine>(line(host, record, kAcceptLines));
        if (std::any_of(accepts.begin(), accepts.end(), [&](const AcceptLine& accept) {
              return accept.key != 0 && accept.peer_host == host_ && accept.peer_instance == instance;
            }))
          return true;
      }
    }
    return false;
  }
  /// True if the owner of an inbox of this host offers it at present. Under the host's lock.
  bool is_offered(const BlockLine& block, uint64_t offset) {
    const uint16_t owner = block_owner(block.word);
    if (!is_valid(host_, owner) || instance_of(host_, owner) != block.owner_instance) return false;
    const auto offers = copies_of<OfferLine>(line(host_, owner, kOfferLines));
    return std::any_of(offers.begin(), offers.end(),
                       [&](const OfferLine& offer) { return offer.key != 0 && offer.offset == offset; });
  }

  /// The number of channels that a process has offered.
  uint32_t channels_of(uint16_t host, uint16_t record) {
    const auto offers = copies_of<OfferLine>(line(host, record, kOfferLines));
    return static_cast<uint32_t>(
        std::count_if(offers.begin(), offers.end(), [](const OfferLine& offer) { return offer.key != 0; }));
  }

  // Bells.
  /// The line that this host's processes ring for a process.
  Line* bell_of(const ProcessId& peer) { return line(peer.host, peer.record, kBellLines + host_); }
  /// Calls `use(host)` for each host whose bell has rung since the last call.
  template <class Use>
  bool poll_bells(Use&& use) {
    const Line* const bells = own(kBellLines);
    policy_.refresh(bells, geometry_.hosts());
    bool has_rung = false;
    for (uint16_t host = 0; host < geometry_.hosts(); ++host) {
      uint64_t word = 0;
      policy_.load(reinterpret_cast<std::byte*>(&word), reinterpret_cast<const std::byte*>(bells + host), sizeof word);
      if (word == bells_[host]) continue;
      bells_[host] = word;
      has_rung = true;
      use(host);
    }
    return has_rung;
  }

  Line* at(uint64_t offset) { return pool_ + offset / kLineBytes; }
  Line* page(uint16_t host, uint32_t number) { return at(geometry_.host_page(host)) + number; }
  Line* line(uint16_t host, uint16_t record, uint32_t number) { return at(geometry_.record(host, record)) + number; }
  bool is_valid(uint16_t host, uint16_t record) const {
    return host < geometry_.hosts() && record < geometry_.records();
  }

 private:
  /// A record as this process has seen it.
  struct Seen {
    uint64_t instance = 0;
    uint64_t incarnation = 0;
    uint64_t version = 0;
    bool is_described = false;
    Description description;
    bool is_watched = false;
    uint64_t beat = 0;
    int64_t beat_at_ns = 0;  ///< of lived_ns_
    bool has_looked_for_offers = false;
    uint64_t offers = 0;
    std::optional<Offer> offer;
    uint64_t accepted_key = 0;  ///< of the last offer that this process has accepted
  };

  /// Copies of the lines of all channels, each of which is as it was before or after a change of its key, or has key 0.
  template <class T>
  std::array<T, kMaxChannels> copies_of(const Line* lines) {
    std::array<T, kMaxChannels> copies;
    policy_.refresh(lines, kMaxChannels);
    policy_.load(reinterpret_cast<std::byte*>(copies.data()), reinterpret_cast<const std::byte*>(lines), sizeof copies);
    return copies;
  }
  Line* own(uint32_t number) { return line(self_.host, self_.record, number); }
  Line* description_copy(const ProcessId& process, uint64_t version) {
    return line(process.host, process.record,
                kDescriptionLines + static_cast<uint32_t>(version % 2) * kDescriptionCopyLines);
  }
  void clear_channels(uint16_t record) {
    for (uint32_t i = 0; i < kMaxChannels; ++i) {
      policy_.clear(line(host_, record, kOfferLines + i));
      policy_.clear(line(host_, record, kAcceptLines + i));
    }
    policy_.full_fence();
  }
  void flush_inbox(uint64_t offset, uint32_t lines) { policy_.refresh(at(offset), lines_of(inbox_bytes(lines))); }

  /// Reads what has changed in a record.
  Seen& look(uint16_t host, uint16_t record) {
    Seen& seen = seen_[size_t{host} * geometry_.records() + record];
    const uint64_t instance = instance_of(host, record);
    if (instance != seen.instance) {
      seen = {};
      const auto found = instance == 0 ? std::nullopt : process_line(host, record);
      if (!found) return seen;
      seen.instance = found->instance;
      seen.incarnation = found->incarnation;
    }
    if (seen.instance != 0) read_description(host, record, &seen);
    return seen;
  }
  void read_description(uint16_t host, uint16_t record, Seen* seen) {
    constexpr int kTries = 4;
    for (int i = 0; i < kTries; ++i) {
      const uint64_t version = policy_.poll(line(host, record, kVersionLine));
      if (seen->is_described && version == seen->version) return;
      const Line* const copy = description_copy({host, record, 0}, version);
      DescriptionData data;
      policy_.refresh(copy, kDescriptionCopyLines);
      policy_.load(reinterpret_cast<std::byte*>(&data), reinterpret_cast<const std::byte*>(copy), sizeof data);
      std::atomic_thread_fence(std::memory_order_acquire);
      // The process can have begun with the version after the next one, which has the same place.
      if (policy_.poll(line(host, record, kVersionLine)) != version) continue;
      if (instance_of(host, record) != seen->instance) return;  // it is the description of the next process
      seen->version = version;
      seen->is_described = true;
      const auto take = [](uint16_t number, const auto& from, auto* to) {
        to->assign(from.begin(), from.begin() + std::min<size_t>(number, from.size()));
      };
      take(data.slots, data.slot, &seen->description.slots);
      take(data.gids, data.gid, &seen->description.gids);
      take(data.groups, data.group, &seen->description.groups);
      seen->description.receives_for_host = data.receives_for_host != 0;
      return;
    }
  }
  bool is_silent(uint16_t host, uint16_t record, Seen* seen) {
    const uint64_t beat = beat_of(host, record);
    if (!seen->is_watched || beat != seen->beat) {
      seen->is_watched = true;
      seen->beat = beat;
      seen->beat_at_ns = lived_ns_;
    }
    return lived_ns_ - seen->beat_at_ns >= kSilenceNs;
  }

  [[no_unique_address]] Policy policy_;
  Line* const pool_;
  const Geometry geometry_;
  const uint16_t host_;
  ProcessId self_;
  uint64_t incarnation_ = 0;
  uint64_t version_ = 0;
  uint64_t offer_changes_ = 0;
  uint32_t offers_used_ = 0;
  std::array<uint64_t, kMaxHosts> bells_{};
  int64_t last_tick_ns_ = 0;
  int64_t lived_ns_ = 0;
  std::vector<Seen> seen_;
};

}  // namespace nupa::pool
