// SPDX-License-Identifier: Apache-2.0
#include "bindings/torch/group.h"

#include <unistd.h>

#include <cstdlib>
#include <optional>
#include <system_error>
#include <utility>

#include "base/settings.h"
#include "progress/waiter.h"

namespace nupa::torch_backend {
namespace {

constexpr int64_t kLookAtMessagesNs = 100'000;
constexpr base::Variable kLimit("NUPA_CCL_TIMEOUT");

/// Groups that are being left. This is never freed, because their threads may outlive static objects.
struct Retired {
  std::mutex mutex;
  progress::Condition changed;
  size_t left = 0;

  static Retired& all() {
    static auto* const retired = new Retired;
    return *retired;
  }
};

/// Sets the time limit of communicators that are created, which the library reads from the environment.
class LimitInEnvironment {
 public:
  explicit LimitInEnvironment(std::chrono::milliseconds limit) {
    if (const char* const text = base::setting(kLimit)) before_ = text;
    const int64_t seconds = std::max<int64_t>((limit.count() + 999) / 1000, 1);
    setenv(kLimit.name(), std::to_string(seconds).c_str(), 1);
  }
  ~LimitInEnvironment() {
    if (before_)
      setenv(kLimit.name(), before_->c_str(), 1);
    else
      unsetenv(kLimit.name());
  }
  LimitInEnvironment(const LimitInEnvironment&) = delete;
  LimitInEnvironment& operator=(const LimitInEnvironment&) = delete;

 private:
  std::optional<std::string> before_;
};

}  // namespace

void Watcher::stop() {
  {
    std::lock_guard lock(mutex_);
    ends_ = true;
  }
  added_.notify_all();
  if (thread_.has_started()) thread_.join();
}

void Watcher::add(std::shared_ptr<Watched> one) {
  {
    std::lock_guard lock(mutex_);
    if (!thread_.has_started()) start_thread(thread_, "nupa-torch-w", [this] { serve(); });
    all_.push_back(std::move(one));
  }
  added_.notify_one();
}

void Watcher::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    added_.wait(lock, [this] { return ends_ || !all_.empty(); });
    if (all_.empty()) return;
    // Others may add to the list while these are polled, and a completed message may call the program.
    std::list<std::shared_ptr<Watched>> looked_at;
    looked_at.swap(all_);
    lock.unlock();
    looked_at.remove_if([](const auto& one) { return one->look(); });
    if (!looked_at.empty()) progress::sleep_for(kLookAtMessagesNs);
    lock.lock();
    all_.splice(all_.begin(), looked_at);
  }
}

std::shared_ptr<Group> Group::join(const nupa_ccl_unique_id& id, uint32_t rank, uint32_t ranks,
                                   std::chrono::milliseconds limit, std::string* error) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  const LimitInEnvironment set(limit);
  std::shared_ptr<Group> group(new Group);
  group->process_ = getpid();
  if (nupa_ccl_comm_init_rank(&group->comm_, ranks, &id, rank) == 0) return group;
  *error = nupa_ccl_error_text();
  return nullptr;
}

void Group::message_begins() {
  std::lock_guard lock(mutex_);
  ++messages_;
}

void Group::message_ends() {
  std::lock_guard lock(mutex_);
  if (--messages_ == 0) messages_end_.notify_all();
}

void Group::abort() {
  std::lock_guard lock(mutex_);
  if (comm_ != nullptr) nupa_ccl_comm_abort(comm_);
}

void Group::leave() {
  queue_.drain();
  std::unique_lock lock(mutex_);
  messages_end_.wait(lock, [this] { return messages_ == 0; });
  nupa_ccl_comm* const comm = std::exchange(comm_, nullptr);
  lock.unlock();
  // Stop them here: the last reference to the group may be dropped by one of these threads.
  queue_.stop();
  watcher_.stop();
  nupa_ccl_comm_destroy(comm);
}

void Group::retire(std::shared_ptr<Group> group) {
  if (group->process_ != getpid()) {
    // A child of fork() has neither the threads nor the communicator; both belong to its parent.
    static auto* const forgotten = new std::list<std::shared_ptr<Group>>;
    forgotten->push_back(std::move(group));
    return;
  }
  Retired& retired = Retired::all();
  {
    std::lock_guard lock(retired.mutex);
    ++retired.left;
  }
  auto leave = [&retired, held = std::move(group)]() mutable {
    held->leave();
    held.reset();
    std::lock_guard lock(retired.mutex);
    --retired.left;
    retired.changed.notify_all();
  };
  const auto started = progress::start_detached("nupa-torch-x", std::move(leave));
  if (!started) throw std::system_error(started.error().code(), std::generic_category(), started.error().what());
}

bool Group::await_retired(std::chrono::milliseconds limit) {
  Retired& retired = Retired::all();
  std::unique_lock lock(retired.mutex);
  return retired.changed.wait(
      lock, [&retired] { return retired.left == 0; }, progress::Deadline::in_ms(limit.count()));
}

}  // namespace nupa::torch_backend
