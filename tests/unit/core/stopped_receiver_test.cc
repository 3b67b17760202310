// SPDX-License-Identifier: Apache-2.0
/// Tests of messages to a process whose service thread has to copy them, and is stopped.
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>

#include "core/qp.h"
#include "shm_fixture.h"
#include "stopped_service.h"

namespace nupa::core {
namespace {

/// The kernel copies nothing to other processes for this one from now on.
bool forbid_copies() {
  sock_filter refuse[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog all{static_cast<unsigned short>(std::size(refuse)), refuse};
  // Of all threads: the service thread tries whether copies work.
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &all) == 0;
}

/// Sends to the parent, whose service thread stands, by two queue pairs: what the first one sends comes too late.
bool send_to_stopped_parent(ShmEnd& end, const ShmLine& line) {
  if (!forbid_copies()) return false;
  ShmAddress peer;
  bool good = true;
  Qp* qps[2] = {end.make_qp(), end.make_qp()};
  const Way ways[2] = {{.timeout = 8, .retry_cnt = 0}, {.timeout = 20}};
  for (int i = 0; i < 2; ++i) {
    const ShmAddress mine{qps[i]->number(), 0, 0, 0};
    if (!line.give(mine) || !line.get(&peer) || end.connect(*qps[i], peer.qp_num, ways[i]) != 0 || !line.go() ||
        !line.wait())
      return false;
  }
  if (!line.wait()) return false;  // it stands
  std::strcpy(end.memory, "late");
  good = end.send(*qps[0], 1) == 0 && end.next().status == WcStatus::kRetryExcErr && good;
  std::strcpy(end.memory, "in time");
  good = end.send(*qps[1], 2) == 0 && good;
  for (int i = 0; i < 1000; ++i) good = end.is_empty() && good;
  line.go();
  good = end.next().status == WcStatus::kSuccess && good;
  line.go();
  line.wait();
  return good;
}

class StoppedReceiver : public ShmProcesses {
 protected:
  /// Memory that no peer maps.
  void SetUp() override {
    page = static_cast<char*>(mmap(nullptr, shm::kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    ASSERT_NE(page, MAP_FAILED);
  }
  void TearDown() override {
    own.reset();
    ShmProcesses::TearDown();
    munmap(page, shm::kPage);
  }
  void register_page() {
    own = std::move(*end.handle->reg_mr(*end.pd, page, shm::kPage, reinterpret_cast<uint64_t>(page), kEveryRight));
  }
  template <class Queue>
  int receive(Queue& queue, uint64_t wr_id) {
    // Two buffers, so that one message takes two steps.
    const auto at = reinterpret_cast<uint64_t>(page);
    const Sge sges[] = {{at, 4, own->lkey()}, {at + 2048, 60, own->lkey()}};
    return queue.post_recv({wr_id, sges, 2});
  }

  char* page = nullptr;
  std::unique_ptr<MemoryRegion> own;
};

TEST_F(StoppedReceiver, Send_GivenUp_LeavesTheReceiveToTheNextMessage) {
  start(send_to_stopped_parent);
  register_page();
  end.srqs.push_back(std::move(*end.handle->create_srq(*end.pd, {.max_wr = 2, .max_sge = 2})));
  Srq* const srq = static_cast<Srq*>(end.srqs.back().get());
  ASSERT_EQ(receive(*srq, 9), 0);
  ShmAddress peer;
  for (int i = 0; i < 2; ++i) {
    Qp* qp = end.make_qp(QpType::kRc, srq);
    ASSERT_TRUE(exchange_and_connect(end, line, *qp, &peer));
  }
  {
    ServiceThreadStopped stopped(end.process().node());
    ASSERT_TRUE(line.go() && line.wait());
    EXPECT_TRUE(end.is_empty());
  }
  const WorkCompletion wc = end.next();
  EXPECT_EQ(wc.wr_id, 9u);
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
  EXPECT_EQ(wc.byte_len, 8u);
  EXPECT_EQ(std::string(page, 4) + (page + 2048), "in time");
  ASSERT_TRUE(line.wait() && line.go());
  expect_good_end();
}

/// Serves packets to an XRC queue of the parent's, whose service thread stands: by the calls of a transport.
bool serve_for_stopped_parent(ShmEnd& end, const ShmLine& line) {
  if (!forbid_copies()) return false;
  int file = -1;
  ShmAddress parent;
  ShmAddress queue;  // its number, the key and the address of the memory
  Qp* connected = end.make_qp();
  if (!exchange_and_connect(end, line, *connected, &parent) || !line.get(&file) || !line.get(&queue)) return false;
  auto domain = std::move(*end.handle->open_xrcd(file, 0));
  auto target = std::move(*end.handle->create_qp(nullptr, {.type = QpType::kXrcRecv, .xrcd = domain.get()}));
  auto& qp = static_cast<Qp&>(*target);
  if (ShmEnd::to_init(qp) != 0) return false;
  shm::QpShared& row = end.shared(qp);
  row.state.store(shm::pack_state(shm::epoch_of(row.state.load()), QpState::kRtr));
  QpContextImpl host(qp);
  bool good = host.select(queue.qp_num) == Selection::kYes && host.take_receive() && line.wait();  // it stands
  const std::byte sent[] = {std::byte{'s'}, std::byte{'e'}, std::byte{'n'}, std::byte{'t'}, std::byte{0}};
  const std::byte* behind = nullptr;
  const auto place = [&] { return host.place(0, sent, sizeof sent, &behind); };
  std::byte* at = nullptr;
  const auto write = [&] {
    at = host.reach(queue.qp_num, queue.rkey, queue.addr + 1024, 8, access::kRemoteWrite);
    if (at == nullptr) return false;
    std::memcpy(at, "written", 8);
    return host.wrote(8);
  };
  const auto read = [&] {
    at = host.reach(queue.qp_num, queue.rkey, queue.addr + 2048, 8, access::kRemoteRead);
    return at != nullptr;
  };
  // Each in turn, since a write takes the place of the one before it; answers to READs come between.
  good = !place() && host.awaits_memory() && !read() && host.awaits_memory() && !place() && good;
  line.go();
  good = soon([&] { return place(); }) && !host.awaits_memory() && good;
  good = soon([&] { return read(); }) && std::memcmp(at, "answer", 7) == 0 && good;
  good = soon([&] { return write(); }) && good;
  good = host.reach(queue.qp_num, queue.rkey ^ 1, queue.addr, 8, access::kRemoteRead) == nullptr && good;
  good = !host.awaits_memory() && good;  // that one is refused
  host.complete_receive({.byte_len = sizeof sent}, WcStatus::kSuccess);
  line.go();
  line.wait();
  return good;
}

TEST_F(StoppedReceiver, Packets_ServiceThreadIsStopped_AreRetriedWithoutWaiting) {
  const int file = memfd_create("domain", 0);
  start(serve_for_stopped_parent);
  register_page();
  std::strcpy(page + 2048, "answer");
  auto domain = std::move(*end.handle->open_xrcd(file, O_CREAT));
  auto queue = std::move(
      *end.handle->create_srq(*end.pd, {.max_wr = 1, .type = SrqType::kXrc, .xrcd = domain.get(), .cq = end.cq}));
  const Sge sge{reinterpret_cast<uint64_t>(page), 64, own->lkey()};
  ASSERT_EQ(queue->post_recv({9, &sge, 1}), 0);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(exchange_and_connect(end, line, *qp, &peer));
  ASSERT_TRUE(line.give(file));
  ASSERT_TRUE(line.give(ShmAddress{queue->number(), own->rkey(), reinterpret_cast<uint64_t>(page), 0}));
  {
    ServiceThreadStopped stopped(end.process().node());
    ASSERT_TRUE(line.go() && line.wait());
  }
  ASSERT_TRUE(line.wait());
  EXPECT_EQ(end.next().wr_id, 9u);
  EXPECT_STREQ(page, "sent");
  EXPECT_STREQ(page + 1024, "written");
  ASSERT_TRUE(line.go());
  expect_good_end();
  queue.reset();
  domain.reset();
  ::close(file);
}

}  // namespace
}  // namespace nupa::core
