// SPDX-License-Identifier: Apache-2.0
/// Tests of map_remote() between two processes.
#include <gtest/gtest.h>
#include <nupa/connect.h>
#include <nupa/device.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "../pool/fixture.h"

namespace nupa {
namespace {

constexpr size_t kBytes = 8192;
constexpr uint32_t kReadWrite = access::kRemoteRead | access::kRemoteWrite;

struct Address {
  Gid gid;
  uint32_t qp_num;
  uint32_t rkey;
  uint64_t addr;
};

/// One process's end: a queue pair and two pages that the other end may read and write.
struct End {
  std::unique_ptr<Device> device;
  std::unique_ptr<ProtectionDomain> pd;
  std::unique_ptr<CompletionQueue> cq;
  std::unique_ptr<MemoryRegion> region;
  std::unique_ptr<QueuePair> qp;
  char* memory = nullptr;

  std::string name = "nupa0";
  uint8_t gid_index = 1;

  /// `allocated`: the memory is the region's, else the program's.
  bool open(bool allocated = false) {
    auto opened = open_device(name);
    if (!opened) return false;
    device = std::move(*opened);
    pd = std::move(*device->alloc_pd());
    cq = std::move(*device->create_cq({.entries = 8}));
    if (allocated) {
      region = std::move(*device->alloc_mr(*pd, kBytes, access::kLocalWrite | kReadWrite, MemorySource::kTransport));
      memory = static_cast<char*>(region->addr());
      return make_qp();
    }
    memory = static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    region = std::move(
        *device->reg_mr(*pd, memory, kBytes, reinterpret_cast<uint64_t>(memory), access::kLocalWrite | kReadWrite));
    return make_qp();
  }
  bool make_qp() {
    qp = std::move(*device->create_qp(
        pd.get(), {.send_cq = cq.get(), .recv_cq = cq.get(), .cap = {.max_send_wr = 4, .max_send_sge = 1}}));
    return true;
  }
  /// Exchanges the addresses with the other process, and connects.
  bool exchange_and_connect(int in, int out, Address* peer) {
    const Address mine{device->query_gid(1, gid_index)->gid, qp->number(), region->rkey(),
                       reinterpret_cast<uint64_t>(memory)};
    if (write(out, &mine, sizeof mine) != sizeof mine || read(in, peer, sizeof *peer) != sizeof *peer) return false;
    return connect(
               *qp,
               {.dgid = peer->gid, .dest_qp_num = peer->qp_num, .access_flags = kReadWrite, .sgid_index = gid_index}) ==
           0;
  }
};

/// Answers with a second text where the first one has arrived, and exits at the next byte. Returns the exit status.
int play_owner(int in, int out, End end, bool allocated) {
  Address peer;
  if (!end.open(allocated) || !end.exchange_and_connect(in, out, &peer)) return 1;
  const volatile char* const looked_at = end.memory;
  pollfd stop_request{in, POLLIN, 0};
  while (looked_at[0] == 0)
    if (poll(&stop_request, 1, 1) != 0) return 0;
  const bool right = std::strcmp(end.memory, "written from afar") == 0;
  std::strcpy(end.memory + 4096, "and read");
  char byte;
  if (write(out, "!", 1) != 1 || read(in, &byte, 1) != 1) return 2;
  return right ? 0 : 3;
}

class MapRemote : public ::testing::Test {
 protected:
  void start(const char* transport, bool allocated = false) {
    setenv("NUPA_TRANSPORT", transport, 1);
    int down[2];
    int up[2];
    ASSERT_EQ(pipe(down), 0);
    ASSERT_EQ(pipe(up), 0);
    owner = fork();
    if (owner == 0) {
      close(down[1]);
      close(up[0]);
      _exit(play_owner(down[0], up[1], std::move(end), allocated));
    }
    in = up[0];
    out = down[1];
    close(down[0]);
    close(up[1]);
    ASSERT_TRUE(end.open());
    ASSERT_TRUE(end.exchange_and_connect(in, out, &peer));
  }
  void TearDown() override {
    unsetenv("NUPA_TRANSPORT");
    unsetenv("NUPA_REMAP");
    part();
  }
  /// The other process ends, and this one's end goes.
  void part() {
    if (in >= 0) close(in);
    if (out >= 0) close(out);
    in = out = -1;
    if (owner > 0) {
      int status = 0;
      EXPECT_EQ(waitpid(owner, &status, 0), owner);
      EXPECT_EQ(status, 0);
    }
    owner = 0;
    end.qp.reset();
    end.region.reset();
    end.cq.reset();
    end.pd.reset();
    end.device.reset();
  }
  /// What the owner waits for: it looks at the first byte.
  static void put_text(char* there) {
    std::strcpy(there + 1, "ritten from afar");
    __atomic_store_n(there, 'w', __ATOMIC_RELEASE);
  }
  /// Waits until the other end is there too.
  Result<std::shared_ptr<std::byte>> map(uint64_t offset, uint64_t length, uint32_t rights = kReadWrite) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (true) {
      auto mapped = end.qp->map_remote(peer.rkey, peer.addr + offset, length, rights);
      if (mapped || mapped.error().code() != ENOTCONN || std::chrono::steady_clock::now() > until) return mapped;
      usleep(1000);  // sleep: the pause between two looks
    }
  }

