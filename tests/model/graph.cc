// SPDX-License-Identifier: Apache-2.0
#include "graph.h"

#include <algorithm>
#include <bit>

namespace model {
namespace {

constexpr Set bit(int id) { return Set{1} << id; }
bool has(Set set, int id) { return (set >> id & 1) != 0; }

int lowest(Set set) {
  const auto low = static_cast<uint64_t>(set);
  return low != 0 ? std::countr_zero(low) : 64 + std::countr_zero(static_cast<uint64_t>(set >> 64));
}

template <class Each>
void for_each(Set set, Each each) {
  for (; set != 0; set &= set - 1) each(lowest(set));
}

bool releases(std::memory_order order) {
  return order == std::memory_order_release || order == std::memory_order_acq_rel || order == std::memory_order_seq_cst;
}
bool acquires(std::memory_order order) {
  return order == std::memory_order_acquire || order == std::memory_order_acq_rel ||
         order == std::memory_order_seq_cst || order == std::memory_order_consume;
}

/// Depth-first search for a cycle.
class Cycles {
 public:
  Cycles(const Set* after, Set nodes) : after_(after), left_(nodes) {}
  bool none() {
    while (left_ != 0)
      if (!visit(lowest(left_))) return false;
    return true;
  }

 private:
  bool visit(int id) {
    left_ &= ~bit(id);
    path_ |= bit(id);
    if ((after_[id] & path_) != 0) return false;
    for (Set next; (next = after_[id] & left_) != 0;)
      if (!visit(lowest(next))) return false;
    path_ &= ~bit(id);
    return true;
  }

