// SPDX-License-Identifier: Apache-2.0
// `nupa capture`: its counts, its filters, its end and that of the processes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <nupa/device.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "../unit/capture/ring_memory.h"
#include "capture/tap.h"
#include "core/objects.h"
#include "core/qp.h"
#include "host/wire.h"
#include "program.h"

namespace nupa::test {
namespace {

/// A packet of a file, by the blocks of the format.
struct Shown {
  uint32_t interface = 0;
  int64_t time_ns = 0;
  std::string frame;
  std::string comment;
};

struct File {
  std::vector<std::string> interfaces;
  std::vector<Shown> packets;
  uint64_t dropped = 0;
};

uint32_t word(const std::string& text, size_t at) {
  uint32_t value = 0;
  std::memcpy(&value, text.data() + at, sizeof value);
  return value;
}

std::string option(const std::string& body, size_t at, uint32_t code) {
  while (at + 4 <= body.size()) {
    const uint32_t head = word(body, at);
    if ((head & 0xffff) == code) return body.substr(at + 4, head >> 16);
    at += 4 + ((head >> 16) + 3) / 4 * 4;
  }
  return "";
}

File read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  File file;
  for (size_t at = 0; at + 12 <= text.size();) {
    const uint32_t type = word(text, at), length = word(text, at + 4);
    EXPECT_LE(at + length, text.size());
    EXPECT_EQ(length, word(text, at + length - 4));
    const std::string body = text.substr(at + 8, length - 12);
    if (type == 1) file.interfaces.push_back(option(body, 8, 2));
    if (type == 6) {
      const uint32_t kept = word(body, 12);
      Shown& packet = file.packets.emplace_back();
      packet.interface = word(body, 0);
      packet.time_ns = static_cast<int64_t>(uint64_t{word(body, 4)} << 32 | word(body, 8));
      packet.frame = body.substr(20, kept);
      packet.comment = option(body, 20 + (kept + 3) / 4 * 4, 1);
    }
    if (type == 5) {
      uint64_t count = 0;
      std::memcpy(&count, option(body, 12, 5).data(), sizeof count);
      file.dropped += count;
    }
    at += length;
  }
  return file;
}

/// A process of this user that writes eight bytes to itself, in a runtime directory of the test.
class CliCapture : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const char* const before = getenv("NUPA_RUNTIME_DIR")) before_ = before;
    setenv("NUPA_RUNTIME_DIR", runtime_.path().c_str(), 1);
    path_ = folder_ / "file";
  }
  void TearDown() override {
    close();
    before_.empty() ? unsetenv("NUPA_RUNTIME_DIR") : setenv("NUPA_RUNTIME_DIR", before_.c_str(), 1);
  }
  void close() {
    queue_pair_.reset();
    cq_.reset();
    region_.reset();
    pd_.reset();
    device_.reset();
  }
  void open() {
    setenv("NUPA_TRANSPORT", "shm", 1);
    auto opened = open_device("nupa0");
    unsetenv("NUPA_TRANSPORT");
    ASSERT_TRUE(opened);
    device_ = std::move(*opened);
    pd_ = std::move(*device_->alloc_pd());
    cq_ = std::move(*device_->create_cq({.entries = 16}));
    region_ = std::move(*device_->alloc_mr(*pd_, 8192, access::kLocalWrite | access::kRemoteWrite));
    const QpOptions options{.type = QpType::kRc, .send_cq = cq_.get(), .recv_cq = cq_.get(), .cap = {8, 8, 4, 4, 64}};
    queue_pair_ = std::move(*device_->create_qp(pd_.get(), options));
    QpAttr attr;
    attr.state = QpState::kInit;
    attr.access_flags = access::kRemoteWrite;
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
    attr.state = QpState::kRts;
    ASSERT_EQ(0, queue_pair_->modify(attr, qp_attr::kState | qp_attr::kSqPsn | qp_attr::kTimeout | qp_attr::kRetryCnt |
                                               qp_attr::kRnrRetry | qp_attr::kMaxQpRdAtomic));
  }
  /// A WRITE, which is two packets.
  void write() {
    const Sge sge{reinterpret_cast<uint64_t>(region_->addr()), 8, region_->lkey()};
    SendWr wr{.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = Opcode::kRdmaWrite};
    wr.flags = send_flag::kSignaled;
    wr.rkey = region_->rkey();
    wr.remote_addr = reinterpret_cast<uint64_t>(region_->addr()) + 4096;
    ASSERT_EQ(0, queue_pair_->post_send(wr));
    WorkCompletion wc;
    ASSERT_TRUE(await([&] { return cq_->poll(&wc, 1) == 1; }));
    ASSERT_EQ(WcStatus::kSuccess, wc.status);
  }
  Start capture(std::vector<std::string> options = {}) const {
    Start start;
    start.arguments = {"capture", "-w", path_};
    start.arguments.insert(start.arguments.end(), options.begin(), options.end());
    return start;
  }
  static bool await_on() {
    return await([] { return capture::is_on(); });
  }
  static bool await_off() {
    return await([] { return !capture::is_on(); });
  }
  uintmax_t file_bytes() const { return std::filesystem::file_size(path_); }

  const Folder runtime_, folder_;
  std::string before_, path_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<ProtectionDomain> pd_;
  std::unique_ptr<CompletionQueue> cq_;
  std::unique_ptr<MemoryRegion> region_;
  std::unique_ptr<QueuePair> queue_pair_;
};

