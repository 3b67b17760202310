// SPDX-License-Identifier: Apache-2.0
/// The extended reliable connected service (IBTA annex A14): domains by file, shared between processes.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fixture.h"

namespace nupa::test {
namespace {

class VerbsXrc : public Verbs {
 public:
  using Verbs::connect;
  using Verbs::next;
  using Verbs::post;
  using Verbs::qps;
  using Verbs::request;
  using Verbs::timeout;
  using Verbs::to_init;
  using Verbs::to_rts;
  void SetUp() override {
    Verbs::SetUp();
    mr = reg(memory, kBytes);
    ASSERT_NE(mr, nullptr);
  }
  void TearDown() override {
    for (ibv_qp* qp : qps) EXPECT_EQ(ibv_destroy_qp(qp), 0);
    qps.clear();
    for (ibv_srq* srq : srqs) EXPECT_EQ(ibv_destroy_srq(srq), 0);
    for (ibv_xrcd* domain : domains) EXPECT_EQ(ibv_close_xrcd(domain), 0);
    Verbs::TearDown();
    munmap(memory, kBytes);
  }
  void TestBody() override {}  // the child of a fork makes one of its own

  ibv_xrcd* open_domain(int fd, int flags = O_CREAT) {
    ibv_xrcd_init_attr attr{};
    attr.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    attr.fd = fd;
    attr.oflags = flags;
    ibv_xrcd* domain = ibv_open_xrcd(context, &attr);
    if (domain != nullptr) domains.push_back(domain);
    return domain;
  }

  /// A shared receive queue of the domain with one receive, at `offset`, whose request id is the same.
  uint32_t make_srq(ibv_xrcd* domain, size_t offset, uint32_t length = 64) {
    ibv_srq_init_attr_ex attr{};
    attr.attr = {16, 1, 0};
    attr.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
    attr.srq_type = IBV_SRQT_XRC;
    attr.pd = pd;
    attr.xrcd = domain;
    attr.cq = cq;
    ibv_srq* srq = ibv_create_srq_ex(context, &attr);
    EXPECT_NE(srq, nullptr);
    if (srq == nullptr) return 0;
    srqs.push_back(srq);
    ibv_sge sge{reinterpret_cast<uint64_t>(memory + offset), length, mr->lkey};
    ibv_recv_wr wr{}, *bad = nullptr;
    wr.wr_id = offset;
    wr.sg_list = &sge;
    wr.num_sge = 1;
    EXPECT_EQ(ibv_post_srq_recv(srq, &wr, &bad), 0);
    uint32_t number = 0;
    EXPECT_EQ(ibv_get_srq_num(srq, &number), 0);
    return number;
  }

  ibv_qp* make_target(ibv_xrcd* domain) {
    ibv_qp_init_attr_ex attr{};
    attr.qp_type = IBV_QPT_XRC_RECV;
    attr.comp_mask = IBV_QP_INIT_ATTR_XRCD;
    attr.xrcd = domain;
    return keep(ibv_create_qp_ex(context, &attr));
  }

  ibv_qp* make_initiator() {
    ibv_qp_init_attr attr = init(IBV_QPT_XRC_SEND);
    attr.recv_cq = nullptr;
    attr.cap.max_recv_wr = attr.cap.max_recv_sge = 0;
    return keep(ibv_create_qp(pd, &attr));
  }

  int send(ibv_qp* from, uint64_t wr_id, uint32_t srq_number, uint32_t length = 16) {
    ibv_sge sge{reinterpret_cast<uint64_t>(memory), length, mr->lkey};
    ibv_send_wr wr = request(IBV_WR_SEND, wr_id, &sge);
    wr.qp_type.xrc.remote_srqn = srq_number;
    return post(from, wr);
  }

