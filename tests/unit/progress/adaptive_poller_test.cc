// SPDX-License-Identifier: Apache-2.0
#include "progress/adaptive_poller.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "progress/event_catch.h"
#include "progress/event_descriptor.h"

namespace nupa::progress {
namespace {

pid_t this_thread() { return static_cast<pid_t>(syscall(SYS_gettid)); }

/// Whether `holds` does before a long time has passed; only a test that fails waits so long.
bool comes_true(const std::function<bool()>& holds) {
  const int64_t end = base::now_ns() + 10'000'000'000;
  while (!holds()) {
    if (base::now_ns() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

/// Packets are what is counted by an eventfd. Each turn takes all of them.
class CountedSource final : public PacketSource {
 public:
  CountedSource() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

  bool take_turn(Receiver receiver) override {
    ++turns;
    if (base::now_ns() >= poller->wanted_at()) {
      poller->alarm().forget();
      ++timers;
    }
    uint64_t count = 0;
    if (!is_error && read(fd_.get(), &count, sizeof count) == sizeof count) {
      by = this_thread();  // before `came`, which the test waits for
      came += count;
      if (event >= 0 && !EventCatch::keep(event)) eventfd_write(event, 1);
    }
    using Step = PollPolicy::Step;
    const bool for_program = receiver != Receiver::kThread;
    const bool owed = owes;
    if (count != 0) owes = true;
    const PollPolicy::Look look{for_program, static_cast<uint32_t>(count), owed, false, false};
    if (poller->after(look) == Step::kWork) finish_turns();
    if (for_program) poller->looked(base::now_ns());
    if (count != 0) poller->note_traffic();
    return count != 0;
  }
  void finish_turns() override {
    if (owes.exchange(false)) ++answers;
  }
  void take_errors() override {
    if (!is_error) return;
    uint64_t count = 0;
    if (read(fd_.get(), &count, sizeof count) == sizeof count) ++errors;
  }
  bool streams() const override { return false; }
  uint64_t packets() const override { return came; }

  void send() const { eventfd_write(fd_.get(), 1); }
  int fd() const { return fd_.get(); }

  AdaptivePoller* poller = nullptr;
  std::atomic<bool> is_error{false};  ///< what the descriptor reports
  std::atomic<int> event{-1};         ///< that each turn with packets raises
  std::atomic<uint64_t> turns{0}, timers{0}, came{0}, answers{0}, errors{0};
  std::atomic<pid_t> by{0};  ///< the thread that took packets last
  std::atomic<bool> owes{false};

 private:
  base::UniqueFd fd_;
};

/// A stream of packets that wake nothing.
class SilentStream final : public PacketSource {
 public:
  bool take_turn(Receiver) override {
    poller->alarm().forget();
    const bool found = sent.exchange(false);
    came += found;
    return found;
  }
  void finish_turns() override { ++lingers; }
  void take_errors() override {}
  bool streams() const override { return true; }
  bool wakes() const override { return false; }
  uint64_t packets() const override { return came; }

  AdaptivePoller* poller = nullptr;
  std::atomic<bool> sent{false};
  std::atomic<uint64_t> came{0};
  std::atomic<int> lingers{0};  ///< times that the serving thread stayed awake
};

/// Packets that make the descriptor readable only for a thread that has announced its sleep.
class RungSource final : public PacketSource {
 public:
  RungSource() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

  bool take_turn(Receiver) override {
    ++turns;
    poller->alarm().forget();
    const uint64_t taken = sent.exchange(0);
    by = this_thread();
    came += taken;
    if (taken != 0 && event >= 0 && !EventCatch::keep(event)) eventfd_write(event, 1);
    return taken != 0;
  }
  void finish_turns() override {}
  void take_errors() override {}
  bool begin_sleep(Receiver) override {
    ++announced;
    ++sleepers;
    if (comes_before_the_look.exchange(false)) ++sent;
    if (sent == 0) return true;
    --sleepers;
    ++kept_awake;
    return false;
  }
  void end_sleep(Receiver, bool ready) override {
    --sleepers;
    uint64_t rings;
    if (ready && read(fd_.get(), &rings, sizeof rings) < 0) ++false_rings;
  }
  bool streams() const override { return false; }
  uint64_t packets() const override { return came; }

  void send() {
    ++sent;
    if (sleepers != 0) eventfd_write(fd_.get(), 1);
  }
  int fd() const { return fd_.get(); }

  AdaptivePoller* poller = nullptr;
  std::atomic<uint64_t> sent{0}, came{0};
  std::atomic<uint64_t> turns{0};
  std::atomic<int> announced{0}, sleepers{0}, kept_awake{0}, false_rings{0};
  std::atomic<int> event{-1};
  std::atomic<pid_t> by{0};
  std::atomic<bool> comes_before_the_look{false};  ///< a packet, at the next announcement of a sleep

 private:
  base::UniqueFd fd_;
};

class ProgressRungSource : public ::testing::Test {
 protected:
  void SetUp() override {
    source.poller = &poller;
    ASSERT_TRUE(poller.open());
    ASSERT_TRUE(poller.right().add(source.fd()));
  }
  void TearDown() override {
    poller.stop();
    EXPECT_EQ(source.sleepers, 0) << "each sleep that was begun has ended";
  }
  RungSource source;
  AdaptivePoller poller{source};
};

class ProgressAdaptivePoller : public ::testing::Test {
 protected:
  void SetUp() override {
    source.poller = &poller;
    ASSERT_TRUE(poller.open());
    ASSERT_TRUE(poller.right().add(source.fd()));
  }
  void TearDown() override { poller.stop(); }
  CountedSource source;
  AdaptivePoller poller{source};
};

TEST_F(ProgressAdaptivePoller, ProgramDoesNotPoll_ItsThreadTakesPackets) {
  ASSERT_TRUE(poller.start("nupa-test"));
  ASSERT_TRUE(poller.start("nupa-test")) << "it runs already";
  source.send();
  EXPECT_TRUE(comes_true([&] { return source.came == 1 && source.answers == 1; }));
  EXPECT_NE(source.by, this_thread());
  EXPECT_TRUE(poller.is_warm());
}

TEST_F(ProgressAdaptivePoller, ProgramPolls_ItTakesThePacketAndAnswersAtItsNextPoll) {
  source.send();
  poller.poll();
  EXPECT_EQ(source.by, this_thread());
  EXPECT_EQ(source.answers, 0u) << "what the program sends goes first";
  poller.poll();
  EXPECT_EQ(source.answers, 1u);
}

TEST_F(ProgressAdaptivePoller, FinishPoll_AfterAPoll_SendsTheAnswers) {
  source.send();
  poller.poll();
  poller.finish_poll();
  EXPECT_EQ(source.answers, 1u);
}

TEST_F(ProgressAdaptivePoller, ProgramThatPollsAndSleeps_ItsThreadTakesPackets) {
  ASSERT_TRUE(poller.start("nupa-test"));
  // The thread leaves packets to the program after it has seen it poll.
  for (uint64_t sent = 1; sent <= 1000; ++sent) {
    source.send();
    ASSERT_TRUE(comes_true([&] { return poller.poll(), source.came == sent; }));
  }
  poller.program_sleeps();
  source.send();
  EXPECT_TRUE(comes_true([&] { return source.came == 1001; }));
  EXPECT_NE(source.by, this_thread());
}

TEST(ProgressSilentStream, StayedAwakeForNothing_ItsThreadSleepsAtOnceTheNextTimes) {
  SilentStream source;
  AdaptivePoller poller(source);
  source.poller = &poller;
  ASSERT_TRUE(poller.open());
  ASSERT_TRUE(poller.start("nupa-test"));
  uint64_t packets = 0;
  for (const int lingers : {1, 1, 2, 2, 2, 3}) {
    source.sent = true;
    poller.expect(base::now_ns());
    ++packets;
    EXPECT_TRUE(comes_true([&] { return source.came == packets && source.lingers >= lingers; }));
    // Time in which a thread that stays awake goes to sleep. Nothing shows that it does not stay awake.
    const int64_t later = base::now_ns() + 500'000;
    EXPECT_TRUE(comes_true([&] { return base::now_ns() > later; }));
    EXPECT_EQ(lingers, source.lingers) << "after packet " << packets;
  }
  poller.stop();
}

TEST_F(ProgressAdaptivePoller, Expect_Deadline_ATurnIsTakenByThen) {
  ASSERT_TRUE(poller.start("nupa-test"));
  const int64_t soon = base::now_ns() + 2'000'000;
  poller.expect(soon);
  EXPECT_LE(poller.wanted_at(), soon);
  EXPECT_TRUE(comes_true([&] { return source.timers == 1; }));
  EXPECT_GE(base::now_ns(), soon);
}

TEST_F(ProgressAdaptivePoller, Claimed_TakesNoTurn) {
  ASSERT_TRUE(poller.start("nupa-test"));
  {
    const auto lock = poller.claim();
    const uint64_t before = source.turns;
    source.send();
    std::thread([&] { poller.poll(), poller.finish_poll(); }).join();
    EXPECT_EQ(source.turns, before);
  }
  EXPECT_TRUE(comes_true([&] { return source.came == 1; }));
}

TEST_F(ProgressAdaptivePoller, DescriptorWithAnError_HasItsErrorTaken) {
  source.is_error = true;
  ASSERT_TRUE(poller.start("nupa-test"));
  source.send();
  EXPECT_TRUE(comes_true([&] { return source.errors == 1; })) << "or the thread would be woken for ever";
  EXPECT_EQ(source.came, 0u);
}

TEST_F(ProgressAdaptivePoller, ThreadThatSleepsForAnEvent_TakesThePacketThatBringsIt) {
  const std::unique_ptr<EventDescriptor> events = EventDescriptor::open().value();
  source.event = events->signal_fd();
  ASSERT_TRUE(poller.start("nupa-test"));
  std::atomic<bool> took{false};
  std::thread thread([&] {
    // A packet may come before this thread sleeps: then nupa-test takes it, and its event wakes this thread.
    while (!took) {
      EventCatch caught(*events);
      EXPECT_EQ(poller.sleep(caught), Poller::Slept::kReady);
      EXPECT_TRUE(caught.take() || events->take_back());
      took = source.by == this_thread();
    }
  });
  EXPECT_TRUE(comes_true([&] {
    if (!took) source.send();
    return took.load();
  }));
  thread.join();
  poller.stop();  // nupa-test may be about to write to `events`
}

TEST_F(ProgressRungSource, ThreadThatSleeps_IsRungForEachPacket) {
  ASSERT_TRUE(poller.start("nupa-test"));
  for (uint64_t sent = 1; sent <= 200; ++sent) {
    // In most rounds the thread sleeps already, in others it is about to.
    if (sent % 4 != 0) {
      ASSERT_TRUE(comes_true([&] { return source.sleepers == 1; }));
    }
    source.send();
    ASSERT_TRUE(comes_true([&] { return source.came == sent; })) << "packet " << sent;
  }
}

TEST_F(ProgressRungSource, PacketBeforeTheFirstSleep_IsTakenWithoutARing) {
  source.sent = 1;
  ASSERT_TRUE(poller.start("nupa-test"));
  EXPECT_TRUE(comes_true([&] { return source.came == 1; }));
  EXPECT_GE(source.kept_awake, 1);
}

TEST_F(ProgressRungSource, ThreadThatSleepsForAnEvent_IsRungInPlaceOfTheServingThread) {
  const std::unique_ptr<EventDescriptor> events = EventDescriptor::open().value();
  source.event = events->signal_fd();
  ASSERT_TRUE(poller.start("nupa-test"));
  std::atomic<bool> took{false};
  std::thread thread([&] {
    while (!took) {
      EventCatch caught(*events);
      EXPECT_EQ(poller.sleep(caught), Poller::Slept::kReady);
      EXPECT_TRUE(caught.take() || events->take_back());
      took = source.by == this_thread();
    }
  });
  EXPECT_TRUE(comes_true([&] {
    if (!took && source.sent == 0) source.send();
    return took.load();
  }));
  thread.join();
}

TEST_F(ProgressRungSource, PacketBeforeTheProgramSleeps_IsTakenWithoutARing) {
  const std::unique_ptr<EventDescriptor> events = EventDescriptor::open().value();
  source.event = events->signal_fd();
  ASSERT_TRUE(poller.start("nupa-test"));
  ASSERT_TRUE(comes_true([&] { return source.sleepers == 1; }));
  source.comes_before_the_look = true;
  std::thread thread([&] {
    EventCatch caught(*events);
    EXPECT_EQ(poller.sleep(caught), Poller::Slept::kReady);
    EXPECT_TRUE(caught.take() || events->take_back());
  });
  const bool came = comes_true([&] { return source.came == 1; });
  EXPECT_TRUE(came);
  if (!came) source.send();  // or the thread would sleep for ever
  thread.join();
}

TEST_F(ProgressRungSource, ProgramHasTheRight_TheServingThreadDoesNotAnnounceItsSleep) {
  const std::unique_ptr<EventDescriptor> events = EventDescriptor::open().value();
  ASSERT_TRUE(poller.start("nupa-test"));
  ASSERT_TRUE(comes_true([&] { return source.sleepers == 1; }));
  std::thread thread([&] {
    EventCatch caught(*events);
    EXPECT_EQ(poller.sleep(caught), Poller::Slept::kReady);
  });
  ASSERT_TRUE(comes_true([&] { return source.sleepers == 2; }));
  // The first turn ends a sleep of the time before. Each turn after it follows a sleep without the right.
  const auto take_turns = [&](uint64_t number) {
    for (uint64_t turn = 0; turn < number; ++turn) {
      const uint64_t before = source.turns;
      poller.expect(base::now_ns());
      ASSERT_TRUE(comes_true([&] { return source.turns > before; }));
    }
  };
  take_turns(1);
  const int announced = source.announced;
  take_turns(20);
  EXPECT_EQ(announced, source.announced);
  EXPECT_EQ(1, source.sleepers) << "the program sleeps";
  events->count();
  thread.join();
  EXPECT_TRUE(comes_true([&] { return source.announced > announced; })) << "it has the right again";
}

TEST_F(ProgressAdaptivePoller, WithoutItsThread_SleepIsRefused) {
  const std::unique_ptr<EventDescriptor> events = EventDescriptor::open().value();
  EventCatch caught(*events);
  EXPECT_EQ(poller.sleep(caught), Poller::Slept::kCannot);
}

}  // namespace
}  // namespace nupa::progress
