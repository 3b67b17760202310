// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <optional>

#include "transport/roce/congestion/congestion.h"

namespace nupa::roce {

/// DCQCN's reaction point (Zhu et al., "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM 2015, section
/// 3.1). A notification cuts the rate by the recent share of marked packets; a timer and a byte counter raise it again.
/// It needs switches that mark. The paper's network loses nothing. If packets are lost nevertheless, a loss counts as a
/// notification, at most as often as notifications come.
///
/// The paper's timers are evaluated in the next call, with the same result as if they had run.
class Dcqcn final : public Congestion {
 public:
  /// The rate at which a flow starts and which it never exceeds, in bytes a second: 100 Gbit/s, since the speed of the
  /// host's port is unknown. A slower port costs a few more notifications at the start.
  static constexpr double kLineRate = 12.5e9;

  explicit Dcqcn(double line_rate = kLineRate) : line_rate_(line_rate), current_(line_rate), target_(line_rate) {}

  std::string_view name() const override { return "dcqcn"; }
  void on_arrived(int64_t now, uint32_t bytes, int64_t rtt_ns, uint32_t marked) override;
  void on_loss(int64_t now, uint32_t packets) override;
  void remember() override;
  void undo() override;
  void on_timeout(int64_t now) override;
  void on_notification(int64_t now) override;
  uint64_t window() const override { return UINT64_MAX; }
  uint64_t rate(int64_t now) override;

 private:
  struct Remembered {
    double current;
    double target;
    double alpha;
    bool limited;
  };

  void advance(int64_t now);
  void cut(int64_t now);
  void increase();

  const double line_rate_;
  int64_t cut_ns_ = 0;
  double current_;                    ///< R_C, bytes a second
  double target_;                     ///< R_T
  double alpha_ = 1;                  ///< the estimated share of marked packets
  bool limited_ = false;              ///< false: at the line rate, the timers are stopped
  int64_t alpha_from_ = 0;            ///< when alpha changed last
  int64_t timer_from_ = 0;            ///< when the timer last expired
  uint64_t bytes_ = 0;                ///< bytes since the byte counter last expired
  uint32_t timer_steps_ = 0;          ///< T, expirations since the last cut
  uint32_t byte_steps_ = 0;           ///< BC
  std::optional<Remembered> before_;  ///< the state before losses that may be late packets
};

}  // namespace nupa::roce
