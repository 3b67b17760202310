// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A responder whose answers and completions are recorded.
#include <gtest/gtest.h>

#include "engine_fixture.h"
#include "transport/roce/port/packet_pool.h"
#include "transport/roce/protocol/responder.h"

namespace nupa::roce::test {

constexpr uint8_t kMaxRdAtomic = 4;

class RoceResponder : public ::testing::Test {
 protected:
  RoceResponder() { begin(options); }

  void begin(const ResponderOptions& wanted) {
    options = wanted;
    host = std::make_unique<RecordingHost>();
    responder = std::make_unique<Responder>(*host, options, pool);
    responder->set_max_rd_atomic(kMaxRdAtomic);
    output.take();
  }
  static ResponderOptions standard_options() {
    ResponderOptions made;
    made.peer_qpn = kPeerQpn;
    made.first_psn = kFirstPsn;
    made.mtu = kMtu;
    return made;
  }

  /// A request as a standard peer sends it, with `bytes` of payload.
  Packet request(Operation operation, uint32_t psn, uint32_t bytes = 0) {
    payload = pattern_bytes(bytes);
    Packet packet;
    packet.opcode = opcode_of(options.service, operation);
    packet.psn = psn & kPsnMask;
    packet.ack_request = true;
    packet.rkey = kKey;
    packet.address = kBase;
    packet.length = bytes;
    packet.flush = flush_flag::kGlobal;
    packet.payload = payload.data();
    packet.payload_length = bytes;
    return packet;
  }
  Packet read(uint32_t psn, uint32_t length, uint64_t address = kBase) {
    Packet packet = request(Operation::kReadRequest, psn);
    packet.length = length;
    packet.address = address;
    return packet;
  }
  Packet atomic(Operation operation, uint32_t psn, uint64_t swap_or_add, uint64_t compare = 0) {
    Packet packet = request(operation, psn);
    packet.swap_or_add = swap_or_add;
    packet.compare = compare;
    return packet;
  }
  /// The same from a NUPA peer.
  static Packet nupa(Packet packet) {
    packet.mark = kNupaMark;
    return packet;
  }

  void receive(const Packet& packet, bool congested = false) { responder->receive(packet, congested, now); }
  Texts answers() {
    while (responder->transmit(now, output, 1000)) {
    }
    return output.take();
  }
  Texts answers_to(const Packet& packet) {
    receive(packet);
    return answers();
  }
  uint64_t word() const {
    uint64_t value;
    std::memcpy(&value, host->memory.data(), sizeof value);
    return value;
  }
  void set_word(uint64_t value) { std::memcpy(host->memory.data(), &value, sizeof value); }
  bool memory_is_untouched() const {
    return std::all_of(host->memory.begin(), host->memory.end(), [](std::byte each) { return each == std::byte{0}; });
  }
  /// A fatal answer: this NAK, this event, and the responder takes nothing more.
  void expect_refused(const Texts& answered, uint32_t psn, uint32_t msn, NakCode code, std::optional<EventType> event,
                      const std::string& why) {
    EXPECT_EQ(answered, (Texts{"NAK " + std::to_string(psn) + " msn " + std::to_string(msn) + " code " +
                               std::to_string(static_cast<int>(code))}))
        << why;
    ASSERT_EQ(host->refusals.size(), 1u) << why;
    EXPECT_EQ(host->refusals[0], event) << why;
    EXPECT_FALSE(host->holds) << why;
  }
  void expect_invalid(const Texts& answered, uint32_t psn, uint32_t msn, const std::string& why) {
    expect_refused(answered, psn, msn, NakCode::kInvalidRequest, EventType::kQpReqErr, why);
  }

  ResponderOptions options = standard_options();
  PacketPool pool{8};
  std::unique_ptr<RecordingHost> host;
  std::unique_ptr<Responder> responder;
  RecordingOutput output;
  std::vector<std::byte> payload;
  int64_t now = kStart;
};

}  // namespace nupa::roce::test
