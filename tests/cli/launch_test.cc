// SPDX-License-Identifier: Apache-2.0
// `nupa launch`: the environment of ranks, their output, and the end of a job.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "program.h"

namespace nupa::test {
namespace {

using Words = std::vector<std::string>;

Start job(int ranks, const std::string& script, const Words& options = {}) {
  Start start;
  start.arguments = {"launch", "-n", std::to_string(ranks)};
  start.arguments.insert(start.arguments.end(), options.begin(), options.end());
  start.arguments.insert(start.arguments.end(), {"--", "sh", "-c", script});
  return start;
}

Said launch(int ranks, const std::string& script, const Words& options = {}) {
  return run_nupa(job(ranks, script, options));
}

/// The numbers that stand in a file, one a line.
std::vector<pid_t> pids_in(const std::string& path) {
  std::ifstream file(path);
  std::vector<pid_t> pids;
  for (pid_t pid; file >> pid;) pids.push_back(pid);
  return pids;
}

void expect_gone(const std::vector<pid_t>& pids) {
  for (const pid_t pid : pids) {
    EXPECT_TRUE(await([&] { return is_gone(pid); })) << "process " << pid << " is left";
    if (!is_gone(pid)) kill(pid, SIGKILL);
  }
}

TEST(CliLaunch, Environment_HasTheRankAndItsJob) {
  Start start =
      job(3, "echo $NUPA_RANK of $NUPA_WORLD_SIZE, here $NUPA_LOCAL_RANK of $NUPA_LOCAL_SIZE", {"--no-label"});
  for (const char* name : {"NUPA_RANK", "NUPA_WORLD_SIZE", "NUPA_LOCAL_RANK", "NUPA_LOCAL_SIZE", "NUPA_CCL_ROOT"})
    start.environment[name] = "99";  // as in a rank that launches ranks
  const Said said = run_nupa(start);
  EXPECT_EQ(said.status, 0) << said.err;
  EXPECT_EQ(sorted_lines_of(said.out), (Words{"0 of 3, here 0 of 3", "1 of 3, here 1 of 3", "2 of 3, here 2 of 3"}));
  start.arguments.back() = "echo $NUPA_CCL_ROOT";
  const Words roots = lines_of(run_nupa(start).out);
  ASSERT_EQ(roots.size(), 3u);
  EXPECT_EQ(roots[0].size(), 256u);
  EXPECT_EQ(roots[0], roots[1]);
  EXPECT_EQ(roots[0], roots[2]);
}

TEST(CliLaunch, Environment_SignalsAreAsTheyWereBefore) {
  const Said blocked = launch(1, "grep SigBlk /proc/self/status", {"--no-label"});
  EXPECT_EQ(lines_of(blocked.out), (Words{"SigBlk:\t0000000000000000"}));
  EXPECT_EQ(launch(1, "kill -PIPE $$; echo alive").status, 128 + SIGPIPE);
}

TEST(CliLaunch, Output_EachLineHasItsRank) {
  const Said said = launch(2, "printf 'a\\n\\nno end'; printf 'b\\n' >&2");
  EXPECT_EQ(sorted_lines_of(said.out), (Words{"[0] ", "[0] a", "[0] no end", "[1] ", "[1] a", "[1] no end"}));
  EXPECT_EQ(sorted_lines_of(said.err), (Words{"[0] b", "[1] b"}));
  const Said plain = launch(2, "printf 'a\\n\\nno end'; printf 'b\\n' >&2", {"--no-label"});
  EXPECT_EQ(sorted_lines_of(plain.out), (Words{"", "", "a", "a", "no end", "no end"}));
  EXPECT_EQ(lines_of(plain.err), (Words{"b", "b"}));
}

TEST(CliLaunch, Output_LinesThatComeInParts_AreWhole) {
  const Folder folder;
  Program program(
      job(1, "printf one; while [ ! -e " + (folder / "go") + " ]; do sleep 0.01; done; echo ' line'; echo more"));
  ASSERT_TRUE(await([&] { return state_of(program.pid()) == 'S'; }));
  folder.write("go", "");
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(program.out(), "[0] one line\n[0] more\n");
}

TEST(CliLaunch, Output_LineWithoutItsEnd_IsShownAfterATime) {
  Program program(job(1, "head -c 100000 /dev/zero | tr '\\0' x; exec sleep 100"));
  EXPECT_TRUE(program.await_out("x", 65536));
  program.send(SIGTERM);
  EXPECT_EQ(program.wait(), 128 + SIGTERM);
  EXPECT_LE(count_of(program.out(), "x"), 100000u);
}

TEST(CliLaunch, Output_OfARankWhoseChildHoldsIt_IsShownToItsEnd) {
  const Folder folder;
  const Said said = launch(1, "setsid sh -c 'echo $$ >" + (folder / "pid") + "; exec sleep 100' & while [ ! -s " +
                                  (folder / "pid") + " ]; do sleep 0.01; done; printf unfinished");
  EXPECT_EQ(said.status, 0);
  EXPECT_EQ(said.out, "[0] unfinished\n");
  for (const pid_t pid : pids_in(folder / "pid")) kill(pid, SIGKILL);
}

TEST(CliLaunch, Input_IsRankZeros) {
  // Rank 0 takes it in pieces that are not those of the launcher or of pages.
  Start start = job(2, "echo from $(readlink /proc/self/fd/0 | cut -c1-9); dd bs=5000 status=none; echo end");
  std::string shown;
  for (int i = 0; i < 40000; ++i) {
    const std::string line = "line " + std::to_string(i) + "\n";
    start.input += line;
    shown += "[0] " + line;
  }
  start.input += "last";
  const Said said = run_nupa(start);
  EXPECT_EQ(said.status, 0) << said.err;
  std::string first, others;
  for (const std::string& line : lines_of(said.out)) (line.starts_with("[0] ") ? first : others) += line + "\n";
  EXPECT_EQ(count_of(first, "[0] from pipe:"), 1u);
  EXPECT_TRUE(first.substr(first.find('\n') + 1) == shown + "[0] lastend\n") << first.size();
  EXPECT_EQ(others, "[1] from /dev/null\n[1] end\n");
}

TEST(CliLaunch, Status_IsThatOfTheFirstRankThatFails) {
  const Folder folder;
  // The others are ready to be told, and end with statuses of their own.
  const std::string others =
      "trap 'echo told; exit 7' TERM; echo >" + (folder / "ready") + "$NUPA_RANK; while :; do sleep 0.01; done";
  const std::string script = "if [ $NUPA_RANK != 1 ]; then " + others + "; fi; while [ ! -e " + (folder / "ready0") +
                             " -o ! -e " + (folder / "ready2") + " ]; do sleep 0.01; done; echo last words; exit 3";
  const Said said = launch(3, script);
  EXPECT_EQ(said.status, 3);
  EXPECT_EQ(count_of(said.out, "told"), 2u);
  EXPECT_TRUE(has(said.out, "[1] last words\n"));
  Words words = lines_of(said.err);
  std::erase_if(words, [](const std::string& line) { return line[0] == '['; });  // what shells say of their children
  ASSERT_EQ(words.size(), 1u) << said.err;
  EXPECT_EQ(words[0].rfind("nupa: launch: rank 1 (process ", 0), 0u) << words[0];
  EXPECT_TRUE(words[0].ends_with(") exited with status 3; ending the other ranks")) << words[0];
}

TEST(CliLaunch, Status_OfARankThatIsKilled_Is128AndTheSignal) {
  const Said said = launch(1, "kill -9 $$");
  EXPECT_EQ(said.status, 128 + SIGKILL);
  EXPECT_TRUE(has(said.err, ") was killed by signal 9 (Killed)\n")) << said.err;
  EXPECT_EQ(launch(2, "kill -USR1 $$").status, 128 + SIGUSR1);
}

TEST(CliLaunch, Status_OfRanksThatEndWell_IsZero) {
  const Said said = launch(3, "exit 0");
  EXPECT_EQ(said.status, 0);
  EXPECT_EQ(said.out + said.err, "");
  EXPECT_EQ(launch(3, "[ $NUPA_RANK != 2 ]").status, 1) << "the last one fails";
  EXPECT_EQ(launch(3, "[ $NUPA_RANK != 0 ]").status, 1) << "the first one fails";
}

TEST(CliLaunch, Status_OfAProgramThatCannotRun_IsThatOfAShell) {
  const Folder folder;
  const std::string plain = folder.write("plain", "#!/bin/sh\n", 0600);
  EXPECT_EQ(run_nupa({"launch", "-n", "2", "--", "/nonexistent/program"}).status, 127);
  EXPECT_EQ(run_nupa({"launch", "-n", "2", "--", plain}).status, 126);
}

TEST(CliLaunch, Grace_RankThatDoesNotEnd_IsKilledAfterIt) {
  const Folder folder;
  const Said said = launch(2,
                           "if [ $NUPA_RANK = 0 ]; then while [ ! -e " + (folder / "ready") +
                               " ]; do sleep 0.01; done; exit 4; fi; trap '' TERM; echo >" + (folder / "ready") +
                               "; while :; do sleep 0.01; done",
                           {"--grace", "0.05"});
  EXPECT_EQ(said.status, 4);
}

TEST(CliLaunch, Grace_RankThatEndsInTime_IsNotKilled) {
  const Folder folder;
  const Said said = launch(2,
                           "if [ $NUPA_RANK = 0 ]; then while [ ! -e " + (folder / "ready") +
                               // sleep: the rank takes that long to end
                               " ]; do sleep 0.01; done; exit 4; fi; trap 'sleep 0.2; echo clean; exit' TERM; echo >" +
                               (folder / "ready") + "; while :; do sleep 0.01; done",
                           {"--grace", "20"});
  EXPECT_EQ(said.status, 4);
  EXPECT_EQ(said.out, "[1] clean\n");
}

TEST(CliLaunch, Grace_RankThatIsStopped_GoesOnToEnd) {
  const Folder folder;
  const Said said = launch(2,
                           "if [ $NUPA_RANK = 0 ]; then while ! grep -qs 'State:.T' /proc/$(cat " + (folder / "pid") +
                               ")/status; do sleep 0.01; done; exit 4; fi; trap 'echo clean; exit' TERM; echo $$ >" +
                               (folder / "pid") + "; kill -STOP $$; while :; do sleep 0.01; done",
                           {"--grace", "5"});
  EXPECT_EQ(said.status, 4);
  EXPECT_EQ(said.out, "[1] clean\n");
}

TEST(CliLaunch, Signal_ThatEndsAJob_EndsItsRanks) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
    Program program(job(2, "trap 'echo told; exit 9' INT TERM HUP QUIT; echo ready; while :; do sleep 0.01; done",
                        {"--grace", "100"}));
    ASSERT_TRUE(program.await_out("ready", 2)) << signal;
    program.send(signal);
    EXPECT_EQ(program.wait(), 128 + signal);
    EXPECT_EQ(count_of(program.out(), "told"), 2u) << signal;
    EXPECT_FALSE(has(program.err(), "nupa: ")) << program.err();
  }
}