  static constexpr size_t kBytes = 65536;
  /// Whole pages, which another process can map.
  char* memory = static_cast<char*>(mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ibv_mr* mr = nullptr;
  std::vector<ibv_srq*> srqs;
  std::vector<ibv_xrcd*> domains;
};

TEST_F(VerbsXrc, Messages_GoToTheSharedQueueThatTheyName) {
  ibv_xrcd* domain = open_domain(-1);
  ASSERT_NE(domain, nullptr);
  const uint32_t first = make_srq(domain, 1024), second = make_srq(domain, 2048);
  ibv_qp* target = make_target(domain);
  ibv_qp* initiator = make_initiator();
  connect(initiator, target);
  std::strcpy(memory, "for the second");
  ASSERT_EQ(send(initiator, 1, second), 0);
  for (int i = 0; i < 2; ++i) {
    const ibv_wc wc = next();
    ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
    EXPECT_TRUE(wc.wr_id == 1 || wc.wr_id == 2048);
  }
  EXPECT_STREQ(memory + 2048, "for the second");
  std::strcpy(memory, "for the first");
  ASSERT_EQ(send(initiator, 2, first), 0);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  EXPECT_STREQ(memory + 1024, "for the first");
}

TEST_F(VerbsXrc, QueueOfAnotherDomainIsRefused) {  // A14.5
  ibv_xrcd* domain = open_domain(-1);
  ibv_xrcd* other = open_domain(-1);
  ASSERT_NE(other, nullptr);
  const uint32_t number = make_srq(other, 1024);
  ibv_qp* target = make_target(domain);
  ibv_qp* initiator = make_initiator();
  connect(initiator, target);
  ASSERT_EQ(send(initiator, 1, number), 0);
  EXPECT_EQ(next().status, IBV_WC_REM_INV_REQ_ERR);
  EXPECT_TRUE(reaches(target, IBV_QPS_ERR));
}

/// Requests with an address name a queue, too.
TEST_F(VerbsXrc, AddressedRequest_QueueOfAnotherDomain_IsRefused) {  // A14.5
  ibv_xrcd* domain = open_domain(-1);
  ibv_xrcd* other = open_domain(-1);
  ASSERT_NE(other, nullptr);
  const uint32_t number = make_srq(other, 1024);
  for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD}) {
    ibv_qp* target = make_target(domain);
    ibv_qp* initiator = make_initiator();
    connect(initiator, target);
    ibv_sge sge{reinterpret_cast<uint64_t>(memory), 8, mr->lkey};
    std::memset(memory, 'x', 8);
    ibv_send_wr wr = request(opcode, 1, &sge);
    wr.qp_type.xrc.remote_srqn = number;
    if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD)
      wr.wr.atomic = {reinterpret_cast<uint64_t>(memory + 4096), 1, 0, mr->rkey};
    else
      wr.wr.rdma = {reinterpret_cast<uint64_t>(memory + 4096), mr->rkey};
    ASSERT_EQ(post(initiator, wr), 0);
    EXPECT_EQ(next().status, IBV_WC_REM_INV_REQ_ERR) << opcode;
    EXPECT_TRUE(reaches(target, IBV_QPS_ERR)) << opcode;
    EXPECT_EQ(next_event().event_type, IBV_EVENT_QP_REQ_ERR) << opcode;
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ(memory[4096 + i], 0) << opcode;
    EXPECT_EQ(memory[0], 'x') << opcode;
  }
}

TEST_F(VerbsXrc, AtomicNeedsTheTargetsRight) {  // 11.2.5.2
  ibv_xrcd* domain = open_domain(-1);
  ASSERT_NE(domain, nullptr);
  const uint32_t number = make_srq(domain, 1024);
  for (const bool allowed : {true, false}) {
    qp_access = IBV_ACCESS_REMOTE_WRITE | (allowed ? IBV_ACCESS_REMOTE_ATOMIC : 0);
    ibv_qp* target = make_target(domain);
    ibv_qp* initiator = make_initiator();
    connect(initiator, target);
    ibv_sge sge{reinterpret_cast<uint64_t>(memory), 8, mr->lkey};
    ibv_send_wr wr = request(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, &sge);
    wr.qp_type.xrc.remote_srqn = number;
    wr.wr.atomic = {reinterpret_cast<uint64_t>(memory + 4096), 1, 0, mr->rkey};
    ASSERT_EQ(post(initiator, wr), 0);
    EXPECT_EQ(next().status, allowed ? IBV_WC_SUCCESS : IBV_WC_REM_ACCESS_ERR);
    EXPECT_EQ(memory[4096], 1);
  }
}

