// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A pool in the memory of a test: hosts with one process each, and rings of ordinary lines.
#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "transport/pool/medium/pool.h"

namespace nupa::pool::test {

/// What all hosts of a pool see.
struct Medium {
  struct Process {
    ProcessId id;
    Description description;
    Life life = Life::kAlive;
  };
  struct Ring {
    explicit Ring(uint32_t count) : lines(count) {}
    std::vector<Line> lines;
    Line credit;
  };

  explicit Medium(uint32_t lines) : ring_lines(lines) {}

  const uint32_t ring_lines;
  std::vector<Process> processes;
  std::map<std::pair<uint16_t, uint16_t>, std::shared_ptr<Ring>> rings;  ///< by writing and reading host
  std::map<std::pair<uint16_t, uint16_t>, uint64_t> offers;              ///< numbers of offers from host to host
  std::map<std::pair<uint16_t, uint16_t>, uint64_t> accepted;  ///< the latest that a host took, by who offered
  uint64_t last_offer = 0;
  std::function<void()> after_look;                 ///< called after each look whether a channel is open
  std::map<uint16_t, std::span<std::byte>> blocks;  ///< the memory of a host's territory
  bool has_doorbells = false;
  std::map<uint16_t, base::UniqueFd> doorbells;  ///< by host
  std::map<uint16_t, int> sleepers;              ///< by host

  void wake(uint16_t host) {
    if (has_doorbells && sleepers[host] > 0) eventfd_write(doorbells[host].get(), 1);
  }
  Process* find(const ProcessId& id) {
    for (Process& process : processes)
      if (process.id == id) return &process;
    return nullptr;
  }
  /// 0: there is none.
  uint64_t offer(uint16_t from, uint16_t to) const {
    const auto found = offers.find({from, to});
    return found == offers.end() ? 0 : found->second;
  }
  bool has_offer(uint16_t from, uint16_t to) const { return offer(from, to) != 0; }
  std::shared_ptr<Ring> ring(uint16_t from, uint16_t to) {
    auto& ring = rings[{from, to}];
    if (ring == nullptr) ring = std::make_shared<Ring>(ring_lines);
    return ring;
  }
};

inline Gid gid_of_host(uint16_t host) {
  Gid gid;
  gid.raw[0] = 0xfd;
  gid.raw[15] = static_cast<uint8_t>(host + 1);
  return gid;
}

class FakeChannel final : public Channel {
 public:
  FakeChannel(Medium& medium, uint16_t host, const ProcessId& peer)
      : medium_(medium),
        host_(host),
        peer_(peer),
        out_(medium.ring(host, peer.host)),
        in_(medium.ring(peer.host, host)) {}

  const ProcessId& peer() const override { return peer_; }
  bool is_open() const override {
    if (const uint64_t offer = medium_.offer(peer_.host, host_);
        offer_ == 0 && offer > medium_.accepted[{peer_.host, host_}])
      offer_ = medium_.accepted[{peer_.host, host_}] = offer;
    const bool is_open = offer_ != 0;
    if (medium_.after_look) medium_.after_look();
    return is_open;
  }
  bool is_closed() const override { return offer_ != 0 && medium_.offer(peer_.host, host_) != offer_; }
  uint32_t lines() const override { return medium_.ring_lines; }
  bool fits(uint16_t payload_lines) override { return writer_.fits(payload_lines); }
  void store(uint64_t offset, const std::byte* from, uint64_t bytes) override { writer_.store(offset, from, bytes); }
  void publish(const Header& header) override {
    writer_.publish(header);
    ++published;
  }
  void place(std::byte* to, const std::byte* from, uint64_t bytes) override {
    std::memcpy(to, from, bytes);
    placed += bytes;
  }
  Look look(Header* header) override { return static_cast<Look>(reader_.look(header)); }
  void load(uint64_t offset, std::byte* to, uint64_t bytes) override { reader_.load(offset, to, bytes); }
  std::array<std::span<const std::byte>, 2> payload(uint64_t bytes) const override { return reader_.payload(bytes); }
  void pop() override { reader_.pop(); }
  void report() override { reader_.report(); }
  void ring_bell() override { wake(); }
  bool has_doorbells() const override { return medium_.has_doorbells; }
  void wake() override { medium_.wake(peer_.host); }

  uint64_t published = 0;  ///< records
  uint64_t placed = 0;     ///< bytes

 private:
  mutable uint64_t offer_ = 0;  ///< of the peer, which this channel has accepted
  Medium& medium_;
  const uint16_t host_;
  const ProcessId peer_;
  const std::shared_ptr<Medium::Ring> out_;
  const std::shared_ptr<Medium::Ring> in_;
  RingWriter<Coherent> writer_{{}, out_->lines.data(), medium_.ring_lines, &out_->credit};
  RingReader<Coherent> reader_{{}, in_->lines.data(), medium_.ring_lines, &in_->credit};
};

/// One thread at a time.
class FakePool final : public Pool {
 public:
  FakePool(Medium& medium, uint16_t host) : medium_(medium), host_(host) {}

