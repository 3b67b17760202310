// SPDX-License-Identifier: Apache-2.0
#pragma once
/// One half of the RoCEv2 engine without a network: a test puts packets in, and reads what comes out as short texts.
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "core/seam/request.h"
#include "host/agent.h"
#include "transport/roce/protocol/host.h"
#include "transport/roce/protocol/sequence.h"

namespace nupa::roce::test {

constexpr uint32_t kMtu = 256;
constexpr uint32_t kFirstPsn = 100;
constexpr uint32_t kPeerQpn = 0x4321;
constexpr uint32_t kKey = 0x1234;
constexpr uint64_t kBase = 0x10000;
constexpr size_t kMemoryBytes = 512 << 10;
constexpr int64_t kStart = 1'000'000'000;  ///< the time at which a test begins

using Texts = std::vector<std::string>;

inline std::byte pattern(size_t i) { return static_cast<std::byte>(i * 7 + i / 256 + 1); }
inline std::vector<std::byte> pattern_bytes(size_t length) {
  std::vector<std::byte> bytes(length);
  for (size_t i = 0; i < length; ++i) bytes[i] = pattern(i);
  return bytes;
}

/// The core's side: one region with one key, receives of a given size, and a record of all calls.
class RecordingHost final : public Host {
 public:
  Identity& identity() { return identity_; }

  struct Done {
    uint64_t wr_id;
    WcStatus status;
    uint64_t length;
    bool operator==(const Done&) const = default;
  };
  struct Received {
    WcStatus status;
    Inbound message;
    std::string bytes;
  };

  std::byte* at(uint64_t address, uint64_t length) {
    if (address < kBase || address - kBase > memory.size() || length > memory.size() - (address - kBase))
      return nullptr;
    return memory.data() + (address - kBase);
  }

  // Requester.
  bool locate(const Sge& sge, uint32_t wanted, std::byte** data) override {
    *data = at(sge.addr, sge.length);
    return sge.lkey == kKey && (local_rights & wanted) == wanted && *data != nullptr;
  }
  WcStatus run_local(const SendWr& wr) override {
    locals.push_back(wr.wr_id);
    return local_status;
  }
  void complete_send(const SendWr& wr, uint32_t, WcStatus status, uint64_t length) override {
    done.push_back({wr.wr_id, status, length});
  }

  // Responder.
  std::byte* reach(uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t length, uint32_t wanted) override {
    reached_srqn = srqn;
    // To write, the bytes are brought to the owner by wrote().
    if (stopped && (wanted & access::kRemoteRead) != 0) return nullptr;
    std::byte* const found = rkey == key && (rights & wanted) == wanted ? at(address + shift, length) : nullptr;
    if (!copies || found == nullptr) return found;
    copy.assign(found, found + length);
    return copy.data();
  }
  bool may_flush(uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t length, uint32_t flags) override {
    reached_srqn = srqn;
    const uint32_t wanted = core::flush_rights(flags);
    const bool is_whole = (flags & flush_flag::kRegion) != 0;
    flushed.push_back(is_whole ? "region" : std::to_string(address - kBase) + "+" + std::to_string(length));
    return rkey == key && (rights & wanted) == wanted && (is_whole || at(address + shift, length) != nullptr);
  }
  std::optional<Region> region_of(uint32_t rkey, uint32_t wanted) override {
    if (rkey != key || (rights & wanted) != wanted || copies) return std::nullopt;
    return Region{kBase - shift, memory.size(), memory.data()};
  }
  bool wrote(uint32_t) override { return written && !stopped; }
  bool awaits_memory() const override { return stopped; }
  WcStatus run_atomic(Atomic operation, uint32_t srqn, uint32_t rkey, uint64_t address, uint64_t* operand,
                      uint64_t swap) override {
    if (stopped) return nupa::host::kNotServedYet;
    return Host::run_atomic(operation, srqn, rkey, address, operand, swap);
  }
  core::Selection select(uint32_t srqn) override {
    taken_srqn = srqn;
    if (queue_comes_later) return core::Selection::kLater;
    return no_queue ? core::Selection::kNone : core::Selection::kYes;
  }
  bool take_receive() override {
    if (receives.empty()) return false;
    room = receives.front();
    receives.pop_front();
    placed.assign(room, '.');
    holds = true;
    return true;
  }
  std::optional<uint64_t> waiting_receives() const override {
    if (shares_receives) return std::nullopt;
    return receives.size();
  }
  uint64_t receive_room() override { return room; }
  bool place(uint64_t offset, const std::byte* data, uint32_t length, const std::byte** behind) override {
    if (!places || stopped) return false;
    std::memcpy(placed.data() + offset, data, length);
    if (behind != nullptr) *behind = reinterpret_cast<const std::byte*>(placed.data()) + offset + length;
    return true;
  }
  void complete_receive(const Inbound& message, WcStatus status) override {
    holds = false;
    received.push_back({status, message, placed.substr(0, message.byte_len)});
  }
  void return_receive() override {
    holds = false;
    ++returned;
    receives.push_front(static_cast<uint32_t>(room));
  }
  bool invalidate(uint32_t rkey) override {
    invalidated.push_back(rkey);
    return invalidates;
  }
  void refuse(std::optional<EventType> event) override { refusals.push_back(event); }
  uint8_t rnr_timer() const override { return rnr_code; }
  void established() override { ++established_count; }
  core::Relay* relay() const override { return passes_to; }

