// SPDX-License-Identifier: Apache-2.0
// Tests of memory that moves while other threads write it: no write is lost, and no system call fails.
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <thread>

#include "region_test_support.h"
#include "../../support/sanitizers.h"
#include "../../support/soon.h"

namespace nupa::memory::testing {
namespace {

constexpr int kRounds = 60;
constexpr size_t kPages = 1100;  // over 4 MiB: several steps, the last one not whole
constexpr size_t kStride = 512;  // bytes between counters

/// Counts in all of the memory, round after round, and knows what must be there.
class Counter {
 public:
  explicit Counter(Memory& memory) : memory_(memory), thread_([this] { run(); }) {}
  ~Counter() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }
  /// Places whose count is not what was counted.
  size_t stop_and_count_lost() {
    stop_ = true;
    thread_.join();
    size_t lost = 0;
    for (size_t at = 0; at < memory_.size(); at += kStride) lost += counter(at) != total_;
    return lost;
  }
  uint64_t total() const { return total_; }

 private:
  volatile uint64_t& counter(size_t at) { return *reinterpret_cast<volatile uint64_t*>(memory_.data() + at); }
  void run() {
    while (!stop_) {
      for (size_t at = 0; at < memory_.size(); at += kStride) counter(at) = counter(at) + 1;
      total_ = total_ + 1;
    }
  }
  Memory& memory_;
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> total_{0};
  std::thread thread_;
};

/// Reads numbered blocks from a pipe into the memory by read(2) and looks whether they arrived.
class PipeReader {
 public:
  explicit PipeReader(Memory& memory) : memory_(memory) {
    EXPECT_EQ(pipe(ends_), 0);
    feeder_ = std::thread([this] { feed(); });
    reader_ = std::thread([this] { run(); });
  }
  void stop() {
    stop_ = true;
    reader_.join();
    close(ends_[0]);
    feeder_.join();
    close(ends_[1]);
  }
  std::atomic<uint64_t> blocks{0};
  std::atomic<uint64_t> lost{0};
  std::atomic<int> error{0};

 private:
  static constexpr size_t kBlock = 8192;
  void feed() {
    sigset_t pipe_signal;
    sigemptyset(&pipe_signal);
    sigaddset(&pipe_signal, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_signal, nullptr);
    std::vector<uint64_t> block(kBlock / 8);
    for (uint64_t number = 1;; ++number) {
      std::fill(block.begin(), block.end(), number);
      if (write(ends_[1], block.data(), kBlock) != static_cast<ssize_t>(kBlock)) return;
    }
  }
  void run() {
    for (uint64_t number = 1; !stop_; ++number) {
      uint8_t* at = memory_.data() + number * 5000 / 8 * 8 % (memory_.size() - kBlock);
      for (size_t done = 0; done < kBlock;) {
        const ssize_t got = read(ends_[0], at + done, kBlock - done);
        if (got <= 0) {
          error = errno;
          return;
        }
        done += static_cast<size_t>(got);
      }
      const auto* words = reinterpret_cast<const volatile uint64_t*>(at);
      for (size_t i = 0; i < kBlock / 8; ++i) lost += words[i] != number;
      ++blocks;
    }
  }
  Memory& memory_;
  int ends_[2];
  std::atomic<bool> stop_{false};
  std::thread feeder_;
  std::thread reader_;
};

/// Shares and unshares all and parts of the memory; returns how often something was shared.
int share_and_unshare(Remapper& remapper, Memory& memory) {
  int shared = 0;
  for (int round = 0; round < kRounds; ++round) {
    uint8_t* begin = memory.data() + (round % 3) * 1000;
    const size_t length = memory.size() - static_cast<size_t>(round % 5) * 50000 - 2000;
    auto pieces = remapper.share(begin, length, true);
    EXPECT_TRUE(pieces.has_value());
    shared += pieces && !pieces->empty();
    remapper.unshare(begin, length);
  }
  return shared;
}

class RemapperThreads : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    if (WriteGuard::open().kind() != WriteGuard::Kind::kFull)
      GTEST_SKIP() << "a full userfaultfd is not available (vm.unprivileged_userfaultfd)";
    RemapOptions options;
    options.may_move = GetParam().may_move;
    remapper_ = make_remapper(Policy::kAuto, options);
  }
  std::unique_ptr<Remapper> remapper_;
};
INSTANTIATE_TEST_SUITE_P(All, RemapperThreads, ::testing::ValuesIn(kWays),
                         [](const auto& way) { return std::string(way.param.name); });