TEST_F(VerbsXrc, LocalFaultStopsTheInitiator) {  // 10.3.1.4
  ibv_xrcd* domain = open_domain(-1);
  ASSERT_NE(domain, nullptr);
  const uint32_t number = make_srq(domain, 1024);
  ibv_qp* target = make_target(domain);
  ibv_qp* initiator = make_initiator();
  connect(initiator, target);
  ibv_sge sge{reinterpret_cast<uint64_t>(memory), 8, mr->lkey + 1};
  ibv_send_wr wr = request(IBV_WR_SEND, 1, &sge);
  wr.qp_type.xrc.remote_srqn = number;
  ASSERT_EQ(post(initiator, wr), 0);
  EXPECT_EQ(next().status, IBV_WC_LOC_PROT_ERR);
  EXPECT_EQ(state_of(initiator), IBV_QPS_ERR);
}

TEST_F(VerbsXrc, OpenDomain_SameFile_IsTheSameDomain) {  // manual ibv_open_xrcd
  const int fd = memfd_create("domain", MFD_CLOEXEC);
  ASSERT_GE(fd, 0);
  ASSERT_NE(open_domain(fd), nullptr);
  EXPECT_EQ(open_domain(fd, O_CREAT | O_EXCL), nullptr);
  EXPECT_EQ(errno, EEXIST);
  const int input = dup(0);
  ASSERT_EQ(dup2(fd, 0), 0);
  ibv_xrcd* same = open_domain(0);  // a descriptor as any other
  ASSERT_EQ(dup2(input, 0), 0);
  ASSERT_NE(same, nullptr);
  const uint32_t number = make_srq(same, 1024);
  ibv_qp* target = make_target(domains[0]);
  ibv_qp* initiator = make_initiator();
  connect(initiator, target);
  ASSERT_EQ(send(initiator, 1, number), 0);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(next().status, IBV_WC_SUCCESS);
  close(input);
  close(fd);
}

/// What parent and child tell each other.
struct Numbers {
  uint32_t target;  ///< the child's XRC_RECV queue pair
  uint32_t shared;  ///< the child's queue in the domain of the file
  uint32_t alone;   ///< its queue in a private domain
};

template <class Value>
bool give(int fd, const Value& value) {
  return write(fd, &value, sizeof value) == sizeof value;
}
template <class Value>
bool get(int fd, Value* value) {
  return read(fd, value, sizeof *value) == sizeof *value;
}