TEST_F(CliCapture, Signal_EndsItWithAllPackets) {
  ASSERT_NO_FATAL_FAILURE(open());
  Program program(capture());
  ASSERT_TRUE(await_on());
  for (int i = 0; i < 5; ++i) write();
  program.send(SIGINT);
  EXPECT_EQ(0, program.wait());
  EXPECT_TRUE(has(program.err(), "nupa: 10 packets captured, 0 dropped\n")) << program.err();
  const File file = read_file(path_);
  ASSERT_EQ(10u, file.packets.size());
  EXPECT_EQ(std::vector<std::string>{"nupa0/shm"}, file.interfaces);
  EXPECT_EQ("pid " + std::to_string(getpid()) + " (" + program_invocation_short_name + "), shm, synthetic",
            file.packets[0].comment);
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  constexpr int64_t kHourNs = 3600'000'000'000;
  EXPECT_LT(std::abs(now.tv_sec * 1'000'000'000 - file.packets[0].time_ns), kHourNs);
  EXPECT_EQ(0600u, static_cast<unsigned>(std::filesystem::status(path_).permissions()));
  EXPECT_TRUE(await_off());
}

TEST_F(CliCapture, Count_EndsIt) {
  ASSERT_NO_FATAL_FAILURE(open());
  Program program(capture({"-c", "3"}));
  ASSERT_TRUE(await_on());
  for (int i = 0; i < 5; ++i) write();
  EXPECT_EQ(0, program.wait());
  EXPECT_EQ(3u, read_file(path_).packets.size());
}

TEST_F(CliCapture, Duration_EndsIt) {
  ASSERT_NO_FATAL_FAILURE(open());
  Program program(capture({"--duration", "0.05"}));
  EXPECT_EQ(0, program.wait());
  EXPECT_TRUE(has(program.err(), "0 packets captured")) << program.err();
}

TEST_F(CliCapture, SecondOne_IsRefused) {
  ASSERT_NO_FATAL_FAILURE(open());
  Program program(capture());
  ASSERT_TRUE(await_on());
  const Said said = run_nupa({"capture", "-w", folder_ / "second"});
  EXPECT_EQ(1, said.status);
  EXPECT_TRUE(has(said.err, "another nupa capture runs in " + runtime_.path())) << said.err;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "second"));
}

