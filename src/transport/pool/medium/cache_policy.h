// SPDX-License-Identifier: Apache-2.0
#pragma once
/// How the lines of a pool get from host to host: the one file in which media differ. The rules are in
/// docs/design/pool.md.
///
/// A policy is a small object that code of the pool holds by value. It is used by one thread at a time, unless a
/// function states otherwise. `Line` is the unit: a host reads or writes whole lines, and each line has one writing
/// host.

#include <algorithm>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace nupa::pool {

inline constexpr size_t kLineBytes = 64;
inline constexpr size_t kLineWords = kLineBytes / sizeof(uint64_t);

/// A cache line of the pool. Word 0 is stored last, so that a reader that sees its new value sees the others, too.
struct alignas(kLineBytes) Line {
  uint64_t words[kLineWords] = {};
};
static_assert(sizeof(Line) == kLineBytes);

/// Returns the number of lines that hold `bytes`.
constexpr uint64_t lines_of(uint64_t bytes) { return (bytes + kLineBytes - 1) / kLineBytes; }

template <class Policy>
concept CachePolicy = requires(Policy policy, Line* line, const Line* seen, const Line& content, std::byte* to,
                               const std::byte* from, size_t number) {
  /// Loads word 0 as the writing host last published it.
  { policy.poll(seen) } -> std::same_as<uint64_t>;
  /// Copies a line whose word 0 poll() has just returned. The rest is at least as new.
  { policy.read(seen) } -> std::same_as<Line>;
  /// Stores a line, word 0 last, and publishes it with everything that was stored before.
  policy.publish(line, content);
  /// Stores bytes from the beginning of a line. They are published by the next publish(), after fence().
  policy.store(line, from, number);
  /// Stores 0 to word 0. It is published by the next publish(), after fence().
  policy.clear(line);
  /// Between the stores of payload and the publish() that announces them.
  policy.fence();
  /// Between the poll() that has announced payload and the loads of it.
  policy.refresh(seen, number);
  /// Loads bytes that were refreshed. `from` need not be at the beginning of a line.
  policy.load(to, from, number);
  /// Publishes lines that were stored by other means than store(), for example by a program.
  policy.write_back(seen, number);
  /// Between a publish() and a poll() that must not be executed before it.
  policy.full_fence();
};

/// All hosts see one memory: guests of one machine, or CXL 3 with back-invalidation.
class Coherent {
 public:
  static uint64_t poll(const Line* line) { return __atomic_load_n(&line->words[0], __ATOMIC_ACQUIRE); }
  static Line read(const Line* line) {
    Line copy;
#pragma GCC unroll 8
    for (size_t word = 0; word < kLineWords; ++word)
      copy.words[word] = __atomic_load_n(&line->words[word], __ATOMIC_RELAXED);
    return copy;
  }
  static void publish(Line* line, const Line& content) {
#pragma GCC unroll 8
    for (size_t word = 1; word < kLineWords; ++word)
      __atomic_store_n(&line->words[word], content.words[word], __ATOMIC_RELAXED);
    __atomic_store_n(&line->words[0], content.words[0], __ATOMIC_RELEASE);
  }
  static void store(Line* line, const std::byte* from, size_t bytes) { std::memcpy(line, from, bytes); }
  static void clear(Line* line) { __atomic_store_n(&line->words[0], 0, __ATOMIC_RELAXED); }
  static void fence() {}
  static void refresh(const Line*, size_t) {}
  static void load(std::byte* to, const std::byte* from, size_t bytes) { std::memcpy(to, from, bytes); }
  static void write_back(const Line*, size_t) { std::atomic_thread_fence(std::memory_order_release); }
  static void full_fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
};

/// Nobody keeps the caches of the hosts coherent. `Cpu` executes the instructions: HardwareCpu (cpu.h), or a model.
///
/// - load(word)           loads 8 bytes.
/// - load_bytes(to, from, n) loads n bytes.
/// - store(word, value)   stores 8 bytes.
/// - order_stores()       earlier stores reach a line before later ones.
/// - write_back(line)     starts to write a line back; the cache may keep it.
/// - invalidate(line)     starts to write a line back and to drop it.
/// - store_fence()        completes stores and write-backs before later stores.
/// - full_fence()         completes everything before later loads.
/// - load_fence()         completes earlier loads before later loads.
/// - stream(line, from, n) stores n whole lines in any order and starts to write them back. Not each Cpu has it.
template <class Cpu>
class Flushed {
 public:
  explicit Flushed(Cpu cpu = {}) : cpu_(cpu) {}