/// A child that has the target, and this process's queue pair that leads to it, in one domain.
class VerbsXrcProcesses : public ::testing::Test {
 protected:
  /// `serve`: what the child does once its target and its queues are there; whether it went well.
  void start(bool (*serve)(VerbsXrc& child, int in, int out)) {
    file = memfd_create("domain", 0);
    ASSERT_EQ(pipe(down), 0);
    ASSERT_EQ(pipe(up), 0);
    pid = fork();  // before either opens the device
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      alarm(20);
      _exit(run_child(serve) ? 0 : 1);
    }
    mine.SetUp();
    mine.timeout = 17;  // half a second: a busy machine leaves the child without a processor for long
    domain = mine.open_domain(file);
    ASSERT_NE(domain, nullptr);
    initiator = mine.make_initiator();
    ASSERT_EQ(mine.to_init(initiator), 0);
    ASSERT_TRUE(give(down[1], initiator->qp_num));
    ASSERT_TRUE(get(up[0], &numbers));
    ASSERT_EQ(mine.to_rts(initiator, numbers.target), 0);
  }

  void TearDown() override {
    EXPECT_TRUE(give(down[1], 'e'));
    int status = 0;
    EXPECT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    mine.TearDown();
    for (const int fd : {file, down[0], down[1], up[0], up[1]}) close(fd);
  }

  /// The completions of a request and of the receive that it fills, both good.
  void expect_both(uint64_t request, uint64_t receive) {
    for (int i = 0; i < 2; ++i) {
      const ibv_wc wc = mine.next();
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS) << ibv_wc_status_str(wc.status);
      EXPECT_TRUE(wc.wr_id == request || wc.wr_id == receive);
    }
  }

  VerbsXrc mine;
  ibv_xrcd* domain = nullptr;
  ibv_qp* initiator = nullptr;
  Numbers numbers{};
  int file = -1, down[2] = {}, up[2] = {};
  pid_t pid = -1;

 private:
  bool run_child(bool (*serve)(VerbsXrc& child, int in, int out)) {
    VerbsXrc own;
    own.SetUp();
    ibv_xrcd* shared = own.open_domain(file);
    ibv_qp* target = shared == nullptr ? nullptr : own.make_target(shared);
    uint32_t peer = 0;
    bool good =
        target != nullptr && own.to_init(target) == 0 && get(down[0], &peer) && own.to_rts(target, peer) == 0 &&
        give(up[1], Numbers{target->qp_num, own.make_srq(shared, 1024), own.make_srq(own.open_domain(-1), 2048)}) &&
        serve(own, down[0], up[1]);
    char end;
    good = get(down[0], &end) && good;  // the parent has seen all it wanted
    own.TearDown();
    return good && !::testing::Test::HasFailure();
  }
};

TEST_F(VerbsXrcProcesses, OpenDomain_SameFileInAnotherProcess_IsTheSameDomain) {
  start([](VerbsXrc& child, int, int out) {
    const ibv_wc wc = child.next();
    const bool good =
        wc.status == IBV_WC_SUCCESS && wc.wr_id == 1024 && std::strcmp(child.memory + 1024, "to the child") == 0;
    return give(out, good) && good;
  });
  const uint32_t own = mine.make_srq(domain, 3072);
  std::strcpy(mine.memory, "to the child");
  ASSERT_EQ(mine.send(initiator, 1, numbers.shared), 0);
  EXPECT_EQ(mine.next().status, IBV_WC_SUCCESS);
  bool received = false;
  EXPECT_TRUE(get(up[0], &received));
  EXPECT_TRUE(received);
  // A14.3: the queue pair of one process serves the shared receive queues of each process of the domain.
  std::strcpy(mine.memory, "to the parent");
  ASSERT_EQ(mine.send(initiator, 2, own), 0);
  expect_both(2, 3072);
  EXPECT_STREQ(mine.memory + 3072, "to the parent");
  ASSERT_EQ(mine.send(initiator, 3, numbers.alone), 0);  // a domain of its own
  EXPECT_EQ(mine.next().status, IBV_WC_REM_INV_REQ_ERR);
}

TEST_F(VerbsXrc, OpenDomain_FilesWithNeighbouringNumbers_AreTwoDomains) {
  // Three that follow each other: two of them differ in the last bit alone.
  int files[3];
  for (int& file : files) {
    file = memfd_create("domain", 0);
    ASSERT_GE(file, 0);
    EXPECT_NE(open_domain(file, O_CREAT | O_EXCL), nullptr) << std::strerror(errno);
  }
  for (const int file : files) close(file);
}

TEST_F(VerbsXrcProcesses, OpenExclusively_AnotherProcessHasTheDomain_IsRefused) {  // manual ibv_open_xrcd
  static int other_file;
  other_file = memfd_create("other domain", 0);
  start([](VerbsXrc& child, int, int out) {
    return give(out, child.open_domain(other_file, O_CREAT | O_EXCL) != nullptr);
  });
  bool opened = false;
  ASSERT_TRUE(get(up[0], &opened));
  EXPECT_TRUE(opened) << "as the first one";
  EXPECT_EQ(mine.open_domain(other_file, O_CREAT | O_EXCL), nullptr);
  EXPECT_EQ(errno, EEXIST);
  EXPECT_NE(mine.open_domain(other_file), nullptr);
  close(other_file);
}

