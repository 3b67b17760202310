// SPDX-License-Identifier: Apache-2.0
// Standard streams of the nupa program: a full disk behind standard output is a failure, closed streams are none.
#include <fcntl.h>
#include <unistd.h>

#include "program.h"

namespace nupa::test {
namespace {

Start with_full_output(std::vector<std::string> arguments) {
  Start start;
  start.arguments = std::move(arguments);
  start.in_child = [] {
    const int full = open("/dev/full", O_WRONLY);
    return full >= 0 && dup2(full, STDOUT_FILENO) >= 0;
  };
  return start;
}

Start with_closed(std::vector<std::string> arguments, std::vector<int> streams) {
  Start start;
  start.arguments = std::move(arguments);
  start.in_child = [streams = std::move(streams)] {
    for (const int stream : streams)
      if (close(stream) != 0) return false;
    return true;
  };
  return start;
}

TEST(CliStreams, OutputOnAFullDisk_IsAFailure) {
  const std::vector<std::string> all[] = {{"--help"},
                                          {"--version"},
                                          {"--print-definitions"},
                                          {"run", "--help"},
                                          {"devices"},
                                          {"devices", "--json"},
                                          {"stat"},
                                          {"stat", "--json"},
                                          {"doctor"},
                                          {"net", "key"},
                                          {"ccl", "plan", "-n", "2"}};
  for (const std::vector<std::string>& arguments : all) {
    const Said said = run_nupa(with_full_output(arguments));
    EXPECT_EQ(said.status, 1) << arguments.front() << said.err;
    EXPECT_TRUE(has(said.err, "nupa: cannot write standard output: No space left on device\n"))
        << arguments.front() << said.err;
  }
}

TEST(CliStreams, ClosedOutput_ChangesNothing) {
  const Said said = run_nupa(with_closed({"devices"}, {STDOUT_FILENO}));
  EXPECT_EQ(said.status, 0) << said.err;
  EXPECT_EQ(said.err, "");
}

TEST(CliStreams, AllClosed_DevicesAreStillFound) {
  EXPECT_EQ(run_nupa(with_closed({"devices"}, {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})).status, 0);
}

TEST(CliStreams, ClosedInput_IsAtItsEndForRanks) {
  const Said said = run_nupa(with_closed({"launch", "-n", "2", "--", "cat"}, {STDIN_FILENO}));
  EXPECT_EQ(said.status, 0) << said.err;
  EXPECT_EQ(said.out, "");
}

}  // namespace
}  // namespace nupa::test
