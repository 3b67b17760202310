// SPDX-License-Identifier: Apache-2.0
#pragma once
/// Shared by tests of communicators that act for the other ranks: the endpoint of this process, and an inbox for the
/// mail to a rank.
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
bool eventually(const Condition& condition) {
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

/// Keeps all mail that arrives.
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