TEST_F(VerbsXrcProcesses, Requests_OfEachKind_ReachAnotherProcess) {
  constexpr uint32_t kBytes = 20000;  // several packets
  constexpr size_t kHalf = 32768;
  start([](VerbsXrc&, int, int) { return true; });
  const uint32_t own = mine.make_srq(domain, kHalf, kBytes);
  for (uint32_t i = 0; i < kBytes; ++i) mine.memory[i] = static_cast<char>(i * 31);
  ASSERT_EQ(mine.send(initiator, 1, own, kBytes), 0);
  expect_both(1, kHalf);
  EXPECT_EQ(std::memcmp(mine.memory, mine.memory + kHalf, kBytes), 0);

  // The memory that a request names is of the process of the queue that it names (A14.5).
  ibv_sge sge{reinterpret_cast<uint64_t>(mine.memory), kBytes, mine.mr->lkey};
  const auto run = [&](ibv_wr_opcode opcode, uint64_t remote) {
    ibv_send_wr wr = mine.request(opcode, 2, &sge);
    wr.qp_type.xrc.remote_srqn = own;
    wr.wr.rdma.remote_addr = remote;
    wr.wr.rdma.rkey = mine.mr->rkey;
    EXPECT_EQ(mine.post(initiator, wr), 0);
    return mine.next().status;
  };
  const auto other_half = reinterpret_cast<uint64_t>(mine.memory + kHalf);
  for (uint32_t i = 0; i < kBytes; ++i) mine.memory[i] = static_cast<char>(i * 37);
  ASSERT_EQ(run(IBV_WR_RDMA_WRITE, other_half), IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(mine.memory, mine.memory + kHalf, kBytes), 0);
  std::memset(mine.memory, 0, kBytes);
  ASSERT_EQ(run(IBV_WR_RDMA_READ, other_half), IBV_WC_SUCCESS);
  EXPECT_EQ(std::memcmp(mine.memory, mine.memory + kHalf, kBytes), 0);
  sge.length = 8;
  const uint64_t old = 41;
  std::memcpy(mine.memory + kHalf, &old, 8);
  ibv_send_wr add = mine.request(IBV_WR_ATOMIC_FETCH_AND_ADD, 2, &sge);
  add.qp_type.xrc.remote_srqn = own;
  add.wr.atomic.remote_addr = other_half;
  add.wr.atomic.rkey = mine.mr->rkey;
  add.wr.atomic.compare_add = 1;
  ASSERT_EQ(mine.post(initiator, add), 0);
  ASSERT_EQ(mine.next().status, IBV_WC_SUCCESS);
  const uint64_t sum = old + 1;
  EXPECT_EQ(std::memcmp(mine.memory, &old, 8), 0);
  EXPECT_EQ(std::memcmp(mine.memory + kHalf, &sum, 8), 0);
  EXPECT_EQ(run(IBV_WR_RDMA_READ, other_half + kHalf), IBV_WC_REM_ACCESS_ERR);
}

