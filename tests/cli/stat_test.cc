// SPDX-License-Identifier: Apache-2.0
// `nupa stat`: its output for queue pairs of known and unknown transports.
#include <gtest/gtest.h>
#include <nupa/device.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/objects.h"
#include "core/qp.h"
#include "json/json.h"
#include "program.h"

namespace nupa::test {
namespace {

using nlohmann::json;

/// A device of this process with one queue pair, in a runtime directory of the test.
class CliStat : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* const before = getenv("NUPA_RUNTIME_DIR")) before_ = before;
    setenv("NUPA_RUNTIME_DIR", folder_.path().c_str(), 1);
  }
  void TearDown() override {
    queue_pair_.reset();
    cq_.reset();
    pd_.reset();
    device_.reset();
    before_.empty() ? unsetenv("NUPA_RUNTIME_DIR") : setenv("NUPA_RUNTIME_DIR", before_.c_str(), 1);
  }
  void open(const char* transport) {
    setenv("NUPA_TRANSPORT", transport, 1);
    auto opened = open_device("nupa0");
    unsetenv("NUPA_TRANSPORT");
    ASSERT_TRUE(opened);
    device_ = std::move(*opened);
    pd_ = std::move(*device_->alloc_pd());
    cq_ = std::move(*device_->create_cq({.entries = 16}));
    const QpOptions options{.type = QpType::kRc, .send_cq = cq_.get(), .recv_cq = cq_.get(), .cap = {8, 8, 4, 4, 64}};
    auto made = device_->create_qp(pd_.get(), options);
    ASSERT_TRUE(made);
    queue_pair_ = std::move(*made);
  }
  /// To RTR, connected to itself.
  void connect() {
    QpAttr attr;
    attr.state = QpState::kInit;
    ASSERT_EQ(
        0, queue_pair_->modify(attr, qp_attr::kState | qp_attr::kPkeyIndex | qp_attr::kPort | qp_attr::kAccessFlags));
    attr.state = QpState::kRtr;
    attr.av.is_global = true;
    attr.av.dgid = device_->query_gid(1, 1)->gid;
    attr.av.sgid_index = 1;
    attr.path_mtu = Mtu::k256;
    attr.dest_qp_num = queue_pair_->number();
    ASSERT_EQ(0, queue_pair_->modify(attr, qp_attr::kState | qp_attr::kAv | qp_attr::kPathMtu | qp_attr::kDestQpn |
                                               qp_attr::kRqPsn | qp_attr::kMaxDestRdAtomic | qp_attr::kMinRnrTimer));
  }
  const shm::Tables& tables() { return static_cast<core::DeviceImpl&>(*device_).process().tables(); }
  uint32_t index() const { return shm::index_of(queue_pair_->number()); }
  /// The queue pair's row.
  static json row() {
    const Said said = run_nupa({"stat", "--json"});
    EXPECT_EQ(0, said.status) << said.err;
    const json rows = parse_json(said.out).value_or(json());
    EXPECT_EQ(1u, rows.size()) << said.out;
    return rows.is_array() && !rows.empty() ? rows[0] : json::object();
  }

  const Folder folder_;
  std::string before_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<ProtectionDomain> pd_;
  std::unique_ptr<CompletionQueue> cq_;
  std::unique_ptr<QueuePair> queue_pair_;
};

TEST_F(CliStat, QueuePairThatIsNotConnected_HasNoTransport) {
  ASSERT_NO_FATAL_FAILURE(open("roce"));
  const json seen = row();
  EXPECT_EQ("", seen["transport"]);
  EXPECT_FALSE(seen.contains("ignored"));
}

TEST_F(CliStat, QueuePairOverRoce_HasItsStatistics) {
  ASSERT_NO_FATAL_FAILURE(open("roce"));
  ASSERT_NO_FATAL_FAILURE(connect());
  const json seen = row();
  EXPECT_EQ("roce", seen["transport"]);
  EXPECT_EQ(1u, seen["paths"].size());
  EXPECT_EQ(0, seen["resent"]["timeout"]);
  EXPECT_EQ(0, seen["ignored"]["unexpected_packets"]);
  EXPECT_EQ(false, seen["standard_peer"]);
  EXPECT_EQ(seen["paths"][0]["address"], seen["peer"]);
}

