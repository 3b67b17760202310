// SPDX-License-Identifier: Apache-2.0
/// Device memory as a program uses it (manuals ibv_alloc_dm and ibv_query_device_ex): what it holds, and requests into
/// it, within a process and from another one.
#ifdef NUPA_TEST_DROPIN
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <numeric>

#include "fixture.h"

namespace nupa::test {
namespace {

constexpr uint32_t kBytes = 64 << 10;
constexpr uint32_t kLong = 20'000;  ///< several packets
constexpr int kRights = IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
                        IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;

uint64_t most_of(ibv_context* context) {
  ibv_device_attr_ex attr{};
  EXPECT_EQ(ibv_query_device_ex(context, nullptr, &attr), 0);
  return attr.max_dm_size;
}

std::vector<char> pattern(size_t length, int seed) {
  std::vector<char> bytes(length);
  std::iota(bytes.begin(), bytes.end(), static_cast<char>(seed));
  return bytes;
}

class VerbsDeviceMemory : public VerbsPair {
 protected:
  void make_memory(uint32_t length = kBytes) {
    ibv_alloc_dm_attr attr{};
    attr.length = length;
    dm = ibv_alloc_dm(context, &attr);
    ASSERT_NE(dm, nullptr) << std::strerror(errno);
    region = ibv_reg_dm_mr(pd, dm, 0, length, kRights);
    ASSERT_NE(region, nullptr) << std::strerror(errno);
    mrs.push_back(region);
  }
  /// Before the device is closed.
  void free_memory() {
    for (ibv_qp* qp : qps) EXPECT_EQ(ibv_destroy_qp(qp), 0);
    qps.clear();
    if (region != nullptr) {
      std::erase(mrs, region);
      EXPECT_EQ(ibv_dereg_mr(region), 0);
    }
    EXPECT_EQ(ibv_free_dm(dm), 0);
  }
  std::vector<char> content(uint64_t offset, size_t length) {
    std::vector<char> bytes(length);
    EXPECT_EQ(ibv_memcpy_from_dm(bytes.data(), dm, offset, length), 0);
    return bytes;
  }
  ibv_send_wr into_dm(ibv_wr_opcode opcode, uint64_t wr_id, ibv_sge* sge, uint64_t offset) {
    ibv_send_wr wr = request(opcode, wr_id, sge);
    wr.wr.rdma = {offset, region->rkey};
    return wr;
  }

