// SPDX-License-Identifier: Apache-2.0
#include "incoherent_memory.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace model {
namespace {

using nupa::pool::kLineBytes;
using nupa::pool::kLineWords;
using nupa::pool::Line;

/// The storage of the run before, because new memory costs page faults.
std::vector<Line>& spare_storage() {
  static std::vector<Line> storage;
  return storage;
}

template <class Load>
void load_words(std::byte* to, const std::byte* from, size_t bytes, Load&& load) {
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

}  // namespace

void IncoherentMemory::LineSet::add(uint32_t line) {
  if (!has(line)) lines.push_back(line);
}
bool IncoherentMemory::LineSet::has(uint32_t line) const {
  return std::find(lines.begin(), lines.end(), line) != lines.end();
}
void IncoherentMemory::LineSet::remove(uint32_t line) {
  const auto found = std::find(lines.begin(), lines.end(), line);
  if (found != lines.end()) remove_at(static_cast<size_t>(found - lines.begin()));
}
void IncoherentMemory::LineSet::remove_at(size_t place) {
  lines[place] = lines.back();
  lines.pop_back();
}

IncoherentMemory::IncoherentMemory(uint64_t seed, uint32_t lines, uint32_t hosts, bool evicts)
    : fibers_(seed),
      evicts_(evicts),
      number_of_lines_(lines),
      stride_(std::bit_ceil(lines)),
      memory_at_(size_t{hosts} * stride_),
      storage_(std::move(spare_storage())),
      hosts_(hosts),
      programs_(1) {
  storage_.assign(size_t{hosts + 1} * stride_, {});
  for (Host& host : hosts_) {
    host.state.assign(lines, 0);
    host.place.assign(lines, 0);
  }
  current_ = this;
}

IncoherentMemory::~IncoherentMemory() {
  spare_storage() = std::move(storage_);
  current_ = before_;
}

uint32_t IncoherentMemory::add(uint32_t host, std::function<void()> body) {
  programs_.emplace_back().host = host;
  return fibers_.add(std::move(body));
}

bool IncoherentMemory::run(const std::vector<std::function<void()>>& bodies, uint64_t limit) {
  for (uint32_t host = 0; host < bodies.size(); ++host) add(host, bodies[host]);
  return fibers_.run(limit);
}

uint32_t IncoherentMemory::index_of(const void* address) const {
  const auto offset = static_cast<const std::byte*>(address) - reinterpret_cast<const std::byte*>(storage_.data());
  return static_cast<uint32_t>(offset / kLineBytes) & (stride_ - 1);
}

void IncoherentMemory::show(uint32_t line) {
  for (uint32_t host = 0; host < hosts_.size(); ++host)
    if (hosts_[host].state[line] == 0) lines(host)[line] = memory(line);
}

void IncoherentMemory::fill(uint32_t host, uint32_t line) {
  Host& here = hosts_[host];
  if (here.state[line] != 0) return;
  here.state[line] = kCached;
  here.place[line] = static_cast<uint32_t>(here.cached.size());
  here.cached.push_back(line);
}

void IncoherentMemory::forget(uint32_t host, uint32_t line) {
  Host& here = hosts_[host];
  if (here.state[line] == 0) return;
  here.state[line] = 0;
  const uint32_t last = here.cached.back();
  here.cached[here.place[line]] = last;
  here.place[last] = here.place[line];
  here.cached.pop_back();
  lines(host)[line] = memory(line);
}

bool IncoherentMemory::complete_write_back(uint32_t host, uint32_t line) {
  uint8_t& state = hosts_[host].state[line];
  if ((state & kDirty) == 0) return false;
  state = kCached;
  memory(line) = lines(host)[line];
  show(line);
  return true;
}

void IncoherentMemory::drop(uint32_t host, uint32_t line) {
  complete_write_back(host, line);
  forget(host, line);
}

void IncoherentMemory::complete_store(Program& program, size_t place) {
  const Word store = program.stores[place];
  program.stores.erase(program.stores.begin() + static_cast<std::ptrdiff_t>(place));
  drop(program.host, store.line);
  memory(store.line).words[store.word] = store.value;
  show(store.line);
}

uint64_t IncoherentMemory::load(const uint64_t* word) {
  const uint32_t line = index_of(word);
  const auto number = reinterpret_cast<uintptr_t>(word) / sizeof *word % kLineWords;
  step();
  const uint32_t host = me().host;
  if (!fibers_.is_killed()) {
    fill(host, line);
    hosts_[host].last = line;
  }
  return lines(host)[line].words[number];
}

void IncoherentMemory::store(uint64_t* word, uint64_t value) {
  const uint32_t line = index_of(word);
  const auto number = reinterpret_cast<uintptr_t>(word) / sizeof *word % kLineWords;
  step();
  if (fibers_.is_killed()) return;
  Program& program = me();
  // An invalidation that has started and the store are of one program and one line: they are executed in their order.
  if (program.dropping.has(line)) {
    drop(program.host, line);
    program.dropping.remove(line);
    program.writing.remove(line);
  }
  Host& host = hosts_[program.host];
  fill(program.host, line);
  lines(program.host)[line].words[number] = value;
  host.state[line] = kCached | kDirty;
  host.last = line;
}

void IncoherentMemory::write_back(const Line* line) {
  step();
  if (!fibers_.is_killed()) me().writing.add(index_of(line));
}

void IncoherentMemory::invalidate(const Line* line) {
  step();
  if (fibers_.is_killed()) return;
  me().writing.add(index_of(line));
  me().dropping.add(index_of(line));
}

void IncoherentMemory::store_fence() {
  step();
  // In any order, and other hosts can see some of them before the others. The program's place can change when another
  // one is added.
  while (!fibers_.is_killed()) {
    Program& program = me();
    const size_t started = program.writing.lines.size() + program.stores.size();
    if (started == 0) return;
    size_t place = below(started);
    if (place < program.stores.size()) {
      complete_store(program, place);
      step();
      continue;
    }
    place -= program.stores.size();
    const uint32_t line = program.writing.lines[place];
    program.writing.remove_at(place);
    if (complete_write_back(program.host, line)) step();
  }
}

void IncoherentMemory::full_fence() {
  store_fence();
  if (fibers_.is_killed()) return;
  Program& program = me();
  for (const uint32_t line : program.dropping.lines) drop(program.host, line);
  program.dropping.lines.clear();
}

void IncoherentMemory::store_around(uint64_t* word, uint64_t value) {
  const uint32_t line = index_of(word);
  const auto number = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(word) / sizeof *word % kLineWords);
  step();
  if (fibers_.is_killed()) return;
  Program& program = me();
  drop(program.host, line);
  for (Word& store : program.stores)
    if (store.line == line && store.word == number) {
      store.value = value;
      return;
    }
  program.stores.push_back({line, number, value});
}

