// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>

#include "shadow.h"
#include "expect.h"

namespace nupa::ccl {

/// The executor's own thread: what it runs once it has been started.
inline std::function<void()> own_thread;

}  // namespace nupa::ccl

// The lines that are checked.
#include "ccl/communicator/executor.cc"

namespace nupa::progress {

// The case starts the thread.
Result<void> Thread::start(ThreadName, std::function<void()> body) {
  process_ = 1;
  ccl::own_thread = std::move(body);
  return {};
}
void Thread::join() { process_ = 0; }
Thread::~Thread() = default;

}  // namespace nupa::progress

namespace nupa::ccl {
namespace {

using model::Build;
using model::Case;

/// A job that notes that it ran, once and alone.
class Noted final : public Job {
 public:
  explicit Noted(uint32_t* running) : running_(running) {}
  int run() override {
    model::note_access(running_, sizeof *running_, true);
    model::note_access(&ran_, sizeof ran_, true);
    model::require(ran_++ == 0, "a job runs once");
    return 7;
  }
  bool ran() const {
    model::note_access(&ran_, sizeof ran_, false);
    return ran_ != 0;
  }

 private:
  uint32_t* const running_;
  int ran_ = 0;
};

/// An executor with its own thread, and jobs that are added by its users.
struct Users {
  Executor executor;
  uint32_t running = 0;
  Noted jobs[2] = {Noted(&running), Noted(&running)};

  ::std::shared_ptr<Job> job(size_t i) { return {::std::shared_ptr<Job>(), &jobs[i]}; }
  void add(size_t i) { model::require(executor.add(job(i)) == 0, "there is a thread"); }
  void wait(size_t i) { model::require(executor.wait(job(i)) == 7 && jobs[i].ran(), "the job has run"); }
};

/// The first job is there when threads begin. Without its own thread, whoever waits has to run the jobs.
Users& make_users(Case& made, bool has_own_thread, size_t jobs) {
  auto& users = made.make<Users>();
  users.add(0);
  if (!has_own_thread) return users;
  made.thread("own", [] { own_thread(); });
  // The executor's own thread sleeps in the end, and nobody else.
  made.may_wait_if([&users, jobs] {
    for (size_t i = 0; i < jobs; ++i)
      if (!users.jobs[i].is_done()) return false;
    return true;
  });
  return users;
}

void nobody_waits(Case& made) {
  auto& users = make_users(made, true, 2);
  made.thread("user", [&users] { users.add(1); });
}

void one_waits_beside_the_own_thread(Case& made) {
  auto& users = make_users(made, true, 1);
  made.thread("user", [&users] { users.wait(0); });
}

/// Each runs what is there. The one that finds nothing left holds the turn while the other one adds a job.
void two_wait(Case& made) {
  auto& users = make_users(made, false, 2);
  made.thread("first", [&users] { users.wait(0); });
  made.thread("second", [&users] {
    users.wait(0);
    users.add(1);
    users.wait(1);
  });
}

/// A thread takes the turn and does something itself.
void one_takes_the_turn(Case& made) {
  auto& users = made.make<Users>();
  made.thread("taker", [&users] {
    if (!users.executor.try_take()) return;
    model::note_access(&users.running, sizeof users.running, true);
    users.executor.give_back();
  });
  made.thread("user", [&users] {
    users.add(0);
    users.wait(0);
  });
}

/// The own thread looks while another one has the turn.
void one_takes_the_turn_and_nobody_waits(Case& made) {
  auto& users = make_users(made, true, 2);
  users.wait(0);
  made.thread("taker", [&users] {
    if (users.executor.try_take()) users.executor.give_back();
  });
  made.thread("user", [&users] { users.add(1); });
}

TEST(ModelCclExecutor, NoThreadWaits_TheOwnThreadRunsTheJobs) { model::expect_holds(nobody_waits); }
TEST(ModelCclExecutor, OneWaits_BesideTheOwnThread_TheJobIsDone) {
  model::expect_holds(one_waits_beside_the_own_thread);
}
TEST(ModelCclExecutor, TwoWait_NoOwnThread_BothJobsAreDone) { model::expect_holds(two_wait); }
TEST(ModelCclExecutor, Turn_TakenBesideAJob_IsGivenBack) { model::expect_holds(one_takes_the_turn); }

TEST(ModelCclExecutor, Turn_TakenWhileNoThreadWaits_LeavesTheJobToTheOwnThread) {
  model::expect_holds(one_takes_the_turn_and_nobody_waits);
}

TEST(ModelCclExecutor, Orders_AreAsStrongAsTheCasesNeed) {
  const Build cases[] = {two_wait, one_takes_the_turn, one_takes_the_turn_and_nobody_waits};
  EXPECT_EQ(model::needed_orders(cases, {"ccl/communicator/executor.h", "ccl/communicator/executor.cc"}),
            (::std::vector<::std::string>{
                "Job::is_done load acquire: x86 relaxed, C++ acquire",
                "Executor::try_take load relaxed: x86 relaxed, C++ relaxed",
                "Executor::try_take exchange acquire: x86 relaxed, C++ acquire",
                "Executor::try_take load relaxed 2: x86 relaxed, C++ relaxed",
                "Executor::give_back store seq_cst: x86 seq_cst, C++ seq_cst",
                "Executor::give_back load seq_cst: x86 relaxed, C++ seq_cst",
                "Executor::add store seq_cst: x86 relaxed, C++ seq_cst",
                "Executor::run_one exchange acquire: x86 relaxed, C++ acquire",
                "Executor::run_one store seq_cst: x86 relaxed, C++ relaxed",
                "Executor::run_one store release: x86 relaxed, C++ release",
                "Executor::wait load seq_cst: x86 relaxed, C++ seq_cst",
                "Executor::serve load seq_cst: x86 relaxed, C++ seq_cst",
            }));
}

}  // namespace
}  // namespace nupa::ccl
