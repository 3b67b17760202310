// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/seam/relay.h"
#include "core/seam/responder.h"

namespace nupa::test {

/// A relay whose target is the test.
class FakeRelay final : public core::Relay {
 public:
  struct Answer {
    Fetched::State state = Fetched::State::kLater;
    std::vector<std::byte> bytes;
    WcStatus status = WcStatus::kSuccess;
    bool is_released = false;
  };

  core::Verdict send(const core::SendPart& part, const core::Inbound& message) override {
    if (!has_room) return core::Verdict::not_served();
    bytes += part.length;
    if (!part.last) return core::Verdict::accepted();
    requests.push_back("SEND " + std::to_string(bytes) + (message.wc_flags != 0 ? " flags" : ""));
    bytes = 0;
    return core::Verdict::taken();
  }
  core::Verdict write(const core::WritePart& part, const core::Inbound&) override {
    if (!has_room) return core::Verdict::not_served();
    bytes += part.length;
    if (!part.last) return core::Verdict::accepted();
    requests.push_back("WRITE " + std::to_string(bytes));
    bytes = 0;
    return core::Verdict::taken();
  }
  core::Verdict write_atomically(uint32_t, uint64_t, uint64_t value) override {
    requests.push_back("ATOMIC_WRITE " + std::to_string(value));
    return core::Verdict::taken();
  }
  core::Verdict read(uint32_t, uint64_t, uint64_t length, uint32_t* ticket) override {
    if (!has_room) return core::Verdict::not_served();
    requests.push_back("READ " + std::to_string(length));
    *ticket = next_ticket++;
    answers[*ticket] = {};
    return core::Verdict::taken();
  }
  core::Verdict atomic(core::AtomicOp op, uint32_t, uint64_t, uint64_t operand, uint64_t swap,
                       uint32_t* ticket) override {
    requests.push_back((op == core::AtomicOp::kFetchAdd ? "FETCH_ADD " : "COMPARE_SWAP ") + std::to_string(operand) +
                       " " + std::to_string(swap));
    *ticket = next_ticket++;
    answers[*ticket] = {};
    return core::Verdict::taken();
  }
  core::Verdict flush(const core::FlushPart& part, uint32_t* ticket) override {
    if (!has_room) return core::Verdict::not_served();
    requests.push_back("FLUSH " + std::to_string(part.flags) + " of " + std::to_string(part.length));
    *ticket = next_ticket++;
    answers[*ticket] = {};
    return core::Verdict::taken();
  }
  Endings endings() const override { return ends; }
  Fetched fetch(uint32_t ticket, uint64_t offset, uint32_t length) override {
    constexpr uint32_t kPacket = 4096;
    EXPECT_LE(length, kPacket);
    const Answer& answer = answers.at(ticket);
    if (answer.state != Fetched::State::kReady) return {answer.state, nullptr, answer.status};
    if (offset + length > answer.bytes.size()) return {};
    return {answer.state, answer.bytes.data() + offset, WcStatus::kSuccess};
  }
  void release(uint32_t ticket) override { answers.at(ticket).is_released = true; }

  void make_ready(uint32_t ticket, std::vector<std::byte> with) {
    answers.at(ticket).state = Fetched::State::kReady;
    answers.at(ticket).bytes = std::move(with);
  }
  void fail(uint32_t ticket, WcStatus status) {
    answers.at(ticket).state = Fetched::State::kFailed;
    answers.at(ticket).status = status;
  }

  Endings ends;
  bool has_room = true;
  std::vector<std::string> requests;
  std::map<uint32_t, Answer> answers;
  uint32_t next_ticket = 7;

 private:
  uint64_t bytes = 0;
};

}  // namespace nupa::test
