// SPDX-License-Identifier: Apache-2.0
#include "transport/roce/congestion/dcqcn.h"

#include <algorithm>
#include <cmath>

namespace nupa::roce {
namespace {

// The values are those of the paper's section 5.2, unless a comment names another source.
constexpr double kGain = 1.0 / 256;        ///< g, weight in the estimate of marked packets
constexpr int64_t kAlphaTimerNs = 55'000;  ///< K: alpha decays after this time without a notification; section 3.1
constexpr int64_t kNotificationPauseNs = 50'000;  ///< N, least time between two notifications; section 3.1
constexpr int64_t kIncreaseTimerNs = 55'000;      ///< T
constexpr uint64_t kIncreaseBytes = 10'000'000;   ///< B
constexpr uint32_t kFastSteps = 5;                ///< F: the distance to the target is halved as often; section 3.1
constexpr double kAdditiveStep = 40e6 / 8;        ///< R_AI, bytes a second
/// R_HAI, bytes a second. The paper gives no value; QCN, its origin, has ten times R_AI (IEEE 802.1Qau).
constexpr double kHyperStep = 10 * kAdditiveStep;
/// The least rate of a flow is one step, so that some packets remain to be marked.
constexpr double kLeastRate = kAdditiveStep;
/// Halving the distance to the target never ends; from this share of the line rate on it counts as reached.
constexpr double kNearly = 0.999;

}  // namespace

void Dcqcn::advance(int64_t now) {
  if (!limited_) return;
  if (const int64_t periods = (now - alpha_from_) / kAlphaTimerNs; periods > 0) {
    alpha_ *= std::pow(1 - kGain, static_cast<double>(periods));
    alpha_from_ += periods * kAlphaTimerNs;
  }
  while (limited_ && now - timer_from_ >= kIncreaseTimerNs) {
    timer_from_ += kIncreaseTimerNs;
    ++timer_steps_;
    increase();
  }
}

void Dcqcn::increase() {
  if (std::min(timer_steps_, byte_steps_) > kFastSteps)
    target_ += kHyperStep;
  else if (std::max(timer_steps_, byte_steps_) > kFastSteps)
    target_ += kAdditiveStep;
  target_ = std::min(target_, line_rate_);
  current_ = (current_ + target_) / 2;
  if (current_ < kNearly * line_rate_) return;
  current_ = target_ = line_rate_;
  limited_ = false;
}

void Dcqcn::cut(int64_t now) {
  advance(now);
  cut_ns_ = now;
  target_ = current_;
  current_ = std::max(current_ * (1 - alpha_ / 2), kLeastRate);
  alpha_ = (1 - kGain) * alpha_ + kGain;
  alpha_from_ = timer_from_ = now;
  bytes_ = 0;
  timer_steps_ = byte_steps_ = 0;
  limited_ = true;
}

void Dcqcn::on_notification(int64_t now) {
  before_.reset();
  cut(now);
}

void Dcqcn::remember() { before_ = {current_, target_, alpha_, limited_}; }

void Dcqcn::undo() {
  if (!before_ || before_->current < current_) return;
  current_ = before_->current;
  target_ = before_->target;
  alpha_ = before_->alpha;
  limited_ = before_->limited;
}

void Dcqcn::on_loss(int64_t now, uint32_t) {
  if (now - cut_ns_ >= kNotificationPauseNs) cut(now);
}

void Dcqcn::on_timeout(int64_t now) {
  before_.reset();
  on_loss(now, 1);
}

void Dcqcn::on_arrived(int64_t now, uint32_t bytes, int64_t, uint32_t) {
  advance(now);
  if (!limited_) return;
  bytes_ += bytes;
  while (limited_ && bytes_ >= kIncreaseBytes) {
    bytes_ -= kIncreaseBytes;
    ++byte_steps_;
    increase();
  }
}

uint64_t Dcqcn::rate(int64_t now) {
  advance(now);
  return static_cast<uint64_t>(current_);
}

}  // namespace nupa::roce
