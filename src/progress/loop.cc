// SPDX-License-Identifier: Apache-2.0
#include "progress/loop.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <ctime>
#include <deque>
#include <mutex>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "base/system_error.h"
#include "base/unique_fd.h"
#include "progress/condition.h"
#include "progress/lifecycle.h"
#include "progress/wake_up.h"

namespace nupa::progress {
namespace {

constexpr int kTogether = 64;
constexpr size_t kNotInHeap = SIZE_MAX;
constexpr uint32_t kReadable = EPOLLIN | EPOLLRDHUP;
/// The pause before the loop tries again to watch a descriptor for which the kernel has no memory.
constexpr int64_t kResumeAgainNs = 100 * kNsPerMs;
/// The id of the loop's own wake-up in epoll events; generations of slots begin at 1.
constexpr uint64_t kWakeUpId = 0;

class SystemClock final : public Clock {
 public:
  int64_t now_ns() const override { return base::now_ns(); }
};

}  // namespace

const Clock& system_clock() {
  // Never destroyed: threads of the library may read it while static objects are being destroyed.
  static const auto* const clock = new SystemClock;
  return *clock;
}

/// A watch or a timer.
struct Loop::Item {
  std::function<void(uint32_t)> ready;
  std::function<void(int64_t)> due;
  int64_t at_ns = INT64_MAX;  ///< for a watch: when its pause ends
  size_t in_heap = kNotInHeap;
  int fd = -1;  ///< for a watch
  uint32_t slot = 0;
  bool wants_room = false;
  bool pauses = false;
  bool removed = false;  ///< its handler may still be running, and set it again
  bool gone = false;     ///< its own handler has removed it and is still running
};

/// One mutex guards all members. It is never held while a handler runs, and it is a leaf lock: calls made with it held
/// return at once.
class Loop::Core {
 public:
  explicit Core(const Clock& clock) : clock_(clock) {}
  ~Core() {
    wake_up_of_parent_.reset();
    wake_up_.close();
  }

  Result<void> open();
  bool is_of_this_process() const { return made_.holds(); }

  /// Null: errno has the reason.
  Item* watch(int fd, std::function<void(uint32_t)>&& ready);
  Item* add_timer(std::function<void(int64_t)>&& due);
  void remove(Item* item);
  void want_room(Item* item, bool wanted);
  void pause(Item* item, int64_t at_ns);
  void set(Item* item, int64_t at_ns, bool at_latest);
  int post(std::function<void()>&& task);
  bool call(const std::function<void()>& task, Deadline deadline);
  int64_t next_due_ns();

  Result<void> start(ThreadName name);
  void join() { thread_.join(); }
  void run();
  void stop();
  bool turn(Deadline until);
  bool on_this_thread() const { return made_.holds() && pthread_equal(runner_.load(), pthread_self()) != 0; }

 private:
  using Lock = std::unique_lock<std::mutex>;
  struct Slot {
    Item* item = nullptr;
    uint32_t generation = 1;
  };
  /// A thread that waits for its task. The object is on that thread's stack.
  struct Call {
    enum class State : uint8_t { kWaits, kRuns, kDone, kRefused } state = State::kWaits;
  };
  struct Task {
    std::function<void()> run;
    Call* call = nullptr;
  };

  bool control(int operation, const Item& item);
  /// The watch with this id, or null if it was removed since epoll reported the event.
  Item* find(uint64_t id);
  uint64_t id_of(const Item& item) const {
    return static_cast<uint64_t>(slots_[item.slot].generation) << 32 | item.slot;
  }
  /// Wakes the thread if it would sleep beyond `at_ns`.
  void wake_for(int64_t at_ns);
  void make_room_in_heap();
  void heap_set(Item* item, int64_t at_ns);
  void heap_remove(Item* item);
  void sift_up(size_t at);
  void sift_down(size_t at);
  void place(size_t at, Item* item) {
    heap_[at] = item;
    item->in_heap = at;
  }
  int sleep(epoll_event* ready, int64_t until_ns) const;
  template <class Handler>
  void run_handler(Lock& lock, Item* item, const Handler& handler);
  bool run_tasks(Lock& lock);
  bool run_timers(Lock& lock);
  void resume(Item* item, int64_t now_ns);

  const Clock& clock_;
  const OfThisProcess made_;
  base::UniqueFd epoll_;
  WakeUp wake_up_;
  std::optional<ParentOnly> epoll_of_parent_;
  std::optional<ParentOnly> wake_up_of_parent_;
  Thread thread_;
  std::atomic<pthread_t> runner_{};
  std::atomic<bool> stop_{false};

