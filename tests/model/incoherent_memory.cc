// SPDX-License-Identifier: Apache-2.0
#include "incoherent_memory.h"

#include <iterator>

namespace model {
namespace {

constexpr size_t kStackBytes = 128 << 10;

template <class Container>
auto random_of(Container& container, uint64_t number) {
  auto found = container.begin();
  std::advance(found, number % container.size());
  return found;
}

}  // namespace

IncoherentMemory::IncoherentMemory(uint64_t seed, uint32_t lines, uint32_t hosts, bool evicts)
    : random_(seed), evicts_(evicts), addresses_(lines), memory_(lines), hosts_(hosts) {
  current_ = this;
}

void IncoherentMemory::enter() {
  IncoherentMemory& memory = *current_;
  Host& host = memory.me();
  host.body();
  host.done = true;
  swapcontext(&host.fiber, &memory.scheduler_);
}

bool IncoherentMemory::run(const std::vector<std::function<void()>>& bodies, uint64_t limit) {
  current_ = this;
  for (size_t i = 0; i < hosts_.size(); ++i) {
    Host& host = hosts_[i];
    host.body = bodies[i];
    host.done = false;
    host.stack.assign(kStackBytes, 0);
    getcontext(&host.fiber);
    host.fiber.uc_stack.ss_sp = host.stack.data();
    host.fiber.uc_stack.ss_size = host.stack.size();
    host.fiber.uc_link = &scheduler_;
    makecontext(&host.fiber, &IncoherentMemory::enter, 0);
  }
  const auto ready = [](const Host& host) { return !host.done && !host.stopped; };
  is_running_ = true;
  while (fault_.empty() && steps_ < limit) {
    std::vector<uint32_t> able;
    for (uint32_t i = 0; i < hosts_.size(); ++i)
      if (ready(hosts_[i])) able.push_back(i);
    if (able.empty()) break;
    // Stretches of one host's instructions: any host may be away for long.
    if (stretch_ == 0 || !ready(hosts_[running_])) {
      running_ = able[below(able.size())];
      stretch_ = 1 + below(below(8) == 0 ? 400 : 12);
    }
    --stretch_;
    swapcontext(&scheduler_, &me().fiber);
  }
  is_running_ = false;
  bool all_done = fault_.empty();
  for (const Host& host : hosts_) all_done = all_done && (host.done || host.stopped);
  return all_done;
}

void IncoherentMemory::fault(const std::string& text) {
  if (fault_.empty()) fault_ = text;
  swapcontext(&me().fiber, &scheduler_);
}

uint32_t IncoherentMemory::index_of(const void* address) const {
  const auto* const byte = static_cast<const std::byte*>(address);
  return static_cast<uint32_t>((byte - reinterpret_cast<const std::byte*>(addresses_.data())) / nupa::pool::kLineBytes);
}

uint64_t IncoherentMemory::load(const uint64_t* word) {
  step();
  const uint32_t line = index_of(word);
  return fill(me(), line).line.words[word - addresses_[line].words];
}

void IncoherentMemory::store(uint64_t* word, uint64_t value) {
  step();
  const uint32_t line = index_of(word);
  Host& host = me();
  // An invalidation that has started and the store are of one host and one line: they are executed in their order.
  if (host.dropping.count(line) != 0) drop(host, line);
  Entry& entry = fill(host, line);
  entry.line.words[word - addresses_[line].words] = value;
  entry.dirty = true;
}

void IncoherentMemory::write_back(const nupa::pool::Line* line) {
  step();
  me().writing.insert(index_of(line));
}

void IncoherentMemory::invalidate(const nupa::pool::Line* line) {
  step();
  me().writing.insert(index_of(line));
  me().dropping.insert(index_of(line));
}

void IncoherentMemory::store_fence() {
  step();
  Host& host = me();
  // In any order, and other hosts can see some of them before the others.
  while (!host.writing.empty()) {
    const auto found = random_of(host.writing, below(UINT32_MAX));
    const uint32_t line = *found;
    host.writing.erase(found);
    if (complete_write_back(host, line)) step();
  }
}

void IncoherentMemory::full_fence() {
  store_fence();
  Host& host = me();
  for (const uint32_t line : std::set<uint32_t>(host.dropping)) drop(host, line);
}

IncoherentMemory::Entry& IncoherentMemory::fill(Host& host, uint32_t line) {
  const auto found = host.cache.find(line);
  return found != host.cache.end() ? found->second : host.cache.emplace(line, Entry{memory_[line]}).first->second;
}

bool IncoherentMemory::complete_write_back(Host& host, uint32_t line) {
  const auto found = host.cache.find(line);
  if (found == host.cache.end() || !found->second.dirty) return false;
  memory_[line] = found->second.line;
  found->second.dirty = false;
  return true;
}

void IncoherentMemory::evict_all(uint32_t host) {
  while (!hosts_[host].cache.empty()) drop(hosts_[host], hosts_[host].cache.begin()->first);
}

void IncoherentMemory::drop(Host& host, uint32_t line) {
  complete_write_back(host, line);
  host.cache.erase(line);
  host.dropping.erase(line);
  host.writing.erase(line);
}

void IncoherentMemory::step() {
  if (!is_running_) return;
  ++steps_;
  if (below(3) == 0) happen(hosts_[below(hosts_.size())]);
  swapcontext(&me().fiber, &scheduler_);
}

void IncoherentMemory::happen(Host& host) {
  switch (below(evicts_ ? 4 : 2)) {
    case 0:
      if (!host.writing.empty()) {
        const auto line = random_of(host.writing, below(UINT32_MAX));
        complete_write_back(host, *line);
        host.writing.erase(line);
      }
      break;
    case 1:
      if (!host.dropping.empty()) drop(host, *random_of(host.dropping, below(UINT32_MAX)));
      break;
    case 2:
      if (!host.cache.empty()) drop(host, random_of(host.cache, below(UINT32_MAX))->first);
      break;
    case 3: {
      // Prefetchers take neighbours; a line from anywhere stands for the loads of other programs.
      uint64_t line = below(memory_.size());
      if (!host.cache.empty() && below(2) == 0) line = (random_of(host.cache, line)->first + 1) % memory_.size();
      fill(host, static_cast<uint32_t>(line));
      break;
    }
  }
}

void ModelCpu::load_bytes(std::byte* to, const std::byte* from, size_t bytes) {
  while (bytes > 0) {
    const size_t inside = reinterpret_cast<uintptr_t>(from) % sizeof(uint64_t);
    const uint64_t word = load(reinterpret_cast<const uint64_t*>(from - inside));
    const size_t run = std::min(bytes, sizeof word - inside);
    std::memcpy(to, reinterpret_cast<const std::byte*>(&word) + inside, run);
    to += run;
    from += run;
    bytes -= run;
  }
}

}  // namespace model
