// SPDX-License-Identifier: Apache-2.0
/// Tests of the environment variables that say which rank of which job this process is.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "ccl/bootstrap/launcher.h"
#include "ccl/bootstrap/rendezvous_address.h"

namespace nupa::ccl {
namespace {

constexpr int64_t kTimeoutNs = 30'000'000'000;
constexpr const char* kNames[] = {"NUPA_CCL_ROOT",
                                  "NUPA_RANK",
                                  "NUPA_WORLD_SIZE",
                                  "RANK",
                                  "WORLD_SIZE",
                                  "MASTER_ADDR",
                                  "MASTER_PORT",
                                  "TORCHELASTIC_USE_AGENT_STORE",
                                  "OMPI_COMM_WORLD_RANK",
                                  "OMPI_COMM_WORLD_SIZE",
                                  "PMI_RANK",
                                  "PMI_SIZE",
                                  "SLURM_PROCID",
                                  "SLURM_NTASKS",
                                  "PMIX_NAMESPACE",
                                  "PMIX_RANK"};

uint16_t free_port() {
  const base::UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in any{};
  any.sin_family = AF_INET;
  socklen_t length = sizeof any;
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&any), sizeof any), 0);
  EXPECT_EQ(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&any), &length), 0);
  return ntohs(any.sin_port);
}

using Settings = std::vector<std::pair<const char*, std::string>>;

class CclLauncher : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    for (const char* const name : kNames) unsetenv(name);
  }
  static Result<LaunchedRendezvous> meet_with(const Settings& settings) {
    clear();
    for (const auto& [name, value] : settings) setenv(name, value.c_str(), 1);
    return join_launched_rendezvous(PeerInfoBytes(3), kTimeoutNs);
  }
  static int error_with(const Settings& settings) {
    const auto joined = meet_with(settings);
    return joined ? 0 : joined.error().code();
  }
  static std::string text_with(const Settings& settings) {
    const auto joined = meet_with(settings);
    return joined ? "" : joined.error().what();
  }
  static std::string root() { return "tcp://127.0.0.1:" + std::to_string(free_port()); }
};

TEST_F(CclLauncher, FindLauncher_SeveralLaunchersAreSet_TakesTheNearestToTheProgram) {
  EXPECT_EQ(find_launcher(), Launcher::kNone);
  for (const char* const name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    EXPECT_EQ(find_launcher(), Launcher::kNone) << "without " << name;
    setenv(name, "1", 1);
  }
  EXPECT_EQ(find_launcher(), Launcher::kTorch);
  setenv("PMIX_NAMESPACE", "job", 1);
  EXPECT_EQ(find_launcher(), Launcher::kTorch) << "without a rank";
  setenv("PMIX_RANK", "0", 1);
  EXPECT_EQ(find_launcher(), Launcher::kPmix);
  setenv("NUPA_CCL_ROOT", "", 1);
  EXPECT_EQ(find_launcher(), Launcher::kPmix) << "an empty variable counts as not set";
  setenv("NUPA_CCL_ROOT", "tcp://host:1", 1);
  EXPECT_EQ(find_launcher(), Launcher::kRoot);
}

