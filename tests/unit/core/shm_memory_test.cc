// SPDX-License-Identifier: Apache-2.0
/// Tests of memory of another process that is mapped in parts or not at all: whole pages by loads and stores, the ends
/// by copies through the kernel.
#include <nupa/connect.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <string>

#include "shm_fixture.h"
#include "net/udp_socket.h"

namespace nupa::core {
namespace {

constexpr size_t kOdd = 3 * 4096 + 777;  ///< from the middle of a page to the middle of another one
constexpr size_t kBefore = 1111;

char pattern(size_t i, char seed) { return static_cast<char>(i * 31 + static_cast<size_t>(seed)); }

/// Writes all of the parent's memory and reads it, whole and in parts that begin and end anywhere.
bool write_and_read(ShmEnd& end, const ShmLine& line) {
  ShmAddress peer;
  Qp* qp = end.make_qp();
  if (!exchange_and_connect(end, line, *qp, &peer)) return false;
  static char mine[kOdd];
  auto local =
      std::move(*end.handle->reg_mr(*end.pd, mine, sizeof mine, reinterpret_cast<uint64_t>(mine), kEveryRight));
  const auto run = [&](Opcode opcode, size_t offset, size_t bytes) {
    const Sge sge{reinterpret_cast<uint64_t>(mine + offset), static_cast<uint32_t>(bytes), local->lkey()};
    SendWr wr{.sg_list = &sge, .num_sge = 1, .opcode = opcode};
    wr.flags = send_flag::kSignaled;
    wr.rkey = peer.index;
    wr.remote_addr = peer.addr + offset;
    return qp->post_send(wr) == 0 && end.next().status == WcStatus::kSuccess;
  };
  for (size_t i = 0; i < kOdd; ++i) mine[i] = pattern(i, 1);
  if (!run(Opcode::kRdmaWrite, 0, kOdd)) return false;
  line.go();
  line.wait();  // the parent has looked, and written something of its own
  std::memset(mine, 0, kOdd);
  if (!run(Opcode::kRdmaRead, 0, kOdd)) return false;
  for (size_t i = 0; i < kOdd; ++i)
    if (mine[i] != pattern(i, 2)) return false;
  for (const auto& [offset, bytes] :
       {std::pair<size_t, size_t>{0, 1}, {kOdd - 1, 1}, {100, 4096}, {3000, 1}, {5000, 7000}}) {
    for (size_t i = offset; i < offset + bytes; ++i) mine[i] = pattern(i, 3);
    if (!run(Opcode::kRdmaWrite, offset, bytes)) return false;
    std::memset(mine + offset, 0, bytes);
    if (!run(Opcode::kRdmaRead, offset, bytes)) return false;
    for (size_t i = offset; i < offset + bytes; ++i)
      if (mine[i] != pattern(i, 3)) return false;
  }
  line.go();
  return true;
}

class ShmMemory : public ShmProcesses {
 protected:
  void TearDown() override {
    unsetenv("NUPA_REMAP");
    ShmProcesses::TearDown();
  }
  void expect_every_byte() {
    std::vector<char> own(kBefore + kOdd + kBefore, '.');
    expect_every_byte(own.data() + kBefore);
    for (size_t i = 0; i < kBefore; ++i) ASSERT_EQ(own[i], '.') << "before the region";
    for (size_t i = 0; i < kBefore; ++i) ASSERT_EQ(own[kBefore + kOdd + i], '.') << "behind the region";
  }
  void expect_every_byte(char* region) {
    start(write_and_read);
    auto odd = std::move(*end.handle->reg_mr(*end.pd, region, kOdd, reinterpret_cast<uint64_t>(region), kEveryRight));
    Qp* qp = end.make_qp();
    ShmAddress peer;
    const ShmAddress mine{qp->number(), 0, reinterpret_cast<uint64_t>(region), odd->rkey()};
    ASSERT_TRUE(line.give(mine) && line.get(&peer));
    ASSERT_EQ(end.connect(*qp, peer.qp_num), 0);
    ASSERT_TRUE(line.go() && line.wait());
    ASSERT_TRUE(line.wait());
    for (size_t i = 0; i < kOdd; ++i) ASSERT_EQ(region[i], pattern(i, 1)) << i;
    for (size_t i = 0; i < kOdd; ++i) region[i] = pattern(i, 2);
    ASSERT_TRUE(line.go());
    ASSERT_TRUE(line.wait());
    expect_good_end();
    // The last of the parts, from one page that may be mapped to one that may not.
    for (size_t i = 5000; i < 5000 + 7000; ++i) ASSERT_EQ(region[i], pattern(i, 3)) << i;
  }
};

TEST_F(ShmMemory, WriteAndRead_RegionWithinPages_ReachEveryByte) { expect_every_byte(); }

TEST_F(ShmMemory, WriteAndRead_RegionNotMapped_ReachEveryByte) {
  setenv("NUPA_REMAP", "never", 1);
  expect_every_byte();
}

TEST_F(ShmMemory, WriteAndRead_RegionMappedInTheMiddle_ReachEveryByte) {
  // Pages of a file are left where they are: the first and the last of four.
  constexpr size_t kPage = 4096;
  void* const mapped = mmap(nullptr, 4 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* const pages = static_cast<char*>(mapped);
  const int file = memfd_create("ends", MFD_CLOEXEC);
  ASSERT_GE(file, 0);
  ASSERT_EQ(ftruncate(file, 2 * kPage), 0);
  for (const size_t page : {0, 3})
    ASSERT_NE(
        mmap(pages + page * kPage, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, page == 0 ? 0 : kPage),
        MAP_FAILED);
  ::close(file);
  expect_every_byte(pages + 1000);
  end.close();
  munmap(mapped, 4 * kPage);
}

constexpr uint32_t kMany = 1100;  ///< more regions than a process keeps mapped of another one

/// Writes its number into each region of the parent, twice round.
bool write_into_many(ShmEnd& end, const ShmLine& line) {
  ShmAddress peer;
  Qp* qp = end.make_qp();
  if (!exchange_and_connect(end, line, *qp, &peer)) return false;
  struct Place {
    uint64_t addr;
    uint32_t rkey;
  };
  std::vector<Place> places(kMany);
  for (Place& place : places)
    if (!line.get(&place)) return false;
  for (uint32_t round = 1; round <= 2; ++round)
    for (uint32_t i = 0; i < kMany; ++i) {
      const uint64_t value = uint64_t{round} << 32 | i;
      std::memcpy(end.memory, &value, 8);
      if (end.write(*qp, i, places[i].addr, places[i].rkey) != 0) return false;
      if (end.next().status != WcStatus::kSuccess) return false;
    }
  line.go();
  return true;
}

TEST_F(ShmMemory, Write_MoreRegionsThanAreKeptMapped_ReachesEachRegion) {
  start(write_into_many);
  struct Place {
    uint64_t addr;
    uint32_t rkey;
  };
  std::vector<std::unique_ptr<MemoryRegion>> regions;
  for (uint32_t i = 0; i < kMany; ++i) {
    auto region = end.handle->alloc_mr(*end.pd, 4096, kEveryRight);
    ASSERT_TRUE(region) << region.error().what();
    regions.push_back(std::move(*region));
  }
  ShmAddress peer;
  ASSERT_TRUE(exchange_and_connect(end, line, *end.make_qp(), &peer));
  for (const auto& region : regions)
    ASSERT_TRUE(line.give(Place{reinterpret_cast<uint64_t>(region->addr()), region->rkey()}));
  ASSERT_TRUE(line.wait());
  for (uint64_t i = 0; i < kMany; ++i) EXPECT_EQ(*static_cast<uint64_t*>(regions[i]->addr()), uint64_t{2} << 32 | i);
  expect_good_end();
}

class ShmObjects : public ShmTest {};

TEST_F(ShmObjects, HasQueuePair_FromCreationToDestruction_IsTrue) {
  const ProcessContext& here = process();
  const uint32_t number = make_qp()->number();
  EXPECT_TRUE(here.has_queue_pair(number)) << "in RESET";
  EXPECT_FALSE(here.has_queue_pair(number + 1));
  EXPECT_FALSE(here.has_queue_pair(number ^ 1u << shm::kIndexBits)) << "another process's";
  qps.pop_back();
  EXPECT_FALSE(here.has_queue_pair(number));
}

TEST_F(ShmObjects, Connect_WithOptions_SetsEachAttribute) {
  Qp* qp = make_qp();
  ConnectOptions options{.dgid = handle->query_gid(1, 1)->gid,
                         .dest_qp_num = qp->number(),
                         .access_flags = access::kRemoteRead,
                         .sgid_index = 1,
                         .min_rnr_timer = 9,
                         .timeout = 11,
                         .retry_cnt = 3,
                         .rnr_retry = 5};
  ASSERT_EQ(nupa::connect(*qp, options), 0);
  QpAttr attr;
  QpOptions made;
  ASSERT_EQ(qp->query(&attr, &made), 0);
  EXPECT_EQ(attr.state, QpState::kRts);
  EXPECT_EQ(attr.cur_state, QpState::kRts);
  EXPECT_EQ(attr.dest_qp_num, qp->number());
  EXPECT_EQ(attr.av.dgid, options.dgid);
  EXPECT_EQ(attr.av.sgid_index, 1);
  EXPECT_EQ(attr.access_flags, access::kRemoteRead);
  EXPECT_EQ(attr.min_rnr_timer, 9);
  EXPECT_EQ(attr.timeout, 11);
  EXPECT_EQ(attr.retry_cnt, 3);
  EXPECT_EQ(attr.rnr_retry, 5);
  EXPECT_EQ(attr.path_mtu, Mtu::k4096);
  EXPECT_EQ(attr.cap.max_send_wr, 8u);
  EXPECT_EQ(nupa::connect(*qp, options), EINVAL) << "it is connected";
  Qp* unreliable = make_qp(QpType::kUc);
  options.dest_qp_num = unreliable->number();
  ASSERT_EQ(nupa::connect(*unreliable, options), 0);
  EXPECT_EQ(state_of(*unreliable), QpState::kRts);
}

TEST_F(ShmObjects, PostSend_OtherOpcodesOnUd_FailWithEinval) {  // IBTA table 89
  Qp* qp = make_qp(QpType::kUd);
  ASSERT_EQ(connect(*qp, 0), 0);
  const auto ah = make_ah(own_gid());
  const Sge sge = span(0, 8);
  for (const Opcode opcode :
       {Opcode::kRdmaWrite, Opcode::kRdmaWriteWithImm, Opcode::kRdmaRead, Opcode::kFetchAdd, Opcode::kCompareSwap,
        Opcode::kSendWithInv, Opcode::kLocalInv, Opcode::kBindMw, Opcode::kAtomicWrite}) {
    SendWr wr{.sg_list = &sge, .num_sge = 1, .opcode = opcode};
    wr.ah = ah.get();
    wr.remote_qpn = qp->number();
    EXPECT_EQ(qp->post_send(wr), EINVAL) << static_cast<int>(opcode);
  }
}

TEST_F(ShmObjects, PostSend_FlushWithAList_FailsWithEinval) {
  Qp* qp = make_qp();
  ASSERT_EQ(connect(*qp, qp->number()), 0);
  const Sge sge = span(0, 8);
  SendWr wr{.sg_list = &sge, .num_sge = 1, .opcode = Opcode::kFlush};
  wr.imm_or_rkey = flush_flag::kGlobal;
  EXPECT_EQ(qp->post_send(wr), EINVAL);
  wr.num_sge = 0;
  EXPECT_EQ(qp->post_send(wr), 0);
}

TEST_F(ShmObjects, CloseDevice_ObjectsExist_FailsWithEbusy) {
  EXPECT_EQ(handle->close(), EBUSY);
  ShmEnd::close();
  ASSERT_TRUE(open());
}

TEST_F(ShmObjects, Transport_BeforeAndAfterConnecting_IsEmptyThenShm) {
  Qp* qp = make_qp();
  EXPECT_EQ(qp->transport(), "");
  ASSERT_EQ(to_init(*qp), 0);
  EXPECT_EQ(qp->transport(), "");
  ASSERT_EQ(to_rtr(*qp, qp->number()), 0);
  EXPECT_EQ(qp->transport(), "shm");
}

TEST_F(ShmObjects, Reset_AfterPackets_TransportIsThatOfTheNextConnection) {
  close();
  ASSERT_TRUE(open("auto"));
  Qp* qp = make_qp();
  peer_gid = handle->query_gid(1, 1)->gid;
  peer_gid.raw[15] ^= 0x55;  // of another host
  ASSERT_EQ(to_init(*qp), 0);
  ASSERT_EQ(to_rtr(*qp, qp->number()), 0);
  EXPECT_EQ(qp->transport(), "roce");
  EXPECT_EQ(shm::unpack_name(shared(*qp).transport), "roce");
  ASSERT_EQ(move(*qp, QpState::kReset), 0);
  EXPECT_EQ(shm::unpack_name(shared(*qp).transport), "") << "nupa stat shows it";
  peer_gid = {};
  ASSERT_EQ(connect(*qp, qp->number()), 0);
  EXPECT_EQ(qp->transport(), "shm");
}

TEST_F(ShmObjects, DestroyQp_ManyQueuePairs_MemoryIsGivenBack) {
  const auto used = [&] {
    struct stat file {};
    EXPECT_EQ(fstat(process().node().segment().fd(), &file), 0);
    return static_cast<uint64_t>(file.st_blocks) * 512;
  };
  const uint64_t before = used();
  constexpr size_t kQueuePairs = 300;
  for (size_t i = 0; i < kQueuePairs; ++i) {
    Qp* const qp = make_qp();
    ASSERT_NE(qp, nullptr);
    ASSERT_EQ(to_init(*qp), 0);
    ASSERT_EQ(receive(*qp, 1), 0);
  }
  const uint64_t most = used();
  EXPECT_GE(most, before + kQueuePairs * 4096);
  qps.resize(kQueuePairs / 2);
  const uint64_t half = used();
  EXPECT_LT(half, most) << "also while there are many";
  qps.clear();
  EXPECT_LE(used() + (kQueuePairs - 50) * 4096, most) << "but for a few pages of the tables";
}

TEST_F(ShmObjects, ReserveFurther_SlotNotTaken_PortIsFreeAgain) {
  close();
  ASSERT_TRUE(open("roce"));
  Transport& roce = *process().transports().find("roce");
  std::vector<uint32_t> reserved;
  for (uint32_t slot = shm::kMaxSlot; reserved.size() < 2 && slot > shm::kMinSlot; --slot)
    if (const auto answer = roce.reserve_further(slot); answer && *answer) reserved.push_back(slot);
  ASSERT_EQ(reserved.size(), 2u);
  const auto is_free = [](uint32_t slot) {
    return net::UdpSocket::open(static_cast<uint16_t>(61000 + slot), 1 << 16).has_value();
  };
  EXPECT_TRUE(is_free(reserved[0]));
  EXPECT_FALSE(is_free(reserved[1]));
  roce.extend(reserved[1]);
  const auto again = roce.reserve_further(reserved[1]);
  ASSERT_TRUE(again);
  EXPECT_FALSE(*again) << "it is this process's now";
}

TEST_F(ShmObjects, TakeQp_NoDescriptorForAFurtherPort_FailsWithEmfile) {
  close();
  ASSERT_TRUE(open("roce"));
  while (qps.size() < shm::kSlotQp) ASSERT_NE(make_qp(), nullptr);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto refused = process().slots().take_qp();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), EMFILE);
  const std::string text = refused.error().what();
  EXPECT_NE(text.find("cannot use UDP port 6"), std::string::npos) << text;
  EXPECT_NE(text.find("Too many open files"), std::string::npos) << text;
  Qp* const next = make_qp();
  ASSERT_NE(next, nullptr) << "with descriptors there are more";
  EXPECT_NE(shm::slot_of(next->number()), process().slot());
}

TEST_F(ShmObjects, RkeyOfAWindow_EntryIsUsedAgain_IsAnotherKey) {  // IBTA 10.6.3.4
  make_pair();
  auto opened = std::move(*handle->alloc_mr(*pd, 4096, kEveryRight | access::kMwBind));
  IndexPool& entries = process().objects().mr_numbers();
  for (uint32_t further = 1; further <= 5; ++further) {  // the low byte is the program's to choose
    auto window = std::move(*handle->alloc_mw(*pd, MwType::kType2));
    const uint32_t first = window->rkey();
    const uint32_t entry = shm::key_index(first);
    SendWr bind{.wr_id = 1, .opcode = Opcode::kBindMw};
    bind.flags = send_flag::kSignaled;
    bind.mw = window.get();
    bind.rkey = (first & ~0xffu) | ((first + further) & 0xff);
    bind.bind = {opened.get(), reinterpret_cast<uint64_t>(opened->addr()), 4096, access::kRemoteWrite};
    ASSERT_EQ(b->post_send(bind), 0);
    ASSERT_EQ(next().status, WcStatus::kSuccess);
    window.reset();
    // The entries are used in turn: until it is this one's again.
    std::vector<int64_t> others;
    while (others.empty() || others.back() != entry) {
      others.push_back(entries.take());
      ASSERT_GE(others.back(), 0);
    }
    others.pop_back();
    entries.give_back(entry);
    for (const int64_t other : others) entries.give_back(static_cast<uint32_t>(other));
    auto next_one = std::move(*handle->alloc_mr(*pd, 4096, kEveryRight));
    ASSERT_EQ(shm::key_index(next_one->rkey()), entry);
    EXPECT_NE(next_one->rkey(), bind.rkey) << further;
  }
}

}  // namespace
}  // namespace nupa::core
