// SPDX-License-Identifier: Apache-2.0
/// Waits for another process, or for a thread, that is stopped: each has a limit, and nothing else waits meanwhile.
#ifndef NUPA_TEST_DROPIN
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <atomic>
#include <cstddef>
#include <deque>

#include "core/qp.h"
#include "core/quiesce.h"
#include "shm_fixture.h"

namespace nupa::core {
namespace {

using host::AgentCall;
using host::kNotServedYet;
using shm::AgentOp;
using shm::ReceiveRing;

/// While it is there the service thread of this process does nothing, as if the process were stopped.
class ServiceThreadStands {
 public:
  explicit ServiceThreadStands(host::Node& node) {
    EXPECT_TRUE(node.loop().post([this] {
      stands_ = true;
      soon([this] { return goes_on_.load(); });
      stands_ = false;
    }));
    EXPECT_TRUE(soon([this] { return stands_.load(); }));
  }
  ~ServiceThreadStands() { go_on(); }
  void go_on() {
    goes_on_ = true;
    EXPECT_TRUE(soon([this] { return !stands_.load(); }));
  }

 private:
  std::atomic<bool> stands_{false};
  std::atomic<bool> goes_on_{false};
};

/// Requests to the service thread, which here is this process's own.
class StoppedOwner : public ShmTest {
 protected:
  host::Peer& self() { return process().node().self(); }
  uint64_t address() const { return reinterpret_cast<uint64_t>(memory + 4096); }
  uint64_t& word() { return *reinterpret_cast<uint64_t*>(memory + 4096); }
  /// One try to add 1 to the word.
  WcStatus add(AgentCall& call) {
    uint64_t operand = 1;
    return call.attempt([&] { return call.atomic(self(), AgentOp::kFetchAdd, address(), &operand, 0); });
  }
  WcStatus write(AgentCall& call, uint64_t at, char* from, uint64_t length) {
    return call.attempt([&] { return call.copy(self(), true, at, reinterpret_cast<std::byte*>(from), length); });
  }
  WcStatus read(AgentCall& call, char* to, uint64_t at, uint64_t length) {
    return call.attempt([&] { return call.copy(self(), false, at, reinterpret_cast<std::byte*>(to), length); });
  }
  AgentCall& make_call() { return calls_.emplace_back(process().memories().agent()); }
  void TearDown() override {
    calls_.clear();
    ShmTest::TearDown();
  }

