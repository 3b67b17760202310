// SPDX-License-Identifier: Apache-2.0
#include "shadow.h"
#include "eventfd.h"
#include "expect.h"

namespace nupa::progress {

/// For ppoll(2): of the thread's own descriptor, which is the first one, without a limit.
inline int sleep_on_the_counter(pollfd* fds, size_t, const timespec*, const sigset_t*) {
  model::operations::await(&counter, 0, std::memory_order_acquire, [](uint64_t count) { return count != 0; });
  fds->revents = POLLIN;
  return 1;
}
}  // namespace nupa::progress

// The lines that are checked.
#include "rsockets/receive_ring.h"
#include "rsockets/socket.cc"
#include "rsockets/waiter.cc"
#include "progress/wake_up.h"
// Its arguments' types would have the system's function found beside one of the same name.
#define ppoll sleep_on_the_counter
#include "progress/descriptors.cc"

namespace nupa::rsockets {

const Settings& settings() {
  static const Settings none{.polling_us = 0};
  return none;
}

namespace {

using model::Build;
using model::Case;

/// An rsocket whose state is a few words. Changes come by other threads' calls alone, and not by descriptors.
class Words final : public Socket {
 public:
  Words() : Socket(AF_INET, SOCK_STREAM) {}

  // As Stream's read_shut_.
  std::atomic<bool> shut{};
  // As Stream's phase_, with an edge behind it.
  std::atomic<uint32_t> phase{};
  std::atomic<uint32_t> edges{};
  // As what completions change; others look at it without the lock that a sleeper takes.
  bool has_completions = false;
  progress::SpinLock completions;
  uint32_t arrived = 0;
  std::atomic<uint32_t> readable{};

  template <class Test>
  void wait(Test test) {
    model::require(wait_until(Deadline::never(), test) == 0, "what was waited for is there");
  }
  void handle_completions() {
    const ::std::lock_guard lock(completions);
    model::note_access(&arrived, sizeof arrived, true);
    if (arrived != 0) readable.store(arrived, std::memory_order_relaxed);
  }

