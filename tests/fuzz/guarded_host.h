// SPDX-License-Identifier: Apache-2.0
#pragma once
/// The engine's surroundings with every rule of host.h checked: memory in blocks of their own, so that a sanitizer sees
/// each step beside them; receives taken once and completed once; requests completed in order and once.
#include <deque>
#include <optional>

#include "base/crc32.h"
#include "input.h"
#include "transport/roce/protocol/host.h"

namespace nupa::fuzz {

class GuardedHost final : public roce::Host {
 public:
  Identity& identity() { return identity_; }
  /// Keys, and where their memory starts; each has kBytes of it.
  enum Key : uint32_t { kSource = 1, kResults, kReceives, kRemote, kConstants, kNull, kNoKey };
  static constexpr uint64_t kBytes = 24 << 10;
  static constexpr uint64_t base_of(uint32_t key) { return uint64_t{key} << 20; }
  static constexpr uint32_t kMaxReceives = 16;

  GuardedHost() {
    for (auto& block : blocks_) block = pattern();
  }
  ~GuardedHost() override {
    for (const uint32_t key : {kSource, kConstants})
      require(blocks_[key - 1] == pattern(), "memory without the right to be written is not written");
  }

  // What the core does.
  uint64_t requests = 0;   ///< posted
  uint64_t completed = 0;  ///< of them
  bool failed = false;     ///< one ended with an error, or the responder refused one: the core stops the engine
  bool revoked = false;    ///< the remote keys are gone
  bool local_fails = false;
  uint64_t received = 0;
  uint64_t touched = 0;  ///< calls that change something
  uint32_t posted_receives() const { return static_cast<uint32_t>(receives_.size()); }
  bool holds_receive() const { return taken_.has_value(); }
  void post_receive(std::vector<Sge> list) {
    if (receives_.size() < kMaxReceives) receives_.push_back(std::move(list));
  }

  bool locate(const Sge& sge, uint32_t rights, std::byte** data) override {
    if (sge.length == 0 || sge.lkey == kNull) {
      *data = nullptr;
      return true;
    }
    if (sge.lkey < kSource || sge.lkey > kReceives) return false;
    if ((rights & access::kLocalWrite) != 0 && sge.lkey == kSource) return false;
    *data = find(sge.lkey, sge.addr, sge.length);
    return *data != nullptr;
  }
  WcStatus run_local(const SendWr&) override { return local_fails ? WcStatus::kMwBindErr : WcStatus::kSuccess; }
  void complete_send(const SendWr& wr, uint32_t position, WcStatus status, uint64_t length) override {
    ++touched;
    require(completed < requests, "nothing completes that was not posted");
    require(wr.wr_id == completed && position == static_cast<uint32_t>(completed), "in the order of posting, once");
    require(status != WcStatus::kSuccess || !ended_, "nothing succeeds after something failed");
    require(status == WcStatus::kWrFlushErr || !blamed_, "one request is to blame, the others are flushed");
    require(status != WcStatus::kSuccess || length <= (uint64_t{1} << 31), "a message has a length");
    ended_ = ended_ || status != WcStatus::kSuccess;
    blamed_ = blamed_ || (status != WcStatus::kSuccess && status != WcStatus::kWrFlushErr);
    failed = failed || blamed_;
    ++completed;
  }

  std::byte* reach(uint32_t, uint32_t rkey, uint64_t address, uint64_t length, uint32_t rights) override {
    require(length != 0 && rights != 0, "memory is asked for with a length and rights");
    if (revoked || (rkey != kRemote && rkey != kConstants)) return nullptr;
    if (rkey == kConstants && rights != access::kRemoteRead) return nullptr;
    return find(rkey, address, length);
  }
  core::Selection select(uint32_t srqn) override {
    constexpr uint32_t kComesLater = 4;
    if (srqn == kComesLater) return core::Selection::kLater;
    return srqn < kComesLater ? core::Selection::kYes : core::Selection::kNone;
  }
  bool take_receive() override {
    require(!taken_, "one receive is taken at a time");
    if (receives_.empty()) return false;
    ++touched;
    taken_ = std::move(receives_.front());
    receives_.pop_front();
    return true;
  }
  uint64_t receive_room() override {
    require(taken_.has_value(), "room is asked of a receive that is taken");
    uint64_t room = 0;
    for (const Sge& sge : *taken_) room += sge.length;
    return room;
  }
  bool place(uint64_t offset, const std::byte* data, uint32_t length, const std::byte** behind) override {
    require(offset + length <= receive_room(), "a message is placed where there is room");
    for (const Sge& sge : *taken_) {
      if (length == 0) break;
      if (offset >= sge.length) {
        offset -= sge.length;
        continue;
      }
      const auto bytes = static_cast<uint32_t>(std::min<uint64_t>(sge.length - offset, length));
      std::byte* to = nullptr;
      if (!locate(sge, access::kLocalWrite, &to)) return false;
      if (to != nullptr) std::memcpy(to + offset, data, bytes);
      if (behind != nullptr) *behind = to + offset + bytes;
      data += bytes;
      length -= bytes;
      offset = 0;
    }
    return true;
  }
  void complete_receive(const roce::Inbound& message, WcStatus status) override {
    ++touched;
    require(taken_.has_value(), "a receive is completed once");
    // An immediate's completion counts what was written elsewhere.
    require(status != WcStatus::kSuccess || message.opcode != WcOpcode::kRecv || message.byte_len <= receive_room(),
            "no more is received than there is room for");
    taken_.reset();
    ++received;
  }
  void return_receive() override {
    ++touched;
    require(taken_.has_value(), "what is returned was taken");
    receives_.push_front(std::move(*taken_));
    taken_.reset();
  }
  bool invalidate(uint32_t rkey) override {
    ++touched;
    return rkey % 2 == 0;
  }
  void refuse(std::optional<EventType>) override {
    ++touched;
    failed = true;
  }
  uint8_t rnr_timer() const override { return 1; }
  void established() override { require(established_++ == 0, "a connection is established once"); }

  /// What has been written so far, and in what order things happened.
  uint64_t fingerprint() const {
    uint64_t hash = touched * 1099511628211u + received;
    for (const uint32_t key : {kResults, kReceives, kRemote})
      hash = base::crc32(static_cast<uint32_t>(hash), blocks_[key - 1].data(), kBytes) + hash * 1099511628211u;
    return hash;
  }

 private:
  static const std::vector<std::byte>& pattern() {
    static const std::vector<std::byte> bytes = [] {
      std::vector<std::byte> made(kBytes);
      for (size_t i = 0; i < kBytes; ++i) made[i] = static_cast<std::byte>(i * 7 + i / 256);
      return made;
    }();
    return bytes;
  }
  std::byte* find(uint32_t key, uint64_t address, uint64_t length) {
    const uint64_t offset = address - base_of(key);
    if (offset > kBytes || length > kBytes - offset) return nullptr;
    return blocks_[key - 1].data() + offset;
  }

  std::vector<std::byte> blocks_[kConstants];
  std::deque<std::vector<Sge>> receives_;
  std::optional<std::vector<Sge>> taken_;
  bool ended_ = false;
  bool blamed_ = false;
  int established_ = 0;
};

}  // namespace nupa::fuzz
