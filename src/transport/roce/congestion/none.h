// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "transport/roce/congestion/congestion.h"

namespace nupa::roce {

/// No control: the receiver's room is the only limit. For networks that lose nothing, and for measuring the cost of the
/// other algorithms.
class NoCongestionControl final : public Congestion {
 public:
  std::string_view name() const override { return "none"; }
  void on_arrived(int64_t, uint32_t, int64_t, uint32_t) override {}
  void on_loss(int64_t, uint32_t) override {}
  void on_timeout(int64_t) override {}
  void on_notification(int64_t) override {}
  uint64_t window() const override { return UINT64_MAX; }
  uint64_t rate(int64_t) override { return 0; }
};

}  // namespace nupa::roce