  End end;
  Address peer{};
  pid_t owner = 0;
  int in = -1;
  int out = -1;
};

TEST_F(MapRemote, StoreAndLoad_MappedMemory_ReachTheOwner) {
  ASSERT_NO_FATAL_FAILURE(start("shm"));
  const auto mapped = map(0, kBytes);
  ASSERT_TRUE(mapped) << mapped.error().what();
  auto* const there = reinterpret_cast<char*>(mapped->get());
  put_text(there);
  char byte;
  ASSERT_EQ(read(in, &byte, 1), 1);
  EXPECT_STREQ(there + 4096, "and read");
  const auto second = map(4096, 4);
  ASSERT_TRUE(second);
  EXPECT_EQ(std::memcmp(second->get(), "and ", 4), 0);
  ASSERT_EQ(write(out, "!", 1), 1);
  part();
  // Its memory stays where it was for whoever holds it, alive or not.
  std::memset(there, 1, kBytes);
}

TEST_F(MapRemote, MapRemote_WrongKeyOrBounds_FailsWithEacces) {
  ASSERT_NO_FATAL_FAILURE(start("shm"));
  EXPECT_EQ(end.qp->transport(), "shm");
  ASSERT_TRUE(map(0, 1));
  EXPECT_EQ(map(0, kBytes + 1).error().code(), EACCES);
  EXPECT_EQ(map(kBytes, 1).error().code(), EACCES);
  EXPECT_EQ(map(0, 0).error().code(), EACCES);
  EXPECT_EQ(map(0, 8, kReadWrite | access::kRemoteAtomic).error().code(), EACCES);
  EXPECT_EQ(end.qp->map_remote(peer.rkey + 1, peer.addr, 8, kReadWrite).error().code(), EACCES);
  EXPECT_EQ(end.qp->map_remote(0, peer.addr, 8, kReadWrite).error().code(), EACCES);
}

TEST_F(MapRemote, MapRemote_WithoutRemapping_SucceedsForAllocatedRegionsOnly) {
  setenv("NUPA_REMAP", "never", 1);
  ASSERT_NO_FATAL_FAILURE(start("shm"));
  EXPECT_EQ(map(0, 8).error().code(), ENOTSUP);
  part();
  ASSERT_NO_FATAL_FAILURE(start("shm", true));
  const auto mapped = map(0, kBytes);
  ASSERT_TRUE(mapped) << mapped.error().what();
  put_text(reinterpret_cast<char*>(mapped->get()));
  char byte;
  ASSERT_EQ(read(in, &byte, 1), 1);
  EXPECT_STREQ(reinterpret_cast<char*>(mapped->get()) + 4096, "and read");
  ASSERT_EQ(write(out, "!", 1), 1);
}

/// Two processes of one host of a pool.
class MapRemoteOfAPool : public MapRemote {
 protected:
  MapRemoteOfAPool() {
    setenv("NUPA_POOL", ("file:" + file_.path() + ",host=0").c_str(), 1);
    end.name = "nupa_pool0";
    end.gid_index = 0;
  }
  ~MapRemoteOfAPool() override { unsetenv("NUPA_POOL"); }
  bool is_in_the_pool(const void* memory) const {
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
      const uint64_t begin = std::stoull(line, nullptr, 16),
                     past = std::stoull(line.substr(line.find('-') + 1), nullptr, 16);
      const auto at = reinterpret_cast<uint64_t>(memory);
      if (begin <= at && at < past) return line.find(file_.path()) != std::string::npos;
    }
    return false;
  }
  pool::PoolFile file_{pool::kMiB * 16};
};