TEST_F(VerbsXrcProcesses, AtomicOnMemoryThatItsOwnerReachesNeedsTheTargetsRight) {  // 11.2.5.2
  start([](VerbsXrc& child, int in, int out) {
    ibv_qp_attr attr{};
    attr.qp_state = IBV_QPS_RTS;
    attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
    char go;
    const bool good = get(in, &go) && ibv_modify_qp(child.qps.front(), &attr, IBV_QP_STATE | IBV_QP_ACCESS_FLAGS) == 0;
    return give(out, good) && good;
  });
  const uint32_t own = mine.make_srq(domain, 1024);
  // A shared mapping of the program stays as it is, and the target's process cannot map it: it asks this one.
  constexpr size_t kPage = 4096;
  auto* const word =
      static_cast<uint64_t*>(mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(word, MAP_FAILED);
  ibv_mr* const mr = ibv_reg_mr(mine.mr->pd, word, kPage, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
  ASSERT_NE(mr, nullptr);
  ibv_sge sge{reinterpret_cast<uint64_t>(mine.memory), sizeof *word, mine.mr->lkey};
  ibv_send_wr add = mine.request(IBV_WR_ATOMIC_FETCH_AND_ADD, 1, &sge);
  add.qp_type.xrc.remote_srqn = own;
  add.wr.atomic = {reinterpret_cast<uint64_t>(word), 1, 0, mr->rkey};
  ASSERT_EQ(mine.post(initiator, add), 0);
  EXPECT_EQ(mine.next().status, IBV_WC_SUCCESS);
  EXPECT_EQ(__atomic_load_n(word, __ATOMIC_SEQ_CST), 1u);

  bool taken_away = false;
  ASSERT_TRUE(give(down[1], 'g') && get(up[0], &taken_away) && taken_away);
  ASSERT_EQ(mine.post(initiator, add), 0);
  EXPECT_EQ(mine.next().status, IBV_WC_REM_ACCESS_ERR);
  EXPECT_EQ(__atomic_load_n(word, __ATOMIC_SEQ_CST), 1u);
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  munmap(word, kPage);
}

/// What the child tells of the memory that only it reaches.
struct Word {
  uint64_t address;
  uint32_t rkey;
};

/// Has a word in a shared mapping of its own, which no other process maps, and says in the end what is there.
bool own_a_word(VerbsXrc& child, int in, int out) {
  constexpr size_t kPage = 4096;
  auto* const word =
      static_cast<uint64_t*>(mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  if (word == MAP_FAILED) return false;
  ibv_mr* const own = ibv_reg_mr(child.mr->pd, word, kPage, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
  char go;
  const bool good = own != nullptr && give(out, Word{reinterpret_cast<uint64_t>(word), own->rkey}) && get(in, &go) &&
                    give(out, __atomic_load_n(word, __ATOMIC_SEQ_CST)) && get(in, &go);
  const bool gone = own != nullptr && ibv_dereg_mr(own) == 0;
  munmap(word, kPage);
  return good && gone;
}

/// The child owns the memory, and a target of this process serves requests to it.
class VerbsXrcStoppedOwner : public VerbsXrcProcesses {
 protected:
  static constexpr uint8_t kTimeToMeet = 20;  ///< 4.3 s for each try
  void stop_it(uint8_t timeout) {
    start(own_a_word);
    ASSERT_TRUE(get(up[0], &word));
    // The processes meet in the first request, which has the time for it.
    mine.timeout = kTimeToMeet;
    connect();
    add();
    ASSERT_EQ(mine.next().status, IBV_WC_SUCCESS);
    mine.timeout = timeout;
    connect();
    ASSERT_EQ(kill(pid, SIGSTOP), 0);
    ASSERT_EQ(waitpid(pid, nullptr, WUNTRACED), pid);
  }
  /// `from` is a new initiator, with a target of this process.
  void connect() {
    from = mine.make_initiator();
    mine.connect(from, mine.make_target(domain));
  }
  void add() {
    ibv_sge sge{reinterpret_cast<uint64_t>(mine.memory), 8, mine.mr->lkey};
    ibv_send_wr wr = mine.request(IBV_WR_ATOMIC_FETCH_AND_ADD, 77, &sge);
    wr.qp_type.xrc.remote_srqn = numbers.shared;
    wr.wr.atomic = {word.address, 1, 0, word.rkey};
    ASSERT_EQ(mine.post(from, wr), 0);
  }
  void TearDown() override {
    EXPECT_EQ(kill(pid, SIGCONT), 0);
    VerbsXrcProcesses::TearDown();
  }
  /// What is there when the child goes on.
  uint64_t go_on() {
    uint64_t value = ~uint64_t{0};
    EXPECT_EQ(kill(pid, SIGCONT), 0);
    EXPECT_TRUE(give(down[1], 'g'));
    EXPECT_TRUE(get(up[0], &value));
    EXPECT_TRUE(give(down[1], 'g'));
    return value;
  }
  Word word{};
  ibv_qp* from = nullptr;
};

TEST_F(VerbsXrcStoppedOwner, RequestToItsMemory_DelaysNoOtherQueuePair) {
  ASSERT_NO_FATAL_FAILURE(stop_it(kTimeToMeet));
  const uint32_t own = mine.make_srq(domain, 2048);
  ibv_qp* const other = mine.make_initiator();
  mine.connect(other, mine.make_target(domain));
  add();
  ASSERT_EQ(mine.send(other, 1, own), 0);
  expect_both(1, 2048);
  EXPECT_EQ(kill(pid, SIGCONT), 0);
  const ibv_wc wc = mine.next();
  EXPECT_EQ(wc.wr_id, 77u);
  EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
  EXPECT_EQ(go_on(), 2u) << "however often it was repeated";
}

TEST_F(VerbsXrcStoppedOwner, RequestToItsMemory_FailsAfterTheQueuePairsTimeout) {
  ASSERT_NO_FATAL_FAILURE(stop_it(8));
  add();
  const ibv_wc wc = mine.next();
  EXPECT_EQ(wc.wr_id, 77u);
  EXPECT_EQ(wc.status, IBV_WC_RETRY_EXC_ERR);
  go_on();
}

TEST_F(VerbsXrcProcesses, WriteInPlace_AfterACopiedWrite_LeavesTheEarlierMemory) {
  struct Target {
    uint64_t address;
    uint32_t rkey;
  };
  start([](VerbsXrc& child, int in, int out) {
    char end;
    return give(out, Target{reinterpret_cast<uint64_t>(child.memory), child.mr->rkey}) && get(in, &end) &&
           std::strcmp(child.memory, "second") == 0;
  });
  Target in_place{};
  ASSERT_TRUE(get(up[0], &in_place));
  const uint32_t own = mine.make_srq(domain, 1024);
  // A shared mapping of the program stays as it is, and the target's process cannot map it: it copies to it.
  constexpr size_t kPage = 4096;
  auto* const copied =
      static_cast<char*>(mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(copied, MAP_FAILED);
  ibv_mr* const mr = ibv_reg_mr(mine.mr->pd, copied, kPage, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
  ASSERT_NE(mr, nullptr);
  ibv_sge sge{reinterpret_cast<uint64_t>(mine.memory), 16, mine.mr->lkey};
  const auto write_to = [&](uint32_t queue, uint64_t to, uint32_t rkey) {
    ibv_send_wr wr = mine.request(IBV_WR_RDMA_WRITE, 1, &sge);
    wr.qp_type.xrc.remote_srqn = queue;
    wr.wr.rdma = {to, rkey};
    EXPECT_EQ(mine.post(initiator, wr), 0);
    return mine.next().status;
  };
  std::strcpy(mine.memory, "first");
  ASSERT_EQ(write_to(own, reinterpret_cast<uint64_t>(copied), mr->rkey), IBV_WC_SUCCESS);
  EXPECT_STREQ(copied, "first");
  std::strcpy(copied, "changed since");
  std::strcpy(mine.memory, "second");
  ASSERT_EQ(write_to(numbers.shared, in_place.address, in_place.rkey), IBV_WC_SUCCESS);
  EXPECT_STREQ(copied, "changed since");
  EXPECT_TRUE(give(down[1], 's'));
  EXPECT_EQ(ibv_dereg_mr(mr), 0);
  munmap(copied, kPage);
}

TEST_F(VerbsXrcProcesses, DestroyedSharedQueue_IsRefused) {
  start([](VerbsXrc&, int, int) { return true; });
  const uint32_t own = mine.make_srq(domain, 1024);
  ASSERT_EQ(mine.send(initiator, 1, own), 0);
  expect_both(1, 1024);
  ASSERT_EQ(ibv_destroy_srq(mine.srqs.back()), 0);
  mine.srqs.pop_back();
  ASSERT_EQ(mine.send(initiator, 2, own), 0);
  EXPECT_EQ(mine.next().status, IBV_WC_REM_INV_REQ_ERR);
}

}  // namespace
}  // namespace nupa::test