TEST_P(RemapperThreads, Share_ConcurrentWriter_LosesNoWrite) {
  Memory memory(kPages);
  Counter counter(memory);
  // Until the writer has written meanwhile, too: on a slow machine the first turns may hold it up nearly always.
  constexpr uint64_t kLeast = 10;
  for (int turn = 0; turn == 0 || (turn < 100 && counter.total() <= kLeast); ++turn)
    EXPECT_EQ(share_and_unshare(*remapper_, memory), kRounds);
  EXPECT_EQ(counter.stop_and_count_lost(), 0u);
  EXPECT_GT(counter.total(), kLeast);
}

TEST_P(RemapperThreads, Share_ConcurrentWriterToFreshMemory_LosesNoWrite) {
  for (int round = 0; round < 30; ++round) {
    Memory memory(kPages);  // pages appear while the move is on
    Counter counter(memory);
    ASSERT_TRUE(remapper_->share(memory.data(), memory.size(), true).has_value());
    remapper_->unshare(memory.data(), memory.size());
    ASSERT_EQ(counter.stop_and_count_lost(), 0u) << round;
  }
}

TEST_P(RemapperThreads, Share_ConcurrentReadFromAPipe_NeitherFailsNorLosesData) {
  Memory memory(kPages);
  PipeReader reader(memory);
  // Until the reader had its turn: cores may be scarce.
  for (int turn = 0; turn < 200 && (turn == 0 || reader.blocks <= 10); ++turn)
    ASSERT_EQ(share_and_unshare(*remapper_, memory), kRounds);
  reader.stop();
  EXPECT_EQ(reader.error, 0);
  EXPECT_EQ(reader.lost, 0u);
  EXPECT_GT(reader.blocks, 10u);
}

