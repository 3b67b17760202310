// SPDX-License-Identifier: Apache-2.0
// `nupa ccl`: exit statuses of a measurement, and traces of several hosts in one file.
#include <fstream>
#include <nlohmann/json.hpp>

#include "json/json.h"
#include "program.h"

namespace nupa::test {
namespace {

using Words = std::vector<std::string>;

class CliCcl : public ::testing::Test {
 protected:
  void SetUp() override {
    if (has(run_nupa({"ccl"}).err, "no collectives")) GTEST_SKIP() << "this build has no collectives";
  }
  const Folder folder;
};

TEST_F(CliCcl, Bench_ResultsCannotBeWritten_IsStatusOne) {
  const Said said =
      run_nupa({"ccl", "bench", "-n", "2", "--max-bytes", "16", "--iterations", "1", "--json", "/dev/full"});
  EXPECT_EQ(said.status, 1);
  EXPECT_TRUE(has(said.err, "/dev/full: No space left on device")) << said.err;
}

TEST_F(CliCcl, Bench_WrongResultAtOneRank_IsStatusOneAndWrongInTheTable) {
  // The second rank takes the integers of the first one for floating-point numbers.
  const std::string script =
      "type=int32; [ $NUPA_RANK = 1 ] && type=float32; exec /proc/$PPID/exe ccl bench --type $type"
      " --operation broadcast --min-bytes 1K --max-bytes 1K --iterations 1";
  Start start;
  start.arguments = {"launch", "-n", "2", "--no-label", "--", "sh", "-c", script};
  start.without = {"NUPA_CCL_CHECK"};
  const Said said = run_nupa(start);
  EXPECT_EQ(said.status, 1) << said.err;
  EXPECT_TRUE(has(said.err, "nupa: ccl: rank 1: broadcast of 1 KiB: element ")) << said.err;
  EXPECT_FALSE(has(said.err, "nupa: ccl: rank 0: ")) << said.err;
  EXPECT_TRUE(has(said.err, "1 of 1 results are wrong")) << said.err;
  EXPECT_TRUE(has(said.out, "  wrong ")) << said.out;
}

TEST_F(CliCcl, Bench_RootBeyondTheLastRank_IsStatusTwoBeforeRanksStart) {
  const Words command{"ccl", "bench", "-n", "2", "--operation", "broadcast", "--max-bytes", "16", "--iterations", "1"};
  const auto with_root = [&](const char* root) {
    Words words = command;
    words.insert(words.end(), {"--root", root});
    return run_nupa(words);
  };
  EXPECT_EQ(with_root("1").status, 0);
  const Said beyond = with_root("2");
  EXPECT_EQ(beyond.status, 2);
  EXPECT_EQ(beyond.err, "nupa: --root 2: the job has only 2 ranks\n");
}

TEST_F(CliCcl, Bench_Iterations_AreTheMinimumOfABatch) {
  const std::string file = folder / "results.json";
  const Said said = run_nupa({"ccl", "bench", "-n", "2", "--operation", "all_reduce", "--type", "int32", "--op",
                              "logical_xor", "--max-bytes", "1K", "--iterations", "19", "--json", file});
  ASSERT_EQ(said.status, 0) << said.err;
  std::ifstream stream(file);
  const auto results =
      parse_json(std::string(std::istreambuf_iterator<char>(stream), {})).value_or(nlohmann::json())["results"];
  ASSERT_FALSE(results.empty());
  for (const auto& result : results) {
    EXPECT_EQ(result["batches"].get<int>(), 10) << result;
    EXPECT_EQ(result["iterations_per_batch"].get<int>(), 2) << result;
    EXPECT_EQ(result["check"].get<std::string>(), "ok") << result;
  }
}

TEST_F(CliCcl, Trace_OfAnotherHost_IsPutOnTheFirstFilesClock) {
  const auto trace = [&](const char* name, const char* clock) {
    return folder.write(name, std::string(R"([{"name":"nupa_clock","ph":"M","args":)") + clock + R"(},{"name":")" +
                                  name + R"(","ph":"X","ts":3.0,"dur":1.0}])");
  };
  // CLOCK_REALTIME is ahead of CLOCK_MONOTONIC by 400 us on the first host, by 1,410 us on the other one.
  const std::string first = trace("first", R"({"monotonic_ns":100000,"realtime_ns":500000,"boot":"a"})");
  const std::string other = trace("other", R"({"monotonic_ns":90000,"realtime_ns":1500000,"boot":"b"})");
  const Said said = run_nupa({"ccl", "trace", first, other});
  ASSERT_EQ(said.status, 0) << said.err;
  std::map<std::string, double> times;
  for (const auto& event : parse_json(said.out).value_or(nlohmann::json()))
    if (event.contains("ts")) times[event["name"].get<std::string>()] = event["ts"].get<double>();
  EXPECT_EQ(times, (std::map<std::string, double>{{"first", 3}, {"other", 3 + 1410 - 400}}));
}

}  // namespace
}  // namespace nupa::test