  ibv_dm* dm = nullptr;
  ibv_mr* region = nullptr;
};

TEST_F(VerbsDeviceMemory, Alloc_UpToTheLimitOfTheDevice_IsZero) {
  const uint64_t most = most_of(context);
  ASSERT_GE(most, 1u << 20);
  ibv_alloc_dm_attr attr{};
  attr.length = most + 4096;
  EXPECT_EQ(ibv_alloc_dm(context, &attr), nullptr);
  EXPECT_EQ(errno, ENOMEM);
  attr.length = 1 << 20;
  attr.log_align_req = 12;
  for (int round = 0; round < 2; ++round) {
    dm = ibv_alloc_dm(context, &attr);
    ASSERT_NE(dm, nullptr) << std::strerror(errno);
    EXPECT_EQ(content(0, attr.length), std::vector<char>(attr.length)) << "round " << round;
    const std::vector<char> ones(attr.length, 1);
    EXPECT_EQ(ibv_memcpy_to_dm(dm, 0, ones.data(), ones.size()), 0);
    EXPECT_EQ(ibv_free_dm(dm), 0);
  }
}

TEST_F(VerbsDeviceMemory, Copies_OutsideOrUnaligned_AreRefusedAndChangeNothing) {
  make_memory(4096);
  char bytes[64];
  std::memset(bytes, 9, sizeof bytes);
  EXPECT_EQ(ibv_memcpy_to_dm(dm, 2, bytes, 4), EINVAL);
  EXPECT_EQ(ibv_memcpy_to_dm(dm, 0, bytes, 3), EINVAL);
  EXPECT_EQ(ibv_memcpy_to_dm(dm, 4096 - 60, bytes, 64), EFAULT);
  EXPECT_EQ(ibv_memcpy_to_dm(dm, UINT64_MAX - 59, bytes, 64), EFAULT);
  EXPECT_EQ(content(0, 4096), std::vector<char>(4096));
  EXPECT_EQ(ibv_memcpy_from_dm(bytes, dm, 4096, 4), EFAULT);
  free_memory();
}

TEST_F(VerbsDeviceMemory, Requests_OfEachKind_UseIt) {
  make_memory();
  make_pair();
  const auto data = pattern(sizeof memory / 2, 3);
  std::copy(data.begin(), data.end(), memory);
  ibv_sge sge = span(0, static_cast<uint32_t>(data.size()));
  ASSERT_EQ(post(a, into_dm(IBV_WR_RDMA_WRITE, 1, &sge, 100)), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(content(100, data.size()), data);
  sge = span(data.size(), static_cast<uint32_t>(data.size()));
  ASSERT_EQ(post(a, into_dm(IBV_WR_RDMA_READ, 2, &sge, 100)), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(memory, memory + data.size(), data.size()), 0);
  // A receive in device memory, and a SEND from there.
  ASSERT_EQ(post_recv(b, 3, nullptr, 4096, region->lkey), 0);
  sge = {100, 4096, region->lkey};
  ASSERT_EQ(post(a, request(IBV_WR_SEND, 4, &sge)), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(next(other_cq).status, IBV_WC_SUCCESS);
  EXPECT_EQ(content(0, 4096), std::vector<char>(data.begin(), data.begin() + 4096));
  uint64_t word = 40;
  ASSERT_EQ(ibv_memcpy_to_dm(dm, 8192, &word, sizeof word), 0);
  sge = span(0, 8);
  ibv_send_wr add = request(IBV_WR_ATOMIC_FETCH_AND_ADD, 5, &sge);
  add.wr.atomic = {8192, 2, 0, region->rkey};
  ASSERT_EQ(post(a, add), 0);
  EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  ASSERT_EQ(ibv_memcpy_from_dm(&word, dm, 8192, sizeof word), 0);
  EXPECT_EQ(word, 42u);
  std::memcpy(&word, memory, sizeof word);
  EXPECT_EQ(word, 40u);
  free_memory();
}

TEST_F(VerbsDeviceMemory, Write_BeyondTheRegion_ChangesNothing) {
  make_memory(8192);
  make_pair();
  std::memset(memory, 7, sizeof memory);
  ibv_sge sge = span(0, 4096);
  ASSERT_EQ(post(a, into_dm(IBV_WR_RDMA_WRITE, 1, &sge, 4100)), 0);
  EXPECT_EQ(next().status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(content(0, 8192), std::vector<char>(8192));
  free_memory();
}

/// Another process has the device memory, and does what a byte of the socket says.
class VerbsDeviceMemoryOfAnotherProcess : public VerbsDeviceMemory {
 protected:
  struct Ends {
    uint32_t number = 0;
    uint32_t rkey = 0;
  };
  enum Command : char { kCompare = 'c', kDeregister = 'd', kReset = 'r', kEnd = 'e' };
  struct Order {
    Command command;
    int seed;
    uint64_t offset;
    uint64_t length;
  };

  void SetUp() override {
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
    child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      close(sockets[0]);
      serve();
      _exit(HasFailure() ? 1 : 0);
    }
    close(sockets[1]);
    VerbsPair::SetUp();
    a = make_qp();
    exchange(sockets[0], a, 0);
  }
  void TearDown() override {
    const Order end{kEnd, 0, 0, 0};
    EXPECT_EQ(write(sockets[0], &end, sizeof end), static_cast<ssize_t>(sizeof end));
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    close(sockets[0]);
    VerbsPair::TearDown();
  }

  void exchange(int socket, ibv_qp* qp, uint32_t rkey) {
    ASSERT_NE(qp, nullptr);
    const Ends mine{qp->qp_num, rkey};
    ASSERT_EQ(write(socket, &mine, sizeof mine), static_cast<ssize_t>(sizeof mine));
    ASSERT_EQ(read(socket, &theirs, sizeof theirs), static_cast<ssize_t>(sizeof theirs));
    ASSERT_EQ(to_init(qp), 0);
    ASSERT_EQ(to_rts(qp, theirs.number), 0);
    char ready = 1;
    ASSERT_EQ(write(socket, &ready, 1), 1);
    ASSERT_EQ(read(socket, &ready, 1), 1);
  }

  // In the other process.
  void serve() {
    VerbsPair::SetUp();
    if (HasFatalFailure()) return;
    make_memory();
    if (HasFatalFailure()) return;
    b = make_qp();
    exchange(sockets[1], b, region->rkey);
    Order order{};
    while (!HasFailure() && read(sockets[1], &order, sizeof order) == static_cast<ssize_t>(sizeof order)) {
      char answer = 1;
      if (order.command == kEnd) break;
      if (order.command == kCompare) {
        answer = content(order.offset, order.length) ==
                 (order.seed < 0 ? std::vector<char>(order.length) : pattern(order.length, order.seed));
      } else if (order.command == kReset) {
        EXPECT_EQ(move(b, IBV_QPS_RESET), 0);
      } else {
        std::erase(mrs, region);
        EXPECT_EQ(ibv_dereg_mr(region), 0);
        region = nullptr;
        // From now on nobody else writes here.
        const std::vector<char> zeros(kBytes);
        EXPECT_EQ(ibv_memcpy_to_dm(dm, 0, zeros.data(), zeros.size()), 0);
      }
      EXPECT_EQ(write(sockets[1], &answer, 1), 1);
    }
    free_memory();
    VerbsPair::TearDown();
  }

  // In this process.
  bool order(const Order& wanted) {
    char answer = 0;
    return write(sockets[0], &wanted, sizeof wanted) == static_cast<ssize_t>(sizeof wanted) &&
           read(sockets[0], &answer, 1) == 1 && answer == 1;
  }
  bool there(int seed, uint64_t offset, uint64_t length) { return order({kCompare, seed, offset, length}); }
  ibv_send_wr write_there(uint64_t wr_id, ibv_sge* sge, uint64_t offset) {
    ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, wr_id, sge);
    wr.wr.rdma = {offset, theirs.rkey};
    return wr;
  }
  void write_pattern(int seed, uint64_t offset) {
    const auto bytes = pattern(kLong, seed);
    std::copy(bytes.begin(), bytes.end(), source);
    ibv_sge sge{reinterpret_cast<uint64_t>(source), kLong, source_mr->lkey};
    ASSERT_EQ(post(a, write_there(1, &sge, offset)), 0);
    ASSERT_EQ(next().status, IBV_WC_SUCCESS);
  }
  void register_source() {
    source_mr = reg(source, sizeof source);
    ASSERT_NE(source_mr, nullptr);
  }

  int sockets[2] = {-1, -1};
  pid_t child = -1;
  Ends theirs;
  alignas(4096) char source[kLong] = {};
  ibv_mr* source_mr = nullptr;
};

TEST_F(VerbsDeviceMemoryOfAnotherProcess, Writes_OneAfterTheOther_EachIsThereAtItsCompletion) {
  register_source();
  for (int seed = 1; seed < 20; ++seed) {
    const uint64_t offset = 100u * static_cast<unsigned>(seed);
    ASSERT_NO_FATAL_FAILURE(write_pattern(seed, offset));
    ASSERT_TRUE(there(seed, offset, kLong)) << seed;
  }
}

TEST_F(VerbsDeviceMemoryOfAnotherProcess, Read_FindsWhatWasWritten) {
  register_source();
  for (int seed = 1; seed < 5; ++seed) {
    ASSERT_NO_FATAL_FAILURE(write_pattern(seed, 8));
    ibv_sge sge = span(0, sizeof memory);
    ibv_send_wr wr = write_there(2, &sge, 8);
    wr.opcode = IBV_WR_RDMA_READ;
    ASSERT_EQ(post(a, wr), 0);
    ASSERT_EQ(next().status, IBV_WC_SUCCESS);
    EXPECT_EQ(std::memcmp(memory, source, sizeof memory), 0) << seed;
  }
}

TEST_F(VerbsDeviceMemoryOfAnotherProcess, Deregistered_IsNotWrittenAnyMore) {
  register_source();
  for (int seed = 1; seed < 4; ++seed) ASSERT_NO_FATAL_FAILURE(write_pattern(seed, 0));
  ASSERT_TRUE(order({kDeregister, 0, 0, 0}));
  ibv_sge sge{reinterpret_cast<uint64_t>(source), kLong, source_mr->lkey};
  ASSERT_EQ(post(a, write_there(5, &sge, 0)), 0);
  EXPECT_EQ(next().status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_TRUE(there(-1, 0, kBytes));
}

TEST_F(VerbsDeviceMemoryOfAnotherProcess, DeregisteredInTheMiddle_IsNotWrittenAnyMore) {
  register_source();
  for (int seed = 1; seed < 4; ++seed) ASSERT_NO_FATAL_FAILURE(write_pattern(seed, 0));
  // Requests are on their way when the key becomes invalid; each of them ends, the later ones with an error.
  ibv_sge sge{reinterpret_cast<uint64_t>(source), kLong, source_mr->lkey};
  for (int i = 0; i < kQueueLength / 2; ++i) ASSERT_EQ(post(a, write_there(5, &sge, 0)), 0);
  ASSERT_TRUE(order({kDeregister, 0, 0, 0}));
  for (int i = 0; i < kQueueLength / 2; ++i) EXPECT_NE(next().status, kNoCompletion);
  EXPECT_TRUE(there(-1, 0, kBytes)) << "written after ibv_dereg_mr had returned";
}

TEST_F(VerbsDeviceMemoryOfAnotherProcess, QueuePairReset_ItIsNotWrittenAnyMore) {
  register_source();
  for (int seed = 1; seed < 4; ++seed) ASSERT_NO_FATAL_FAILURE(write_pattern(seed, 0));
  ASSERT_TRUE(order({kReset, 0, 0, 0}));
  const auto other = pattern(kLong, 77);
  std::copy(other.begin(), other.end(), source);
  ibv_sge sge{reinterpret_cast<uint64_t>(source), kLong, source_mr->lkey};
  ASSERT_EQ(post(a, write_there(5, &sge, 0)), 0);
  EXPECT_EQ(next().status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_TRUE(there(3, 0, kLong));
}

}  // namespace
}  // namespace nupa::test
#endif