  int fd() const override { return -1; }
  int bind(const sockaddr*, socklen_t) override { return 0; }
  int listen(int) override { return 0; }
  int accept(Socket**) override { return 0; }
  int connect(const sockaddr*, socklen_t) override { return 0; }
  int shutdown(int) override { return 0; }
  void close() override {}
  ssize_t send(Pieces, int, const sockaddr*, socklen_t) override { return 0; }
  ssize_t receive(Pieces, int, sockaddr*, socklen_t*) override { return 0; }
  int local_name(sockaddr*, socklen_t*) override { return 0; }
  int peer_name(sockaddr*, socklen_t*) override { return 0; }
  int set_option(int, int, const void*, socklen_t) override { return 0; }
  int get_option(int, int, void*, socklen_t*) override { return 0; }
  size_t readable_bytes() override { return 0; }
  short ready(short) override {
    if (has_completions) handle_completions();
    return 0;
  }
  void arm(::std::vector<pollfd>*) override {}
  void wake(int) override {}
};

Words& make_socket(Case& made) {
  progress::WakeUp::of_thread().take();  // the only sleeper's; it outlives the execution
  return made.make<Words>();
}

void sleeps_until_it_is_shut(Case& made) {
  auto& socket = make_socket(made);
  made.thread("sleeper", [&socket] { socket.wait([&socket] { return socket.shut.load(); }); });
  made.thread("shuts", [&socket] {
    socket.shut.store(true);
    socket.observers().notify();
  });
}

void sleeps_until_the_phase_changes(Case& made) {
  auto& socket = make_socket(made);
  made.thread("sleeper",
              [&socket] { socket.wait([&socket] { return socket.phase.load(std::memory_order_acquire) == 1; }); });
  made.thread("changes", [&socket] {
    socket.phase.store(1, std::memory_order_release);
    socket.edges.fetch_add(1);
    socket.observers().notify();
  });
}

/// Another thread takes what arrived, and tells those who sleep.
void sleeps_while_another_takes_completions(Case& made) {
  auto& socket = make_socket(made);
  socket.has_completions = true;
  made.thread("sleeper",
              [&socket] { socket.wait([&socket] { return socket.readable.load(std::memory_order_acquire) != 0; }); });
  made.thread("takes", [&socket] {
    const ::std::lock_guard lock(socket.completions);
    model::note_access(&socket.arrived, sizeof socket.arrived, true);
    socket.arrived = 1;
    socket.readable.store(1, std::memory_order_release);
    socket.observers().notify();
  });
}

/// A sleeper looks while it is being told: what it took and what it did not take fit together afterwards.
void signals_are_taken_while_one_comes(Case& made) {
  auto& wake_up = progress::WakeUp::of_thread();
  wake_up.take();
  auto& told = made.make<std::atomic<bool>>(false);
  made.thread("sleeper", [&] {
    wake_up.take();
    while (!told.load(std::memory_order_acquire)) nupa::_mm_pause();
    wake_up.take();
    uint64_t count;
    model::require(progress::read(progress::kFd, &count, sizeof count) < 0,
                   "a descriptor that stays readable would keep sleepers awake");
  });
  made.thread("tells", [&] {
    wake_up.signal();
    told.store(true, std::memory_order_release);
  });
}

/// A buffer of two halves: a peer fills what was published, a reader takes it.
void a_buffer_is_used_again(Case& made) {
  auto& ring = made.make<ReceiveRing>();
  auto* bytes = static_cast<char*>(made.memory(2));
  ring.reset(2);
  made.thread("completions", [&ring, bytes] {
    uint32_t room = 1;
    for (uint32_t i = 0; i < 3; ++i) {
      for (; room <= i; nupa::_mm_pause()) {
        for (; ring.publish_due(); ring.published()) ++room;
      }
      model::note_access(&bytes[i % 2], 1, true);
      bytes[i % 2] = static_cast<char>(i + 1);
      model::require(ring.arrived(1), "there is room for what was published");
    }
  });
  made.thread("reader", [&ring, bytes] {
    for (uint32_t i = 0; i < 3; ++i) {
      ReceiveRing::Span span;
      while ((span = ring.readable()).length == 0) nupa::_mm_pause();
      model::note_access(&bytes[span.offset], 1, false);
      model::require(span.offset == i % 2 && bytes[span.offset] == static_cast<char>(i + 1),
                     "bytes come in their order");
      ring.consume(1);
    }
  });
}

TEST(ModelRsocketsWaiter, Shut_WakesTheSleeper) { model::expect_holds(sleeps_until_it_is_shut); }
TEST(ModelRsocketsWaiter, ChangeBeforeAnEdge_WakesTheSleeper) { model::expect_holds(sleeps_until_the_phase_changes); }
TEST(ModelRsocketsWaiter, CompletionsTakenByAnother_WakeTheSleeper) {
  model::expect_holds(sleeps_while_another_takes_completions);
}
TEST(ModelRsocketsWaiter, SignalsTakenWhileOneComes_LeaveNothingReadable) {
  model::expect_holds(signals_are_taken_while_one_comes);
}
TEST(ModelRsocketsWaiter, Orders_AreAsStrongAsTheCasesNeed) {
  const Build cases[] = {sleeps_until_it_is_shut, sleeps_until_the_phase_changes,
                         sleeps_while_another_takes_completions, signals_are_taken_while_one_comes};
  EXPECT_EQ(
      model::needed_orders(cases, {"rsockets/waiter.h", "rsockets/waiter.cc", "progress/wake_up.cc", "base/fence.h"}),
      (::std::vector<::std::string>{
          "Observers::notify load seq_cst: x86 relaxed, C++ relaxed",
          "Observers::add store seq_cst: x86 seq_cst, C++ relaxed",
          "Observers::remove store seq_cst: x86 relaxed, C++ relaxed",
          "WakeUp::signal exchange seq_cst: x86 relaxed, C++ relaxed",
          "WakeUp::take load seq_cst: x86 relaxed, C++ relaxed",
          "WakeUp::take_all exchange seq_cst: x86 relaxed, C++ relaxed",
          "base::fence_after_update fence seq_cst: x86 none, C++ seq_cst",
      }));
}

TEST(ModelRsocketsReceiveRing, Buffer_UsedAgain_HoldsWholeBytes) { model::expect_holds(a_buffer_is_used_again); }

TEST(ModelRsocketsReceiveRing, Orders_AreAsStrongAsTheCasesNeed) {
  const Build cases[] = {a_buffer_is_used_again};
  EXPECT_EQ(model::needed_orders(cases, {"rsockets/receive_ring.h"}),
            (::std::vector<::std::string>{
                "ReceiveRing::available load acquire: x86 relaxed, C++ acquire",
                "ReceiveRing::available load relaxed: x86 relaxed, C++ relaxed",
                "ReceiveRing::arrived load relaxed: x86 relaxed, C++ relaxed",
                "ReceiveRing::arrived load relaxed 2: x86 relaxed, C++ relaxed",
                "ReceiveRing::arrived store release: x86 relaxed, C++ release",
                "ReceiveRing::readable load relaxed: x86 relaxed, C++ relaxed",
                "ReceiveRing::consume store release: x86 relaxed, C++ release",
                "ReceiveRing::consume load relaxed: x86 relaxed, C++ relaxed",
                "ReceiveRing::publish_due load relaxed: x86 relaxed, C++ relaxed",
                "ReceiveRing::publish_due load acquire: x86 relaxed, C++ acquire",
                "ReceiveRing::published store relaxed: x86 relaxed, C++ relaxed",
                "ReceiveRing::published load relaxed: x86 relaxed, C++ relaxed",
            }));
}

}  // namespace
}  // namespace nupa::rsockets
