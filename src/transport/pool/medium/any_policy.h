// SPDX-License-Identifier: Apache-2.0
#pragma once
/// One of several policies, which is known when the medium is open. Code that is not on the way of a record is compiled
/// once, for AnyPolicy. The rings of a channel have the type of their policy.

#include <type_traits>
#include <utility>
#include <variant>

#include "transport/pool/medium/cache_policy.h"

namespace nupa::pool {

/// A CachePolicy. Each function is a call and a switch.
template <CachePolicy... Policies>
class AnyPolicy {
 public:
  template <class Policy>
  requires(std::is_same_v<Policy, Policies> || ...) AnyPolicy(Policy policy) : policy_(policy) {}

  /// Calls `use(policy)` with the policy's own type.
  template <class Use>
  decltype(auto) visit(Use&& use) {
    return std::visit(std::forward<Use>(use), policy_);
  }

  [[gnu::noinline]] uint64_t poll(const Line* line) {
    return visit([=](auto& policy) { return policy.poll(line); });
  }
  [[gnu::noinline]] Line read(const Line* line) {
    return visit([=](auto& policy) { return policy.read(line); });
  }
  [[gnu::noinline]] void publish(Line* line, const Line& content) {
    visit([=, &content](auto& policy) { policy.publish(line, content); });
  }
  [[gnu::noinline]] void store(Line* line, const std::byte* from, size_t bytes) {
    visit([=](auto& policy) { policy.store(line, from, bytes); });
  }
  [[gnu::noinline]] void clear(Line* line) {
    visit([=](auto& policy) { policy.clear(line); });
  }
  [[gnu::noinline]] void fence() {
    visit([](auto& policy) { policy.fence(); });
  }
  [[gnu::noinline]] void refresh(const Line* lines, size_t number) {
    visit([=](auto& policy) { policy.refresh(lines, number); });
  }
  [[gnu::noinline]] void load(std::byte* to, const std::byte* from, size_t bytes) {
    visit([=](auto& policy) { policy.load(to, from, bytes); });
  }
  [[gnu::noinline]] void write_back(const Line* lines, size_t number) {
    visit([=](auto& policy) { policy.write_back(lines, number); });
  }
  [[gnu::noinline]] void full_fence() {
    visit([](auto& policy) { policy.full_fence(); });
  }

 private:
  std::variant<Policies...> policy_;
};

/// Calls `use(policy)` with the type that a ring is made for.
template <CachePolicy Policy, class Use>
decltype(auto) with_ring_policy(Policy policy, Use&& use) {
  if constexpr (requires { policy.visit(use); })
    return policy.visit(std::forward<Use>(use));
  else
    return use(policy);
}

}  // namespace nupa::pool
