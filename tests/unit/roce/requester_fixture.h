// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A requester whose packets and completions are recorded.
#include <gtest/gtest.h>

#include "core/seam/timers.h"
#include "engine_fixture.h"
#include "transport/roce/protocol/requester.h"

namespace nupa::roce::test {

using Done = std::vector<RecordingHost::Done>;

constexpr uint8_t kTimeoutCode = 8;
constexpr int64_t kTimeout = core::ack_timeout_ns(kTimeoutCode);

class RoceRequester : public ::testing::Test {
 protected:
  RoceRequester() { begin(options); }

  static RequesterOptions requester_options() {
    RequesterOptions made;
    made.dest_qpn = kPeerQpn;
    made.first_psn = kFirstPsn;
    made.mtu = kMtu;
    made.max_wr = 2048;
    made.max_sge = 4;
    made.max_inline = 64;
    made.congestion = "none";
    return made;
  }
  void begin(const RequesterOptions& wanted) {
    options = wanted;
    host = std::make_unique<RecordingHost>();
    for (size_t i = 0; i < host->memory.size(); ++i) host->memory[i] = pattern(i);
    requester = std::make_unique<Requester>(*host, options);
    set_limits({.timeout = kTimeoutCode, .retry_cnt = 7, .rnr_retry = 7});
    output.take();
    posted = 0;
    now = kStart;
  }
  void set_limits(const core::RetryLimits& wanted, uint8_t max_rd_atomic = 4) {
    requester->set_limits(limits = wanted, max_rd_atomic);
  }

  /// Requests have wr_id 0, 1, 2 ...
  SendWr post(Opcode opcode, uint32_t length, uint32_t flags = 0, uint64_t address = kBase) {
    const Sge sge{address, length, kKey};
    SendWr wr;
    wr.wr_id = posted++;
    wr.opcode = opcode;
    wr.flags = flags;
    wr.sg_list = &sge;
    wr.num_sge = length > 0 ? 1 : 0;
    wr.remote_addr = kBase;
    wr.rkey = 0x99;
    wr.imm_or_rkey = 0x1234;
    requester->post(wr, static_cast<uint32_t>(wr.wr_id));
    return wr;
  }
  /// The first `count` of `all` SENDs of one packet each.
  void send_first(uint32_t count, uint32_t all) {
    for (uint32_t i = 0; i < all; ++i) post(Opcode::kSend, 8);
    ASSERT_EQ(sends(2 * count - 1).size(), count) << "a request's end takes a step of the budget";
  }
  Texts sends(uint32_t budget = 10'000) {
    requester->transmit(now, output, budget);
    return output.take();
  }

  void receive(Packet packet) {
    packet.dest_qpn = 0x1105;
    requester->receive(packet, now);
  }
  static Packet answer(uint8_t syndrome_value, uint32_t psn) {
    Packet packet;
    packet.opcode = opcode_of(Service::kRc, Operation::kAcknowledge);
    packet.syndrome = syndrome_value;
    packet.psn = psn & kPsnMask;
    return packet;
  }
  void ack(uint32_t psn) { receive(answer(syndrome(AckKind::kAck, kAckUnlimited), psn)); }
  void rnr(uint32_t psn, uint8_t timer) { receive(answer(syndrome(AckKind::kRnrNak, timer), psn)); }
  void nak(uint32_t psn, uint8_t code) { receive(answer(syndrome(AckKind::kNak, code), psn)); }
  void nak(uint32_t psn, NakCode code) { nak(psn, static_cast<uint8_t>(code)); }
  void response(Operation operation, uint32_t psn, uint32_t bytes) {
    payload = pattern_bytes(bytes);
    Packet packet = answer(syndrome(AckKind::kAck, kAckUnlimited), psn);
    packet.opcode = opcode_of(Service::kRc, operation);
    packet.payload = payload.data();
    packet.payload_length = bytes;
    receive(packet);
  }
  void atomic_answer(uint32_t psn, uint64_t found) {
    Packet packet = answer(syndrome(AckKind::kAck, kAckUnlimited), psn);
    packet.opcode = opcode_of(Service::kRc, Operation::kAtomicAcknowledge);
    packet.found = found;
    receive(packet);
  }
  /// A selective acknowledgement: all up to `psn` is executed, and what `bits` say has arrived.
  Packet selective(uint32_t psn, const std::vector<uint32_t>& bits = {},
                   uint8_t syndrome_value = syndrome(AckKind::kAck, kAckUnlimited)) {
    Packet packet = answer(syndrome_value, psn);
    packet.opcode = kSelectiveAck;
    packet.mark = kNupaMark;
    bitmap.assign(kBitmapWords, 0);
    uint32_t words = 0;
    for (const uint32_t bit : bits) {  // counted from 1, as the responder's texts are
      bitmap[(bit - 1) / 32] |= uint32_t{1} << ((bit - 1) % 32);
      words = std::max(words, (bit - 1) / 32 + 1);
    }
    for (uint32_t& word : bitmap) word = bitmap_word(word);
    packet.payload = reinterpret_cast<const std::byte*>(bitmap.data());
    packet.payload_length = words * 4;
    return packet;
  }
  /// The time goes on to the next deadline. False: there is none.
  bool wait() {
    if (requester->deadline() == INT64_MAX) return false;
    now = std::max(now, requester->deadline());
    requester->on_timer(now);
    return true;
  }
  const RequesterCounters& counters() const { return requester->counters(); }
  Done done() const { return host->done; }

  RequesterOptions options = requester_options();
  core::RetryLimits limits;
  std::unique_ptr<RecordingHost> host;
  std::unique_ptr<Requester> requester;
  RecordingOutput output;
  std::vector<std::byte> payload;
  std::vector<uint32_t> bitmap;
  uint64_t posted = 0;
  int64_t now = kStart;
};

class RoceSelectiveRequester : public RoceRequester {
 protected:
  RoceSelectiveRequester() { receive(selective(kFirstPsn - 1)); }
  /// `count` SENDs of one packet each, all at once.
  void send_messages(uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) post(Opcode::kSend, 8);
    ASSERT_EQ(sends().size(), count);
  }
  const RoundTrip& round_trip() const { return requester->paths()[0].round_trip; }
};

}  // namespace nupa::roce::test
