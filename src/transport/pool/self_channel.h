// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A channel of a process to itself, for queue pairs that are connected within one process. One ring in ordinary
/// memory: what is written is read back.

#include <functional>
#include <utility>
#include <vector>

#include "base/ordered_copy.h"
#include "transport/pool/medium/line_ring.h"
#include "transport/pool/medium/pool.h"

namespace nupa::pool {

class SelfChannel final : public Channel {
 public:
  static constexpr uint32_t kLines = 16384;  ///< 1 MiB

  /// `wake`: called after each record, if the process sleeps on a doorbell. It wakes the thread that sleeps.
  explicit SelfChannel(const ProcessId& self, std::function<void()> wake = {}, uint32_t lines = kLines)
      : self_(self), wake_(std::move(wake)), lines_(lines) {}

  const ProcessId& peer() const override { return self_; }
  bool is_open() const override { return true; }
  bool is_closed() const override { return false; }
  uint32_t lines() const override { return static_cast<uint32_t>(lines_.size()); }

  bool fits(uint16_t payload_lines) override { return writer_.fits(payload_lines); }
  void store(uint64_t offset, const std::byte* from, uint64_t bytes) override { writer_.store(offset, from, bytes); }
  void publish(const Header& header) override { writer_.publish(header); }

  void place(std::byte* to, const std::byte* from, uint64_t bytes) override { base::copy_in_order(to, from, bytes); }

  Look look(Header* header) override { return static_cast<Look>(reader_.look(header)); }
  void load(uint64_t offset, std::byte* to, uint64_t bytes) override { reader_.load(offset, to, bytes); }
  std::array<std::span<const std::byte>, 2> payload(uint64_t bytes) const override { return reader_.payload(bytes); }
  void pop() override { reader_.pop(); }
  void report() override { reader_.report(); }
  void ring_bell() override {}
  bool has_doorbells() const override { return static_cast<bool>(wake_); }
  void wake() override { wake_(); }

 private:
  static_assert(static_cast<int>(Look::kGarbage) == static_cast<int>(RingReader<Coherent>::Look::kGarbage));

  const ProcessId self_;
  const std::function<void()> wake_;
  std::vector<Line> lines_;
  Line credit_;
  RingWriter<Coherent> writer_{{}, lines_.data(), static_cast<uint32_t>(lines_.size()), &credit_};
  RingReader<Coherent> reader_{{}, lines_.data(), static_cast<uint32_t>(lines_.size()), &credit_};
};

}  // namespace nupa::pool