TEST(CliLaunch, Signal_ThatEndsAJob_KillsRanksAfterTheGracePeriod) {
  Program program(job(2, "trap '' TERM; echo ready; while :; do sleep 0.01; done", {"--grace", "0.05"}));
  ASSERT_TRUE(program.await_out("ready", 2));
  program.send(SIGTERM);
  EXPECT_EQ(program.wait(), 128 + SIGTERM);
}

TEST(CliLaunch, Signal_ThatIsRepeated_DoesNotDelayTheKill) {
  Program program(job(1, "trap '' TERM; echo ready; while :; do sleep 0.01; done", {"--grace", "1"}));
  ASSERT_TRUE(program.await_out("ready"));
  EXPECT_TRUE(await([&] {
    program.send(SIGTERM);
    return is_gone(program.pid());
  }));
  EXPECT_EQ(program.wait(), 128 + SIGTERM);
}

TEST(CliLaunch, Signal_OfUsers_IsPassedOnAndTheJobGoesOn) {
  Program program(job(2,
                      "trap 'echo one' USR1; trap 'echo two' USR2; trap 'echo size' WINCH; trap 'echo goes on' CONT; "
                      "trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done"));
  ASSERT_TRUE(program.await_out("ready", 2));
  const std::pair<int, const char*> signals[] = {
      {SIGUSR1, "one"}, {SIGUSR2, "two"}, {SIGWINCH, "size"}, {SIGCONT, "goes on"}};
  for (const auto& [signal, word] : signals) {
    program.send(signal);
    EXPECT_TRUE(program.await_out(word, 2)) << word;
  }
  EXPECT_NE(state_of(program.pid()), '-');
  program.send(SIGTERM);
  EXPECT_EQ(program.wait(), 128 + SIGTERM);
}

