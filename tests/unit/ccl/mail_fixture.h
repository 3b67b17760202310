// SPDX-License-Identifier: Apache-2.0
#pragma once
/// What tests of communicators share whose other ranks the test plays: the endpoint of this process, and what is told
/// to a rank that it plays.
#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "ccl/connect/endpoint.h"

namespace nupa::ccl::mail_test {

constexpr int64_t kLimitNs = 10'000'000'000;
constexpr int64_t kNsPerMs = 1'000'000;
constexpr CommunicatorId kId{0x1111, 0x2222};

template <class Condition>
bool comes(const Condition& condition) {
  const int64_t end = base::now_ns() + kLimitNs;
  while (!condition()) {
    if (base::now_ns() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

inline std::shared_ptr<Endpoint> endpoint_here() {
  auto endpoint = Endpoint::acquire();
  EXPECT_TRUE(endpoint) << endpoint.error().what();
  return endpoint ? std::move(*endpoint) : nullptr;
}

/// Keeps what comes.
class Inbox final : public MailSink {
 public:
  void on_mail(const Mail& mail) override {
    std::lock_guard lock(mutex_);
    mails_.push_back(mail);
  }
  void on_completion(const WorkCompletion&) override {}
  std::vector<Mail> mails() const {
    std::lock_guard lock(mutex_);
    return mails_;
  }
  std::vector<Mail> of(MailKind kind) const {
    std::vector<Mail> found = mails();
    std::erase_if(found, [&](const Mail& mail) { return mail.kind != kind; });
    return found;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Mail> mails_;
};

}  // namespace nupa::ccl::mail_test
