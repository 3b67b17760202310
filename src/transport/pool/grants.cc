// SPDX-License-Identifier: Apache-2.0
#include "transport/pool/grants.h"

#include <algorithm>
#include <new>

namespace nupa::pool {

void Grants::count() {
  out_.store(entries_.size(), std::memory_order_release);
  const auto unasked = std::count_if(entries_.begin(), entries_.end(),
                                     [](const auto& each) { return each.second.state == State::kToAsk; });
  unasked_.store(static_cast<size_t>(unasked), std::memory_order_release);
}

bool Grants::add(Grant* grant) try {
  std::lock_guard lock(mutex_);
  size_t of_queue_pair = 0;
  for (const auto& [number, each] : entries_) {
    if (each.grant.qp_num != grant->qp_num) continue;
    if (each.grant.rkey == grant->rkey) return false;
    ++of_queue_pair;
  }
  if (of_queue_pair >= kMostGranted) return false;
  do last_number_ = last_number_ % kMostNumber + 1;
  while (entries_.contains(last_number_));
  grant->number = last_number_;
  entries_.emplace(last_number_, Entry{*grant});
  count();
  return true;
} catch (const std::bad_alloc&) {
  return false;
}

void Grants::drop(uint32_t number) {
  std::lock_guard lock(mutex_);
  entries_.erase(number);
  count();
}

void Grants::returned(const ProcessId& peer, uint32_t number) {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(number);
  if (found == entries_.end() || found->second.grant.peer != peer) return;
  entries_.erase(found);
  // It answers again: others may wait for it.
  for (auto& [other, each] : entries_)
    if (each.grant.peer == peer) each.is_abandoned = false;
  count();
}

void Grants::ended(const ProcessId& peer) {
  std::lock_guard lock(mutex_);
  std::erase_if(entries_, [&](const auto& each) { return each.second.grant.peer == peer; });
  count();
}

bool Grants::has(uint32_t number, const ProcessId& peer, uint32_t qp_num, uint32_t rkey) const {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(number);
  if (found == entries_.end() || found->second.is_late) return false;
  const Grant& grant = found->second.grant;
  return grant.qp_num == qp_num && grant.rkey == rkey && grant.peer == peer;
}

bool Grants::ask_back(const Which& which) {
  if (!any()) return false;
  std::lock_guard lock(mutex_);
  bool found = false;
  for (auto& [number, each] : entries_) {
    if (!which.has(each.grant)) continue;
    found = true;
    if (each.state == State::kGiven) each.state = State::kToAsk;
  }
  count();
  return found;
}

std::vector<Grant> Grants::unasked() const {
  std::lock_guard lock(mutex_);
  std::vector<Grant> found;
  for (const auto& [number, each] : entries_)
    if (each.state == State::kToAsk) found.push_back(each.grant);
  return found;
}

void Grants::asked(uint32_t number) {
  std::lock_guard lock(mutex_);
  const auto found = entries_.find(number);
  if (found != entries_.end() && found->second.state == State::kToAsk) found->second.state = State::kAsked;
  count();
}

bool Grants::awaits(const Which& which) const {
  if (!any()) return false;
  std::lock_guard lock(mutex_);
  return std::any_of(entries_.begin(), entries_.end(),
                     [&](const auto& each) { return which.has(each.second.grant) && !each.second.is_abandoned; });
}

void Grants::abandon(const ProcessId& peer) {
  if (!any()) return;
  std::lock_guard lock(mutex_);
  for (auto& [number, each] : entries_)
    if (each.grant.peer == peer) each.is_abandoned = true;
}

void Grants::revive(const ProcessId& peer) {
  if (!any()) return;
  std::lock_guard lock(mutex_);
  for (auto& [number, each] : entries_)
    if (each.grant.peer == peer) each.is_abandoned = false;
}

size_t Grants::abandon(const Which& which) {
  if (!any()) return 0;
  std::lock_guard lock(mutex_);
  std::vector<ProcessId> peers;
  for (auto& [number, each] : entries_) {
    if (!which.has(each.grant)) continue;
    each.is_late = true;
    peers.push_back(each.grant.peer);
  }
  for (auto& [number, each] : entries_)
    if (std::find(peers.begin(), peers.end(), each.grant.peer) != peers.end()) each.is_abandoned = true;
  return peers.size();
}

std::vector<ProcessId> Grants::abandoned() const {
  std::vector<ProcessId> peers;
  if (!any()) return peers;
  std::lock_guard lock(mutex_);
  for (const auto& [number, each] : entries_)
    if (each.is_abandoned && std::find(peers.begin(), peers.end(), each.grant.peer) == peers.end())
      peers.push_back(each.grant.peer);
  return peers;
}

bool Grants::covers(uint64_t offset, uint64_t bytes) const {
  if (!any()) return false;
  std::lock_guard lock(mutex_);
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& each) {
    const Grant& grant = each.second.grant;
    return grant.offset < offset + bytes && offset < grant.offset + grant.bytes;
  });
}

}  // namespace nupa::pool