TEST_F(MapRemoteOfAPool, AllocatedRegion_LiesInThePoolAndIsMapped) {
  setenv("NUPA_REMAP", "never", 1);
  ASSERT_NO_FATAL_FAILURE(start("shm,pool", true));
  EXPECT_EQ(end.qp->transport(), "shm");
  auto mapped = map(0, kBytes);
  ASSERT_TRUE(mapped) << mapped.error().what();
  EXPECT_TRUE(is_in_the_pool(mapped->get()));
  put_text(reinterpret_cast<char*>(mapped->get()));
  char byte;
  ASSERT_EQ(read(in, &byte, 1), 1);
  EXPECT_STREQ(reinterpret_cast<char*>(mapped->get()) + 4096, "and read");
  ASSERT_EQ(write(out, "!", 1), 1);
  const std::byte* const there = mapped->get();
  mapped->reset();
  end.qp.reset();
  EXPECT_TRUE(is_in_the_pool(there)) << "the pool is mapped as a whole";
}

TEST_F(MapRemoteOfAPool, AllocMr_NoRoomInThePool_IsElsewhere) {
  setenv("NUPA_TRANSPORT", "pool", 1);
  ASSERT_TRUE(end.open(true));
  EXPECT_TRUE(is_in_the_pool(end.memory));
  const auto large = end.device->alloc_mr(*end.pd, 64 * pool::kMiB, access::kLocalWrite, MemorySource::kTransport);
  ASSERT_TRUE(large) << large.error().what();
  EXPECT_FALSE(is_in_the_pool((*large)->addr()));
}

TEST_F(MapRemoteOfAPool, AllocMr_CachesAreNotCoherent_IsElsewhere) {
  setenv("NUPA_TRANSPORT", "pool", 1);
  setenv("NUPA_POOL", ("file:" + file_.path() + ",host=0,coherence=none").c_str(), 1);
  ASSERT_TRUE(end.open(true));
  EXPECT_FALSE(is_in_the_pool(end.memory)) << "peers cannot write there";
}

TEST_F(MapRemote, AllocMr_InvalidArguments_AreRefused) {
  ASSERT_TRUE(end.open());
  EXPECT_EQ(end.device->alloc_mr(*end.pd, 0, access::kLocalWrite).error().code(), EINVAL);
  EXPECT_EQ(end.device->alloc_mr(*end.pd, 8, access::kRemoteWrite).error().code(), EINVAL);
  const auto based = end.device->alloc_mr(*end.pd, 8, access::kLocalWrite | access::kZeroBased);
  EXPECT_EQ(based.error().code(), EINVAL);
  EXPECT_STREQ(based.error().what(), "nupa0: unknown or contradictory access flags");
  const auto large = end.device->alloc_mr(*end.pd, size_t{1} << 61, access::kLocalWrite);
  EXPECT_EQ(large.error().code(), EFBIG);
  // The file has what other cases have left in it.
  const std::string full =
      "nupa0: cannot allocate a memory region of 2305843009213693952 bytes: the region file nupa-region is full: "
      "cannot add 2305843009213693952 bytes at offset ";
  EXPECT_EQ(std::string(large.error().what()).substr(0, full.size()), full);
  auto region = end.device->alloc_mr(*end.pd, 5000, access::kLocalWrite);
  ASSERT_TRUE(region) << region.error().what();
  EXPECT_EQ((*region)->length(), 5000u);
  auto* const memory = static_cast<char*>((*region)->addr());
  EXPECT_EQ(memory[4999], 0);
  std::memset(memory, 1, 8192);
  EXPECT_EQ((*region)->close(), 0);
}

TEST_F(MapRemote, MapRemote_OverPackets_FailsWithEnotsup) {
  ASSERT_NO_FATAL_FAILURE(start("roce"));
  EXPECT_EQ(end.qp->transport(), "roce");
  EXPECT_EQ(map(0, 8).error().code(), ENOTSUP);
}

TEST_F(MapRemote, MapRemote_QueuePairNotConnected_FailsWithEnotconn) {
  setenv("NUPA_TRANSPORT", "shm", 1);
  ASSERT_TRUE(end.open());
  EXPECT_EQ(end.qp->map_remote(1, 0, 8, kReadWrite).error().code(), ENOTCONN);
}

}  // namespace
}  // namespace nupa