TEST_F(CliStat, Prometheus_QueuePairsOfAProcess_AreSamplesOfEachMetric) {
  ASSERT_NO_FATAL_FAILURE(open("shm"));
  const QpOptions options{.type = QpType::kRc, .send_cq = cq_.get(), .recv_cq = cq_.get(), .cap = {8, 8, 4, 4, 64}};
  const auto second = device_->create_qp(pd_.get(), options);
  ASSERT_TRUE(second);
  tables().qp[index()].counters.messages.store(5);
  tables().qp[shm::index_of((*second)->number())].counters.messages.store(7);
  const Said said = run_nupa({"stat", "--prometheus"});
  EXPECT_EQ(0, said.status) << said.err;
  const std::string labels = "{pid=\"" + std::to_string(getpid()) + "\",command=\"" + program_invocation_short_name +
                             "\",device=\"nupa0\",type=\"RC\",state=\"RESET\",transport=\"\"} ";
  EXPECT_NE(std::string::npos, said.out.find("nupa_queue_pairs" + labels + "2\n")) << said.out;
  EXPECT_NE(std::string::npos, said.out.find("nupa_sent_messages_total" + labels + "12\n")) << said.out;
  for (const char* name : {"nupa_sent_bytes_total", "nupa_received_messages_total", "nupa_errors_total",
                           "nupa_receiver_not_ready_total"}) {
    EXPECT_NE(std::string::npos, said.out.find(std::string("# TYPE ") + name + " counter\n")) << said.out;
    EXPECT_NE(std::string::npos, said.out.find(name + labels + "0\n")) << said.out;
  }
}

TEST_F(CliStat, Prometheus_CommandWithQuotes_IsEscaped) {
  ASSERT_NO_FATAL_FAILURE(open("shm"));
  shm::SegmentHeader& header = *tables().header;
  const std::string before = header.command;
  std::strcpy(header.command, "a\"b\\c\nd");
  const Said said = run_nupa({"stat", "--prometheus"});
  std::strcpy(header.command, before.c_str());
  EXPECT_NE(std::string::npos, said.out.find(R"(command="a\"b\\c\nd",)")) << said.out;
}

TEST_F(CliStat, Prometheus_ToAFile_ReplacesItAndPrintsNothing) {
  ASSERT_NO_FATAL_FAILURE(open("shm"));
  const Folder folder;
  const std::string path = folder.path() + "/nupa.prom";
  std::ofstream(path) << std::string(10'000, 'x');
  const Said said = run_nupa({"stat", "--prometheus", "--output", path});
  EXPECT_EQ(0, said.status) << said.err;
  EXPECT_EQ("", said.out);
  std::ifstream file(path);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  EXPECT_EQ(0u, text.find("# HELP nupa_queue_pairs")) << text.substr(0, 100);
  EXPECT_EQ(std::string::npos, text.find("xx"));
  const auto names = std::filesystem::directory_iterator(folder.path());
  EXPECT_EQ(1, std::distance(begin(names), end(names))) << "no other file is left";
}

TEST_F(CliStat, Prometheus_FileCannotBeWritten_IsAFailureWithItsName) {
  const Folder folder;
  const std::string path = folder.path() + "/absent/nupa.prom";
  Said said = run_nupa({"stat", "--prometheus", "--output", path});
  EXPECT_EQ(1, said.status);
  EXPECT_NE(std::string::npos, said.err.find(path + ": No such file or directory")) << said.err;
  const std::string taken = folder.path() + "/folder";
  std::filesystem::create_directory(taken);
  said = run_nupa({"stat", "--prometheus", "--output", taken});
  EXPECT_EQ(1, said.status) << "a folder is not replaced";
  const auto names = std::filesystem::directory_iterator(folder.path());
  EXPECT_EQ(1, std::distance(begin(names), end(names)));
  EXPECT_EQ(2, run_nupa({"stat", "--output", path}).status) << "it needs --prometheus";
  EXPECT_EQ(2, run_nupa({"stat", "--json", "--prometheus"}).status);
}

TEST_F(CliStat, QueuePairOverSharedMemory_HasItsOldName) {
  ASSERT_NO_FATAL_FAILURE(open("shm"));
  ASSERT_NO_FATAL_FAILURE(connect());
  const json seen = row();
  EXPECT_EQ("shm", seen["transport"]);
  EXPECT_EQ("window", seen["transport_alias"]);
  EXPECT_FALSE(seen.contains("paths"));
}

TEST_F(CliStat, TransportThatIsNotKnown_IsShownByItsNameOnly) {
  ASSERT_NO_FATAL_FAILURE(open("roce"));
  ASSERT_NO_FATAL_FAILURE(connect());
  const json known = row();
  const uint64_t name = shm::pack_name("pige\xffon");
  tables().qp[index()].transport.store(name);
  shm::StatisticsShared& block = tables().statistics[index()];
  block.transport.store(name);
  std::memset(block.bytes, 0xff, sizeof block.bytes);
  const json unknown = row();
  EXPECT_EQ("pige?on", unknown["transport"]);
  EXPECT_EQ("", unknown["peer"]);
  for (const char* field : {"paths", "resent", "ignored", "standard_peer"}) {
    EXPECT_TRUE(known.contains(field)) << field;
    EXPECT_FALSE(unknown.contains(field)) << field;
  }
}

TEST_F(CliStat, BlockOfAnotherTransport_IsNotRead) {
  ASSERT_NO_FATAL_FAILURE(open("roce"));
  ASSERT_NO_FATAL_FAILURE(connect());
  tables().statistics[index()].transport.store(shm::pack_name("pigeon"));
  const json seen = row();
  EXPECT_EQ("roce", seen["transport"]);
  EXPECT_FALSE(seen.contains("paths"));
}

}  // namespace
}  // namespace nupa::test