TEST(CliLaunch, Signal_ReachesWhatARankHasStarted) {
  Program program(job(1,
                      "trap : USR1; sh -c 'trap \"echo told; exit\" USR1; echo ready; while :; do sleep 0.01; done' & "
                      "wait; wait"));
  ASSERT_TRUE(program.await_out("ready"));
  program.send(SIGUSR1);
  EXPECT_EQ(program.wait(), 0);
  EXPECT_EQ(program.out(), "[0] ready\n[0] told\n");
}

TEST(CliLaunch, Stop_StopsTheRanksUntilTheJobGoesOn) {
  const Folder folder;
  Program program(job(2, "echo $$ >>" + (folder / "pids") + "; echo ready; exec sleep 100"));
  ASSERT_TRUE(program.await_out("ready", 2));
  const std::vector<pid_t> ranks = pids_in(folder / "pids");
  ASSERT_EQ(ranks.size(), 2u);
  program.send(SIGTSTP);
  for (const pid_t pid : {program.pid(), ranks[0], ranks[1]})
    EXPECT_TRUE(await([&] { return state_of(pid) == 'T'; })) << state_of(pid);
  program.send(SIGCONT);
  for (const pid_t pid : {program.pid(), ranks[0], ranks[1]})
    EXPECT_TRUE(await([&] { return state_of(pid) == 'S'; })) << state_of(pid);
  program.send(SIGTERM);
  EXPECT_EQ(program.wait(), 128 + SIGTERM);
}