  std::mutex mutex_;
  int64_t sleeps_until_ns_ = 0;  ///< 0: the thread is awake, or is woken already
  Item* running_ = nullptr;
  Condition changed_;  ///< notified when a handler or task that a thread waits for has ended
  size_t waiting_ = 0;
  bool has_ended_ = false;
  size_t items_ = 0;
  std::vector<Item*> heap_;  ///< a binary heap by time; has room for all items
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;  ///< has room for all slots
  std::deque<Task> tasks_;
};

Result<void> Loop::Core::open() {
  epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_ || !wake_up_.open()) return base::fail_call(errno, "cannot create the descriptors of an event loop");
  epoll_of_parent_.emplace(epoll_.get());
  wake_up_of_parent_.emplace(wake_up_.fd());
  epoll_event wanted{};
  wanted.events = EPOLLIN;
  wanted.data.u64 = kWakeUpId;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_up_.fd(), &wanted) != 0)
    return base::fail_call(errno, "cannot add an eventfd to an event loop");
  return {};
}

bool Loop::Core::control(int operation, const Item& item) {
  epoll_event wanted{};
  wanted.events = item.wants_room ? kReadable | EPOLLOUT : kReadable;
  wanted.data.u64 = id_of(item);
  return epoll_ctl(epoll_.get(), operation, item.fd, &wanted) == 0;
}

Loop::Item* Loop::Core::find(uint64_t id) {
  const Slot& slot = slots_[static_cast<uint32_t>(id)];
  return slot.generation == id >> 32 ? slot.item : nullptr;
}

void Loop::Core::wake_for(int64_t at_ns) {
  if (at_ns >= sleeps_until_ns_) return;
  sleeps_until_ns_ = 0;
  wake_up_.signal();
}

Loop::Item* Loop::Core::watch(int fd, std::function<void(uint32_t)>&& ready) try {
  if (!made_.holds()) {
    errno = ENODEV;
    return nullptr;
  }
  auto item = std::make_unique<Item>();
  item->ready = std::move(ready);
  item->fd = fd;
  Lock lock(mutex_);
  make_room_in_heap();
  if (free_slots_.empty()) {
    slots_.emplace_back();
    free_slots_.reserve(slots_.capacity());
    free_slots_.push_back(static_cast<uint32_t>(slots_.size() - 1));
  }
  item->slot = free_slots_.back();
  if (!control(EPOLL_CTL_ADD, *item)) return nullptr;
  free_slots_.pop_back();
  slots_[item->slot].item = item.get();
  ++items_;
  return item.release();
} catch (const std::bad_alloc&) {
  errno = ENOMEM;
  return nullptr;
}

Loop::Item* Loop::Core::add_timer(std::function<void(int64_t)>&& due) {
  auto item = std::make_unique<Item>();
  item->due = std::move(due);
  if (!made_.holds()) return item.release();
  Lock lock(mutex_);
  make_room_in_heap();
  ++items_;
  return item.release();
}

void Loop::Core::remove(Item* item) {
  if (!made_.holds()) return;
  {
    Lock lock(mutex_);
    item->removed = true;
    heap_remove(item);
    --items_;
    if (item->fd >= 0) {
      if (!item->pauses) control(EPOLL_CTL_DEL, *item);
      Slot& slot = slots_[item->slot];
      slot.item = nullptr;
      if (++slot.generation == 0) slot.generation = 1;
      free_slots_.push_back(item->slot);
    }
    if (running_ == item) {
      if (on_this_thread()) {
        item->gone = true;
        return;
      }
      ++waiting_;
      changed_.wait(lock, [&] { return running_ != item; });
      --waiting_;
    }
  }
  delete item;
}

void Loop::Core::want_room(Item* item, bool wanted) {
  if (!made_.holds()) return;
  Lock lock(mutex_);
  if (item->wants_room == wanted) return;
  item->wants_room = wanted;
  if (!item->pauses) control(EPOLL_CTL_MOD, *item);
}

void Loop::Core::pause(Item* item, int64_t at_ns) {
  if (!made_.holds()) return;
  Lock lock(mutex_);
  if (item->removed) return;
  // Removed from the set, because epoll would report the descriptor's end again and again even without events.
  if (!item->pauses) control(EPOLL_CTL_DEL, *item);
  item->pauses = true;
  heap_set(item, at_ns);
  wake_for(at_ns);
}

void Loop::Core::resume(Item* item, int64_t now_ns) {
  item->pauses = !control(EPOLL_CTL_ADD, *item);
  if (item->pauses) heap_set(item, now_ns + kResumeAgainNs);
}

void Loop::Core::set(Item* item, int64_t at_ns, bool at_latest) {
  if (!made_.holds()) return;
  Lock lock(mutex_);
  if (item->removed) return;
  if (at_latest && item->at_ns <= at_ns) return;
  if (at_ns == INT64_MAX) return heap_remove(item);
  heap_set(item, at_ns);
  wake_for(at_ns);
}

