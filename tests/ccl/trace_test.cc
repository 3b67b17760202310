// SPDX-License-Identifier: Apache-2.0
/// NUPA_CCL_TRACE, and profilers that a program sets.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "job.h"

namespace nupa::ccl {
namespace {

using nlohmann::json;

/// Has a folder for traces, which it removes with its files.
class CclTraces : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NE(mkdtemp(folder_), nullptr);
    setenv("NUPA_CCL_TRACE", folder_, 1);
  }
  void TearDown() override {
    unsetenv("NUPA_CCL_TRACE");
    for (const char* const rank : {"0", "1", "2"}) unlink(path_of(rank).c_str());
    rmdir(folder_);
  }
  std::string path_of(const std::string& rank) const { return std::string(folder_) + "/rank-" + rank + ".json"; }
  void expect_whole_beside_a_child(const std::function<void(Rank&)>& play_child);
  json events_of(uint32_t rank) const {
    std::ifstream file(path_of(std::to_string(rank)));
    return json::parse(file, nullptr, false);
  }

  char folder_[32] = "/tmp/nupa-ccl-trace-XXXXXX";
};

void play(Rank& rank) {
  std::vector<float> in(200'000, 1);
  std::vector<float> out(in.size());
  // sleep: the others have to wait for rank 1
  if (rank.rank() == 1) usleep(20'000);
  rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "barrier");
  rank.expect_ok(
      nupa_ccl_all_reduce(in.data(), out.data(), in.size(), NUPA_CCL_FLOAT32, NUPA_CCL_SUM, rank.world(), nullptr),
      "all_reduce");
  nupa_ccl_request* requests[4] = {};
  for (auto& request : requests)
    rank.expect_ok(nupa_ccl_broadcast(in.data(), 50'000, NUPA_CCL_FLOAT32, 1, rank.world(), &request), "broadcast");
  for (auto* const request : requests) rank.expect_ok(nupa_ccl_wait(request), "wait");
  const uint32_t right = (rank.rank() + 1) % rank.ranks();
  const uint32_t left = (rank.rank() + rank.ranks() - 1) % rank.ranks();
  rank.expect_ok(
      nupa_ccl_sendrecv(in.data(), 10, right, 1, out.data(), 10, left, 1, NUPA_CCL_FLOAT32, rank.world(), nullptr),
      "sendrecv");
  nupa_ccl_comm* other = nullptr;
  rank.expect_ok(nupa_ccl_comm_dup(rank.world(), &other), "dup");
  rank.expect_ok(nupa_ccl_barrier(other, nullptr), "barrier");
  rank.expect_ok(nupa_ccl_comm_destroy(other), "destroy");
}

/// Expects that a thread's intervals are nested or disjoint.
void expect_nested(const std::vector<std::pair<double, double>>& intervals) {
  constexpr double kRounding = 0.0015;  // microseconds
  for (const auto& one : intervals)
    for (const auto& other : intervals) {
      const bool apart = one.second <= other.first + kRounding || other.second <= one.first + kRounding;
      const bool inside = (one.first <= other.first + kRounding && other.second <= one.second + kRounding) ||
                          (other.first <= one.first + kRounding && one.second <= other.second + kRounding);
      EXPECT_TRUE(apart || inside) << one.first << " to " << one.second << ", " << other.first << " to "
                                   << other.second;
    }
}

void expect_whole(const json& events, uint32_t rank) {
  ASSERT_TRUE(events.is_array());
  std::map<std::string, int> seen;
  std::map<int, std::vector<std::pair<double, double>>> intervals;
  double before = 0;
  for (const json& event : events) {
    EXPECT_TRUE(event.contains("ph") && event.contains("pid")) << event;
    const std::string name = event["name"];
    const std::string phase = event["ph"];
    if (phase != "M" && phase != "e") ++seen[event.value("cat", "") + ":" + name];
    if (phase != "X") continue;
    const double begin = event["ts"];
    const double end = begin + event["dur"].get<double>();
    EXPECT_LE(begin, end);
    intervals[event["tid"].get<int>()].emplace_back(begin, end);
    const json& about = event["args"];
    if (!about.contains("number")) continue;
    EXPECT_LE(before, begin) << "operations are in their order";
    before = begin;
    EXPECT_EQ(about["rank"], rank);
    EXPECT_EQ(about["error"], 0);
    EXPECT_TRUE(about.contains("algorithm")) << event;
    if (name == "all_reduce") {
      EXPECT_TRUE(about["bytes"] == 800'000 && about["type"] == "float32" && about["op"] == "sum") << event;
    }
    if (name == "broadcast") {
      EXPECT_EQ(about["root"], 1);
    }
  }
  for (const auto& [thread, its] : intervals) expect_nested(its);
  EXPECT_EQ(seen["nupa:barrier"], 2);
  EXPECT_EQ(seen["nupa:all_reduce"], 1);
  EXPECT_EQ(seen["nupa:broadcast"], 4);
  EXPECT_EQ(seen["nupa:comm_dup"], 1);
  EXPECT_EQ(seen["message:send"], 1);
  EXPECT_EQ(seen["message:recv"], 1);
  EXPECT_GE(seen["queued:broadcast"], 3);
  EXPECT_GE(seen["nupa:wait"], rank == 1 ? 0 : 1);
}

TEST_F(CclTraces, Trace_OfThreeRanks_HasEachOperationOnOneClock) {
  ASSERT_EQ(run_job(3, play), all_well(3));
  for (uint32_t rank = 0; rank < 3; ++rank) expect_whole(events_of(rank), rank);
  // One clock for all: no rank returns from the first barrier before the late rank has called it.
  std::vector<std::pair<double, double>> barriers;
  for (uint32_t rank = 0; rank < 3; ++rank)
    for (const json& event : events_of(rank))
      if (event["name"] == "barrier" && event["tid"] == 1)
        barriers.emplace_back(event["ts"], event["ts"].get<double>() + event["dur"].get<double>());
  ASSERT_EQ(barriers.size(), 3u);
  for (const auto& [begin, end] : barriers) EXPECT_GE(end, barriers[1].first);
}

TEST_F(CclTraces, Trace_WithChecks_HasTheChecks) {
  setenv("NUPA_CCL_CHECK", "1", 1);
  const auto endings = run_job(2, play);
  unsetenv("NUPA_CCL_CHECK");
  ASSERT_EQ(endings, all_well(2));
  expect_whole(events_of(0), 0);
  int checks = 0;
  for (const json& event : events_of(0)) checks += event["name"] == "check" ? 1 : 0;
  EXPECT_GE(checks, 8);
}

TEST_F(CclTraces, Trace_AfterAbortOrExit_IsComplete) {
  const auto endings = run_job(2, [](Rank& rank) {
    rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "barrier");
    // The abort comes after the other rank has returned from the barrier.
    if (rank.rank() == 1) rank.expect_ok(nupa_ccl_send(nullptr, 0, NUPA_CCL_INT8, 0, 0, rank.world(), nullptr), "send");
    if (rank.rank() == 0) {
      rank.expect_ok(nupa_ccl_recv(nullptr, 0, NUPA_CCL_INT8, 1, 0, rank.world(), nullptr, nullptr), "recv");
      rank.expect_ok(nupa_ccl_comm_abort(rank.world()), "abort");
      _exit(0);
    }
    exit(0);
  });
  EXPECT_EQ(endings, all_well(2));
  for (uint32_t rank = 0; rank < 2; ++rank) {
    const json events = events_of(rank);
    ASSERT_TRUE(events.is_array()) << rank;
    int barriers = 0;
    for (const json& event : events) barriers += event["name"] == "barrier" ? 1 : 0;
    EXPECT_EQ(barriers, 1) << rank;
  }
}

/// Runs `play_child` in a child of the rank after the rank has exited. Expects the rank's 11 barriers in the trace.
void CclTraces::expect_whole_beside_a_child(const std::function<void(Rank&)>& play_child) {
  int rank_lives[2], child_lives[2];
  ASSERT_EQ(pipe(rank_lives) | pipe(child_lives), 0);
  const auto endings = run_job(1, [&](Rank& rank) {
    rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "barrier");
    const pid_t child = fork();
    rank.expect(child >= 0, "fork");
    if (child == 0) {
      // It ends after its parent has written more.
      close(rank_lives[1]);
      char end;
      while (read(rank_lives[0], &end, 1) > 0) continue;
      play_child(rank);
      exit(0);
    }
    for (int i = 0; i < 10; ++i) rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "barrier");
    exit(0);
  });
  EXPECT_EQ(endings, all_well(1));
  close(rank_lives[1]);
  close(child_lives[1]);
  char end;
  while (read(child_lives[0], &end, 1) > 0) continue;  // until the child has exited too
  for (const int fd : {rank_lives[0], child_lives[0]}) close(fd);
  const json events = events_of(0);
  ASSERT_TRUE(events.is_array());
  int barriers = 0;
  for (const json& event : events) barriers += event["name"] == "barrier" ? 1 : 0;
  EXPECT_EQ(barriers, 11);
}

TEST_F(CclTraces, ChildOfARank_WritesNothing) {
  expect_whole_beside_a_child([](Rank&) {});
}

TEST_F(CclTraces, ChildOfARankThatMakesACommunicator_WritesNothing) {
  expect_whole_beside_a_child([](Rank& rank) {
    nupa_ccl_unique_id id;
    nupa_ccl_comm* own = nullptr;
    rank.expect_ok(nupa_ccl_get_unique_id(&id), "an id");
    rank.expect_ok(nupa_ccl_comm_init_rank(&own, 1, &id, 0), "init");
    rank.expect_ok(nupa_ccl_barrier(own, nullptr), "barrier");
    rank.expect_ok(nupa_ccl_comm_destroy(own), "destroy");
  });
}

/// Expects that the ranks print one line to standard error, with `what`, and that their operations go on.
void expect_reported_once(const std::function<void(Rank&)>& play_it, const std::string& what) {
  ::testing::internal::CaptureStderr();
  const auto endings = run_job(2, play_it);
  const std::string printed = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(endings, all_well(2)) << printed;
  EXPECT_EQ(std::count(printed.begin(), printed.end(), '\n'), 1) << printed;
  EXPECT_NE(printed.find(what), std::string::npos) << printed;
}

TEST_F(CclTraces, FullDisk_IsReportedOnceAndOperationsGoOn) {
  ASSERT_EQ(symlink("/dev/full", path_of("0").c_str()), 0);
  expect_reported_once(play, "rank-0.json: No space left on device");
}

TEST_F(CclTraces, FileThatCannotBeCreated_FailsTheFirstCommunicator) {
  ASSERT_EQ(mkdir(path_of("0").c_str(), 0700), 0);
  const Endings endings = run_job(1, [](Rank& rank) {
    nupa_ccl_comm* comm = nullptr;
    const int error = nupa_ccl_comm_init_rank(&comm, rank.ranks(), &rank.id(), rank.rank());
    const std::string why = nupa_ccl_error_text();
    rank.expect(error == EINVAL, std::to_string(error) + " " + why);
    rank.expect(why.starts_with("NUPA_CCL_TRACE=") && why.ends_with("rank-0.json: Is a directory"), why);
  });
  EXPECT_EQ(endings, Endings{0});
  rmdir(path_of("0").c_str());
}

TEST_F(CclTraces, FileSizeLimitReached_IsReportedOnceAndOperationsGoOn) {
  expect_reported_once(
      [](Rank& rank) {
        rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "barrier");
        if (rank.rank() == 0) {
          // There is room for what is written at first only.
          signal(SIGXFSZ, SIG_IGN);
          const rlimit limit{4000, 4000};
          rank.expect(setrlimit(RLIMIT_FSIZE, &limit) == 0, "setrlimit");
        }
        for (int i = 0; i < 20'000; ++i) rank.expect_ok(nupa_ccl_barrier(rank.world(), nullptr), "barrier");
      },
      "the trace is incomplete: ");
}

struct Seen {
  std::mutex mutex;
  std::vector<std::string> order;
};

void on_begin(const nupa_ccl_event* event, void* context) {
  auto& seen = *static_cast<Seen*>(context);
  std::lock_guard lock(seen.mutex);
  seen.order.push_back(std::string("begin ") + event->operation);
}
void on_end(const nupa_ccl_event* event, void* context) {
  auto& seen = *static_cast<Seen*>(context);
  std::lock_guard lock(seen.mutex);
  const bool timed = event->queued_ns > 0 && event->queued_ns <= event->begin_ns && event->begin_ns <= event->end_ns;
  seen.order.push_back(std::string("end ") + event->operation + " " + std::to_string(event->error) +
                       (timed ? "" : ", times are wrong"));
}

TEST(CclProfiler, Profiler_EachOperation_IsCalledAtBeginAndEnd) {
  EXPECT_EQ(run_job(2,
                    [](Rank& rank) {
                      Seen seen;
                      float value = 1;
                      nupa_ccl_comm* const world = rank.world();
                      rank.expect_ok(nupa_ccl_barrier(world, nullptr), "before");
                      rank.expect_ok(nupa_ccl_set_profiler(on_begin, on_end, &seen), "set_profiler");
                      rank.expect_ok(nupa_ccl_broadcast(&value, 1, NUPA_CCL_FLOAT32, 0, world, nullptr), "broadcast");
                      if (rank.rank() == 0)
                        rank.expect_ok(nupa_ccl_send(&value, 1, NUPA_CCL_FLOAT32, 1, 0, world, nullptr), "send");
                      else
                        rank.expect_ok(nupa_ccl_recv(&value, 1, NUPA_CCL_FLOAT32, 0, 0, world, nullptr, nullptr),
                                       "recv");
                      rank.expect_ok(nupa_ccl_set_profiler(nullptr, nullptr, nullptr), "set_profiler");
                      rank.expect_ok(nupa_ccl_barrier(world, nullptr), "after");
                      const std::string message = rank.rank() == 0 ? "send" : "recv";
                      const std::vector<std::string> expected = {"begin broadcast", "end broadcast 0",
                                                                 "begin " + message, "end " + message + " 0"};
                      rank.expect(seen.order == expected, "the reported events");
                    }),
            all_well(2));
}

/// The last event of each kind.
struct LastEvents {
  nupa_ccl_event begin, end;
};

TEST(CclProfiler, ReceiveFromAnyRank_ReportsSenderAndLength) {
  EXPECT_EQ(run_job(2,
                    [](Rank& rank) {
                      int32_t array[3] = {};
                      nupa_ccl_comm* const world = rank.world();
                      if (rank.rank() == 0) {
                        rank.expect_ok(nupa_ccl_send(array, 2, NUPA_CCL_INT32, 1, 0, world, nullptr), "send");
                        return;
                      }
                      LastEvents seen{};
                      const auto note_begin = [](const nupa_ccl_event* event, void* context) {
                        static_cast<LastEvents*>(context)->begin = *event;
                      };
                      const auto note_end = [](const nupa_ccl_event* event, void* context) {
                        static_cast<LastEvents*>(context)->end = *event;
                      };
                      rank.expect_ok(nupa_ccl_set_profiler(note_begin, note_end, &seen), "set_profiler");
                      rank.expect_ok(
                          nupa_ccl_recv(array, 3, NUPA_CCL_INT32, NUPA_CCL_ANY_RANK, 0, world, nullptr, nullptr),
                          "recv");
                      rank.expect_ok(nupa_ccl_set_profiler(nullptr, nullptr, nullptr), "set_profiler");
                      rank.expect(seen.begin.root == NUPA_CCL_ANY_RANK && seen.begin.count == 3, "the arguments");
                      rank.expect(seen.end.root == 0, "the sender");
                      rank.expect(seen.end.count == 2 && seen.end.bytes == 2 * sizeof array[0], "the message's length");
                    }),
            all_well(2));
}

}  // namespace
}  // namespace nupa::ccl