TEST_P(RemapperThreads, ShareAndUnshare_ManyThreads_LoseNoWrite) {
  Memory memory(kPages);
  Counter counter(memory);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i)
    threads.emplace_back([&, i] {
      for (int round = 0; round < 30; ++round) {
        uint8_t* begin = memory.data() + static_cast<size_t>(i * 100 + round) * kPageSize;
        EXPECT_TRUE(remapper_->share(begin, 500 * kPageSize, true).has_value());
        remapper_->unshare(begin, 500 * kPageSize);
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counter.stop_and_count_lost(), 0u);
  EXPECT_FALSE(is_shared(memory.data() + 200 * kPageSize));
}

TEST_P(RemapperThreads, Share_SignalHandlerWrites_LosesNoWrite) {
  static Memory* target = nullptr;
  static volatile uint64_t signals = 0;
  Memory memory(64);
  target = &memory;
  signals = 0;
  struct sigaction action {};
  action.sa_handler = [](int) {
    for (size_t page = 0; page < 64; ++page) {
      volatile uint64_t& count = *reinterpret_cast<volatile uint64_t*>(target->data() + page * kPageSize);
      count = count + 1;
    }
    signals = signals + 1;
  };
  action.sa_flags = SA_RESTART;
  struct sigaction before;
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  const pid_t self = gettid();
  std::atomic<bool> stop{false};
  std::thread sender([&] {
    while (!stop) {
      syscall(SYS_tgkill, getpid(), self, SIGUSR1);
      usleep(20);  // sleep: the rate at which signals come
    }
  });
  for (int round = 0; round < 500; ++round) {
    EXPECT_TRUE(remapper_->share(memory.data(), memory.size(), true).has_value());
    remapper_->unshare(memory.data(), memory.size());
  }
  stop = true;
  sender.join();
  sigaction(SIGUSR1, &before, nullptr);
  EXPECT_GT(signals, 10u);
  for (size_t page = 0; page < 64; ++page)
    ASSERT_EQ(*reinterpret_cast<uint64_t*>(memory.data() + page * kPageSize), signals) << page;
}

TEST(RemapperPeers, Share_PeerWritesThroughTheKernel_LosesNoWrite) {
  const WriteGuard guard = WriteGuard::open();
  if (!guard.can_move()) GTEST_SKIP() << "no UFFDIO_MOVE: pages cannot be moved away";
  // An ordinary user has the guard for user mode alone (vm.unprivileged_userfaultfd is 0). With it, the kernel does not
  // wait at a page that is away: process_vm_writev fails with EFAULT. So registered bytes that peers reach by the
  // kernel do not move there: RemapperUnprivileged.Share_BytesThatPeersReachByTheKernel_AreNotMoved.
  if (guard.kind() != WriteGuard::Kind::kFull)
    GTEST_SKIP() << "userfaultfd of the kernel's accesses: " << std::strerror(EPERM)
                 << " (vm.unprivileged_userfaultfd)";
  // A peer that reaches the buffer by process_vm_writev counts up in it, and checks that no count returns to an older
  // value.
  Memory memory(2000);
  Memory control(1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS);
  auto* stop = reinterpret_cast<std::atomic<uint64_t>*>(control.data());
  const pid_t owner = getpid();
  const pid_t peer = fork();
  if (peer == 0) {
    std::vector<uint64_t> block(memory.size() / 8);
    for (uint64_t number = 1; stop[0] == 0; ++number) {
      std::fill(block.begin(), block.end(), number);
      iovec local{block.data(), memory.size()};
      iovec remote{memory.data(), memory.size()};
      const ssize_t length = static_cast<ssize_t>(memory.size());
      if (process_vm_writev(owner, &local, 1, &remote, 1, 0) != length) _exit(number == 1 && errno == EPERM ? 77 : 1);
      if (process_vm_readv(owner, &local, 1, &remote, 1, 0) != length) _exit(2);
      if (std::any_of(block.begin(), block.end(), [&](uint64_t word) { return word != number; })) _exit(3);
      stop[1] = number;
    }
    _exit(0);
  }
  int status = 0;
  while (stop[1] == 0 && waitpid(peer, &status, WNOHANG) == 0) usleep(100);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
    GTEST_SKIP() << "process_vm_writev to the parent: " << std::strerror(EPERM);
  ASSERT_GT(stop[1], 0u) << status;
  auto remapper = make_remapper();
  size_t shared = 0;
  // Only share() meets such writers: unshare() may ask that no peer writes any more.
  for (size_t page = 0; page < 2000; ++page) {
    auto pieces = remapper->share(memory.data() + page * kPageSize, kPageSize, true);
    EXPECT_TRUE(pieces.has_value());
    shared += pieces && !pieces->empty();
  }
  const uint64_t rounds = stop[1];
  EXPECT_TRUE(test::soon([&] { return stop[1] > rounds + 2; })) << "the peer does not go on";
  stop[0] = 1;
  EXPECT_EQ(waitpid(peer, &status, 0), peer);
  EXPECT_EQ(status, 0);
  EXPECT_GT(shared, 1000u);
}

int become_unprivileged() {
  if (geteuid() == 0 && (setgid(65534) != 0 || setuid(65534) != 0)) return -1;
  return prctl(PR_SET_DUMPABLE, 1);  // else /proc/self stays root's
}

/// ThreadSanitizer begins its own one with the program's first.
bool has_thread_of_sanitizer() { return test::kThreadSanitizer || thread_count() > 1; }

TEST(RemapperUnprivileged, Share_PolicyAlways_ProtectsWritersInUserMode) {
  const int result = in_child([] {
    if (become_unprivileged() != 0) return 10;
    if (WriteGuard::open().kind() == WriteGuard::Kind::kNone) return 77;
    auto remapper = make_remapper(Policy::kAlways);
    Memory memory(kPages);
    Counter counter(memory);
    if (share_and_unshare(*remapper, memory) != kRounds) return 1;
    return counter.stop_and_count_lost() == 0 ? 0 : 2;
  });
  if (result == 77) GTEST_SKIP() << "no userfaultfd at all";
  EXPECT_EQ(result, 0);
}

TEST(RemapperUnprivileged, Share_PolicyAutoBesideAnotherThread_SharesNothing) {
  if (has_thread_of_sanitizer()) GTEST_SKIP() << "a sanitizer's own thread runs here";
  EXPECT_EQ(in_child([] {
              if (become_unprivileged() != 0) return 10;
              if (WriteGuard::open().kind() == WriteGuard::Kind::kFull) return 0;
              auto remapper = make_remapper();
              Memory memory(16);
              memory.fill();
              auto alone = remapper->share(memory.data(), memory.size(), true);
              if (!alone || bytes_of(*alone) != memory.size()) return 1;
              std::atomic<bool> stop{false};
              std::thread other([&] {
                while (!stop) usleep(1000);  // sleep: a thread that exists and does nothing
              });
              Memory second(16);
              auto beside = remapper->share(second.data(), second.size(), true);
              if (!beside || !beside->empty()) return 2;
              remapper->unshare(second.data(), second.size());
              remapper->set_internal_threads(1);  // were it the library's own thread, it would not count
              auto own = remapper->share(second.data(), second.size(), true);
              if (!own || own->empty()) return 3;
              stop = true;
              other.join();
              return 0;
            }),
            0);
}

TEST(RemapperUnprivileged, Share_BytesThatPeersReachByTheKernel_AreNotMoved) {
  if (has_thread_of_sanitizer()) GTEST_SKIP() << "a sanitizer's own thread runs here";
  EXPECT_EQ(in_child([] {
              if (become_unprivileged() != 0) return 10;
              if (WriteGuard::open().kind() == WriteGuard::Kind::kFull) return 0;
              auto remapper = make_remapper();
              Memory memory(16);
              memory.fill();
              std::atomic<bool> stop{false};
              std::thread other([&] {
                while (!stop) usleep(1000);
              });
              auto beside = remapper->share(memory.data(), 4 * kPageSize, true);
              stop = true;
              other.join();
              if (!beside || !beside->empty()) return 1;
              if (!test::soon([] { return thread_count() == 1; })) return 2;
              // From now on the process is alone, so memory moves, except for the bytes that are registered without a
              // move.
              auto all = remapper->share(memory.data(), memory.size(), true);
              if (!all || !all->empty() || is_shared(memory.data())) return 3;
              remapper->unshare(memory.data(), memory.size());
              remapper->unshare(memory.data(), 4 * kPageSize);
              auto alone = remapper->share(memory.data(), memory.size(), true);
              if (!alone || bytes_of(*alone) != memory.size()) return 4;
              return memory.filled() ? 0 : 5;
            }),
            0);
}

TEST(RemapperUnprivileged, Unshare_WithoutStoppingThreads_LosesNoWrite) {
  if (has_thread_of_sanitizer()) GTEST_SKIP() << "a sanitizer's own thread runs here";
  EXPECT_EQ(in_child([] {
              if (become_unprivileged() != 0) return 10;
              auto remapper = make_remapper();
              for (int round = 0; round < kRounds; ++round) {
                Memory memory(kPages);
                auto pieces = remapper->share(memory.data(), memory.size() / 2, true);
                if (!pieces || pieces->empty()) return 1;
                Counter counter(memory);
                PipeReader reader(memory);
                usleep(200);  // sleep: the writers run for so long
                remapper->unshare(memory.data(), memory.size() / 2);
                usleep(200);  // sleep: the writers run for so long
                reader.stop();
                if (reader.error != 0) return 3;
                counter.stop_and_count_lost();
                if (is_shared(memory.data())) return 4;
                madvise(memory.data(), memory.size(), MADV_DONTNEED);
                for (size_t i = 0; i < memory.size(); i += kStride)
                  if (memory.data()[i] != 0) return 5;
              }
              for (int round = 0; round < kRounds; ++round) {
                Memory memory(kPages);
                memory.fill();
                std::memset(memory.data(), 0, memory.size());
                auto pieces = remapper->share(memory.data(), memory.size(), true);
                if (!pieces || pieces->empty()) return 1;
                Counter counter(memory);
                usleep(500);  // sleep: the writer runs for so long
                remapper->unshare(memory.data(), memory.size());
                usleep(100);  // sleep: the writer runs for so long
                if (counter.stop_and_count_lost() != 0) return 2;
              }
              return 0;
            }),
            0);
}

TEST(RemapperUnprivileged, Share_ThreadsOfTheLibrary_WaitAtTheMutex) {
  if (has_thread_of_sanitizer()) GTEST_SKIP() << "a sanitizer's own thread runs here";
  EXPECT_EQ(in_child([] {
              if (become_unprivileged() != 0) return 10;
              RemapOptions options;
              options.may_move = false;  // the plain copy, for which the program is alone
              auto remapper = make_remapper(Policy::kAuto, options);
              Memory memory(kPages);
              std::atomic<bool> stop{false};
              uint64_t count = 0;
              remapper->set_internal_threads(1);
              std::thread own([&] {
                for (; !stop; ++count) {
                  std::shared_lock copying(remapper->copy_mutex());
                  for (size_t at = 0; at < memory.size(); at += kStride)
                    ++*reinterpret_cast<uint64_t*>(memory.data() + at);
                }
              });
              const bool all = share_and_unshare(*remapper, memory) == kRounds;
              stop = true;
              own.join();
              for (size_t at = 0; at < memory.size(); at += kStride)
                if (*reinterpret_cast<uint64_t*>(memory.data() + at) != count) return 1;
              return all ? 0 : 2;
            }),
            0);
}

}  // namespace
}  // namespace nupa::memory::testing