TEST(CliLaunch, End_LeavesNothingThatARankHasStarted) {
  const Folder folder;
  const Said said = launch(2, "sleep 100 & echo $! >>" + (folder / "pids"));
  EXPECT_EQ(said.status, 0);
  const std::vector<pid_t> left = pids_in(folder / "pids");
  EXPECT_EQ(left.size(), 2u);
  expect_gone(left);
}

TEST(CliLaunch, End_OfTheLauncherItself_EndsItsRanks) {
  const Folder folder;
  std::vector<pid_t> ranks;
  {
    Program program(job(2, "echo $$ >>" + (folder / "pids") + "; echo ready; exec sleep 100"));
    ASSERT_TRUE(program.await_out("ready", 2));
    ranks = pids_in(folder / "pids");
    program.send(SIGKILL);
    EXPECT_EQ(program.wait(), 1000 + SIGKILL);
  }
  EXPECT_EQ(ranks.size(), 2u);
  expect_gone(ranks);
}

TEST(CliLaunch, WrongUsage_IsStatusTwoAndOneLine) {
  const std::vector<Words> wrong = {
      {"-n", "0", "--", "true"},
      {"-n", "4097", "--", "true"},
      {"-n", "-1", "--", "true"},
      {"-n", "many", "--", "true"},
      {"--", "true"},
      {"-n", "2"},
      {"-n", "2", "--"},
      {"-n", "2", "--grace", "-1", "--", "true"},
      {"-n", "2", "--bogus", "--", "true"},
      {"-n", "2", "--transport", "pigeon", "--", "true"},
  };
  for (Words arguments : wrong) {
    arguments.insert(arguments.begin(), "launch");
    const Said said = run_nupa(arguments);
    std::string all;
    for (const std::string& word : arguments) all += word + " ";
    EXPECT_EQ(said.status, 2) << all;
    EXPECT_EQ(said.out, "") << all;
    EXPECT_EQ(lines_of(said.err).size(), 1u) << all << said.err;
    EXPECT_EQ(said.err.rfind("nupa: ", 0), 0u) << all << said.err;
  }
  EXPECT_EQ(launch(1, "true").status, 0);
}

}  // namespace
}  // namespace nupa::test