TEST_F(CclLauncher, Join_VariablesOfEachLauncher_GiveRankAndSize) {
  for (const auto& [rank, ranks] :
       std::vector<std::pair<const char*, const char*>>{{"NUPA_RANK", "NUPA_WORLD_SIZE"},
                                                        {"RANK", "WORLD_SIZE"},
                                                        {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                                        {"PMI_RANK", "PMI_SIZE"},
                                                        {"SLURM_PROCID", "SLURM_NTASKS"}}) {
    const auto joined = meet_with({{"NUPA_CCL_ROOT", root()}, {rank, "0"}, {ranks, "1"}});
    ASSERT_TRUE(joined) << rank << ": " << joined.error().what();
    EXPECT_EQ(joined->rank, 0u);
    EXPECT_EQ(joined->result.peer_infos, std::vector<PeerInfoBytes>{PeerInfoBytes(3)});
  }
  // One is often started by another: the nearer to the program is right.
  EXPECT_EQ(error_with({{"NUPA_CCL_ROOT", root()},
                        {"NUPA_RANK", "0"},
                        {"NUPA_WORLD_SIZE", "1"},
                        {"SLURM_PROCID", "7"},
                        {"SLURM_NTASKS", "2"}}),
            0);
}

TEST_F(CclLauncher, Join_InvalidRankOrSize_FailsWithEinval) {
  struct Wrong {
    const char *rank, *ranks;
  };
  for (const Wrong& wrong : {Wrong{"1", "1"}, Wrong{"0", "0"}, Wrong{"0x", "1"}, Wrong{"0", "1x"}, Wrong{"-1", "1"},
                             Wrong{"0", "65537"}, Wrong{"0", "4294967297"}, Wrong{"4294967296", "1"}}) {
    const Settings settings{{"NUPA_CCL_ROOT", root()}, {"NUPA_RANK", wrong.rank}, {"NUPA_WORLD_SIZE", wrong.ranks}};
    EXPECT_EQ(error_with(settings), EINVAL) << wrong.rank << " of " << wrong.ranks;
    EXPECT_NE(text_with(settings).find("NUPA_RANK='" + std::string(wrong.rank) + "'"), std::string::npos);
  }
}

TEST_F(CclLauncher, Join_InvalidRoot_FailsWithEinval) {
  for (const char* const place : {"here", "tcp://host"}) {
    const Settings settings{{"NUPA_CCL_ROOT", place}, {"NUPA_RANK", "0"}, {"NUPA_WORLD_SIZE", "1"}};
    EXPECT_EQ(error_with(settings), EINVAL) << place;
    EXPECT_NE(text_with(settings).find("NUPA_CCL_ROOT"), std::string::npos);
  }
}

TEST_F(CclLauncher, Join_RootIsAUniqueId_Succeeds) {
  const auto root = RendezvousServer::start(kTimeoutNs);
  ASSERT_TRUE(root);
  EXPECT_EQ(error_with({{"NUPA_CCL_ROOT", (*root)->id().text()}, {"NUPA_RANK", "0"}, {"NUPA_WORLD_SIZE", "1"}}), 0);
}

TEST_F(CclLauncher, Join_VariableIsMissing_NamesIt) {
  EXPECT_EQ(error_with({}), ENOENT);
  EXPECT_NE(text_with({}).find("not a rank of a job"), std::string::npos);
  EXPECT_EQ(error_with({{"NUPA_CCL_ROOT", root()}}), ENOENT);
  EXPECT_NE(text_with({{"NUPA_CCL_ROOT", root()}}).find("no variable holds the rank"), std::string::npos);
  for (const char* const name : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK", "SLURM_PROCID"}) {
    EXPECT_EQ(error_with({{name, "0"}}), ENOENT);
    EXPECT_NE(text_with({{name, "0"}}).find(std::string(name) + " is set, but"), std::string::npos);
  }
}

TEST_F(CclLauncher, Join_PyTorchsVariables_UseMasterPortForTheRendezvous) {
  const auto torch = [](const std::string& port, const char* rank = "0") {
    return Settings{{"RANK", rank}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}};
  };
  EXPECT_EQ(error_with(torch(std::to_string(free_port()))), 0);
  EXPECT_EQ(error_with(torch(std::to_string(free_port()), "1")), EINVAL);
  for (const char* const port : {"0", "65536", "x"}) EXPECT_EQ(error_with(torch(port)), EINVAL) << port;
  Settings elastic = torch(std::to_string(free_port()));
  elastic.emplace_back("TORCHELASTIC_USE_AGENT_STORE", "True");
  EXPECT_EQ(error_with(elastic), ENOTSUP);
  elastic.back().second = "False";
  EXPECT_EQ(error_with(elastic), 0);
}

}  // namespace
}  // namespace nupa::ccl
