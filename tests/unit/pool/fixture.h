// SPDX-License-Identifier: Apache-2.0
#pragma once
/// A pool in a file of the test, which hosts of the test open in one process, with a clock of the test.
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "transport/pool/medium/admin.h"
#include "transport/pool/medium/make_pool.h"

namespace nupa::pool {

constexpr uint64_t kMiB = 1 << 20;

class PoolFile {
 public:
  explicit PoolFile(uint64_t size = 4 * kMiB, uint16_t hosts = 2) {
    char name[] = "/dev/shm/nupa-pool-test-XXXXXX";
    const int fd = mkstemp(name);
    EXPECT_GE(fd, 0);
    close(fd);
    path_ = name;
    FormatOptions options;
    options.hosts = hosts;
    options.size = size;
    options.ring_bytes = 4096;
    const auto formatted = format_pool(spec(0), options);
    EXPECT_TRUE(formatted) << formatted.error().what();
  }
  ~PoolFile() {
    unlink(path_.c_str());
    TornMemory::remove_copies(path_, kMaxHosts);
  }
  const std::string& path() const { return path_; }
  Spec spec(uint16_t host, Coherence coherence = Coherence::kFull) const {
    Spec spec;
    spec.name = path_;
    spec.host = host;
    spec.coherence = coherence;
    return spec;
  }

 private:
  std::string path_;
};

/// Time that passes only when the test wants it.
struct TestClock {
  int64_t now_ns = 1'000'000'000;
  PoolClock clock() {
    return {[this] { return now_ns; }, [this](int64_t ns) { now_ns += ns; }};
  }
};

inline Gid gid_of(uint8_t last) {
  Gid gid;
  gid.raw[0] = 0xfd;
  gid.raw[15] = last;
  return gid;
}

/// A process of a host.
class Process {
 public:
  Process(const PoolFile& file, uint16_t host, TestClock& clock, Coherence coherence = Coherence::kFull)
      : Process(file.spec(host, coherence), clock) {}
  Process(const Spec& spec, TestClock& clock) : clock_(clock) {
    auto made = make_pool(spec, clock.clock());
    EXPECT_TRUE(made) << made.error().what();
    if (made) pool_ = std::move(*made);
  }
  Pool& operator*() { return *pool_; }
  Pool* operator->() { return pool_.get(); }
  /// Joins with one slot and one address.
  ProcessId join(uint32_t slot = 7, uint8_t gid = 1) {
    const auto id = pool_->join({.slots = {slot}, .gids = {gid_of(gid)}, .groups = {}});
    EXPECT_TRUE(id) << id.error().what();
    if (id) id_ = *id;
    return id_;
  }
  const ProcessId& id() const { return id_; }
  void beat() { pool_->beat(clock_.now_ns); }
  /// The process has ended without a goodbye: its locks are gone.
  void end() { pool_.reset(); }

 private:
  TestClock& clock_;
  std::unique_ptr<Pool> pool_;
  ProcessId id_;
};

/// Lets time pass, in steps in which the processes beat.
template <class... Processes>
void pass(TestClock& clock, int64_t ns, Processes&... processes) {
  constexpr int64_t kStepNs = 100'000'000;
  for (int64_t passed = 0; passed < ns; passed += kStepNs) {
    clock.now_ns += kStepNs;
    (processes.beat(), ...);
  }
}

}  // namespace nupa::pool