TEST_F(CliCapture, ProcessThatStartsLater_IsCapturedFromItsFirstPacket) {
  Program program(capture());
  ASSERT_TRUE(await([&] { return has(program.err(), "capturing 0 processes"); }));
  ASSERT_NO_FATAL_FAILURE(open());
  EXPECT_TRUE(capture::is_on());
  write();
  close();
  program.send(SIGINT);
  EXPECT_EQ(0, program.wait());
  EXPECT_EQ(2u, read_file(path_).packets.size());
}

TEST_F(CliCapture, KilledCapture_LeavesTheProcessAndNoFile) {
  ASSERT_NO_FATAL_FAILURE(open());
  {
    Program program(capture());
    ASSERT_TRUE(await_on());
    program.send(SIGKILL);
    program.wait();
  }
  EXPECT_TRUE(await_off());
  ASSERT_NO_FATAL_FAILURE(write());
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(runtime_.path()))
    if (entry.path().filename() != runtime::Directory::kCountersFile) files.push_back(entry.path().filename());
  ASSERT_EQ(1u, files.size()) << "the socket of this process";
  EXPECT_TRUE(files[0].ends_with(".sock")) << files[0];
  Program next(capture({"-c", "2"}));
  ASSERT_TRUE(await_on());
  write();
  EXPECT_EQ(0, next.wait());
}

TEST_F(CliCapture, ProcessThatIsKilledInARecord_CountsItAsDropped) {
  // The child attaches like a process, and dies with a record that is not complete.
  Program program(capture());
  ASSERT_TRUE(await([&] { return has(program.err(), "capturing 0 processes"); }));
  const pid_t child = fork();
  if (child == 0) {
    open();
    write();
    // The ring is mapped in this process, and the library does not give it away.
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      if (!has(line, "nupa-capture")) continue;
      const size_t dash = line.find('-');
      void* const at = reinterpret_cast<void*>(std::stoull(line.substr(0, dash), nullptr, 16));
      uint64_t position = 0;
      capture::Ring(at, static_cast<capture::RingHeader*>(at)->capacity).take(100, &position);
      raise(SIGKILL);
    }
    _exit(1);
  }
  int status = 0;
  ASSERT_EQ(child, waitpid(child, &status, 0));
  ASSERT_TRUE(WIFSIGNALED(status));
  ASSERT_NO_FATAL_FAILURE(open());
  write();
  program.send(SIGINT);
  EXPECT_EQ(0, program.wait());
  const File file = read_file(path_);
  EXPECT_EQ(4u, file.packets.size());
  EXPECT_EQ(1u, file.dropped);
}

TEST_F(CliCapture, Ring_KeepsTheLastPackets) {
  ASSERT_NO_FATAL_FAILURE(open());
  Program program(capture({"--ring", "4"}));
  ASSERT_TRUE(await_on());
  for (int i = 0; i < 5; ++i) write();
  program.send(SIGINT);
  EXPECT_EQ(0, program.wait());
  const File file = read_file(path_);
  ASSERT_EQ(4u, file.packets.size());
  // PSNs of the fourth and the fifth WRITE and their answers.
  const auto psn = [](const Shown& packet) { return static_cast<uint8_t>(packet.frame[14 + 20 + 8 + 11]); };
  EXPECT_EQ(psn(file.packets[0]) + 1, psn(file.packets[2]));
  EXPECT_EQ(4, psn(file.packets[3]));
}

TEST_F(CliCapture, Ring_IsWrittenAtSigusr1AndGoesOn) {
  ASSERT_NO_FATAL_FAILURE(open());
  Program program(capture({"--ring", "100"}));
  ASSERT_TRUE(await_on());
  write();
  const uintmax_t before = file_bytes();
  EXPECT_TRUE(await([&] {
    program.send(SIGUSR1);
    return file_bytes() > before + 100;
  }));
  EXPECT_TRUE(await([&] { return read_file(path_).packets.size() == 2; }));
  write();
  program.send(SIGINT);
  EXPECT_EQ(0, program.wait());
  EXPECT_EQ(4u, read_file(path_).packets.size());
}