int64_t Loop::Core::next_due_ns() {
  if (!made_.holds()) return INT64_MAX;
  Lock lock(mutex_);
  return heap_.empty() ? INT64_MAX : heap_.front()->at_ns;
}

void Loop::Core::make_room_in_heap() {
  if (heap_.capacity() <= items_) heap_.reserve(std::max<size_t>(2 * items_, 8));
}

void Loop::Core::heap_set(Item* item, int64_t at_ns) {
  item->at_ns = at_ns;
  if (item->in_heap == kNotInHeap) {
    heap_.push_back(item);
    item->in_heap = heap_.size() - 1;
  }
  sift_up(item->in_heap);
  sift_down(item->in_heap);
}

void Loop::Core::heap_remove(Item* item) {
  item->at_ns = INT64_MAX;
  const size_t at = std::exchange(item->in_heap, kNotInHeap);
  if (at == kNotInHeap) return;
  Item* const last = heap_.back();
  heap_.pop_back();
  if (last == item) return;
  place(at, last);
  sift_up(at);
  sift_down(last->in_heap);
}

void Loop::Core::sift_up(size_t at) {
  Item* const item = heap_[at];
  for (; at > 0 && item->at_ns < heap_[(at - 1) / 2]->at_ns; at = (at - 1) / 2) place(at, heap_[(at - 1) / 2]);
  place(at, item);
}

void Loop::Core::sift_down(size_t at) {
  Item* const item = heap_[at];
  for (;;) {
    size_t child = 2 * at + 1;
    if (child >= heap_.size()) break;
    if (child + 1 < heap_.size() && heap_[child + 1]->at_ns < heap_[child]->at_ns) ++child;
    if (heap_[child]->at_ns >= item->at_ns) break;
    place(at, heap_[child]);
    at = child;
  }
  place(at, item);
}

int Loop::Core::post(std::function<void()>&& task) try {
  if (!made_.holds()) return ENODEV;
  Lock lock(mutex_);
  tasks_.push_back({std::move(task)});
  wake_for(0);
  return 0;
} catch (const std::bad_alloc&) {
  return ENOMEM;
}

bool Loop::Core::call(const std::function<void()>& task, Deadline deadline) try {
  if (on_this_thread()) {
    task();
    return true;
  }
  if (!made_.holds()) return false;
  using State = Call::State;
  Call call;
  Lock lock(mutex_);
  if (has_ended_) return false;
  tasks_.push_back({task, &call});
  wake_for(0);
  ++waiting_;
  if (!changed_.wait(
          lock, [&] { return call.state != State::kWaits; }, deadline)) {
    tasks_.erase(std::find_if(tasks_.begin(), tasks_.end(), [&](const Task& each) { return each.call == &call; }));
    --waiting_;
    return false;
  }
  changed_.wait(lock, [&] { return call.state != State::kRuns; });
  --waiting_;
  return call.state == State::kDone;
} catch (const std::bad_alloc&) {
  return false;
}

Result<void> Loop::Core::start(ThreadName name) {
  return thread_.start(name, [this] { run(); });
}

void Loop::Core::run() {
  while (!stop_.load()) turn(Deadline::never());
  runner_.store({});
  Lock lock(mutex_);
  has_ended_ = true;
  std::erase_if(tasks_, [](const Task& task) {
    if (task.call != nullptr) task.call->state = Call::State::kRefused;
    return task.call != nullptr;
  });
  changed_.notify_all();
}

void Loop::Core::stop() {
  if (!made_.holds()) return;
  stop_.store(true);
  wake_up_.signal();
}

int Loop::Core::sleep(epoll_event* ready, int64_t until_ns) const {
  // Kernels before Linux 5.11, and sandboxes that reject newer system calls, wait in whole milliseconds.
  static std::atomic<bool> fine{true};
  const Deadline until = Deadline::at(until_ns);
  const int64_t now = until_ns == 0 || until.is_never() ? 0 : clock_.now_ns();
  if (fine.load(std::memory_order_relaxed)) {
    timespec storage;
    const int count = epoll_pwait2(epoll_.get(), ready, kTogether, until.left(&storage, now), nullptr);
    if (count >= 0 || (errno != ENOSYS && errno != EPERM)) return count;
    fine = false;
  }
  return epoll_wait(epoll_.get(), ready, kTogether, until.left_ms(now));
}

template <class Handler>
void Loop::Core::run_handler(Lock& lock, Item* item, const Handler& handler) {
  running_ = item;
  lock.unlock();
  handler();
  // The objects of a handler that has removed itself are destroyed without the lock.
  if (item->gone) delete item;
  lock.lock();
  running_ = nullptr;
  if (waiting_ != 0) changed_.notify_all();
}