  uint64_t poll(const Line* line) {
    refresh(line, 1);
    return cpu_.load(&line->words[0]);
  }
  Line read(const Line* line) {
    // Loads of one line can be served by two fetches of it, the older one for the later word.
    cpu_.load_fence();
    Line copy;
    for (size_t word = 0; word < kLineWords; ++word) copy.words[word] = cpu_.load(&line->words[word]);
    return copy;
  }
  void publish(Line* line, const Line& content) {
    for (size_t word = 1; word < kLineWords; ++word) cpu_.store(&line->words[word], content.words[word]);
    cpu_.order_stores();
    cpu_.store(&line->words[0], content.words[0]);
    cpu_.write_back(line);
    cpu_.store_fence();
  }
  void store(Line* line, const std::byte* from, size_t bytes) {
    size_t streamed = 0;  // lines
    if constexpr (requires { cpu_.stream(line, from, streamed); }) {
      streamed = bytes / kLineBytes;
      cpu_.stream(line, from, streamed);
    }
    for (size_t at = streamed * kLineBytes; at < bytes; at += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, from + at, std::min(sizeof word, bytes - at));
      cpu_.store(reinterpret_cast<uint64_t*>(line) + at / sizeof word, word);
    }
    for (size_t at = streamed; at < lines_of(bytes); ++at) cpu_.write_back(line + at);
  }
  void clear(Line* line) {
    cpu_.store(&line->words[0], 0);
    cpu_.write_back(line);
  }
  void fence() { cpu_.store_fence(); }
  void refresh(const Line* lines, size_t number) {
    for (size_t at = 0; at < number; ++at) cpu_.invalidate(lines + at);
    cpu_.full_fence();
  }
  void load(std::byte* to, const std::byte* from, size_t bytes) { cpu_.load_bytes(to, from, bytes); }
  void write_back(const Line* lines, size_t number) {
    for (size_t at = 0; at < number; ++at) cpu_.write_back(lines + at);
    cpu_.store_fence();
  }
  void full_fence() { cpu_.full_fence(); }

 private:
  [[no_unique_address]] Cpu cpu_;
};

/// The mapping is not cached (UC), or stores are combined and loads are not cached (WC): BARs behind a bridge. Nothing
/// has to be written back. Combined stores leave in any order, so a fence comes before each word 0.
template <class Cpu>
class Uncached {
 public:
  explicit Uncached(Cpu cpu = {}) : cpu_(cpu) {}

  uint64_t poll(const Line* line) { return cpu_.load(&line->words[0]); }
  Line read(const Line* line) {
    cpu_.load_fence();
    Line copy;
    for (size_t word = 0; word < kLineWords; ++word) copy.words[word] = cpu_.load(&line->words[word]);
    return copy;
  }
  void publish(Line* line, const Line& content) {
    for (size_t word = 1; word < kLineWords; ++word) cpu_.store(&line->words[word], content.words[word]);
    cpu_.store_fence();
    cpu_.store(&line->words[0], content.words[0]);
    cpu_.store_fence();
  }
  void store(Line* line, const std::byte* from, size_t bytes) {
    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
      uint64_t word = 0;
      std::memcpy(&word, from + at, std::min(sizeof word, bytes - at));
      cpu_.store(reinterpret_cast<uint64_t*>(line) + at / sizeof word, word);
    }
  }
  void clear(Line* line) { cpu_.store(&line->words[0], 0); }
  void fence() { cpu_.store_fence(); }
  void refresh(const Line*, size_t) { cpu_.full_fence(); }
  void load(std::byte* to, const std::byte* from, size_t bytes) { cpu_.load_bytes(to, from, bytes); }
  void write_back(const Line*, size_t) { cpu_.store_fence(); }
  void full_fence() { cpu_.full_fence(); }

 private:
  [[no_unique_address]] Cpu cpu_;
};

}  // namespace nupa::pool