uint64_t IncoherentMemory::load_around(const uint64_t* word) {
  const uint32_t line = index_of(word);
  const auto number = reinterpret_cast<uintptr_t>(word) / sizeof *word % kLineWords;
  step();
  if (fibers_.is_killed()) return memory(line).words[number];
  // A load from a line with combined stores of this processor waits for them.
  Program& program = me();
  for (size_t place = 0; place < program.stores.size();)
    if (program.stores[place].line == line)
      complete_store(program, place);
    else
      ++place;
  hosts_[program.host].last = line;
  return memory(line).words[number];
}

void IncoherentMemory::complete(uint32_t number) {
  Program& program = programs_[number + 1];
  while (!program.stores.empty()) complete_store(program, below(program.stores.size()));
  for (const uint32_t line : program.writing.lines) complete_write_back(program.host, line);
  for (const uint32_t line : program.dropping.lines) drop(program.host, line);
  program.writing.lines.clear();
  program.dropping.lines.clear();
}

void IncoherentMemory::clear() {
  for (uint32_t line = 0; line < number_of_lines_; ++line) {
    memory(line) = {};
    show(line);
  }
}

void IncoherentMemory::evict_all(uint32_t host) {
  while (!hosts_[host].cached.empty()) drop(host, hosts_[host].cached.back());
}

void IncoherentMemory::lose_cache(uint32_t host) {
  for (Program& program : programs_) {
    if (program.host != host) continue;
    program.writing.lines.clear();
    program.dropping.lines.clear();
    while (!program.stores.empty()) {
      const size_t place = below(program.stores.size());
      if (below(2) == 0)
        complete_store(program, place);
      else
        program.stores.erase(program.stores.begin() + static_cast<std::ptrdiff_t>(place));
    }
  }
  while (!hosts_[host].cached.empty()) {
    const uint32_t line = hosts_[host].cached.back();
    if (below(2) == 0) complete_write_back(host, line);
    forget(host, line);
  }
}

void IncoherentMemory::step() {
  if (fibers_.running() == Fibers::kNone || fibers_.is_killed()) return;
  if (below(3) == 0) happen(programs_[1 + below(programs_.size() - 1)]);
  fibers_.step();
}

uint32_t IncoherentMemory::line_near(const Host& host) {
  constexpr uint32_t kNear = 4;
  if (host.cached.empty() || below(4) == 0) return static_cast<uint32_t>(below(number_of_lines_));
  const uint32_t from = below(2) == 0 ? host.last : host.cached[below(host.cached.size())];
  return static_cast<uint32_t>((from + below(kNear)) % number_of_lines_);
}

void IncoherentMemory::happen(Program& program) {
  Host& host = hosts_[program.host];
  switch (below(evicts_ ? 5 : 3)) {
    case 0:
      if (!program.writing.lines.empty()) {
        const size_t place = below(program.writing.lines.size());
        complete_write_back(program.host, program.writing.lines[place]);
        program.writing.remove_at(place);
      }
      break;
    case 1:
      if (!program.dropping.lines.empty()) {
        const size_t place = below(program.dropping.lines.size());
        const uint32_t line = program.dropping.lines[place];
        drop(program.host, line);
        program.dropping.remove_at(place);
        program.writing.remove(line);
      }
      break;
    case 2:
      if (!program.stores.empty()) complete_store(program, below(program.stores.size()));
      break;
    case 3: {
      if (host.cached.empty()) break;
      const uint32_t line = below(2) == 0 ? line_near(host) : host.cached[below(host.cached.size())];
      drop(program.host, line);
      break;
    }
    case 4:
      // Prefetchers take neighbours; a line from anywhere stands for the loads of other programs.
      fill(program.host, line_near(host));
      break;
  }
}

void ModelCpu::load_bytes(std::byte* to, const std::byte* from, size_t bytes) { load_words(to, from, bytes, load); }

void CombiningModelCpu::load_bytes(std::byte* to, const std::byte* from, size_t bytes) {
  load_words(to, from, bytes, load);
}

void StreamingModelCpu::stream(Line* to, const std::byte* from, size_t lines) {
  for (size_t at = 0; at < lines * kLineWords; ++at) {
    uint64_t word = 0;
    std::memcpy(&word, from + at * sizeof word, sizeof word);
    IncoherentMemory::current().store_around(to->words + at, word);
  }
}

}  // namespace model