  const Set* after_;
  Set left_;
  Set path_ = 0;
};

}  // namespace

void Graph::clear() {
  events_.clear();
  locations_.clear();
  for (int i = 0; i < kMaxThreads; ++i) {
    threads_[i] = {};
    of_thread_[i].clear();
    thread_events_[i] = 0;
  }
  sc_ = 0;
  heavy_.clear();
}

int Graph::add_location(uint64_t first_value) {
  locations_.push_back({first_value, {}, 0});
  return static_cast<int>(locations_.size()) - 1;
}

int Graph::place_of(int location, int store) const {
  if (store == kInitial) return 0;
  const auto& stores = at(location).stores;
  return static_cast<int>(std::find(stores.begin(), stores.end(), store) - stores.begin()) + 1;
}

uint64_t Graph::value_of(int location, int store) const {
  return store == kInitial ? at(location).first_value : event(store).written;
}

void Graph::append(const Event& event) {
  const int id = size();
  Thread& thread = threads_[event.thread];
  std::vector<int>& own = of_thread_[event.thread];
  Node node;
  node.event = event;
  node.release_fence = thread.release_fence;
  node.acquirable = thread.acquirable;
  if (!own.empty()) node.before = events_[static_cast<size_t>(own.back())].before | bit(own.back());
  if (event.reads()) {
    readers(event.location, event.from) |= bit(id);
    if (event.from != kInitial) {
      const Set message = events_[static_cast<size_t>(event.from)].message;
      thread.acquirable |= message;
      if (acquires(event.order)) node.before |= message;
      if (event.kind == Kind::kUpdate) node.message = message;  // it continues the release sequence
    }
  }
  if (event.kind == Kind::kFence && event.weight != Weight::kLight && acquires(event.order))
    node.before |= thread.acquirable;
  if (event.writes()) {
    if (releases(event.order))
      node.message |= node.before | bit(id);
    else if (thread.release_fence >= 0)
      node.message |= events_[static_cast<size_t>(thread.release_fence)].before | bit(thread.release_fence);
    readers_[id] = 0;
  }
  if (event.kind == Kind::kFence && event.weight != Weight::kLight && releases(event.order)) thread.release_fence = id;
  if (event.is_sc()) sc_ |= bit(id);
  if (event.weight == Weight::kHeavy) heavy_.push_back(id);
  own.push_back(id);
  thread_events_[event.thread] |= bit(id);
  events_.push_back(node);
}

bool Graph::add(const Event& event) {
  const int id = size();
  bool is_free = true;
  if (event.kind == Kind::kUpdate) {
    auto& stores = at(event.location).stores;
    const int place = place_of(event.location, event.from);
    // Nothing comes between an update and the store that it reads: another update of that store is already there.
    is_free = place == static_cast<int>(stores.size()) ||
              this->event(stores[static_cast<size_t>(place)]).kind != Kind::kUpdate ||
              this->event(stores[static_cast<size_t>(place)]).from != event.from;
    stores.insert(stores.begin() + place, id);
  }
  append(event);
  return is_free && is_consistent();
}

bool Graph::add_store(const Event& event, int place) {
  const int id = size();
  auto& stores = at(event.location).stores;
  const bool splits = place <= static_cast<int>(stores.size()) &&
                      this->event(stores[static_cast<size_t>(place) - 1]).kind == Kind::kUpdate;
  stores.insert(stores.begin() + place - 1, id);
  append(event);
  return !splits && is_consistent();
}

void Graph::undo() {
  const int id = size() - 1;
  const Node& last = events_.back();
  const Event& event = last.event;
  threads_[event.thread].release_fence = last.release_fence;
  threads_[event.thread].acquirable = last.acquirable;
  of_thread_[event.thread].pop_back();
  thread_events_[event.thread] &= ~bit(id);
  if (event.reads()) readers(event.location, event.from) &= ~bit(id);
  if (event.writes()) {
    auto& stores = at(event.location).stores;
    stores.erase(std::find(stores.begin(), stores.end(), id));
  }
  sc_ &= ~bit(id);
  if (event.weight == Weight::kHeavy) heavy_.pop_back();
  events_.pop_back();
}

bool Graph::happened_before(int other, size_t number, int thread) const {
  const std::vector<int>& own = of_thread_[thread];
  if (own.empty() || number >= of_thread_[other].size()) return false;
  return has(node(own.back()).before | bit(own.back()), of_thread_[other][number]);
}

bool Graph::is_consistent() const {
  if (!is_coherent(size() - 1)) return false;
  return memory_ == Memory::kCpp ? psc_is_acyclic() : tso_is_acyclic();
}

/// The place of the last store that somebody in `past` has written or read.
int Graph::floor_of(int location, Set past) const {
  const auto& stores = at(location).stores;
  for (size_t place = stores.size(); place > 0; --place) {
    const int store = stores[place - 1];
    if (has(past, store) || (readers_[store] & past) != 0) return static_cast<int>(place);
  }
  return 0;
}

bool Graph::is_coherent(int id) const {
  const Event& event = this->event(id);
  if (event.kind == Kind::kFence) return true;
  const Set past = memory_ == Memory::kCpp ? node(id).before : thread_events_[event.thread] & ~bit(id);
  const int floor = floor_of(event.location, past);
  if (event.reads() && place_of(event.location, event.from) < floor) return false;
  return !event.writes() || place_of(event.location, id) > floor;
}

/// Those behind a place.
Set Graph::later_stores(int location, int place) const {
  const auto& stores = at(location).stores;
  Set later = 0;
  for (size_t i = static_cast<size_t>(place); i < stores.size(); ++i) later |= bit(stores[i]);
  return later;
}

/// What comes after an event in the order of its location (RC11: eco).
Set Graph::extended_coherence(int id) const {
  const Event& event = this->event(id);
  if (event.kind == Kind::kFence) return 0;
  const int store = event.writes() ? id : event.from;
  Set after = event.writes() ? readers_of(event.location, id) : 0;
  for_each(later_stores(event.location, place_of(event.location, store)),
           [&](int later) { after |= bit(later) | readers_[later]; });
  return after & ~bit(id);
}

/// RC11, SC: the partial order psc that sequentially consistent operations have to agree on.
bool Graph::psc_is_acyclic() const {
  if ((sc_ & (sc_ - 1)) == 0) return true;
  const int count = size();
  Set hb[kMaxEvents] = {}, eco[kMaxEvents], same_location[kMaxEvents], po[kMaxEvents], po_elsewhere[kMaxEvents],
      beyond[kMaxEvents], scb[kMaxEvents];
  std::vector<Set> users(locations_.size());
  for (int id = 0; id < count; ++id) {
    for_each(node(id).before, [&](int earlier) { hb[earlier] |= bit(id); });
    if (event(id).location >= 0) users[static_cast<size_t>(event(id).location)] |= bit(id);
  }
  for (int id = count - 1; id >= 0; --id) {
    same_location[id] = event(id).location >= 0 ? users[static_cast<size_t>(event(id).location)] : 0;
    po[id] = thread_events_[event(id).thread] & ~((bit(id) << 1) - 1);
    po_elsewhere[id] = po[id] & ~same_location[id];
    eco[id] = extended_coherence(id);
    beyond[id] = 0;
    for_each(hb[id], [&](int later) { beyond[id] |= po_elsewhere[later]; });
  }
  for (int id = 0; id < count; ++id) {
    scb[id] = po[id] | (hb[id] & same_location[id]);
    for_each(po_elsewhere[id], [&](int next) { scb[id] |= beyond[next]; });
    const Event& own = event(id);
    if (own.writes()) scb[id] |= later_stores(own.location, place_of(own.location, id));
    if (own.reads()) scb[id] |= later_stores(own.location, place_of(own.location, own.from)) & ~bit(id);
  }
  Set psc[kMaxEvents] = {};
  for_each(sc_, [&](int id) {
    const bool is_fence = event(id).kind == Kind::kFence;
    Set reached = scb[id];
    if (is_fence) for_each(hb[id], [&](int later) { reached |= scb[later]; });
    Set to = reached & sc_;
    Set after_eco = 0;
    if (is_fence) for_each(hb[id], [&](int later) { after_eco |= eco[later]; });
    for_each(sc_, [&](int end) {
      if (event(end).kind != Kind::kFence) return;
      if ((reached & node(end).before) != 0) to |= bit(end);
      if (is_fence && (has(hb[id], end) || (after_eco & node(end).before) != 0)) to |= bit(end);
    });
    // A light fence is one only to heavy ones.
    for_each(to, [&](int end) {
      const bool light = event(id).weight == Weight::kLight || event(end).weight == Weight::kLight;
      const bool heavy = event(id).weight == Weight::kHeavy || event(end).weight == Weight::kHeavy;
      if (!light || heavy) psc[id] |= bit(end);
    });
  });
  return Cycles(psc, sc_).none();
}

/// x86-TSO: program order without store-to-load, reads from other threads, and the order of each location.
bool Graph::tso_is_acyclic() const {
  Set after[kMaxEvents] = {};
  Set plain_loads = 0;
  for (int id = 0; id < size(); ++id)
    if (event(id).kind == Kind::kLoad && !event(id).locked) plain_loads |= bit(id);
  for (int id = 0; id < size(); ++id) {
    const Event& own = event(id);
    if (own.kind == Kind::kFence && (own.weight == Weight::kLight || !own.is_sc())) continue;  // for the compiler only
    after[id] = thread_events_[own.thread] & ~((bit(id) << 1) - 1);
    if (own.kind == Kind::kStore && !own.locked) after[id] &= ~plain_loads;
    if (own.reads() && own.from != kInitial && event(own.from).thread != own.thread) after[own.from] |= bit(id);
    if (own.writes()) after[id] |= later_stores(own.location, place_of(own.location, id));
    if (own.reads()) after[id] |= later_stores(own.location, place_of(own.location, own.from)) & ~bit(id);
  }
  return tso_with_membarriers(after, 0);
}

/// The kernel interrupts each other thread once somewhere within a membarrier(2): some place must do for each.
bool Graph::tso_with_membarriers(Set* after, size_t next) const {
  if (next == heavy_.size() * kMaxThreads) return Cycles(after, (bit(size() - 1) << 1) - 1).none();
  const int barrier = heavy_[next / kMaxThreads];
  const int thread = static_cast<int>(next % kMaxThreads);
  const std::vector<int>& own = of_thread_[thread];
  if (thread == event(barrier).thread || own.empty()) return tso_with_membarriers(after, next + 1);
  for (size_t place = 0; place <= own.size(); ++place) {
    Set tried[kMaxEvents];
    std::copy(after, after + size(), tried);
    for (size_t i = 0; i < own.size(); ++i) {
      if (i < place)
        tried[own[i]] |= bit(barrier);
      else
        tried[barrier] |= bit(own[i]);
    }
    if (Cycles(tried, (bit(size() - 1) << 1) - 1).none() && tso_with_membarriers(tried, next + 1)) return true;
  }
  return false;
}

}  // namespace model