  uint16_t host() const override { return host_; }
  uint16_t hosts() const override { return 8; }
  Gid gid_of(uint16_t host) const override { return gid_of_host(host); }
  bool is_coherent() const override { return coherent; }
  Result<ProcessId> join(const Description& description) override {
    self_ = {host_, 0, next_instance_++ * 8 + host_};
    medium_.processes.push_back({self_, description, Life::kAlive});
    if (medium_.has_doorbells) medium_.doorbells[host_].reset(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    return self_;
  }
  Result<void> update(const Description& description) override {
    medium_.find(self_)->description = description;
    return {};
  }
  void leave() override { medium_.find(self_)->life = Life::kEnded; }
  void beat(int64_t) override { ++beats; }
  std::optional<ProcessId> find(const Gid& gid, uint32_t slot) override {
    for (const Medium::Process& process : medium_.processes)
      if (has(process.description.gids, gid) && has(process.description.slots, slot) && process.life != Life::kEnded)
        return process.id;
    return std::nullopt;
  }
  std::vector<ProcessId> find_all(const Gid& gid) override {
    return all([&](const Medium::Process& process) { return has(process.description.gids, gid); });
  }
  std::optional<ProcessId> find_record(uint16_t host, uint16_t record) override {
    for (const Medium::Process& process : medium_.processes)
      if (process.id.host == host && process.id.record == record && process.life != Life::kEnded) return process.id;
    return std::nullopt;
  }
  std::optional<Description> describe(const ProcessId& process) override {
    const Medium::Process* const found = medium_.find(process);
    if (found == nullptr) return std::nullopt;
    return found->description;
  }
  std::vector<ProcessId> members(const Gid& group) override {
    return all(
        [&](const Medium::Process& process) { return process.id != self_ && has(process.description.groups, group); });
  }
  Life life(const ProcessId& process) override {
    if (before_life) std::exchange(before_life, nullptr)();
    const Medium::Process* const found = medium_.find(process);
    return found == nullptr ? Life::kEnded : found->life;
  }
  Result<std::unique_ptr<Channel>> open_channel(const ProcessId& peer) override {
    if (refuses_channels) return fail(ENOSPC, "no channel");
    auto channel = std::make_unique<FakeChannel>(medium_, host_, peer);
    channels[peer.host] = channel.get();
    medium_.offers[{host_, peer.host}] = ++medium_.last_offer;
    channel->ring_bell();
    return channel;
  }
  bool poll_bells(News* news) override {
    for (const Medium::Process& process : medium_.processes)
      if (process.id != self_ && !medium_.has_offer(host_, process.id.host) &&
          medium_.offer(process.id.host, host_) > medium_.accepted[{process.id.host, host_}])
        news->offered.push_back(process.id);
    return !news->offered.empty();
  }
  void close_channel(std::unique_ptr<Channel> channel) override {
    ++closed;
    medium_.offers.erase({host_, channel->peer().host});
  }
  int doorbell() const override { return medium_.has_doorbells ? medium_.doorbells[host_].get() : -1; }
  void announce_sleep(bool sleeps) override { medium_.sleepers[host_] += sleeps ? 1 : -1; }
  void take_rings() override {
    eventfd_t rings;
    eventfd_read(medium_.doorbells[host_].get(), &rings);
  }
  bool is_rung_by_all() override { return medium_.has_doorbells && !has_silent_neighbour; }
  Result<Block> allocate(uint64_t) override { return fail(ENOSPC, "no memory"); }
  bool free(const Block& block) override {
    if (has_borrowed_blocks) return false;
    freed.push_back(block.offset);
    return true;
  }
  std::shared_ptr<std::byte> borrow(uint64_t, uint64_t, uint64_t) override { return nullptr; }
  std::optional<Place> place_of(const std::byte* at, uint64_t bytes) const override {
    const auto found = medium_.blocks.find(host_);
    if (found == medium_.blocks.end()) return std::nullopt;
    const std::span<std::byte> mine = found->second;
    if (at < mine.data() || at + bytes > mine.data() + mine.size()) return std::nullopt;
    return Place{host_, static_cast<uint64_t>(at - mine.data()), bytes};
  }
  std::byte* reach(const Place& place) override {
    const auto found = medium_.blocks.find(place.host);
    if (!coherent || found == medium_.blocks.end()) return nullptr;
    const std::span<std::byte> theirs = found->second;
    const bool is_inside = place.offset <= theirs.size() && place.bytes <= theirs.size() - place.offset;
    return is_inside ? theirs.data() + place.offset : nullptr;
  }
  void write_back(const std::byte*, uint64_t) override {}
  bool load(const Place&, std::byte*) override { return false; }

  bool coherent = true;  ///< before the engine is opened
  std::vector<uint64_t> freed;
  bool has_borrowed_blocks = false;
  bool refuses_channels = false;
  bool has_silent_neighbour = false;  ///< a process of the pool has no doorbell
  std::function<void()> before_life;  ///< runs once, when the engine asks for a life
  int beats = 0;
  int closed = 0;
  std::map<uint16_t, FakeChannel*> channels;  ///< by the peer's host

 private:
  template <class List, class Value>
  static bool has(const List& list, const Value& value) {
    return std::find(list.begin(), list.end(), value) != list.end();
  }
  template <class Fits>
  std::vector<ProcessId> all(Fits&& fits) {
    std::vector<ProcessId> found;
    for (const Medium::Process& process : medium_.processes)
      if (process.life != Life::kEnded && fits(process)) found.push_back(process.id);
    return found;
  }

  Medium& medium_;
  const uint16_t host_;
  ProcessId self_;
  static inline uint64_t next_instance_ = 1;
};

}  // namespace nupa::pool::test
