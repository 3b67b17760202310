// SPDX-License-Identifier: Apache-2.0
/// Tests of memory that two processes use at the same time: pieces, keys, atomics.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cinttypes>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "../roce/engine_fixture.h"
#include "core/seam/shared_target.h"
#include "shm_fixture.h"
#include "shm_processes.h"

namespace nupa::core {
namespace {

/// Of regions, this process's and others', that are mapped here.
uint64_t mapped_region_bytes() {
  std::ifstream maps("/proc/self/maps");
  uint64_t bytes = 0;
  for (std::string line; std::getline(maps, line);) {
    uint64_t begin = 0, end = 0;
    if (line.find("memfd:nupa-region") != std::string::npos &&
        std::sscanf(line.c_str(), "%" SCNx64 "-%" SCNx64, &begin, &end) == 2)
      bytes += end - begin;
  }
  return bytes;
}

constexpr uint64_t kAdds = 20'000;

WcStatus add(ShmEnd& end, Qp& qp, uint64_t remote_addr, uint32_t rkey) {
  const Sge sge = end.span(0, 8);
  SendWr wr{.sg_list = &sge, .num_sge = 1, .opcode = Opcode::kFetchAdd};
  wr.flags = send_flag::kSignaled;
  wr.rkey = rkey;
  wr.remote_addr = remote_addr;
  wr.compare_add = 1;
  return qp.post_send(wr) == 0 ? end.next().status : WcStatus::kGeneralErr;
}

bool add_to_the_parents_word(ShmEnd& end, const ShmLine& line) {
  ShmAddress peer;
  Qp* qp = end.make_qp();
  if (!exchange_and_connect(end, line, *qp, &peer)) return false;
  for (uint64_t i = 0; i < kAdds; ++i)
    if (add(end, *qp, peer.addr + 4096, peer.rkey) != WcStatus::kSuccess) return false;
  return true;
}

TEST_F(ShmShared, Map_InvalidPiecesOfAPeersRegion_IsRefused) {  // another process may write what it likes
  start(connect_and_wait);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(exchange_and_connect(end, line, *qp, &peer));
  const host::PeerRef other = peer_of(end, peer.qp_num);
  ASSERT_NE(other, nullptr);
  const uint32_t index = shm::key_index(peer.rkey);
  shm::MrShared& theirs = other->tables().mr[index];
  ASSERT_EQ(theirs.piece_count, 1u);
  const shm::MrPiece right = theirs.inline_pieces[0];
  const auto mapped = [&](std::initializer_list<shm::MrPiece> pieces) {
    std::copy(pieces.begin(), pieces.end(), theirs.inline_pieces);
    theirs.piece_count = static_cast<uint32_t>(pieces.size());
    host::PeerMemory memory(*other, end.process().memories().agent());
    return memory.map(index, theirs.generation)->base() != nullptr;
  };
  constexpr uint64_t kPage = shm::kPage;
  const uint64_t at = right.begin, file = right.file_offset;
  const uint64_t before = mapped_region_bytes();
  EXPECT_TRUE(mapped({right}));
  EXPECT_FALSE(mapped({{at, at + 2 * kPage, file}, {at + 2 * kPage, at + kPage, file}})) << "the second one goes back";
  EXPECT_FALSE(mapped({{at, at + 2 * kPage, file}, {at + kPage, at + 2 * kPage, file}})) << "they overlap";
  EXPECT_FALSE(mapped({{at, at + kPage / 2, file}, {at + kPage / 2, at + kPage, file}})) << "they are no pages";
  EXPECT_FALSE(mapped({{at, at + kPage, file + 8}}));
  EXPECT_FALSE(mapped({{at, at, file}}));
  // Pages behind the end of the file would be a SIGBUS.
  EXPECT_FALSE(mapped({{at, at + kPage, uint64_t{1} << 45}}));
  EXPECT_FALSE(mapped({{at, at + (uint64_t{1} << 44), file}}));
  EXPECT_FALSE(mapped({{at, at + 2 * kPage, ~uint64_t{0} - kPage + 1}}));
  EXPECT_TRUE(mapped({right}));
  EXPECT_EQ(before, mapped_region_bytes()) << "nothing lies where this process has something else";
  ASSERT_TRUE(line.go());
  expect_good_end();
}

TEST_F(ShmShared, Map_PieceThatEndsBeforeItBegins_LeavesThisProcesssMemory) {
  start(connect_and_wait);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(exchange_and_connect(end, line, *qp, &peer));
  const host::PeerRef other = peer_of(end, peer.qp_num);
  ASSERT_NE(other, nullptr);
  const uint32_t index = shm::key_index(peer.rkey);
  shm::MrShared& theirs = other->tables().mr[index];
  ASSERT_EQ(theirs.piece_count, 1u);
  // The kernel places mappings from high addresses to low ones: the next one of kRoom bytes ends where `own` begins.
  constexpr uint64_t kRoom = 256 * shm::kPage, kOwn = 16 * shm::kPage;
  void* const room = mmap(nullptr, kRoom + kOwn, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(room, MAP_FAILED);
  char* const own = static_cast<char*>(room) + kRoom;
  std::memset(own, 'o', kOwn);
  ASSERT_EQ(munmap(room, kRoom), 0);
  // The second piece takes back what the first one has more than kRoom.
  const shm::MrPiece right = theirs.inline_pieces[0];
  const uint64_t long_end = right.begin + kRoom + kOwn;
  theirs.inline_pieces[0] = {right.begin, long_end, right.file_offset};
  theirs.inline_pieces[1] = {long_end, long_end - kOwn, right.file_offset};
  theirs.piece_count = 2;
  host::PeerMemory memory(*other, end.process().memories().agent());
  EXPECT_EQ(memory.map(index, theirs.generation)->base(), nullptr);
  EXPECT_TRUE(std::all_of(own, own + kOwn, [](char byte) { return byte == 'o'; }));
  munmap(own, kOwn);
  theirs.inline_pieces[0] = right;
  theirs.piece_count = 1;
  ASSERT_TRUE(line.go());
  expect_good_end();
}

/// Writes with immediate data to a page of the parent's that cannot be written, and then sends.
bool write_to_a_closed_page_and_send(ShmEnd& end, const ShmLine& line) {
  ShmAddress peer;
  Qp* qp = end.make_qp(QpType::kUc);
  if (!exchange_and_connect(end, line, *qp, &peer) || !line.get(&peer)) return false;
  const Sge sge = end.span(0, 8);
  SendWr wr{.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = Opcode::kRdmaWriteWithImm};
  wr.flags = send_flag::kSignaled;
  wr.rkey = peer.rkey;
  wr.remote_addr = peer.addr;
  if (qp->post_send(wr) != 0 || end.next().status != WcStatus::kSuccess) return false;
  if (end.send(*qp, 2) != 0 || end.next().status != WcStatus::kSuccess) return false;
  return line.go() && line.wait();
}

TEST_F(ShmShared, WriteWithImm_Fails_LeavesTheReceiveToTheNextMessage) {
  start(write_to_a_closed_page_and_send);
  // Peers do not map shared memory of the program: they copy.
  void* const page = mmap(nullptr, shm::kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  const auto at = reinterpret_cast<uint64_t>(page);
  auto closed = std::move(*end.handle->reg_mr(*end.pd, page, shm::kPage, at, kEveryRight));
  ASSERT_EQ(mprotect(page, shm::kPage, PROT_NONE), 0);
  ShmAddress peer;
  Qp* qp = end.make_qp(QpType::kUc);
  ASSERT_TRUE(exchange_and_connect(end, line, *qp, &peer));
  ASSERT_EQ(end.receive(*qp, 3), 0);
  ASSERT_TRUE(line.give(ShmAddress{0, closed->rkey(), at, 0}));
  ASSERT_TRUE(line.wait());
  const WorkCompletion wc = end.next();
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
  EXPECT_EQ(wc.opcode, WcOpcode::kRecv) << "a message of UC that fails is lost";
  EXPECT_EQ(wc.wr_id, 3u);
  EXPECT_TRUE(end.is_empty());
  ASSERT_TRUE(line.go());
  expect_good_end();
  closed.reset();
  munmap(page, shm::kPage);
}

TEST_F(ShmShared, FetchAdd_FromTwoProcessesAndTheProcessor_IsAtomic) {  // IBTA 9.4.5, IBV_ATOMIC_GLOB
  start(add_to_the_parents_word);
  ShmAddress peer;
  Qp* own = end.make_qp();
  ASSERT_EQ(end.connect(*own, own->number()), 0);
  Qp* qp = end.make_qp();
  auto* const word = reinterpret_cast<uint64_t*>(end.memory + 4096);
  ASSERT_TRUE(exchange_and_connect(end, line, *qp, &peer));
  for (uint64_t i = 0; i < kAdds; ++i) {
    ASSERT_EQ(add(end, *own, reinterpret_cast<uint64_t>(word), end.region->rkey()), WcStatus::kSuccess);
    __atomic_fetch_add(word, 1, __ATOMIC_RELAXED);
  }
  expect_good_end();
  EXPECT_EQ(__atomic_load_n(word, __ATOMIC_RELAXED), 3 * kAdds);
}

/// Atomics on half of one word and half of the next.
bool try_odd_addresses(ShmEnd& end, const ShmLine& line) {
  bool good = true;
  for (const Opcode opcode : {Opcode::kFetchAdd, Opcode::kCompareSwap, Opcode::kAtomicWrite}) {
    ShmAddress peer;
    Qp* qp = end.make_qp();
    if (!exchange_and_connect(end, line, *qp, &peer)) return false;
    const Sge sge = end.span(0, 8);
    SendWr wr{.sg_list = &sge, .num_sge = 1, .opcode = opcode};
    wr.flags = send_flag::kSignaled;
    wr.rkey = peer.rkey;
    wr.remote_addr = peer.addr + 4;
    wr.compare_add = 0;
    wr.swap = 1;
    good = qp->post_send(wr) == 0 && end.next().status == WcStatus::kRemInvReqErr && good;
  }
  line.go();
  return good;
}

TEST_F(ShmShared, Atomics_UnalignedAddress_AreInvalidRequests) {  // IBTA 9.4.5, A19
  start(try_odd_addresses);
  for (int i = 0; i < 3; ++i) {
    ShmAddress peer;
    ASSERT_TRUE(exchange_and_connect(end, line, *end.make_qp(), &peer));
  }
  ASSERT_TRUE(line.wait());
  for (int i = 0; i < 16; ++i) EXPECT_EQ(end.memory[i], 0);
  expect_good_end();
}

/// Writes through a key that it has used before, after the parent has reregistered the region.
bool write_to_both_places(ShmEnd& end, const ShmLine& line) {
  ShmAddress peer;
  Qp* qp = end.make_qp();
  if (!exchange_and_connect(end, line, *qp, &peer)) return false;
  std::strcpy(end.memory, "first");
  if (end.write(*qp, 1, peer.addr, peer.index) != 0 || end.next().status != WcStatus::kSuccess) return false;
  line.go();
  line.wait();
  std::strcpy(end.memory, "second");
  if (end.write(*qp, 2, peer.addr + 4096, peer.index) != 0 || end.next().status != WcStatus::kSuccess) return false;
  const bool refused = end.write(*qp, 3, peer.addr, peer.index) == 0 && end.next().status == WcStatus::kRemAccessErr;
  line.go();
  return refused;
}

TEST_F(ShmShared, Reregister_KeyUsedBefore_OpensItsNewMemory) {
  start(write_to_both_places);
  auto moved =
      std::move(*end.handle->reg_mr(*end.pd, end.memory, 64, reinterpret_cast<uint64_t>(end.memory), kEveryRight));
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(exchange_and_connect(end, line, *qp, &peer, moved->rkey()));
  ASSERT_TRUE(line.wait());
  EXPECT_STREQ(end.memory, "first");
  ASSERT_EQ(end.handle->rereg_mr(*moved, mr_attr::kTranslation, nullptr, end.memory + 4096, 64, 0), 0);
  ASSERT_TRUE(line.go());
  ASSERT_TRUE(line.wait());
  EXPECT_STREQ(end.memory, "first");
  EXPECT_STREQ(end.memory + 4096, "second");
  expect_good_end();
}

/// Writes twice to one place, and the parent registers it anew in between.
bool write_twice(ShmEnd& end, const ShmLine& line) {
  ShmAddress peer;
  Qp* qp = end.make_qp();
  if (!exchange_and_connect(end, line, *qp, &peer, 0) || !line.get(&peer)) return false;
  for (const char* text : {"first", "second"}) {
    std::strcpy(end.memory, text);
    if (end.write(*qp, 1, peer.addr, peer.rkey) != 0 || end.next().status != WcStatus::kSuccess) return false;
    line.go();
    line.wait();
  }
  return true;
}

TEST_F(ShmShared, Reregister_SameMemory_IsMappedAgain) {
  start(write_twice);
  // The program's own: its pages are shared while it is registered, and not the same ones each time.
  void* const mapped = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* const own = static_cast<char*>(mapped);
  auto moved = std::move(*end.handle->reg_mr(*end.pd, own, 8192, reinterpret_cast<uint64_t>(own), kEveryRight));
  ShmAddress peer;
  ASSERT_TRUE(exchange_and_connect(end, line, *end.make_qp(), &peer));
  ASSERT_TRUE(line.give(ShmAddress{0, moved->rkey(), reinterpret_cast<uint64_t>(own), 0}));
  ASSERT_TRUE(line.wait());
  EXPECT_STREQ(own, "first");
  ASSERT_EQ(end.handle->rereg_mr(*moved, mr_attr::kTranslation, nullptr, own, 8192, 0), 0);
  EXPECT_STREQ(own, "first");
  ASSERT_TRUE(line.go());
  ASSERT_TRUE(line.wait());
  EXPECT_STREQ(own, "second");
  ASSERT_TRUE(line.go());
  expect_good_end();
  moved.reset();
  munmap(mapped, 8192);
}

/// Tries the bytes around a region whose pages it has mapped.
bool write_around(ShmEnd& end, const ShmLine& line) {
  bool good = true;
  for (const int64_t offset : {-8, -1, 57, 64, 4000}) {
    ShmAddress peer;
    Qp* qp = end.make_qp();
    if (!exchange_and_connect(end, line, *qp, &peer)) return false;
    std::memcpy(end.memory, "inside\0", 8);
    good = end.write(*qp, 1, peer.addr, peer.index) == 0 && end.next().status == WcStatus::kSuccess && good;
    std::memset(end.memory, 'x', 8);
    good = end.write(*qp, 2, peer.addr + static_cast<uint64_t>(offset), peer.index) == 0 &&
           end.next().status == WcStatus::kRemAccessErr && good;
  }
  line.go();
  return good;
}

TEST_F(ShmShared, Write_OutsideTheRegionButInItsPages_IsARemoteAccessError) {  // IBTA 10.6.3.1
  start(write_around);
  void* const mapped = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  auto* const pages = static_cast<char*>(mapped);
  char* const own = pages + 1024;
  auto narrow = std::move(*end.handle->reg_mr(*end.pd, own, 64, reinterpret_cast<uint64_t>(own), kEveryRight));
  for (int i = 0; i < 5; ++i) {
    Qp* qp = end.make_qp();
    ShmAddress peer;
    ASSERT_TRUE(line.give(ShmAddress{qp->number(), 0, reinterpret_cast<uint64_t>(own), narrow->rkey()}) &&
                line.get(&peer));
    ASSERT_EQ(end.connect(*qp, peer.qp_num), 0);
    ASSERT_TRUE(line.go() && line.wait());
  }
  ASSERT_TRUE(line.wait());
  for (size_t i = 0; i < 8192; ++i) EXPECT_NE(pages[i], 'x') << i;
  EXPECT_STREQ(own, "inside");
  expect_good_end();
  narrow.reset();
  munmap(mapped, 8192);
}

TEST_F(ShmShared, Connect_TooFewDescriptorsForAPeer_FailsWithEmfile) {
  start(send_number_and_wait);
  uint32_t number = 0;
  ASSERT_TRUE(line.get(&number));
  Qp* const qp = end.make_qp();
  ASSERT_EQ(end.to_init(*qp), 0);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  // Enough for the process itself, and as a part for peers not enough for one.
  const rlimit few{2 * host::Peer::kDescriptors - 1, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  EXPECT_FALSE(end.shm().reaches({}, number));
  EXPECT_EQ(end.to_rtr(*qp, number), EMFILE);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(end.to_rtr(*qp, number), EMFILE) << "it stays so, since the other process may have been told";
  EXPECT_EQ(end.process().node().find(shm::slot_of(number)), nullptr);
  ASSERT_TRUE(line.go());
  expect_good_end();
}

TEST_F(ShmShared, Find_PeerWithoutSharedMemory_FailsWithEhostunreach) {
  start(send_number_and_wait);
  uint32_t number = 0;
  ASSERT_TRUE(line.get(&number));
  AddressVector vector;
  auto& shm = end.shm();
  const auto found = end.peers().find(number, vector, std::chrono::milliseconds(10000));
  ASSERT_TRUE(found) << found.error().what();
  found->peer->tables().header->shares_memory = 0;
  EXPECT_EQ(end.peers().find(number, vector, std::chrono::milliseconds(10000)).error().code(), EHOSTUNREACH);
  EXPECT_FALSE(shm.reaches(vector, number));
  ASSERT_TRUE(line.go());
  expect_good_end();
}

/// A shared receive queue and the domain that it belongs to.
struct DomainAddress {
  uint32_t queue;
  uint64_t identity;
};

/// Two processes that open one number their domains alike.
std::unique_ptr<XrcDomain> open_private_domain(ShmEnd& end) {
  constexpr uint32_t kBefore = 1'000'000;
  while (end.process().next_handle() < kBefore) {
  }
  return std::move(*end.handle->open_xrcd(-1, O_CREAT));
}

bool have_a_queue_in_a_private_domain(ShmEnd& end, const ShmLine& line) {
  auto domain = open_private_domain(end);
  auto queue = std::move(
      *end.handle->create_srq(*end.pd, {.max_wr = 4, .type = SrqType::kXrc, .xrcd = domain.get(), .cq = end.cq}));
  const DomainAddress mine{static_cast<Srq&>(*queue).number(), static_cast<Xrcd&>(*domain).identity()};
  return line.give(mine) && line.wait();
}

TEST_F(ShmShared, FindDomainQueue_PrivateDomainOfAnotherProcess_IsNotFound) {  // manual ibv_open_xrcd, fd -1
  start(have_a_queue_in_a_private_domain);
  DomainAddress theirs{};
  ASSERT_TRUE(line.get(&theirs));
  ASSERT_NE(peer_of(end, theirs.queue), nullptr);
  host::Node& node = end.process().node();
  EXPECT_TRUE(find_domain_queue(node, theirs.queue, theirs.identity));
  auto domain = open_private_domain(end);
  EXPECT_FALSE(find_domain_queue(node, theirs.queue, static_cast<Xrcd&>(*domain).identity()));
  ASSERT_TRUE(line.go());
  expect_good_end();
}

}  // namespace
}  // namespace nupa::core