bool Loop::Core::run_tasks(Lock& lock) {
  const size_t count = tasks_.size();
  for (size_t i = 0; i < count && !tasks_.empty(); ++i) {
    {
      Task task = std::move(tasks_.front());
      tasks_.pop_front();
      if (task.call != nullptr) task.call->state = Call::State::kRuns;
      lock.unlock();
      task.run();
      task.run = nullptr;
      lock.lock();
      if (task.call != nullptr) task.call->state = Call::State::kDone;
    }
    if (waiting_ != 0) changed_.notify_all();
  }
  return count != 0;
}

bool Loop::Core::run_timers(Lock& lock) {
  if (heap_.empty()) return false;
  const int64_t now = clock_.now_ns();
  bool some = false;
  // The count is bounded, so that descriptors get their turn even if a handler sets its timer to a time that has
  // passed.
  for (size_t left = heap_.size(); left > 0 && !heap_.empty() && heap_.front()->at_ns <= now; --left) {
    Item* const item = heap_.front();
    heap_remove(item);
    some = true;
    if (item->fd >= 0) {
      resume(item, now);
    } else {
      run_handler(lock, item, [&] { item->due(now); });
    }
  }
  return some;
}

bool Loop::Core::turn(Deadline until) {
  runner_.store(pthread_self());
  Lock lock(mutex_);
  int64_t wake_ns = std::max<int64_t>(until.at_ns(), 0);
  if (!heap_.empty()) wake_ns = std::min(wake_ns, std::max<int64_t>(heap_.front()->at_ns, 0));
  if (!tasks_.empty() || stop_.load()) wake_ns = 0;
  sleeps_until_ns_ = wake_ns;
  lock.unlock();
  epoll_event ready[kTogether];
  const int count = sleep(ready, wake_ns);
  lock.lock();
  sleeps_until_ns_ = 0;
  bool some = false;
  for (int i = 0; i < count; ++i) {
    if (ready[i].data.u64 == kWakeUpId) {
      wake_up_.take();
      continue;
    }
    Item* const item = find(ready[i].data.u64);
    if (item == nullptr || item->pauses) continue;
    some = true;
    run_handler(lock, item, [&] { item->ready(ready[i].events); });
  }
  const bool tasks = run_tasks(lock);
  const bool timers = run_timers(lock);
  return some || tasks || timers;
}

Result<std::unique_ptr<Loop>> Loop::open(const Clock& clock) {
  auto core = std::make_unique<Core>(clock);
  if (auto opened = core->open(); !opened) return tl::unexpected(opened.error());
  return std::unique_ptr<Loop>(new Loop(std::move(core)));
}

Loop::Loop(std::unique_ptr<Core> core) : core_(std::move(core)) {}

Loop::~Loop() {
  if (!core_->is_of_this_process()) {
    core_.release();  // NOLINT(bugprone-unused-return-value): its locks and descriptors are the parent's
    return;
  }
  core_->stop();
  core_->join();
}

Result<std::unique_ptr<Loop::Watch>> Loop::watch(int fd, std::function<void(uint32_t)> ready) {
  Item* const item = core_->watch(fd, std::move(ready));
  if (item == nullptr) return base::fail_call(errno, "cannot add a descriptor to an event loop");
  return std::unique_ptr<Watch>(new Watch(core_.get(), item));
}

Loop::Watch::~Watch() { core_->remove(item_); }
void Loop::Watch::want_room(bool wanted) { core_->want_room(item_, wanted); }
void Loop::Watch::pause_until(int64_t at_ns) { core_->pause(item_, at_ns); }

Loop::Timer::Timer(Loop& loop, std::function<void(int64_t)> due)
    : core_(loop.core_.get()), item_(core_->add_timer(std::move(due))) {}
Loop::Timer::~Timer() { core_->remove(item_); }
void Loop::Timer::set(int64_t at_ns) { core_->set(item_, at_ns, false); }
void Loop::Timer::set_at_latest(int64_t at_ns) { core_->set(item_, at_ns, true); }
void Loop::Timer::clear() { core_->set(item_, INT64_MAX, false); }

Result<void> Loop::post(std::function<void()> task) {
  if (const int error = core_->post(std::move(task)); error != 0)
    return base::fail_call(error, "cannot post a task to an event loop");
  return {};
}
bool Loop::call(const std::function<void()>& task, Deadline deadline) { return core_->call(task, deadline); }
Result<void> Loop::start(ThreadName name) { return core_->start(name); }
void Loop::run() { core_->run(); }
void Loop::stop() { core_->stop(); }
void Loop::join() { core_->join(); }
bool Loop::run_once(Deadline deadline) { return core_->turn(deadline); }
int64_t Loop::next_due_ns() const { return core_->next_due_ns(); }
bool Loop::on_this_thread() const { return core_->on_this_thread(); }

}  // namespace nupa::progress