 private:
  std::deque<AgentCall> calls_;
};

TEST_F(StoppedOwner, Atomic_IsGoneOnWithAndDoneOnce) {
  AgentCall& call = make_call();
  word() = 40;
  {
    ServiceThreadStands stopped(process().node());
    for (int i = 0; i < 3; ++i) EXPECT_EQ(add(call), kNotServedYet);
    EXPECT_TRUE(call.is_waiting());
  }
  EXPECT_TRUE(soon([&] { return add(call) == WcStatus::kSuccess; }));
  EXPECT_EQ(word(), 41u);
  EXPECT_FALSE(call.is_waiting());
}

TEST_F(StoppedOwner, CopyThatIsGivenUp_IsNotDoneLater) {
  AgentCall& call = make_call();
  word() = 0;
  {
    ServiceThreadStands stopped(process().node());
    std::strcpy(memory, "given up");
    EXPECT_EQ(write(call, address(), memory, 8), kNotServedYet);
    call.forget();
  }
  AgentCall& other = make_call();
  EXPECT_TRUE(soon([&] { return add(other) == WcStatus::kSuccess; })) << "the service thread goes round";
  EXPECT_EQ(word(), 1u);
}

TEST_F(StoppedOwner, CopyThatWaitsWhileItsKeyIsRevoked_IsNotDoneLater) {
  AgentCall& call = make_call();
  word() = 0;
  {
    ServiceThreadStands stopped(process().node());
    std::strcpy(memory, "revoked");
    EXPECT_EQ(write(call, address(), memory, 8), kNotServedYet);
    // As ibv_dereg_mr does, after which the memory is the program's.
    EXPECT_TRUE(quiesce(process().node()));
  }
  AgentCall& other = make_call();
  EXPECT_TRUE(soon([&] { return add(other) == WcStatus::kSuccess; })) << "the service thread goes round";
  EXPECT_EQ(word(), 1u);
  EXPECT_TRUE(soon([&] { return write(call, address(), memory, 8) == WcStatus::kSuccess; }))
      << "with a key that is looked up anew";
  EXPECT_STREQ(memory + 4096, "revoked");
}

TEST_F(StoppedOwner, AnotherRequestOfTheSameCall_ReplacesTheOneUnderWay) {
  AgentCall& call = make_call();
  word() = 7;
  {
    ServiceThreadStands stopped(process().node());
    EXPECT_EQ(add(call), kNotServedYet);
    EXPECT_EQ(read(call, memory, address(), 8), kNotServedYet);
  }
  EXPECT_TRUE(soon([&] { return read(call, memory, address(), 8) == WcStatus::kSuccess; }));
  EXPECT_EQ(*reinterpret_cast<uint64_t*>(memory), 7u) << "nothing was added";
}

TEST_F(StoppedOwner, RequestOfTwoSteps_DoesEachOnce) {
  AgentCall& call = make_call();
  word() = 0;
  uint64_t& second = *reinterpret_cast<uint64_t*>(memory + 2048);
  second = 0;
  std::unique_ptr<ServiceThreadStands> stopped;
  bool was_stopped = false;
  const auto both = [&] {
    return call.attempt([&] {
      uint64_t one = 1, two = 2;
      const WcStatus status = call.atomic(self(), AgentOp::kFetchAdd, address(), &one, 0);
      if (status != WcStatus::kSuccess) return status;
      if (!std::exchange(was_stopped, true)) stopped = std::make_unique<ServiceThreadStands>(process().node());
      return call.atomic(self(), AgentOp::kFetchAdd, reinterpret_cast<uint64_t>(memory + 2048), &two, 0);
    });
  };
  call.set_wait(0);  // each try comes back at once
  EXPECT_TRUE(soon([&] { return both() == kNotServedYet && was_stopped; })) << "the first step was done";
  stopped.reset();
  EXPECT_TRUE(soon([&] { return both() == WcStatus::kSuccess; }));
  EXPECT_EQ(word(), 1u);
  EXPECT_EQ(second, 2u);
  EXPECT_TRUE(soon([&] { return both() == WcStatus::kSuccess; })) << "and the next request again";
  EXPECT_EQ(word(), 2u);
  EXPECT_EQ(second, 4u);
}

/// The service thread of this process serves its own requests as well.
TEST_F(StoppedOwner, MoreRequestsThanPlaces_AllAreServedInTheEnd) {
  std::vector<AgentCall*> all;
  for (uint32_t i = 0; i < 3 * shm::kAgents; ++i) all.push_back(&make_call());
  word() = 0;
  {
    ServiceThreadStands stopped(process().node());
    for (AgentCall* each : all) EXPECT_EQ(add(*each), kNotServedYet);
  }
  const size_t count = all.size();
  EXPECT_TRUE(soon([&] {
    std::erase_if(all, [&](AgentCall* each) { return add(*each) == WcStatus::kSuccess; });
    return all.empty();
  }));
  EXPECT_EQ(word(), count) << "those that lost their places asked anew, and were served once";
}

bool meet_and_stand(ShmEnd& end, const ShmLine& line) {
  ShmAddress peer;
  Qp* qp = end.make_qp();
  // A shared mapping of the program stays as it is, and no peer maps it: atomics there are the owner's work.
  void* const page = mmap(nullptr, shm::kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return false;
  auto* const word = static_cast<uint64_t*>(page);
  *word = 40;
  auto own = std::move(*end.handle->reg_mr(*end.pd, page, shm::kPage, reinterpret_cast<uint64_t>(page), kEveryRight));
  if (!meet(end, line, *qp, &peer)) return false;
  const bool told = line.give(ShmAddress{0, own->rkey(), reinterpret_cast<uint64_t>(page), 0});
  line.wait();
  const bool gave = line.give(*word);
  line.wait();
  own.reset();
  return told && gave;
}

class StoppedProcess : public ShmProcesses {
 protected:
  /// A queue pair to the other process, which has a word in its own memory, and is stopped then.
  void stop_it(const Way& way) {
    start(meet_and_stand);
    qp = end.make_qp();
    ShmAddress mine{qp->number(), end.region->rkey(), reinterpret_cast<uint64_t>(end.memory), 0};
    ASSERT_TRUE(line.give(mine) && line.get(&peer) && end.connect(*qp, peer.qp_num, way) == 0 && line.go());
    ASSERT_TRUE(line.wait() && line.get(&word));
    ASSERT_EQ(kill(child, SIGSTOP), 0);
    ASSERT_EQ(waitpid(child, nullptr, WUNTRACED), child);
  }
  void go_on() { ASSERT_EQ(kill(child, SIGCONT), 0); }
  int add() {
    const Sge sge = end.span(0, 8);
    SendWr wr{.wr_id = 5, .sg_list = &sge, .num_sge = 1, .opcode = Opcode::kFetchAdd};
    wr.flags = send_flag::kSignaled;
    wr.rkey = word.rkey;
    wr.remote_addr = word.addr;
    wr.compare_add = 1;
    return qp->post_send(wr);
  }
  /// In another thread, so that a test of one that never returns fails. The other process is killed then.
  void add_in_time() {
    std::atomic<bool> over{false};
    std::thread poster([&] {
      EXPECT_EQ(add(), 0);
      over = true;
    });
    const bool returned = soon([&] { return over.load(); });
    if (!returned) kill_child();
    poster.join();
    ASSERT_TRUE(returned);
  }

  Qp* qp = nullptr;
  ShmAddress peer{}, word{};
};

TEST_F(StoppedProcess, AtomicToItsMemory_EndsAfterTheQueuePairsTime) {
  ASSERT_NO_FATAL_FAILURE(stop_it({.timeout = 8, .retry_cnt = 1}));
  ASSERT_NO_FATAL_FAILURE(add_in_time());
  const WorkCompletion wc = end.next();
  EXPECT_EQ(wc.wr_id, 5u);
  EXPECT_EQ(wc.status, WcStatus::kRetryExcErr);
  EXPECT_EQ(ShmEnd::state_of(*qp), QpState::kErr);
  uint64_t value = 0;
  go_on();
  ASSERT_TRUE(line.go() && line.get(&value));
  EXPECT_EQ(value, 40u) << "what was given up is not done when the process goes on";
  ASSERT_TRUE(line.go());
  expect_good_end();
}

TEST_F(StoppedProcess, AtomicToItsMemory_IsDoneOnceWhenItGoesOn) {
  ASSERT_NO_FATAL_FAILURE(stop_it({.timeout = 20}));
  ASSERT_NO_FATAL_FAILURE(add_in_time());
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(end.is_empty());
  go_on();
  const WorkCompletion wc = end.next();
  EXPECT_EQ(wc.status, WcStatus::kSuccess);
  EXPECT_EQ(*reinterpret_cast<uint64_t*>(end.memory), 40u) << "the value before";
  uint64_t value = 0;
  ASSERT_TRUE(line.go() && line.get(&value));
  EXPECT_EQ(value, 41u);
  ASSERT_TRUE(line.go());
  expect_good_end();
}

TEST_F(StoppedProcess, RequestsToIt_DoNotTakeThePlacesOfThoseToOthers) {
  ASSERT_NO_FATAL_FAILURE(stop_it({.timeout = 20}));
  host::Node& node = end.process().node();
  const host::PeerRef stopped = node.find(shm::slot_of(peer.qp_num));
  ASSERT_NE(stopped, nullptr);
  std::deque<AgentCall> calls;
  const auto add_at = [](AgentCall& call, host::Peer& owner, uint64_t address) {
    uint64_t operand = 1;
    return call.attempt([&] { return call.atomic(owner, AgentOp::kFetchAdd, address, &operand, 0); });
  };
  for (uint32_t i = 0; i < shm::kAgents; ++i)
    EXPECT_EQ(add_at(calls.emplace_back(end.process().memories().agent()), *stopped, word.addr), kNotServedYet);
  AgentCall& other = calls.emplace_back(end.process().memories().agent());
  *reinterpret_cast<uint64_t*>(end.memory) = 1;
  EXPECT_TRUE(
      soon([&] { return add_at(other, node.self(), reinterpret_cast<uint64_t>(end.memory)) == WcStatus::kSuccess; }));
  EXPECT_EQ(*reinterpret_cast<uint64_t*>(end.memory), 2u);
  go_on();
  for (uint32_t i = 0; i < shm::kAgents; ++i)
    EXPECT_TRUE(soon([&] { return add_at(calls[i], *stopped, word.addr) == WcStatus::kSuccess; })) << i;
  uint64_t value = 0;
  ASSERT_TRUE(line.go() && line.get(&value));
  EXPECT_EQ(value, 40 + shm::kAgents) << "the one that lost its place asked anew, and was served once";
  ASSERT_TRUE(line.go());
  expect_good_end();
}

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
bool send_to_one_that_stands(ShmEnd& end, const ShmLine& line) {
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

TEST_F(StoppedReceiver, SendThatIsGivenUp_LeavesTheReceiveToTheNextMessage) {
  start(send_to_one_that_stands);
  register_page();
  end.srqs.push_back(std::move(*end.handle->create_srq(*end.pd, {.max_wr = 2, .max_sge = 2})));
  Srq* const srq = static_cast<Srq*>(end.srqs.back().get());
  ASSERT_EQ(receive(*srq, 9), 0);
  ShmAddress peer;
  for (int i = 0; i < 2; ++i) {
    Qp* qp = end.make_qp(QpType::kRc, srq);
    ASSERT_TRUE(meet(end, line, *qp, &peer));
  }
  {
    ServiceThreadStands stopped(end.process().node());
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
bool serve_for_one_that_stands(ShmEnd& end, const ShmLine& line) {
  if (!forbid_copies()) return false;
  int file = -1;
  ShmAddress parent;
  ShmAddress queue;  // its number, the key and the address of the memory
  Qp* met = end.make_qp();
  if (!meet(end, line, *met, &parent) || !line.get(&file) || !line.get(&queue)) return false;
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

TEST_F(StoppedReceiver, PacketsToItsQueue_AreNotWaitedForAndGoneOnWith) {
  const int file = memfd_create("domain", 0);
  start(serve_for_one_that_stands);
  register_page();
  std::strcpy(page + 2048, "answer");
  auto domain = std::move(*end.handle->open_xrcd(file, O_CREAT));
  auto queue = std::move(
      *end.handle->create_srq(*end.pd, {.max_wr = 1, .type = SrqType::kXrc, .xrcd = domain.get(), .cq = end.cq}));
  const Sge sge{reinterpret_cast<uint64_t>(page), 64, own->lkey()};
  ASSERT_EQ(queue->post_recv({9, &sge, 1}), 0);
  ShmAddress peer;
  Qp* qp = end.make_qp();
  ASSERT_TRUE(meet(end, line, *qp, &peer));
  ASSERT_TRUE(line.give(file));
  ASSERT_TRUE(line.give(ShmAddress{queue->number(), own->rkey(), reinterpret_cast<uint64_t>(page), 0}));
  {
    ServiceThreadStands stopped(end.process().node());
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

// Threads of one process.

class StoppedThread : public ShmTest {
 protected:
  static constexpr int64_t kLongNs = 10'000'000'000;
};

TEST_F(StoppedThread, PostReceive_WhileAClaimerIsWaitedFor_IsRefusedAtOnce) {
  Srq* const srq = make_srq(8);
  ASSERT_EQ(receive(*srq, 1), 0);
  const ReceiveRing::Claim claim = srq->queue().ring().claim(process().tag());
  ASSERT_TRUE(claim);
  std::atomic<bool> emptied{false};
  std::thread emptier([&] {
    emptied = srq->queue().drain(
        nullptr, kLongNs, [](uint32_t) { return false; }, [](const shm::RecvSlot&) { return false; });
  });
  EXPECT_TRUE(soon([&] { return receive(*srq, 2) == EINVAL; }));
  ReceiveRing::finish(claim);
  emptier.join();
  EXPECT_TRUE(emptied.load()) << "the post came before the claimer's end";
  EXPECT_EQ(receive(*srq, 3), 0);
}

TEST_F(StoppedThread, Recover_WhileAClaimerIsWaitedFor_DoesNotWait) {
  constexpr uint32_t kDead = 0x7000 | 4001;
  Srq* const srq = make_srq(8);
  ASSERT_EQ(receive(*srq, 1), 0);
  const ReceiveRing::Claim claim = srq->queue().ring().claim(process().tag());
  ASSERT_TRUE(claim);
  std::atomic<bool> emptied{false};
  std::thread emptier([&] {
    emptied = srq->queue().drain(
        nullptr, kLongNs, [](uint32_t) { return false; }, [](const shm::RecvSlot&) { return false; });
  });
  EXPECT_TRUE(soon([&] { return receive(*srq, 2) == EINVAL; }));
  for (int i = 0; i < 10; ++i) recover(*srq, kDead);
  ReceiveRing::finish(claim);
  emptier.join();
  EXPECT_TRUE(emptied.load());
}

TEST_F(StoppedThread, ResizeWithAWriterThatIsStopped_IsRefusedAndTheQueueStaysAsItWas) {
  Cq* const queue = make_cq(4);
  shm::CqShared& its = tables().cq[queue->index()];
  const uint64_t where = its.where.load();
  const uint32_t log2 = shm::ring_log2(where);
  auto slots = process().node().self().heap(shm::ring_offset(where), shm::CompletionRing::bytes_for(log2));
  ASSERT_TRUE(slots);
  shm::CompletionRing ring(&its, *slots, log2, shm::ring_generation(where));
  uint64_t claimed = 0;
  ASSERT_EQ(ring.claim_next(process().tag(), &claimed), shm::CompletionRing::Push::kOk);
  std::atomic<bool> over{false};
  int error = 0;
  std::thread resizer([&] {
    error = queue->resize(16);
    over = true;
  });
  // Writers that go on are not held up for as long as the resize.
  shm::CqEntry entry;
  entry.wr_id = 2;
  EXPECT_TRUE(soon([&] { return ring.push(process().tag(), nullptr, entry) == shm::CompletionRing::Push::kOk; }));
  EXPECT_TRUE(soon([&] { return over.load(); }));
  entry.wr_id = 1;
  ring.write(claimed, entry);
  resizer.join();
  EXPECT_EQ(error, EBUSY);
  EXPECT_EQ(its.where.load(), where);
  entry.wr_id = 3;
  EXPECT_EQ(ring.push(process().tag(), nullptr, entry), shm::CompletionRing::Push::kOk);
  for (const uint64_t id : {1u, 2u, 3u}) EXPECT_EQ(next(queue).wr_id, id);
  EXPECT_EQ(queue->resize(16), 0);
}

TEST_F(StoppedThread, QueuePairThatIsHeldWhenAProcessGoes_LeavesItLater) {
  Qp* const held = make_qp(QpType::kUd);
  ASSERT_EQ(connect(*held, 0), 0);
  AddressVector here;
  here.is_global = true;
  here.sgid_index = 1;
  here.dgid = handle->query_gid(1, 1)->gid;
  auto ah = std::move(*handle->create_ah(*pd, here));
  const Sge sge = span(0, 8);
  SendWr wr{.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = Opcode::kSend};
  wr.flags = send_flag::kSignaled;
  wr.ah = ah.get();
  wr.remote_qpn = held->number();
  wr.remote_qkey = kQkey;
  ASSERT_EQ(held->post_send(wr), 0);
  host::Peer& gone = process().node().self();
  const std::weak_ptr<host::PeerMemory> mapped = process().memories().of(gone);
  ASSERT_FALSE(mapped.expired()) << "the queue pair leads there";
  held->post_begin();
  events().on_peer_gone(gone);
  EXPECT_FALSE(mapped.expired());
  held->post_end();
  EXPECT_TRUE(soon([&] { return mapped.expired(); }));
}

// Two processes that are stopped.

/// Is inside a post until it is told to go on.
bool stay_inside(ShmEnd& end, const ShmLine& line) {
  ShmAddress peer;
  Qp* qp = end.make_qp();
  if (!meet(end, line, *qp, &peer)) return false;
  qp->post_begin();
  const bool good = line.go() && line.wait();
  qp->post_end();
  return good;
}

class StoppedTwo : public ShmProcesses {
 protected:
  void SetUp() override {
    int down[2], up[2];
    ASSERT_EQ(pipe(down), 0);
    ASSERT_EQ(pipe(up), 0);
    second = fork();
    ASSERT_GE(second, 0);
    if (second == 0) {
      ::close(down[1]);
      ::close(up[0]);
      alarm(60);
      ShmEnd own;
      const bool good = own.open("shm") && stay_inside(own, {down[0], up[1]});
      own.close();
      _exit(good && !HasFailure() ? 0 : 1);
    }
    ::close(down[0]);
    ::close(up[1]);
    second_line = {up[0], down[1]};
    start(stay_inside);
  }
  void TearDown() override {
    for (const int fd : {second_line.in, second_line.out}) ::close(fd);
    waitpid(second, nullptr, 0);
    ShmProcesses::TearDown();
  }

  ShmLine second_line;
  pid_t second = 0;
};

TEST_F(StoppedTwo, GracePeriod_HasOneLimitForBoth) {
  ShmAddress peers[2];
  for (int i = 0; i < 2; ++i) {
    const ShmLine& to = i == 0 ? line : second_line;
    Qp* qp = end.make_qp();
    ASSERT_TRUE(meet(end, to, *qp, &peers[i]) && to.wait());
  }
  host::Node& node = end.process().node();
  std::atomic<bool> both{false}, in_turn{false};
  std::thread one_by_one([&] {
    for (const ShmAddress& each : peers) EXPECT_FALSE(quiesce_peer(node, shm::slot_of(each.qp_num), each.qp_num));
    in_turn = true;
  });
  std::thread together([&] {
    EXPECT_FALSE(quiesce(node));
    both = true;
  });
  EXPECT_TRUE(soon([&] { return both.load(); }));
  EXPECT_FALSE(in_turn.load()) << "those waits come one after the other";
  one_by_one.join();
  together.join();
  for (const ShmLine* each : {&line, &second_line}) ASSERT_TRUE(each->go());
  expect_good_end();
}

}  // namespace
}  // namespace nupa::core
#endif
