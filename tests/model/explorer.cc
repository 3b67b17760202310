// SPDX-License-Identifier: Apache-2.0
#include "explorer.h"

#include <algorithm>
#include <cstring>

namespace model {
namespace {

constexpr size_t kThreadStackBytes = 128 << 10;
constexpr uint64_t kMaxExecutions = 3'000'000;
// Options of a decision beside the numbers of stores.
constexpr int kLater = -2;  ///< the load reads a store that has not happened yet
constexpr int kNever = -3;
constexpr const char* kDiffers = "the case does not do the same each time";

}  // namespace

Explorer* explorer = nullptr;

const char* name_of(std::memory_order order) {
  switch (order) {
    case std::memory_order_relaxed:
      return "relaxed";
    case std::memory_order_consume:
      return "consume";
    case std::memory_order_acquire:
      return "acquire";
    case std::memory_order_release:
      return "release";
    case std::memory_order_acq_rel:
      return "acq_rel";
    default:
      return "seq_cst";
  }
}

Result Explorer::run() {
  do {
    run_once();
    if (learned_) {
      // Loads may have to wait for a store that was not known of: from the beginning.
      learned_ = false;
      decisions_.clear();
      result_.executions = result_.dead_ends = 0;
      if (is_failed()) break;
      continue;
    }
    if (is_failed()) break;
    if (result_.executions + result_.dead_ends > kMaxExecutions) {
      result_.fault = "too many executions";
      break;
    }
    if (!next_execution()) break;
  } while (true);
  return result_;
}

bool Explorer::next_execution() {
  while (!decisions_.empty()) {
    Decision& last = decisions_.back();
    if (++last.taken < last.options.size()) return true;
    decisions_.pop_back();
  }
  return false;
}

void Explorer::run_once() {
  std::memset(arena_, 0, used_);
  used_ = 0;
  depth_ = 0;
  graph_.clear();
  places_.clear();
  accesses_.clear();
  adopted_.clear();
  at_end_.clear();
  finally_ = nullptr;
  may_wait_if_ = nullptr;
  count_ = 0;
  current_ = -1;
  abandoned_ = false;
  Case made;
  build_(made);
  for (int i = 0; i < count_; ++i) {
    Fiber& fiber = fibers_[i];
    if (!fiber.stack) fiber.stack = std::make_unique<std::byte[]>(kThreadStackBytes);
    getcontext(&fiber.context);
    fiber.context.uc_stack = {fiber.stack.get(), 0, kThreadStackBytes};
    fiber.context.uc_link = nullptr;
    makecontext(&fiber.context, &Explorer::enter, 0);
    fiber.state = Fiber::State::kReady;
    fiber.skipped = false;
    fiber.stores_seen = 0;
    fiber.looked.clear();
    fiber.looked_before.clear();
  }
  while (!abandoned_ && (current_ = pick()) >= 0) {
    me().state = Fiber::State::kReady;
    swapcontext(&scheduler_, &me().context);
  }
  current_ = -1;
  if (!abandoned_) finish();
  if (abandoned_ && !is_failed()) ++result_.dead_ends;
  while (!at_end_.empty()) {
    const auto action = std::move(at_end_.back());
    at_end_.pop_back();
    action();
  }
}

void Explorer::enter() {
  explorer->me().body();
  explorer->me().state = Fiber::State::kDone;
  explorer->leave();
}

/// No thread can go on.
void Explorer::finish() {
  std::string asleep;
  for (int i = 0; i < count_; ++i) {
    const Fiber& fiber = fibers_[i];
    if (fiber.state == Fiber::State::kDone) continue;
    if (fiber.skipped) {
      abandoned_ = true;
      return;
    }
    asleep += (asleep.empty() ? "" : ", ") + std::string(fiber.name);
  }
  ++result_.executions;
  for (size_t i = 0; i < places_.size(); ++i) {
    const auto& stores = graph_.stores(static_cast<int>(i));
    if (!stores.empty() && places_[i].put) places_[i].put(graph_.value_of(static_cast<int>(i), stores.back()));
  }
  if (!asleep.empty() && !(may_wait_if_ && may_wait_if_())) return fail("waits forever: " + asleep);
  if (asleep.empty() && finally_) finally_();
}

bool Explorer::has_news(const Fiber& fiber) const {
  return std::any_of(fiber.looked_before.begin(), fiber.looked_before.end(), [&](const auto& look) {
    if (look.first < 0) return false;
    const auto& stores = graph_.stores(look.first);
    return !stores.empty() && stores.back() != look.second;
  });
}

const void* Explorer::same_each_time(const void* address) const {
  for (const Adopted& object : adopted_) {
    const auto offset = static_cast<size_t>(static_cast<const std::byte*>(address) - object.begin);
    if (offset < object.bytes) return object.stands_for + offset;
  }
  return address;
}

bool Explorer::may_store(int except, const void* address) const {
  const void* const stored = same_each_time(address);
  for (int i = 0; i < count_; ++i)
    if (i != except && fibers_[i].state != Fiber::State::kDone && stores_.count({i, stored}) != 0) return true;
  return false;
}

/// It waits for a store that does not come any more.
bool Explorer::waits_in_vain(int thread) const {
  const Fiber& fiber = fibers_[thread];
  if (fiber.state != Fiber::State::kWaits || !fiber.skipped) return false;
  const Place& place = places_[static_cast<size_t>(fiber.location)];
  return place.made.size() == fiber.stores_seen && !may_store(thread, place.address);
}

int Explorer::pick() {
  for (int i = 0; i < count_; ++i) {
    if (waits_in_vain(i)) {
      abandoned_ = true;
      return -1;
    }
  }
  for (int i = 0; i < count_; ++i) {
    const Fiber& fiber = fibers_[i];
    switch (fiber.state) {
      case Fiber::State::kReady:
        return i;
      case Fiber::State::kWaits:
        if (places_[static_cast<size_t>(fiber.location)].made.size() > fiber.stores_seen) return i;
        break;
      case Fiber::State::kPauses:
        if (has_news(fiber)) return i;
        break;
      case Fiber::State::kDone:
        break;
    }
  }
  return -1;
}

void Explorer::leave() { swapcontext(&me().context, &scheduler_); }

void Explorer::abandon() {
  abandoned_ = true;
  leave();
  abort();
}

void Explorer::fail(std::string text) {
  if (is_failed()) return;
  result_.fault = std::move(text) + story();
  if (in_thread()) abandon();
}

std::string Explorer::story() const {
  std::string text;
  for (int id = 0; id < graph_.size(); ++id) {
    const Event& event = graph_.event(id);
    static constexpr const char* kNames[] = {"load", "store", "update", "fence"};
    text += "\n  " + std::to_string(id) + " " + fibers_[event.thread].name + ": " +
            kNames[static_cast<int>(event.kind)] + " " + name_of(event.order);
    if (event.weight != Weight::kNormal) text += event.weight == Weight::kHeavy ? " membarrier" : " light";
    if (event.location >= 0) {
      const auto at = static_cast<const std::byte*>(places_[static_cast<size_t>(event.location)].address) - arena_;
      text += " at " + (at >= 0 && static_cast<size_t>(at) < kMemoryBytes ? "+" + std::to_string(at)
                                                                          : "#" + std::to_string(event.location));
    }
    if (event.reads()) text += " reads " + std::to_string(event.read) + " of " + std::to_string(event.from);
    if (event.writes()) text += " writes " + std::to_string(event.written);
  }
  return text;
}

int Explorer::location_of(const void* address, uint64_t first) {
  for (size_t i = 0; i < places_.size(); ++i)
    if (places_[i].address == address) return static_cast<int>(i);
  places_.push_back({address, nullptr, {}});
  return graph_.add_location(first);
}

void Explorer::check_room() {
  if (graph_.size() >= kMaxEvents - 1) fail("the execution is too long");
}

template <class Options>
int Explorer::choose(Options options) {
  if (depth_ == decisions_.size()) decisions_.push_back({options(), 0});
  const Decision& decision = decisions_[depth_++];
  return decision.options[decision.taken];
}

void Explorer::wait_here() {
  me().state = Fiber::State::kWaits;
  leave();
}

/// The store that an operation reads: one of those that there are, or, after waiting, one that comes later.
template <class Accepts, class Tries>
int Explorer::choose_source(int location, Accepts accepts, Tries tries) {
  const Place& place = places_[static_cast<size_t>(location)];
  const void* const address = place.address;
  for (size_t seen = 0;;) {
    const int chosen = choose([&] {
      std::vector<int> options;
      const auto& made = places_[static_cast<size_t>(location)].made;
      // The newest first: most executions fail, if they do, near those that everything goes well in.
      for (size_t i = made.size(); i > (seen == 0 ? 0 : seen - 1); --i)
        if (accepts(graph_.value_of(location, made[i - 1])) && tries(made[i - 1])) options.push_back(made[i - 1]);
      if (seen == 0 && accepts(graph_.value_of(location, kInitial)) && tries(kInitial)) options.push_back(kInitial);
      if (may_store(current_, address)) options.push_back(kLater);
      if (options.empty()) options.push_back(kNever);
      return options;
    });
    if (chosen >= graph_.size()) fail(kDiffers);
    if (chosen >= kInitial) return chosen;
    const bool is_only_one = decisions_[depth_ - 1].options.size() == 1;
    me().skipped = me().skipped || !is_only_one;
    me().location = location;
    me().stores_seen = places_[static_cast<size_t>(location)].made.size();
    seen = me().stores_seen + 1;
    wait_here();
  }
}

uint64_t Explorer::load(const void* address, uint64_t first, std::memory_order order, bool locked,
                        const std::function<bool(uint64_t)>* condition) {
  check_room();
  const int location = location_of(address, first);
  Event event{Kind::kLoad, order, Weight::kNormal, locked, current_, location, kInitial, 0, 0};
  const auto set = [&](int from) {
    event.from = from;
    event.read = graph_.value_of(location, from);
  };
  me().skipped = condition == nullptr;
  const int from = choose_source(
      location, [&](uint64_t value) { return condition == nullptr || (*condition)(value); },
      [&](int store) {
        set(store);
        const bool possible = graph_.add(event);
        graph_.undo();
        return possible;
      });
  me().skipped = false;
  set(from);
  graph_.add(event);
  me().looked.emplace_back(location, from);
  return event.read;
}

uint64_t Explorer::update(const void* address, uint64_t first, std::memory_order order, std::memory_order failure,
                          const std::function<bool(uint64_t, uint64_t*)>& change,
                          const std::function<bool(uint64_t)>* condition) {
  check_room();
  const int location = location_of(address, first);
  Event event;
  const auto set = [&](int from) {
    event = {Kind::kUpdate, order, Weight::kNormal, true, current_, location, from, graph_.value_of(location, from), 0};
    if (change(event.read, &event.written)) return;
    event.kind = Kind::kLoad;
    event.order = failure;
  };
  me().skipped = condition == nullptr;
  const int from = choose_source(
      location, [&](uint64_t value) { return condition == nullptr || (*condition)(value); },
      [&](int store) {
        set(store);
        const bool possible = graph_.add(event);
        graph_.undo();
        return possible;
      });
  me().skipped = false;
  set(from);
  const int id = graph_.size();
  graph_.add(event);
  me().looked.emplace_back(location, from);
  if (event.writes())
    commit_store(event, id);
  else
    note_store(address);  // it would have stored, had it come earlier
  return event.read;
}

void Explorer::commit_store(const Event& event, int id) {
  Place& place = places_[static_cast<size_t>(event.location)];
  place.made.push_back(id);
  me().looked.emplace_back(-1, id);
  note_store(place.address);
}

void Explorer::note_store(const void* address) {
  if (stores_.insert({current_, same_each_time(address)}).second) learned_ = true;
}

void Explorer::store(const void* address, uint64_t first, uint64_t value, std::memory_order order) {
  check_room();
  const int location = location_of(address, first);
  const bool locked = order == std::memory_order_seq_cst;  // x86: xchg
  const Event event{Kind::kStore, order, Weight::kNormal, locked, current_, location, kInitial, 0, value};
  const int place = choose([&] {
    std::vector<int> options;
    for (int i = static_cast<int>(graph_.stores(location).size()) + 1; i > 0; --i) {
      const bool possible = graph_.add_store(event, i);
      graph_.undo();
      if (possible) options.push_back(i);
    }
    if (options.empty()) options.push_back(kNever);
    return options;
  });
  if (place == kNever) abandon();
  if (place > static_cast<int>(graph_.stores(location).size()) + 1) fail(kDiffers);
  const int id = graph_.size();
  graph_.add_store(event, place);
  commit_store(event, id);
}

void Explorer::fence(std::memory_order order, Weight weight) {
  if (order == std::memory_order_relaxed) return;
  check_room();
  const Event event{Kind::kFence, order, weight, false, current_, -1, kInitial, 0, 0};
  const int possible = choose([&] {
    const bool is_possible = graph_.add(event);
    graph_.undo();
    return std::vector<int>{is_possible ? 0 : kNever};
  });
  if (possible == kNever) abandon();
  graph_.add(event);
}

void Explorer::access(const void* address, size_t bytes, bool writes) {
  if (!in_thread() || memory_ != Memory::kCpp) return;
  const auto* const begin = static_cast<const std::byte*>(address);
  const Access now{begin, begin + bytes, current_, graph_.events_of(current_), writes};
  for (const Access& other : accesses_) {
    if (other.thread == current_ || other.end <= now.begin || now.end <= other.begin) continue;
    if ((other.writes || writes) && !graph_.happened_before(other.thread, other.events, current_))
      fail(std::string("data race of ") + fibers_[other.thread].name + " and " + me().name + " at +" +
           std::to_string(begin - arena_));
  }
  accesses_.push_back(now);
}

void Explorer::pause() {
  Fiber& fiber = me();
  if (fiber.looked.empty()) return;
  if (fiber.looked == fiber.looked_before) abandon();  // the same once more: there is an execution without this turn
  fiber.looked_before = std::move(fiber.looked);
  fiber.looked.clear();
  if (has_news(fiber)) return;
  fiber.state = Fiber::State::kPauses;
  leave();
}

std::memory_order Explorer::order_at(const Site& site) {
  if (std::find(result_.sites.begin(), result_.sites.end(), site) == result_.sites.end()) result_.sites.push_back(site);
  return weakened_ != nullptr && weakened_->site == site ? weakened_->order : site.order;
}

}  // namespace model