  std::vector<std::byte> memory = std::vector<std::byte>(kMemoryBytes);
  uint32_t key = kKey;
  bool shares_receives = false;  ///< with other queue pairs
  uint64_t shift = 0;            ///< where the key's addresses lie beside the memory's
  bool copies = false;           ///< the memory is read as another process's: each time into the same place
  std::vector<std::byte> copy;   ///< that place
  uint32_t rights = access::kRemoteWrite | access::kRemoteRead | access::kRemoteAtomic | access::kFlushGlobal;
  uint32_t local_rights = access::kLocalWrite;
  std::deque<uint32_t> receives;  ///< bytes of each
  uint64_t room = 0;
  std::string placed;
  bool holds = false;
  bool places = true;
  bool written = true;
  core::Relay* passes_to = nullptr;
  bool stopped = false;  ///< the memory is that of a process that is stopped
  bool invalidates = true;
  bool no_queue = false;
  bool queue_comes_later = false;
  uint8_t rnr_code = 5;
  WcStatus local_status = WcStatus::kSuccess;
  uint32_t reached_srqn = 0;
  uint32_t taken_srqn = 0;
  int returned = 0;
  int established_count = 0;
  std::vector<Done> done;
  std::vector<Received> received;
  std::vector<uint64_t> locals;
  std::vector<uint32_t> invalidated;
  std::vector<std::string> flushed;  ///< ranges
  std::vector<std::optional<EventType>> refusals;
};

inline const char* name_of(Operation operation) {
  constexpr const char* kNames[] = {"SEND_FIRST",
                                    "SEND_MIDDLE",
                                    "SEND_LAST",
                                    "SEND_LAST_IMM",
                                    "SEND_ONLY",
                                    "SEND_ONLY_IMM",
                                    "WRITE_FIRST",
                                    "WRITE_MIDDLE",
                                    "WRITE_LAST",
                                    "WRITE_LAST_IMM",
                                    "WRITE_ONLY",
                                    "WRITE_ONLY_IMM",
                                    "READ",
                                    "RESPONSE_FIRST",
                                    "RESPONSE_MIDDLE",
                                    "RESPONSE_LAST",
                                    "RESPONSE_ONLY",
                                    "ACK",
                                    "ATOMIC_ACK",
                                    "COMPARE_SWAP",
                                    "FETCH_ADD",
                                    "?",
                                    "SEND_LAST_INV",
                                    "SEND_ONLY_INV",
                                    "?",
                                    "?",
                                    "?",
                                    "?",
                                    "FLUSH",
                                    "ATOMIC_WRITE"};
  const auto index = static_cast<size_t>(operation);
  return index < std::size(kNames) ? kNames[index] : "?";
}

inline std::string text_of_acknowledgement(const Packet& packet) {
  const uint8_t value = ack_value_of(packet.syndrome);
  const std::string tail = " " + std::to_string(packet.psn) + " msn " + std::to_string(packet.msn);
  switch (ack_kind_of(packet.syndrome)) {
    case AckKind::kAck:
      return "ACK" + tail + (value == kAckUnlimited ? "" : " credits " + std::to_string(value));
    case AckKind::kRnrNak:
      return "RNR" + tail + " timer " + std::to_string(value);
    case AckKind::kNak:
      return "NAK" + tail + " code " + std::to_string(value);
    default:
      return "reserved" + tail;
  }
}

inline std::string text_of(const Packet& packet, const std::vector<std::byte>& payload) {
  if (packet.opcode == kCnpOpcode) return packet.becn ? "CNP" : "CNP without BECN";
  if (packet.opcode == kPathEcho) return "ECHO " + std::to_string(packet.psn);
  if (packet.opcode == kPathProbe) return "PROBE " + std::to_string(packet.psn);
  if (packet.opcode == kSelectiveAck) {
    std::string text = "selective " + text_of_acknowledgement(packet) + " has";
    for (size_t word = 0; word < payload.size() / 4; ++word) {
      uint32_t bits;
      std::memcpy(&bits, &payload[4 * word], 4);
      bits = bitmap_word(bits);
      for (uint32_t bit = 0; bit < 32; ++bit)
        if ((bits >> bit & 1) != 0) text += " +" + std::to_string(1 + 32 * word + bit);
    }
    return text;
  }
  const Operation operation = operation_of(packet.opcode);
  if (operation == Operation::kAcknowledge) return text_of_acknowledgement(packet);
  std::string text = std::string(name_of(operation)) + " " + std::to_string(packet.psn);
  if (operation == Operation::kAtomicAcknowledge)
    return text + " found " + std::to_string(packet.found) + " msn " + std::to_string(packet.msn);
  if ((traits_of(packet.opcode) & trait::kResponse) != 0)
    return text + " " + std::to_string(payload.size()) + " bytes" +
           (operation == Operation::kReadResponseMiddle ? "" : " msn " + std::to_string(packet.msn));
  if (operation == Operation::kFlush)
    text += " " + std::to_string(packet.flush) + " of " + std::to_string(packet.length) + " bytes";
  else if (operation == Operation::kReadRequest)
    text += " " + std::to_string(packet.length) + " bytes";
  else if ((traits_of(packet.opcode) & trait::kPayload) != 0)
    text += " " + std::to_string(payload.size()) + " bytes";
  return packet.ack_request ? text + " asks" : text;
}

/// Where the engine's packets end: each with its path and payload.
class RecordingOutput final : public Output {
 public:
  struct Sent {
    uint8_t path;
    Packet packet;
    std::vector<std::byte> payload;
  };
  roce::Sent send(uint8_t path, const Packet& packet, const Fragment* payload, uint32_t fragments) override {
    if (answer != roce::Sent::kYes) return answer;
    std::vector<std::byte> bytes;
    for (uint32_t i = 0; i < fragments; ++i)
      if (payload[i].data == nullptr)
        bytes.resize(bytes.size() + payload[i].length);
      else
        bytes.insert(bytes.end(), payload[i].data, payload[i].data + payload[i].length);
    packets.push_back({path, packet, std::move(bytes)});
    return roce::Sent::kYes;
  }
  /// What was sent since the last call.
  Texts take() {
    Texts texts;
    for (const Sent& sent : packets) texts.push_back(text_of(sent.packet, sent.payload));
    last = packets.empty() ? last : packets.back();
    packets.clear();
    return texts;
  }
  roce::Sent answer = roce::Sent::kYes;
  std::vector<Sent> packets;
  Sent last{};
};

}  // namespace nupa::roce::test
