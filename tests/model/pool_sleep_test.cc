// SPDX-License-Identifier: Apache-2.0
/// Sleep and wake between processes of a pool whose memory is coherent: no wake-up is lost.
#include "shadow.h"
#include "expect.h"
#include "transport/pool/medium/sleep.h"

namespace nupa::pool {
namespace {

using model::Build;
using model::Case;

/// The policy Coherent, whose builtins of the compiler shadow.h does not replace.
struct CheckedPolicy {
  static std::atomic<uint64_t>& word(const Line* line) {
    return *reinterpret_cast<std::atomic<uint64_t>*>(const_cast<Line*>(line)->words);
  }
  static uint64_t poll(const Line* line) { return word(line).load(std::memory_order_acquire); }
  static Line read(const Line* line) {
    Line copy;
    copy.words[0] = word(line).load(std::memory_order_relaxed);
    return copy;
  }
  static void publish(Line* line, const Line& content) {
    word(line).store(content.words[0], std::memory_order_release);
  }
  static void store(Line*, const ::std::byte*, size_t) {}
  static void clear(Line* line) { word(line).store(0, std::memory_order_relaxed); }
  static void fence() {}
  static void refresh(const Line*, size_t) {}
  static void load(::std::byte*, const ::std::byte*, size_t) {}
  static void write_back(const Line*, size_t) {}
  static void full_fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
};

/// A process that sleeps, and two others that write records for it.
struct Processes {
  Line sleep;
  Line records[2];
  std::atomic<uint32_t> rings{};  ///< the doorbell

  /// Returns when the records of the first `writers` writers have come to `count`.
  void receive(uint32_t writers, uint64_t count) {
    CheckedPolicy policy;
    uint64_t taken[2] = {};
    const auto has_come = [&] {
      for (uint32_t i = 0; i < writers; ++i)
        if (policy.poll(&records[i]) != taken[i]) return true;
      return false;
    };
    while (taken[0] != count || (writers == 2 && taken[1] != count)) {
      const uint32_t seen = rings.load(std::memory_order_relaxed);
      if (fall_asleep([&](bool sleeps) { put_sleep(policy, &sleep, sleeps); }, has_come)) {
        while (rings.load(std::memory_order_acquire) == seen) _mm_pause();
        put_sleep(policy, &sleep, false);
      }
      for (uint32_t i = 0; i < writers; ++i) taken[i] = policy.poll(&records[i]);
    }
  }
  void send(uint32_t writer, uint64_t count) {
    CheckedPolicy policy;
    for (uint64_t record = 1; record <= count; ++record) {
      put_word(policy, &records[writer], record);
      if (is_asleep(policy, &sleep)) rings.fetch_add(1, std::memory_order_acq_rel);
    }
  }
};

void one_record(Case& made) {
  auto& processes = made.make<Processes>();
  made.thread("sleeper", [&] { processes.receive(1, 1); });
  made.thread("writer", [&] { processes.send(0, 1); });
}

void two_records(Case& made) {
  auto& processes = made.make<Processes>();
  made.thread("sleeper", [&] { processes.receive(1, 2); });
  made.thread("writer", [&] { processes.send(0, 2); });
}

void two_writers(Case& made) {
  auto& processes = made.make<Processes>();
  made.thread("sleeper", [&] { processes.receive(2, 1); });
  made.thread("writer 1", [&] { processes.send(0, 1); });
  made.thread("writer 2", [&] { processes.send(1, 1); });
}

TEST(ModelPoolSleep, OneRecord_WakesTheSleeper) { model::expect_holds(one_record); }
TEST(ModelPoolSleep, SecondRecord_WakesTheSleeper) { model::expect_holds(two_records); }
TEST(ModelPoolSleep, RecordsOfTwoProcesses_WakeTheSleeper) { model::expect_holds(two_writers); }

}  // namespace
}  // namespace nupa::pool