TEST_F(CliCapture, Pid_OfAnotherProcess_LeavesThisOneAlone) {
  ASSERT_NO_FATAL_FAILURE(open());
  Program program(capture({"--pid", "1"}));
  ASSERT_TRUE(await([&] { return has(program.err(), "capturing 0 processes"); }));
  EXPECT_FALSE(capture::is_on());
  write();
  program.send(SIGINT);
  EXPECT_EQ(0, program.wait());
  EXPECT_TRUE(read_file(path_).packets.empty());
}

TEST_F(CliCapture, Pid_OfThisProcess_CapturesIt) {
  ASSERT_NO_FATAL_FAILURE(open());
  Program program(capture({"--pid", "1", "--pid", std::to_string(getpid()), "-c", "2"}));
  ASSERT_TRUE(await_on());
  write();
  EXPECT_EQ(0, program.wait());
}

TEST_F(CliCapture, Filters_ReachTheProcess) {
  ASSERT_NO_FATAL_FAILURE(open());
  const auto packets = [&](std::vector<std::string> options) {
    options.insert(options.begin(), {"--buffer", "1"});
    Program program(capture(std::move(options)));
    EXPECT_TRUE(await_on());
    write();
    program.send(SIGINT);
    EXPECT_EQ(0, program.wait()) << program.err();
    EXPECT_TRUE(await_off());
    return read_file(path_).packets;
  };
  const std::string own = std::to_string(queue_pair_->number());
  EXPECT_EQ(2u, packets({"--qp", own, "--qp", "0x777"}).size());
  EXPECT_EQ(0u, packets({"--qp", "0x777"}).size());
  EXPECT_EQ(1u, packets({"--class", "ack"}).size());
  EXPECT_EQ(2u, packets({"--class", "ack", "--class", "write"}).size());
  EXPECT_EQ(0u, packets({"--class", "cm"}).size());
  EXPECT_EQ(1u, packets({"--direction", "in"}).size());
  EXPECT_EQ(1u, packets({"--direction", "out"}).size());
  EXPECT_EQ(2u, packets({"--device", "nupa0"}).size());
  EXPECT_EQ(0u, packets({"--device", "nupa1"}).size());
  EXPECT_EQ(2u, packets({"--transport", "shm"}).size());
  EXPECT_EQ(0u, packets({"--transport", "sh"}).size());
  const auto cut = packets({"--snaplen", "65"});
  ASSERT_EQ(2u, cut.size());
  EXPECT_EQ(65u, cut[0].frame.size());
}

TEST_F(CliCapture, PipeWhoseReaderEnds_EndsIt) {
  ASSERT_NO_FATAL_FAILURE(open());
  int ends[2];
  ASSERT_EQ(0, pipe2(ends, O_CLOEXEC));
  base::UniqueFd reader(ends[0]), writer(ends[1]);
  Start start = capture();
  start.arguments[2] = "/proc/self/fd/" + std::to_string(writer.get());
  start.in_child = [&] { return fcntl(writer.get(), F_SETFD, 0) == 0; };
  Program program(std::move(start));
  ASSERT_TRUE(await_on());
  writer.reset();
  reader.reset();
  EXPECT_EQ(0, program.wait());
  EXPECT_TRUE(await_off());
}

TEST_F(CliCapture, FileThatCannotBeWritten_IsAnError) {
  Start start = capture();
  start.arguments[2] = folder_ / "missing/file";
  const Said said = run_nupa(std::move(start));
  EXPECT_EQ(1, said.status);
  EXPECT_TRUE(has(said.err, "cannot write " + (folder_ / "missing/file") + ": No such file")) << said.err;
}

}  // namespace
}  // namespace nupa::test
